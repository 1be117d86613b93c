//! A server behind a terminating route that records every request to the byte, and a gateway in front of it.
//!
//! | path | answer |
//! |---|---|
//! | `/stream/FRAME/BYTES` | BYTES bytes in pieces of FRAME |
//! | `/hang` | nothing, until the request is given up |
//! | `/events` | one piece, and then nothing |
//! | `/cut` | one piece, and then RST_STREAM with NO_ERROR |
//! | `/bad` | 400 |
//! | `/unauthorized` | 401, and the connection takes no further request |
//! | `/switch` | 101, then what the client sends, as it is |
//! | else | `ok`, when the body has ended |

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use testkit::certs::{self, Authority};
use testkit::tempdir::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::frames::{ACK, DATA, GOAWAY, SETTINGS, WINDOW_UPDATE, encode};
use super::{NAME, World};
use crate::support::LIMIT;

#[derive(Debug, Default)]
pub(super) struct Recorder {
    seen: Mutex<Vec<Seen>>,
    /// Connections that were accepted.
    pub(super) connections: AtomicUsize,
    /// The next connection ends after as many bytes of a body, and has processed nothing.
    pub(super) go_away_after: AtomicUsize,
    /// What it says of why: a code of HTTP/2.
    pub(super) go_away_code: AtomicU32,
    /// Streams that a further connection permits; 0 for what hyper does.
    pub(super) max_streams: AtomicU32,
    /// Connections take no further request when they are notified.
    pub(super) leaving: Notify,
    /// Requests whose answer has not ended.
    pub(super) active: Arc<AtomicUsize>,
}

/// A request, with its `X-Remote-*` and `X-Forwarded-For` apart from the other headers, which are sorted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Seen {
    /// Method and target.
    pub(super) line: String,
    pub(super) headers: Vec<String>,
    pub(super) body: String,
    pub(super) trailers: Vec<String>,
    pub(super) identity: Vec<String>,
    pub(super) mutual: bool,
    pub(super) version: Option<Version>,
}

impl Recorder {
    /// Starts a gateway whose route leads here.
    pub(super) fn start(alpn: &'static [&'static str]) -> (World, Arc<Self>) {
        Self::start_with(alpn, |_| {})
    }

    /// The same after `prepare` has changed the directory.
    pub(super) fn start_with(
        alpn: &'static [&'static str],
        prepare: impl FnOnce(&TempDir),
    ) -> (World, Arc<Self>) {
        let recorder = Arc::<Self>::default();
        let own = Arc::clone(&recorder);
        let world = World::with(|dir| {
            let address = own.listen_in(dir, "cluster.crt", alpn);
            let routes = std::fs::read_to_string(dir.join("routes.yaml")).unwrap();
            let (before, rest) = routes.split_once("endpoints: [").unwrap();
            let (_, after) = rest.split_once(']').unwrap();
            let endpoints = format!("endpoints: [{{ address: \"{address}\" }}]");
            dir.write("routes.yaml", format!("{before}{endpoints}{after}"))
                .unwrap();
            prepare(dir);
        });
        (world, recorder)
    }

    /// Listens, with a certificate of an authority that it writes into `dir`.
    pub(super) fn listen_in(
        self: Arc<Self>,
        dir: &TempDir,
        authority: &str,
        alpn: &[&str],
    ) -> std::net::SocketAddr {
        let own = Authority::new("recorder").unwrap();
        own.write(&dir.join(authority)).unwrap();
        let front = std::fs::read_to_string(dir.join("front-ca.crt")).unwrap();
        let identity = own.server(&["kubernetes.test", NAME]).unwrap();
        let tls = certs::optional_server_config(&identity, &front, alpn).unwrap();
        self.listen(TlsAcceptor::from(tls))
    }

    /// Returns what was recorded since this was called last.
    pub(super) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen())
    }

    /// Waits for a request, and returns what was recorded since something was returned last.
    pub(super) async fn wait_taken(&self) -> Vec<Seen> {
        let taken = async {
            loop {
                let taken = self.take();
                if !taken.is_empty() {
                    return taken;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, taken).await.expect("a request")
    }

    /// Waits until this many answers have not ended.
    pub(super) async fn wait_active(&self, wanted: usize) {
        let active = || self.active.load(Ordering::Relaxed);
        let reached = async {
            while active() != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = timeout(LIMIT, reached).await;
        assert!(reached.is_ok(), "{} of {wanted}", active());
    }

    /// Waits until this many connections were accepted.
    pub(super) async fn wait_connections(&self, wanted: usize) {
        let reached = async {
            while self.connections.load(Ordering::Relaxed) < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, reached).await.expect("a connection");
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap()
    }

    fn listen(self: Arc<Self>, acceptor: TlsAcceptor) -> std::net::SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    let (own, acceptor) = (Arc::clone(&self), acceptor.clone());
                    tokio::task::spawn_local(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            own.connections.fetch_add(1, Ordering::Relaxed);
                            own.serve(stream).await;
                        }
                    });
                }
            });
        });
        address
    }

    async fn serve(self: Arc<Self>, stream: TlsStream<TcpStream>) {
        let bytes = self.go_away_after.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            let code = self.go_away_code.load(Ordering::Relaxed);
            let _ = go_away(stream, bytes, code).await;
            return;
        }
        let session = stream.get_ref().1;
        let mutual = session.peer_certificates().is_some();
        let http2 = session.alpn_protocol() == Some(b"h2");
        let unauthorized = Rc::new(Notify::new());
        let service = service_fn(|request: Request<Incoming>| {
            if request.uri().path() == "/unauthorized" {
                unauthorized.notify_one();
            }
            let own = Arc::clone(&self);
            async move { Ok::<_, Infallible>(own.answer(mutual, request).await) }
        });
        let io = TokioIo::new(stream);
        // The gateway may end first.
        if http2 {
            let mut builder = hyper::server::conn::http2::Builder::new(crate::support::Local);
            if let streams @ 1.. = self.max_streams.load(Ordering::Relaxed) {
                builder.max_concurrent_streams(streams);
            }
            let mut connection = pin!(builder.serve_connection(io, service));
            tokio::select! {
                _ = connection.as_mut() => return,
                () = unauthorized.notified() => {}
                () = self.leaving.notified() => {}
            }
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        } else {
            let builder = hyper::server::conn::http1::Builder::new();
            let connection = builder.serve_connection(io, service);
            let _ = connection.with_upgrades().await;
        }
    }

    async fn answer(&self, mutual: bool, mut request: Request<Incoming>) -> Response<Pieces> {
        let active = Active::new(&self.active);
        let path = request.uri().path().to_owned();
        let upgrade = hyper::upgrade::on(&mut request);
        let (head, body) = request.into_parts();
        let mut seen = Seen::new(&head, mutual);
        let mut words = path.trim_start_matches('/').split('/');
        let mut number = || words.next().unwrap_or_default().parse().unwrap_or(0);
        let answered = match path.as_str() {
            "/hang" => {
                self.seen().push(seen);
                return std::future::pending().await;
            }
            "/events" => Pieces::new("event", None, active),
            "/cut" => Pieces {
                cut_after: Some(FLUSHED),
                ..Pieces::new("event", None, active)
            },
            "/unauthorized" => {
                self.seen().push(seen);
                let mut response = Response::new(Pieces::new("", Some(0), active));
                *response.status_mut() = StatusCode::UNAUTHORIZED;
                return response;
            }
            "/bad" => {
                let mut response = Response::new(Pieces::new("", Some(0), active));
                *response.status_mut() = StatusCode::BAD_REQUEST;
                return response;
            }
            "/switch" => {
                self.seen().push(seen);
                tokio::task::spawn_local(echo(upgrade));
                let mut response = Response::new(Pieces::new("", Some(0), active));
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                let headers = response.headers_mut();
                headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                let protocol = head.headers.get(header::UPGRADE).cloned();
                headers.insert(header::UPGRADE, protocol.unwrap());
                return response;
            }
            path if path.starts_with("/stream/") => {
                let _ = number();
                let (frame, bytes) = (number(), number());
                Pieces::new(&"x".repeat(frame), Some(bytes), active)
            }
            _ => {
                let Ok(body) = body.collect().await else {
                    seen.body = "broken off".to_owned();
                    self.seen().push(seen);
                    return Response::new(Pieces::new("", Some(0), active));
                };
                seen.trailers = body.trailers().map(sorted).unwrap_or_default();
                seen.body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                Pieces::new("ok", Some(2), active)
            }
        };
        self.seen().push(seen);
        Response::new(answered)
    }
}

impl Seen {
    fn new(head: &http::request::Parts, mutual: bool) -> Self {
        let all = sorted(&head.headers);
        let is_identity = |line: &String| {
            let line = line.replace('_', "-");
            line.starts_with("x-remote") || line.starts_with("x-forwarded")
        };
        let (identity, headers) = all.into_iter().partition(is_identity);
        Self {
            line: format!("{} {}", head.method, head.uri),
            headers,
            identity,
            mutual,
            version: Some(head.version),
            ..Self::default()
        }
    }
}

fn sorted(headers: &HeaderMap) -> Vec<String> {
    let line = |(name, value): (&header::HeaderName, &HeaderValue)| {
        format!("{name}: {}", value.as_bytes().escape_ascii())
    };
    let mut all: Vec<String> = headers.iter().map(line).collect();
    all.sort_unstable();
    all
}

/// Reads a request, and says that none was begun with (RFC 9113 section 6.8).
async fn go_away(mut stream: TlsStream<TcpStream>, bytes: usize, code: u32) -> std::io::Result<()> {
    stream.write_all(&encode(SETTINGS, 0, 0, &[])).await?;
    stream.read_exact(&mut [0; 24]).await?;
    let mut read = 0;
    while read < bytes {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await?;
        match kind {
            SETTINGS if flags == 0 => stream.write_all(&encode(SETTINGS, ACK, 0, &[])).await?,
            DATA => {
                read += payload.len();
                for id in [0, 1] {
                    let more = encode(WINDOW_UPDATE, 0, id, &0xffff_u32.to_be_bytes());
                    stream.write_all(&more).await?;
                }
            }
            _ => {}
        }
        stream.flush().await?;
    }
    let last_and_code = [[0; 4], code.to_be_bytes()].concat();
    let frame = encode(GOAWAY, 0, 0, &last_and_code);
    stream.write_all(&frame).await?;
    stream.shutdown().await
}

async fn echo(upgrade: hyper::upgrade::OnUpgrade) {
    let Ok(upgraded) = upgrade.await else { return };
    let mut upgraded = TokioIo::new(upgraded);
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = upgraded.read(&mut bytes).await {
        if upgraded.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
    let _ = upgraded.shutdown().await;
}

#[derive(Debug)]
struct Active(Arc<AtomicUsize>);

impl Active {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body of equal pieces, which ends after as many bytes, or never.
struct Pieces {
    piece: Bytes,
    left: Option<usize>,
    sent: bool,
    /// Reset, when it was asked for more this often.
    cut_after: Option<u32>,
    _active: Active,
}

/// So often a task waits, at least, until what it sent has left.
const FLUSHED: u32 = 100;

impl Pieces {
    fn new(piece: &str, left: Option<usize>, active: Active) -> Self {
        Self {
            piece: Bytes::copy_from_slice(piece.as_bytes()),
            left,
            sent: false,
            cut_after: None,
            _active: active,
        }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match self.left {
            Some(0) => Poll::Ready(None),
            None if self.sent => match &mut self.cut_after {
                None => Poll::Pending,
                Some(0) => Poll::Ready(Some(Err(h2::Reason::NO_ERROR.into()))),
                Some(left) => {
                    *left -= 1;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            },
            left => {
                let len = left.map_or(self.piece.len(), |left| left.min(self.piece.len()));
                (self.left, self.sent) = (left.map(|left| left - len), true);
                Poll::Ready(Some(Ok(Frame::data(self.piece.slice(..len)))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::new, |left| SizeHint::with_exact(left as u64))
    }
}
