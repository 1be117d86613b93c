//! What requests end at: an API server in small, over TLS, by HTTP/2 and HTTP/1.1.
//!
//! ```text
//! /small   an object of 1 KiB         /list   10 MB of them         /watch   an event now, and each when told
//! ```
//!
//! It answers only what comes over a connection with the front proxy's certificate, for [`USER`].

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use testkit::background::{self, Background};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;

use crate::backend::{self, CHUNK};

/// Whom the front proxy names for the load's certificate.
pub(crate) const USER: &str = "system:node:bench";
pub(crate) const SMALL: &str = "/small";
pub(crate) const LIST: &str = "/list";
pub(crate) const WATCH: &str = "/watch";
pub(crate) const LIST_BYTES: usize = 10_000_000;

/// A running server. Dropping it closes its connections and its port.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    _thread: Background,
}

#[derive(Debug, Default)]
struct Shared {
    requests: AtomicU64,
    watches: Mutex<Vec<UnboundedSender<Bytes>>>,
}

impl Server {
    pub(crate) fn start(address: SocketAddr, tls: Arc<ServerConfig>) -> Result<Self> {
        let what = || format!("listening on {address}");
        let listener: TcpListener = backend::listen(address).with_context(what)?;
        let address = listener.local_addr().with_context(what)?;
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = Background::spawn("api-server", move || {
            background::accept(listener, move |stream, _| {
                let (acceptor, shared) = (TlsAcceptor::from(Arc::clone(&tls)), Arc::clone(&own));
                // A client that goes away ends its connection and no more.
                async move { drop(serve(stream, acceptor, shared).await) }
            })
        })?;
        Ok(Self {
            address,
            shared,
            _thread: thread,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many requests it has answered.
    pub(crate) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Sends an event to all watches, and returns how many there are.
    pub(crate) fn event(&self) -> usize {
        let mut watches = self.shared.watches();
        watches.retain(|watch| watch.send(object()).is_ok());
        watches.len()
    }
}

impl Shared {
    fn watches(&self) -> std::sync::MutexGuard<'_, Vec<UnboundedSender<Bytes>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request<Incoming>, mutual: bool) -> Response<Answer> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut users = request.headers().get_all("x-remote-user").iter();
        let named = users.next().is_some_and(|user| user == USER) && users.next().is_none();
        let (status, body) = match request.uri().path() {
            _ if !(mutual && named) => (StatusCode::FORBIDDEN, Answer::Whole(Bytes::new())),
            SMALL => (StatusCode::OK, Answer::Whole(object())),
            LIST => (StatusCode::OK, Answer::List(LIST_BYTES)),
            WATCH => {
                let (sender, receiver) = unbounded_channel();
                // It is a watch that begins with an event.
                let _ = sender.send(object());
                self.watches().push(sender);
                (StatusCode::OK, Answer::Watch(receiver))
            }
            _ => (StatusCode::NOT_FOUND, Answer::Whole(Bytes::new())),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, "application/json"),
            (header::CACHE_CONTROL, "no-cache, private"),
            (AUDIT_ID, "2f4e1f6e-4a0f-4a5c-9c55-0b1f6f2a9d11"),
            (FLOW_SCHEMA, "d1f9a2c4-7f16-4dfb-8f25-3f8a3f8f3a55"),
            (PRIORITY, "6f8b8d0c-2f6e-4a86-a7a3-9c8d1f6b7e21"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) -> Result<()> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let session = stream.get_ref().1;
    let mutual = session.peer_certificates().is_some();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| {
        let response = shared.answer(&request, mutual);
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let io = TokioIo::new(stream);
    if http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // As many as kube-apiserver permits.
        builder.max_concurrent_streams(250);
        builder.serve_connection(io, service).await?;
    } else {
        http1::Builder::new().serve_connection(io, service).await?;
    }
    Ok(())
}

enum Answer {
    Whole(Bytes),
    /// So many bytes are left of it.
    List(usize),
    Watch(UnboundedReceiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then_some(bytes))
            }
            Self::List(left) => {
                let bytes = Bytes::from_static(&CHUNK[..CHUNK.len().min(*left)]);
                *left -= bytes.len();
                Poll::Ready((!bytes.is_empty()).then_some(bytes))
            }
            Self::Watch(events) => events.poll_recv(cx),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::List(left) => *left == 0,
            Self::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::List(left) => SizeHint::with_exact(*left as u64),
            Self::Watch(_) => SizeHint::default(),
        }
    }
}

fn object() -> Bytes {
    Bytes::from_static(&CHUNK[..OBJECT_BYTES])
}

/// As large as a Lease or an event of a small object.
const OBJECT_BYTES: usize = 1024;
const AUDIT_ID: header::HeaderName = header::HeaderName::from_static("audit-id");
const FLOW_SCHEMA: header::HeaderName =
    header::HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY: header::HeaderName =
    header::HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
