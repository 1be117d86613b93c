//! A stand-in for a shoot's API server: TLS, a few of its paths, and a watch that never ends.
//!
//! Every answer carries the shoot's name, so a client can tell whose API server it has reached.
//!
//! | path | answer |
//! |---|---|
//! | `/version`, `/api`, `/apis` | JSON with a field `shoot`, and `peer`: the socket that asked |
//! | `/healthz`, `/livez`, `/readyz` | `ok` |
//! | any path with `watch=1` or `watch=true` | chunked, an event each 200 ms: `shoot`, `sequence` from 1 |
//! | `/big?bytes=N` | N octets |
//! | else | 404 |
//!
//! Connections are kept alive. It is no API server: it stores nothing and asks nobody who he is.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio_rustls::TlsAcceptor;

use crate::background::Background;
use crate::certs::{self, Identity};
use crate::request::{Request, TlsStream};

/// A running stand-in. Dropping it closes its connections and its port.
#[derive(Debug)]
pub struct ApiServer {
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

impl ApiServer {
    /// Serves for `shoot` on a socket that is bound already, in whatever namespace.
    ///
    /// # Errors
    /// When the identity cannot be used or no thread can be started.
    pub fn start(listener: TcpListener, shoot: &str, identity: &Identity) -> Result<Self> {
        let addr = listener
            .local_addr()
            .context("reading a socket's address")?;
        listener
            .set_nonblocking(true)
            .context("making a socket non-blocking")?;
        let acceptor = TlsAcceptor::from(certs::server_config(identity)?);
        let counts = Arc::new(Counts::default());
        let served = Service {
            shoot: Arc::from(shoot),
            counts: Arc::clone(&counts),
        };
        let thread = Background::spawn("api-server", move || async move {
            // `listener` is bound, so all that can fail here is the runtime's own descriptor.
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                accept(listener, acceptor, served).await;
            }
        })?;
        Ok(Self {
            addr,
            counts,
            _thread: thread,
        })
    }

    /// Binds a free port of `127.0.0.1` and serves there.
    ///
    /// # Errors
    /// As [`ApiServer::start`].
    pub fn on_loopback(shoot: &str, identity: &Identity) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("binding a port")?;
        Self::start(listener, shoot, identity)
    }

    /// Returns where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns how many connections were accepted so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    /// Returns how many connections are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Returns how many requests were answered, watches that still run among them.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Service {
    shoot: Arc<str>,
    counts: Arc<Counts>,
}

async fn accept(listener: tokio::net::TcpListener, acceptor: TlsAcceptor, service: Service) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of descriptors: let some close.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (acceptor, service) = (acceptor.clone(), service.clone());
        service.counts.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _open = Open::count(&service.counts);
            let _ = stream.set_nodelay(true);
            // A client that goes away is the test's affair, which sees its own end of it.
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = service.serve(stream, peer).await;
            }
        });
    }
}

impl Service {
    /// Answers one request after the other until the client has enough.
    async fn serve(&self, stream: TlsStream, peer: SocketAddr) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = Request::read(&mut stream).await? {
            self.counts.requests.fetch_add(1, Ordering::Relaxed);
            if request.is_watch() {
                self.watch(stream.get_mut()).await?;
            }
            self.answer(&mut stream, &request, peer).await?;
            if request.closes() {
                break;
            }
        }
        stream.get_mut().shutdown().await
    }

    async fn answer(
        &self,
        stream: &mut BufReader<TlsStream>,
        request: &Request,
        peer: SocketAddr,
    ) -> std::io::Result<()> {
        let json = |value: serde_json::Value| (200, "application/json", value.to_string());
        let shoot = &*self.shoot;
        let (status, kind, body) = match request.path() {
            "/version" => json(json!({
                "major": "1", "minor": "20", "gitVersion": "v1.20.2", "platform": "linux/amd64",
                "shoot": shoot, "peer": peer.to_string(),
            })),
            "/api" => json(json!({
                "kind": "APIVersions", "versions": ["v1"],
                "shoot": shoot, "peer": peer.to_string(),
            })),
            "/apis" => json(json!({
                "kind": "APIGroupList", "apiVersion": "v1", "groups": [],
                "shoot": shoot, "peer": peer.to_string(),
            })),
            "/healthz" | "/livez" | "/readyz" => (200, "text/plain", "ok".to_owned()),
            "/big" => return big(stream, request.number("bytes")).await,
            other => (
                404,
                "text/plain",
                format!("{shoot} has nothing at {other}\n"),
            ),
        };
        let head = head(status, kind, body.len() as u64, shoot);
        let stream = stream.get_mut();
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await
    }

    /// Sends an event each 200 ms until the client goes away.
    async fn watch(&self, stream: &mut TlsStream) -> std::io::Result<Infallible> {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nAudit-Id: {}\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            self.shoot
        );
        stream.write_all(head.as_bytes()).await?;
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        let mut sequence = 0_u64;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // A watch's client sends nothing more, so whatever is read is its end.
                _ = stream.read_u8() => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            }
            sequence += 1;
            let event = self.event(sequence);
            let chunk = format!("{:x}\r\n{event}\n\r\n", event.len() + 1);
            stream.write_all(chunk.as_bytes()).await?;
            stream.flush().await?;
        }
    }

    fn event(&self, sequence: u64) -> String {
        json!({
            "type": "MODIFIED",
            "shoot": &*self.shoot,
            "sequence": sequence,
            "object": {
                "kind": "Pod", "apiVersion": "v1",
                "metadata": {
                    "name": "pod-0", "namespace": "default",
                    "resourceVersion": sequence.to_string(),
                },
            },
        })
        .to_string()
    }
}

async fn big(stream: &mut BufReader<TlsStream>, bytes: u64) -> std::io::Result<()> {
    let stream = stream.get_mut();
    stream
        .write_all(head(200, "application/octet-stream", bytes, "").as_bytes())
        .await?;
    let chunk = vec![b'x'; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        stream.write_all(&chunk[..part]).await?;
        left -= part as u64;
    }
    stream.flush().await
}

fn head(status: u16, kind: &str, length: u64, shoot: &str) -> String {
    let phrase = if status == 200 { "OK" } else { "Not Found" };
    format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Audit-Id: {shoot}\r\n\r\n"
    )
}

/// Counts a connection for as long as it lives.
struct Open(Arc<Counts>);

impl Open {
    fn count(counts: &Arc<Counts>) -> Self {
        counts.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Time between two events of a watch.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Authority;
    use crate::http::{self, Connection, Target};
    use crate::wait;

    fn shoot() -> (ApiServer, Target) {
        let authority = Authority::new("unit").unwrap();
        let identity = authority.server(&["api.example.com", "127.0.0.1"]).unwrap();
        let server = ApiServer::on_loopback("shoot--foo--bar", &identity).unwrap();
        let target = Target::tls(server.addr(), authority.pem());
        (server, target)
    }

    #[test]
    fn requests_follow_each_other_on_one_connection() {
        let (server, target) = shoot();
        let mut conn = Connection::open(&target.server_name("api.example.com")).unwrap();
        let version = conn.get("/version").unwrap().json().unwrap();
        assert_eq!(version["shoot"], "shoot--foo--bar");
        assert_eq!(conn.get("/healthz").unwrap().text(), "ok");
        assert_eq!(
            conn.get("/big?bytes=1000000").unwrap().body.len(),
            1_000_000
        );
        assert_eq!(conn.get("/nothing").unwrap().status, 404);
        assert_eq!((server.accepted(), server.requests()), (1, 4));
        drop(conn);
        wait::until("the close", Duration::from_secs(20), || server.open() == 0).unwrap();
    }

    #[test]
    fn the_address_in_the_certificate_is_enough() {
        let (_server, target) = shoot();
        assert_eq!(http::get(&target, "/readyz").unwrap().status, 200);
    }

    #[test]
    fn a_watch_counts_from_one_without_gaps() {
        let (_server, target) = shoot();
        let mut watch = Connection::open(&target)
            .unwrap()
            .watch("/api/v1/pods?watch=1")
            .unwrap();
        for expected in 1..=3 {
            let event = watch.next_event().unwrap().unwrap();
            assert_eq!(event["sequence"], expected);
            assert_eq!(event["shoot"], "shoot--foo--bar");
        }
    }
}
