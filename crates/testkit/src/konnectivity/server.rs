//! A server as upstream's is, seen from an agent.
//!
//! ```text
//!  agent ── TLS, ALPN h2 ──▶ FakeServer ── one AgentLink per stream ──▶ test
//! ```
//!
//! It checks what upstream checks (path, ids, ALPN, pings sooner than 30 s after one another) and
//! leaves the packets to the test: [`AgentLink`] has the usual exchanges ready.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any packet but the one awaited is an error"
)]

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::engine::Engine;
use super::packet::Packet;
use super::stream::{self, Outgoing};
use super::tap::{Control, Tap};
use super::wire::{LIMIT, Wire};
use crate::background;
use crate::certs::{self, Identity};

#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What it sends as `serverid`.
    pub id: String,
    /// What it sends as `servercount`.
    pub count: u32,
    pub identity: Identity,
    /// The authority of agents; without it, they need no certificate.
    pub clients_pem: Option<String>,
    /// The shortest time between two pings that is not held against an agent.
    pub ping_minimum: Duration,
}

impl ServerOptions {
    /// Returns upstream's defaults for a server called `id`.
    pub fn new(id: &str, identity: &Identity) -> Self {
        Self {
            id: id.to_owned(),
            count: 1,
            identity: identity.clone(),
            clients_pem: None,
            ping_minimum: Duration::from_secs(30),
        }
    }
}

/// A running server. Dropping it closes its port and all streams.
#[derive(Debug)]
pub struct FakeServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    links: Mutex<mpsc::UnboundedReceiver<AgentLink>>,
    engine: Engine,
}

#[derive(Debug)]
struct Shared {
    id: String,
    count: AtomicU32,
    refuses: AtomicBool,
    accepted: AtomicU32,
    ping_minimum: Duration,
    links: mpsc::UnboundedSender<AgentLink>,
}

impl FakeServer {
    /// Binds a free port of `127.0.0.1`.
    pub fn start(options: &ServerOptions) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("binding a port")?;
        Self::serve(listener, options)
    }

    /// Serves on a socket that is bound already.
    pub fn serve(listener: TcpListener, options: &ServerOptions) -> Result<Self> {
        let addr = listener.local_addr();
        let addr = addr.context("reading a socket's address")?;
        let clients = options.clients_pem.as_deref();
        let config = certs::mutual_server_config(&options.identity, clients, &["h2"])?;
        let (links, arriving) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            id: options.id.clone(),
            count: AtomicU32::new(options.count),
            refuses: AtomicBool::new(false),
            accepted: AtomicU32::new(0),
            ping_minimum: options.ping_minimum,
            links,
        });
        let engine = Engine::start("fake-server")?;
        let acceptor = TlsAcceptor::from(config);
        let (inside, serving) = (engine.inside(), Arc::clone(&shared));
        engine.spawn(background::accept(listener, move |tcp, _| {
            serving.accepted.fetch_add(1, Ordering::SeqCst);
            let (engine, acceptor) = (inside.clone(), acceptor.clone());
            let shared = Arc::clone(&serving);
            async move {
                // The agent sees its own end of what fails.
                let _ = serve(&engine, tcp, acceptor, &shared).await;
            }
        }));
        Ok(Self {
            addr,
            shared,
            links: Mutex::new(arriving),
            engine,
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn accept(&self, limit: Duration) -> Result<AgentLink> {
        let mut links = background::locked(&self.links);
        let link = self.engine.wait(limit, links.recv());
        let link = link.with_context(|| format!("no agent within {limit:?}"))?;
        link.context("the server has ended")
    }

    pub fn set_count(&self, count: u32) {
        self.shared.count.store(count, Ordering::SeqCst);
    }

    /// Refuses agents that come from now on, as upstream does when it cannot check a token.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    pub fn accepted(&self) -> u32 {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
pub struct AgentLink {
    pub wire: Wire,
    pub metadata: HeaderMap,
    next: i64,
}

impl AgentLink {
    pub fn said(&self, key: &str) -> Vec<String> {
        stream::values(&self.metadata, key)
    }

    /// Sends a DIAL_REQ and returns its number.
    pub fn ask(&mut self, address: &str) -> Result<i64> {
        let random = self.next;
        self.next += 1;
        let address = address.to_owned();
        self.wire.send(&Packet::DialReq { address, random })?;
        Ok(random)
    }

    /// Waits for the answer to a dial: the connection's id, or the error's text.
    pub fn answer(&mut self, random: i64, limit: Duration) -> Result<Result<i64, String>> {
        let answers = |packet: &Packet| matches!(packet, Packet::DialRsp { random: found, .. } if *found == random);
        match self.wire.find("a DIAL_RSP", limit, answers)? {
            Packet::DialRsp {
                error, connect_id, ..
            } if error.is_empty() => Ok(Ok(connect_id)),
            Packet::DialRsp {
                error,
                connect_id: 0,
                ..
            } => Ok(Err(error)),
            other => bail!("{other:?} as the answer to a dial"),
        }
    }

    pub fn dial(&mut self, address: &str) -> Result<i64> {
        let random = self.ask(address)?;
        self.answer(random, LIMIT)?.map_err(anyhow::Error::msg)
    }

    pub fn write(&self, connect_id: i64, bytes: &[u8]) -> Result<()> {
        self.wire.send(&Packet::data(connect_id, bytes))
    }

    pub fn close(&self, connect_id: i64) -> Result<()> {
        self.wire.send(&Packet::CloseReq { connect_id })
    }

    /// Receives at least `count` bytes of a connection.
    pub fn read(&mut self, connect_id: i64, count: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            match self.of(connect_id)? {
                Packet::Data { data, .. } => bytes.extend(data),
                other => bail!("{other:?} after {} of {count} bytes", bytes.len()),
            }
        }
        Ok(bytes)
    }

    /// Receives everything up to CLOSE_RSP; returns the bytes and the text of the end.
    pub fn read_to_end(&mut self, connect_id: i64) -> Result<(Vec<u8>, String)> {
        let mut bytes = Vec::new();
        loop {
            match self.of(connect_id)? {
                Packet::Data { data, .. } => bytes.extend(data),
                Packet::CloseRsp { error, .. } => return Ok((bytes, error)),
                other => bail!("{other:?} from an agent"),
            }
        }
    }

    fn of(&mut self, connect_id: i64) -> Result<Packet> {
        let what = format!("a packet of connection {connect_id}");
        self.wire.find(&what, LIMIT, |packet| {
            packet.connect_id() == Some(connect_id) && !matches!(packet, Packet::DialRsp { .. })
        })
    }
}

async fn serve(
    engine: &Engine,
    tcp: TcpStream,
    acceptor: TlsAcceptor,
    shared: &Shared,
) -> Result<()> {
    tcp.set_nodelay(true)?;
    let tls = acceptor.accept(tcp).await?;
    if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
        bail!("no ALPN, which grpc-go refuses");
    }
    let (tap, control) = Tap::new(tls, Control::default(), PREFACE, shared.ping_minimum);
    let mut connection = h2::server::Builder::new()
        .data_frame_budget(usize::MAX)
        .handshake(tap)
        .await?;
    loop {
        tokio::select! {
            request = connection.accept() => {
                let Some(request) = request else { return Ok(()) };
                let (request, respond) = request?;
                answer(engine, &control, shared, request, respond)?;
            }
            () = control.pinged.notified() => {
                // grpc-go forgives two.
                if control.strikes() > 2 {
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                }
            }
            () = control.cut.notified() => return Ok(()),
        }
    }
}

fn answer(
    engine: &Engine,
    control: &Arc<Control>,
    shared: &Shared,
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<()> {
    let (parts, body) = request.into_parts();
    if let Some(message) = objection(&parts, shared) {
        respond.send_response(stream::refusal(2, &message)?, true)?;
        return Ok(());
    }
    let head = Response::builder()
        .header("content-type", "application/grpc")
        .header("serverid", &shared.id)
        .header("servercount", shared.count.load(Ordering::SeqCst))
        .body(())?;
    let outgoing = Outgoing(respond.send_response(head, false)?);
    let link = AgentLink {
        wire: Wire::server(engine, Arc::clone(control), outgoing, body),
        metadata: parts.headers,
        next: FIRST_RANDOM,
    };
    let _ = shared.links.send(link);
    Ok(())
}

fn objection(parts: &http::request::Parts, shared: &Shared) -> Option<String> {
    let said = |key: &str| stream::values(&parts.headers, key);
    if parts.method != http::Method::POST || parts.uri.path() != "/AgentService/Connect" {
        return Some(format!("unknown method {}", parts.uri.path()));
    }
    let kinds = said("content-type");
    if !kinds.iter().any(|kind| kind == "application/grpc") {
        return Some(format!("content type {kinds:?}"));
    }
    let ids = said("agentid");
    if ids.len() != 1 {
        return Some(format!("expected one agent ID in the context, got {ids:?}"));
    }
    if said("agentidentifiers").len() > 1 {
        return Some("too many identifiers".to_owned());
    }
    let refuses = shared.refuses.load(Ordering::SeqCst);
    refuses.then(|| "authentication failed".to_owned())
}

/// What a client sends before its first frame (RFC 9113 §3.4).
const PREFACE: usize = 24;
/// Upstream's are random and large; so that none is taken for the id of a connection, ours are too.
const FIRST_RANDOM: i64 = 1 << 40;
