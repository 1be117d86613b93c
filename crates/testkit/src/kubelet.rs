//! A stand-in for a kubelet: TLS, and answers by which a proxied connection is judged.
//!
//! ```text
//!   client ─▶ API server, /api/v1/nodes/NODE/proxy/PATH ─▶ … ─▶ Kubelet
//! ```
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | `ok` |
//! | `/metrics` | a few lines of text |
//! | `/big?bytes=N` | [`pattern`] of N octets |
//! | `/logs?lines=N&every=MS` | N lines in chunks, MS milliseconds between them |
//! | `/events` | JSON lines, the first at once, one more for each [`Kubelet::release`], no end |
//! | `/hang` | nothing, ever |
//! | `/echo` | the body that was sent |
//! | any path with a header `Upgrade` | 101, then whatever the client sends |
//! | else | 404 |
//!
//! Every answer ends its connection, so that one request is one connection. It runs nothing and asks
//! nobody who he is.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::background::Background;
use crate::certs::{self, Identity};
use crate::request::{Request, TlsStream};

/// A running stand-in. Dropping it closes its connections and its port.
#[derive(Debug)]
pub struct Kubelet {
    addr: SocketAddr,
    shared: Arc<Shared>,
    _thread: Background,
}

#[derive(Debug)]
struct Shared {
    node: String,
    accepted: AtomicUsize,
    open: AtomicUsize,
    events: watch::Sender<u64>,
}

impl Kubelet {
    /// Serves for `node` on a socket that is bound already, in whatever namespace.
    ///
    /// # Errors
    /// When the identity cannot be used or no thread can be started.
    pub fn start(listener: TcpListener, node: &str, identity: &Identity) -> Result<Self> {
        let addr = listener
            .local_addr()
            .context("reading a socket's address")?;
        listener
            .set_nonblocking(true)
            .context("making a socket non-blocking")?;
        let acceptor = TlsAcceptor::from(certs::server_config(identity)?);
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            events: watch::Sender::new(1),
        });
        let served = Arc::clone(&shared);
        let thread = Background::spawn("kubelet", move || async move {
            // `listener` is bound, so all that can fail here is the runtime's own descriptor.
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                accept(listener, acceptor, served).await;
            }
        })?;
        Ok(Self {
            addr,
            shared,
            _thread: thread,
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns how many connections were accepted so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Returns how many connections are open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Lets everybody who reads `/events` have one more.
    pub fn release(&self) {
        self.shared.events.send_modify(|events| *events += 1);
    }
}

/// Returns the body of `/big`: octets that differ from place to place, so that a piece which is
/// lost, doubled or moved is seen.
#[must_use]
pub fn pattern(bytes: usize) -> Vec<u8> {
    let mut octets = Vec::with_capacity(bytes + 8);
    let mut at = 0_u64;
    while octets.len() < bytes {
        octets.extend(word(at));
        at += 8;
    }
    octets.truncate(bytes);
    octets
}

/// The eight octets at offset `at`: a multiplication by an odd number spreads its low bits.
fn word(at: u64) -> [u8; 8] {
    at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

async fn accept(listener: tokio::net::TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: let some close.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _open = Open::count(&shared);
            let _ = stream.set_nodelay(true);
            // A client that goes away is the test's affair, which sees its own end of it.
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = serve(stream, &shared).await;
            }
        });
    }
}

async fn serve(stream: TlsStream, shared: &Shared) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let Some(request) = Request::read(&mut stream).await? else {
        return Ok(());
    };
    if let Some(protocol) = request.header("upgrade") {
        return upgrade(&mut stream, protocol).await;
    }
    let out = stream.get_mut();
    match request.path() {
        "/healthz" => answer(out, "text/plain", b"ok").await?,
        "/metrics" => {
            let text = format!("kubelet_node_name{{node=\"{}\"}} 1\n", shared.node);
            answer(out, "text/plain; version=0.0.4", text.as_bytes()).await?;
        }
        "/echo" => answer(out, "application/octet-stream", request.body()).await?,
        "/big" => big(out, request.number("bytes")).await?,
        "/logs" => logs(out, request.number("lines"), request.number("every")).await?,
        "/events" => return events(&mut stream, shared).await,
        "/hang" => return until_gone(&mut stream).await,
        other => {
            let text = format!(
                "{} has nothing at {} {other}\n",
                shared.node,
                request.method()
            );
            let head = head("404 Not Found", "text/plain", text.len() as u64);
            out.write_all(format!("{head}{text}").as_bytes()).await?;
        }
    }
    stream.get_mut().shutdown().await
}

async fn answer(out: &mut TlsStream, kind: &str, body: &[u8]) -> io::Result<()> {
    let head = head("200 OK", kind, body.len() as u64);
    out.write_all(head.as_bytes()).await?;
    out.write_all(body).await
}

async fn big(out: &mut TlsStream, bytes: u64) -> io::Result<()> {
    let head = head("200 OK", "application/octet-stream", bytes);
    out.write_all(head.as_bytes()).await?;
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + CHUNK);
        let mut chunk: Vec<u8> = (at..end).step_by(8).flat_map(word).collect();
        chunk.truncate(usize::try_from(end - at).unwrap_or(usize::MAX));
        out.write_all(&chunk).await?;
        at = end;
    }
    Ok(())
}

async fn logs(out: &mut TlsStream, lines: u64, every: u64) -> io::Result<()> {
    out.write_all(chunked("text/plain").as_bytes()).await?;
    for line in 1..=lines {
        if line > 1 {
            tokio::time::sleep(Duration::from_millis(every)).await;
        }
        chunk(out, &format!("line {line}\n")).await?;
    }
    out.write_all(b"0\r\n\r\n").await
}

async fn events(stream: &mut BufReader<TlsStream>, shared: &Shared) -> io::Result<()> {
    let head = chunked("application/json");
    stream.get_mut().write_all(head.as_bytes()).await?;
    let mut allowed = shared.events.subscribe();
    let mut sequence = 0;
    loop {
        while sequence < *allowed.borrow_and_update() {
            sequence += 1;
            let event = json!({ "sequence": sequence, "node": shared.node });
            chunk(stream.get_mut(), &format!("{event}\n")).await?;
        }
        tokio::select! {
            changed = allowed.changed() => changed.map_err(io::Error::other)?,
            gone = until_gone(stream) => return gone,
        }
    }
}

/// Waits until the client has closed, or says what it should not.
async fn until_gone(stream: &mut BufReader<TlsStream>) -> io::Result<()> {
    stream.read_u8().await.map(drop)
}

async fn upgrade(stream: &mut BufReader<TlsStream>, protocol: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    );
    stream.get_mut().write_all(head.as_bytes()).await?;
    stream.get_mut().flush().await?;
    let mut buf = [0; 4096];
    loop {
        let read = stream.read(&mut buf).await?;
        if read == 0 {
            return stream.get_mut().shutdown().await;
        }
        stream.get_mut().write_all(&buf[..read]).await?;
        stream.get_mut().flush().await?;
    }
}

async fn chunk(out: &mut TlsStream, text: &str) -> io::Result<()> {
    let chunk = format!("{:x}\r\n{text}\r\n", text.len());
    out.write_all(chunk.as_bytes()).await?;
    out.flush().await
}

fn head(status: &str, kind: &str, length: u64) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )
}

fn chunked(kind: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\
         Connection: close\r\n\r\n"
    )
}

/// Counts a connection for as long as it lives.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    fn count(shared: &'a Shared) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A multiple of eight, so that each chunk begins with a whole word.
const CHUNK: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certs::Authority;
    use crate::http::{self, Connection, Target};
    use crate::wait;

    fn node() -> (Kubelet, Target) {
        let authority = Authority::new("unit").unwrap();
        let identity = authority.server(&["127.0.0.1"]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kubelet = Kubelet::start(listener, "node-0", &identity).unwrap();
        let target = Target::tls(kubelet.addr(), authority.pem());
        (kubelet, target)
    }

    #[test]
    fn a_body_is_as_long_as_asked_and_as_told() {
        let (kubelet, target) = node();
        for bytes in [0, 1, 13, 65_536, 200_003] {
            let answer = http::get(&target, &format!("/big?bytes={bytes}")).unwrap();
            assert!(answer.body == pattern(bytes), "{bytes}");
        }
        let limit = Duration::from_secs(20);
        wait::until("the close", limit, || kubelet.open() == 0).unwrap();
        assert_eq!(kubelet.accepted(), 5);
    }

    #[test]
    fn an_event_waits_until_it_is_released() {
        let (kubelet, target) = node();
        let mut watch = Connection::open(&target).unwrap().watch("/events").unwrap();
        assert_eq!(watch.next_event().unwrap().unwrap()["sequence"], 1);
        kubelet.release();
        assert_eq!(watch.next_event().unwrap().unwrap()["sequence"], 2);
    }

    #[test]
    fn what_is_posted_comes_back() {
        let (_kubelet, target) = node();
        let mut connection = Connection::open(&target).unwrap();
        let answer = connection.request("POST", "/echo", Some("{}")).unwrap();
        assert_eq!(answer.text(), "{}");
        assert_eq!(http::get(&target, "/nothing").unwrap().status, 404);
        assert_eq!(
            http::get(&target, "/logs?lines=3").unwrap().text().len(),
            21
        );
    }
}
