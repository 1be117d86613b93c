//! The HTTPS server of the stand-ins: hyper on a thread of its own, and what it has counted.
//!
//! ```text
//!   socket ─▶ TLS ─▶ hyper ─▶ answer(request, peer) ─▶ response: at once, or in pieces from a task
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::background::{self, Background};
use crate::certs::{self, Identity};

pub(crate) type Request = http::Request<Incoming>;
pub(crate) type Response = http::Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A running server. Dropping it closes its connections and its port.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    counts: Arc<Counts>,
    _thread: Background,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
    requests: AtomicUsize,
}

impl Server {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Returns how many requests were answered, watches that still run among them.
    pub fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::Relaxed)
    }

    /// Serves on a socket that is bound already, in any namespace.
    pub(crate) fn start<F, A>(
        name: &str,
        listener: TcpListener,
        identity: &Identity,
        answer: F,
    ) -> Result<Self>
    where
        F: Fn(Request, SocketAddr) -> A + Clone + Send + 'static,
        A: Future<Output = Response> + Send + 'static,
    {
        Self::start_with(name, listener, certs::server_config(identity)?, answer)
    }

    /// Serves with these settings, by HTTP/2 where they offer it and the client wants it.
    pub(crate) fn start_with<F, A>(
        name: &str,
        listener: TcpListener,
        tls: Arc<ServerConfig>,
        answer: F,
    ) -> Result<Self>
    where
        F: Fn(Request, SocketAddr) -> A + Clone + Send + 'static,
        A: Future<Output = Response> + Send + 'static,
    {
        let addr = listener.local_addr().context("reading an address")?;
        let acceptor = TlsAcceptor::from(tls);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        let thread = Background::spawn(name, move || {
            background::accept(listener, move |stream, peer| {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                let (acceptor, open) = (acceptor.clone(), Open::count(&shared));
                serve(stream, peer, acceptor, open, answer.clone())
            })
        })?;
        Ok(Self {
            addr,
            counts,
            _thread: thread,
        })
    }
}

async fn serve<A: Future<Output = Response> + Send + 'static>(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    open: Arc<Open>,
    answer: impl Fn(Request, SocketAddr) -> A,
) {
    let _ = stream.set_nodelay(true);
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(move |mut request: Request| {
        open.0.requests.fetch_add(1, Ordering::Relaxed);
        // A connection that is upgraded is open for as long as its request.
        request.extensions_mut().insert(Arc::clone(&open));
        let answered = answer(request, peer);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    // A client that goes away is the test's affair, which sees its own end of it.
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let builder = http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(stream), service)
            .await;
        return;
    }
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let _ = connection.with_upgrades().await;
}

pub(crate) fn whole(status: u16, kind: &str, body: impl Into<Bytes>) -> Response {
    response(status, kind, Full::new(body.into()).boxed_unsync())
}

/// Makes a response whose body comes in pieces, of `length` bytes in all if that is known: `write`
/// runs as a task of its own, and ends when the client has gone.
pub(crate) fn pieces<W, T>(kind: &str, length: Option<u64>, write: W) -> Response
where
    W: FnOnce(Pieces) -> T,
    T: Future<Output = Option<()>> + Send + 'static,
{
    let (sender, body) = Channel::new(1);
    tokio::spawn(write(Pieces(sender)));
    let mut response = response(200, kind, body.boxed_unsync());
    if let Some(length) = length {
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_LENGTH, length.into());
    }
    response
}

pub(crate) fn big(length: u64) -> Response {
    let kind = "application/octet-stream";
    pieces(kind, Some(length), move |mut pieces| async move {
        let mut at = 0;
        while at < length {
            let end = length.min(at + CHUNK);
            let mut chunk: Vec<u8> = (at..end).step_by(8).flat_map(word).collect();
            chunk.truncate(usize::try_from(end - at).unwrap_or(usize::MAX));
            pieces.send(chunk).await?;
            at = end;
        }
        Some(())
    })
}

/// Returns the body of `/big`: bytes that differ from place to place, so that a piece which is
/// lost, doubled or moved is seen.
pub fn pattern(bytes: usize) -> Vec<u8> {
    let mut body: Vec<u8> = (0..bytes as u64).step_by(8).flat_map(word).collect();
    body.truncate(bytes);
    body
}

/// The eight bytes at offset `at`, all of them ASCII: a multiplication by an odd number spreads its
/// low bits.
fn word(at: u64) -> [u8; 8] {
    let spread = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    spread.to_be_bytes().map(|byte| byte & 0x7f)
}

pub(crate) struct Pieces(Sender<Bytes, Infallible>);

impl Pieces {
    /// Sends a piece; `None` when the client has gone.
    pub(crate) async fn send(&mut self, piece: impl Into<Bytes>) -> Option<()> {
        self.0.send_data(piece.into()).await.ok()
    }
}

fn response(status: u16, kind: &str, body: UnsyncBoxBody<Bytes, Infallible>) -> Response {
    let mut response = http::Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    if let Ok(kind) = kind.parse() {
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, kind);
    }
    response
}

/// Returns a parameter of the query; empty when it is absent.
pub(crate) fn parameter<'a>(request: &'a Request, name: &str) -> &'a str {
    let query = request.uri().query().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let found = pairs.find_map(|(key, value)| (key == name).then_some(value));
    found.unwrap_or_default()
}

/// Returns a number from the query, 0 when it is absent or none.
pub(crate) fn number(request: &Request, name: &str) -> u64 {
    parameter(request, name).parse().unwrap_or_default()
}

/// A multiple of eight, so that each chunk of a pattern begins with a whole word.
const CHUNK: u64 = 64 * 1024;

/// Counts a connection for as long as it lives.
struct Open(Arc<Counts>);

impl Open {
    fn count(counts: &Arc<Counts>) -> Arc<Self> {
        counts.open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self(Arc::clone(counts)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
