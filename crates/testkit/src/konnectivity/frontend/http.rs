//! The frontend that asks by HTTP CONNECT, over a Unix socket or mTLS.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Reading, Refusal, Tunnel, TunnelReader, TunnelWriter, Writing};
use crate::background::locked;
use crate::certs::{self, Identity};
use crate::konnectivity::engine::Engine;
use crate::konnectivity::wire::LIMIT;

/// A kube-apiserver with `proxyProtocol: HTTPConnect`.
#[derive(Debug)]
pub struct HttpFrontend(Place);

#[derive(Debug)]
enum Place {
    Tls {
        addr: SocketAddr,
        server_name: String,
        config: Arc<ClientConfig>,
        engine: Engine,
    },
    Uds(PathBuf),
}

impl HttpFrontend {
    pub fn uds(path: &Path) -> Self {
        Self(Place::Uds(path.to_owned()))
    }

    /// Returns a frontend that connects by TLS, as `identity` if there is one. Its thread stays to
    /// the end of the process.
    pub fn tls(
        addr: SocketAddr,
        server_name: &str,
        authority_pem: &str,
        identity: Option<&Identity>,
    ) -> Result<Self> {
        let engine = Engine::start("frontend")?;
        // Tunnels outlive their frontend.
        std::mem::forget(engine.clone());
        Ok(Self(Place::Tls {
            addr,
            server_name: server_name.to_owned(),
            // Go's client offers nothing: HTTP/2 is switched off in kube-apiserver's dialer.
            config: certs::mutual_client_config(authority_pem, identity, &[])?,
            engine,
        }))
    }

    /// Opens a connection and says nothing on it.
    ///
    /// Fails when the server is not there or a handshake fails. With TLS 1.3 a certificate is refused
    /// later, by the end of the connection.
    pub fn open(&self) -> Result<UnixStream> {
        Ok(self.dial()?.0)
    }

    fn dial(&self) -> Result<(UnixStream, Option<Arc<Bridge>>)> {
        let (stream, bridge) = match &self.0 {
            Place::Tls {
                addr,
                server_name,
                config,
                engine,
            } => {
                let (stream, bridge) = bridge(engine, *addr, server_name, Arc::clone(config))?;
                (stream, Some(bridge))
            }
            Place::Uds(path) => {
                let stream = UnixStream::connect(path)
                    .with_context(|| format!("connecting to {}", path.display()))?;
                (stream, None)
            }
        };
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok((stream, bridge))
    }

    /// Dials `target` with the very bytes kube-apiserver sends.
    pub fn connect(&self, target: &str) -> Result<Result<Tunnel, Refusal>> {
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        self.ask(head.as_bytes())
    }

    pub fn ask(&self, bytes: &[u8]) -> Result<Result<Tunnel, Refusal>> {
        let (mut stream, bridge) = self.dial()?;
        stream.write_all(bytes).context("asking")?;
        answered(stream, bridge)
    }

    pub fn answer(stream: UnixStream) -> Result<Result<Tunnel, Refusal>> {
        answered(stream, None)
    }
}

fn answered(stream: UnixStream, bridge: Option<Arc<Bridge>>) -> Result<Result<Tunnel, Refusal>> {
    let writer = stream.try_clone().context("copying a descriptor")?;
    let mut stream = BufReader::new(stream);
    let head = head(&mut stream)?;
    if head == "HTTP/1.1 200 Connection Established" {
        return Ok(Ok(Tunnel {
            reader: TunnelReader(Reading::Http { stream, bridge }),
            writer: TunnelWriter(Writing::Http(writer)),
        }));
    }
    let line = head.strip_prefix("HTTP/1.1 ").context("no HTTP/1.1")?;
    let status = line.get(..3).context("no status")?.parse()?;
    ensure!(status != 200, "another head of 200: {head:?}");
    let body = body(&mut stream, &head)?;
    Ok(Err(Refusal { status, head, body }))
}

/// Reads up to the empty line; returns the head without it.
fn head(stream: &mut impl BufRead) -> Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let read = stream.read_until(b'\n', &mut bytes);
        let behind = || format!("reading behind {:?}", String::from_utf8_lossy(&bytes));
        ensure!(read.with_context(behind)? > 0, "the end when {}", behind());
    }
    bytes.truncate(bytes.len() - 4);
    String::from_utf8(bytes).context("the head")
}

/// Reads the length the head names, or to the end.
fn body(stream: &mut impl Read, head: &str) -> Result<String> {
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<u64>())
    });
    let length = length.transpose().context("a length")?;
    let (mut body, mut rest) = (String::new(), stream.take(length.unwrap_or(u64::MAX)));
    rest.read_to_string(&mut body).context("reading a body")?;
    let whole = length.is_none() || rest.limit() == 0;
    ensure!(whole, "a body that is cut off: {body:?}");
    Ok(body)
}

/// What a pair of sockets cannot say of the TLS connection behind it.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    failed: Mutex<Option<ErrorKind>>,
    reset: Notify,
}

impl Bridge {
    /// Returns how reading the connection failed; `None` while it has not, and at an end in order.
    pub(super) fn failed(&self) -> Option<ErrorKind> {
        *locked(&self.failed)
    }

    pub(super) fn reset(&self) {
        self.reset.notify_one();
    }

    async fn carry(&self, theirs: tokio::net::UnixStream, tls: &mut TlsStream<TcpStream>) {
        let (mut from_test, mut to_test) = theirs.into_split();
        let (mut from_server, mut to_server) = tokio::io::split(tls);
        let down = async move {
            if let Err(error) = copy(&mut from_server, &mut to_test).await {
                *locked(&self.failed) = Some(error.kind());
            }
            // What is dropped here ends the test's reads.
        };
        let up = async move {
            // A failed write shows as a failed read as well.
            let _ = tokio::io::copy(&mut from_test, &mut to_server).await;
            let _ = to_server.shutdown().await;
        };
        tokio::join!(down, up);
    }
}

/// Copies to the end. Unlike tokio's `copy` it has written what it read when reading fails.
async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut OwnedWriteHalf) -> io::Result<()> {
    let mut buf = vec![0; 8 << 10];
    loop {
        match from.read(&mut buf).await? {
            0 => return Ok(()),
            len => to.write_all(&buf[..len]).await?,
        }
    }
}

/// Connects by TLS and returns a socket whose bytes go through it, so that tests have one kind of
/// stream.
fn bridge(
    engine: &Engine,
    addr: SocketAddr,
    server_name: &str,
    config: Arc<ClientConfig>,
) -> Result<(UnixStream, Arc<Bridge>)> {
    let name = ServerName::try_from(server_name.to_owned())?;
    let handshake = async {
        let tcp = TcpStream::connect(addr).await.context("connecting")?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(config).connect(name, tcp).await;
        tls.context("the TLS handshake")
    };
    let tls = engine.wait(LIMIT, handshake);
    let mut tls = tls.context("the TLS handshake takes too long")??;
    let (ours, theirs) = UnixStream::pair().context("making a pair of sockets")?;
    theirs.set_nonblocking(true)?;
    let bridge = Arc::new(Bridge::default());
    let carrying = Arc::clone(&bridge);
    engine.spawn(async move {
        let Ok(theirs) = tokio::net::UnixStream::from_std(theirs) else {
            return;
        };
        tokio::select! {
            biased;
            // First: what the test drops behind it must not pass for an end.
            () = carrying.reset.notified() => {}
            () = carrying.carry(theirs, &mut tls) => return,
        }
        let _ = SockRef::from(tls.get_ref().0).set_linger(Some(Duration::ZERO));
    });
    Ok((ours, bridge))
}
