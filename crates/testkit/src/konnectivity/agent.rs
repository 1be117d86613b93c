//! An agent as upstream's is, seen from a server.
//!
//! ```text
//!  server ── DIAL_REQ, DATA, CLOSE_REQ ──▶ FakeAgent ──▶ TCP
//!         ◀─ DIAL_RSP, DATA (4 KiB), CLOSE_RSP ──        ◀──
//! ```
//!
//! What it has in common with the original: ids of connections count from 1 on each stream, one
//! loop delivers to all connections and waits for the slowest, DIAL_CLS means nothing, CLOSE_REQ
//! discards what was not written yet and holds that loop until all that was read is sent, each
//! connection has a queue that it sends in turns with the others, and an end in one direction is the
//! end of both. It connects
//! once and never again; with [`connect`] a test does the agent's part itself.

mod tunnels;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong};
use http::{HeaderMap, Request};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use self::tunnels::Tunnels;
use super::engine::Engine;
use super::frame;
use super::packet::Packet;
use super::stream::{self, Incoming, Outgoing};
use super::tap::Control;
use super::wire::{End, LIMIT, Wire};
use crate::background::locked;
use crate::certs::{self, Identity};
use crate::wait;

#[derive(Clone, Debug)]
pub struct AgentTarget {
    pub addr: SocketAddr,
    /// The name it sends and verifies.
    pub server_name: String,
    pub authority_pem: String,
    pub identity: Option<Identity>,
    /// What it offers; grpc-go offers `h2`.
    pub alpn: Vec<String>,
}

impl AgentTarget {
    /// Returns a target whose certificate is for `127.0.0.1`.
    pub fn new(addr: SocketAddr, authority_pem: &str, identity: Option<&Identity>) -> Self {
        Self {
            addr,
            server_name: "127.0.0.1".to_owned(),
            authority_pem: authority_pem.to_owned(),
            identity: identity.cloned(),
            alpn: vec!["h2".to_owned()],
        }
    }
}

/// What an agent says of itself, in the order in which it says it.
#[derive(Clone, Debug)]
pub struct AgentMetadata(pub Vec<(String, String)>);

impl AgentMetadata {
    /// Returns what an agent without identifiers and token sends.
    pub fn new(id: &str) -> Self {
        Self(Vec::new())
            .with("agentid", id)
            .with("agentidentifiers", "")
    }

    /// Adds a value; earlier ones of the same key stay.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.0.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, key: &str) -> Self {
        self.0.retain(|(found, _)| found != key);
        self
    }

    /// Puts `value` in place of all values of a key.
    pub fn replaced(self, key: &str, value: &str) -> Self {
        self.without(key).with(key, value)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialRule {
    Dial,
    Ignore,
    Refuse(String),
}

/// Opens an agent's stream and leaves everything else to the test.
///
/// Fails when the connection or its handshakes fail; a refused stream is an [`End`] of the wire instead.
pub fn connect(target: &AgentTarget, metadata: &AgentMetadata) -> Result<Wire> {
    connect_with(target, metadata, Control::default())
}

/// Does as [`connect`], but reads nothing of what the server sends before [`Wire::hear`], not even
/// its settings.
pub fn connect_deaf(target: &AgentTarget, metadata: &AgentMetadata) -> Result<Wire> {
    let control = Control::default();
    control.deafen(true);
    connect_with(target, metadata, control)
}

/// Opens an agent's stream and keeps it, and over the same connection one after the other with `others`, each once the
/// one before it was answered. Returns how many there were when the server took no more, or `max`.
///
/// Fails when the connection or its handshakes fail.
pub fn connect_often(
    target: &AgentTarget,
    metadata: &AgentMetadata,
    others: &AgentMetadata,
    max: usize,
) -> Result<usize> {
    let engine = Engine::start("agent-streams")?;
    let opening = async {
        let prepared = prepare(target, metadata, Control::default()).await?;
        let (mut requests, request, _pings, _control) = prepared;
        let other = stream::request(&request.uri().to_string(), &others.0)?;
        let _kept = requests.send_request(request, false)?;
        for count in 0..max {
            let Ok(ready) = requests.ready().await else {
                return Ok(count);
            };
            requests = ready;
            let Ok((response, _)) = requests.send_request(other.clone(), true) else {
                return Ok(count);
            };
            // It is answered or reset.
            let _ = response.await;
        }
        Ok(max)
    };
    let opened = engine.wait(LIMIT, opening);
    opened.context("opening streams takes too long")?
}

fn connect_with(target: &AgentTarget, metadata: &AgentMetadata, control: Control) -> Result<Wire> {
    let engine = Engine::start("agent-wire")?;
    let opened = engine.wait(LIMIT, open(target, metadata, control));
    let opened = opened.context("connecting an agent takes too long")??;
    let (control, outgoing) = (opened.control, opened.outgoing);
    Ok(Wire::client(&engine, control, outgoing, opened.response))
}

/// A running agent. Dropping it closes all its sockets.
#[derive(Debug)]
pub struct FakeAgent {
    tunnels: Arc<Tunnels>,
    control: Arc<Control>,
    head: HeaderMap,
    out: mpsc::Sender<Packet>,
    pings: PingPong,
    engine: Engine,
}

impl FakeAgent {
    /// Connects and waits for the head of the answer.
    pub fn start(target: &AgentTarget, metadata: &AgentMetadata) -> Result<Self> {
        Self::start_split(target, metadata, usize::MAX)
    }

    /// Connects, and cuts everything it sends into DATA frames of `frame` bytes.
    pub fn start_split(
        target: &AgentTarget,
        metadata: &AgentMetadata,
        frame: usize,
    ) -> Result<Self> {
        Self::on(Engine::start("fake-agent")?, target, metadata, frame)
    }

    /// Connects another agent that shares this one's thread, for there may be thousands.
    pub fn another(&self, target: &AgentTarget, metadata: &AgentMetadata) -> Result<Self> {
        Self::on(self.engine.clone(), target, metadata, usize::MAX)
    }

    fn on(
        engine: Engine,
        target: &AgentTarget,
        metadata: &AgentMetadata,
        frame: usize,
    ) -> Result<Self> {
        let opened = engine.wait(LIMIT, open(target, metadata, Control::default()));
        let opened = opened.context("connecting an agent takes too long")??;
        let answer = engine.wait(LIMIT, opened.response);
        let (parts, body) = answer.context("no answer to an agent")??.into_parts();
        let head = &parts.headers;
        ensure!(End::of(head).is_none(), "refused: {head:?}");
        let (out, queue) = mpsc::channel(1);
        engine.spawn(send(opened.outgoing, queue, frame));
        let tunnels = Arc::new(Tunnels::new(out.clone()));
        engine.spawn(serve(Incoming::new(body), Arc::clone(&tunnels)));
        Ok(Self {
            tunnels,
            control: opened.control,
            head: parts.headers,
            out,
            pings: opened.pings,
            engine,
        })
    }

    /// Returns a value of the server's answer, `serverid` for example; all of them, if several.
    pub fn answered(&self, key: &str) -> Vec<String> {
        stream::values(&self.head, key)
    }

    pub fn rule(&self, rule: DialRule) {
        *locked(&self.tunnels.rule) = rule;
    }

    pub fn dials(&self) -> Vec<String> {
        locked(&self.tunnels.dials).clone()
    }

    pub fn wait_dials(&self, count: usize, limit: Duration) -> Result<()> {
        let dialed = || locked(&self.tunnels.dials).len() >= count;
        wait::until(&format!("{count} dials"), limit, dialed)
    }

    pub fn tunnels(&self) -> usize {
        self.tunnels.count()
    }

    /// Returns what it received, but for DATA.
    pub fn seen(&self) -> Vec<Packet> {
        locked(&self.tunnels.seen).clone()
    }

    /// Returns how its stream ended, nothing while it lives.
    pub fn ended(&self) -> Option<End> {
        locked(&self.tunnels.end).clone()
    }

    pub fn pings(&self) -> usize {
        self.control.pings()
    }

    /// Sends `count` pings, each as soon as the one before is answered.
    pub fn ping(&mut self, count: usize) -> Result<()> {
        let pings = &mut self.pings;
        let all = async {
            for sent in 0..count {
                let answer = pings.ping(Ping::opaque()).await;
                answer.with_context(|| format!("after {sent} pings"))?;
            }
            Ok(())
        };
        let answered = self.engine.wait(LIMIT, all);
        answered.context("a ping is not answered")?
    }

    /// Stops as SIGSTOP would stop it, or goes on.
    pub fn freeze(&self, frozen: bool) {
        self.control.freeze(frozen);
    }

    /// Drops the connection to the server without a word.
    pub fn cut(&self) {
        self.control.cut.notify_one();
    }

    pub fn send(&self, packet: Packet) -> Result<()> {
        let sent = self.engine.wait(LIMIT, self.out.send(packet));
        let sent = sent.context("a stream takes nothing")?;
        sent.ok().context("the stream has ended")
    }
}

struct Opened {
    control: Arc<Control>,
    outgoing: Outgoing,
    response: ResponseFuture,
    pings: PingPong,
}

async fn open(target: &AgentTarget, metadata: &AgentMetadata, control: Control) -> Result<Opened> {
    let (mut requests, request, pings, control) = prepare(target, metadata, control).await?;
    let asked = requests.send_request(request, false);
    let (response, outgoing) = asked.context("asking for a stream")?;
    Ok(Opened {
        control,
        outgoing: Outgoing(outgoing),
        response,
        pings,
    })
}

type Prepared = (SendRequest<Bytes>, Request<()>, PingPong, Arc<Control>);

/// Opens a connection, and makes the request for a stream of it.
async fn prepare(
    target: &AgentTarget,
    metadata: &AgentMetadata,
    control: Control,
) -> Result<Prepared> {
    let alpn: Vec<_> = target.alpn.iter().map(String::as_str).collect();
    let config =
        certs::mutual_client_config(&target.authority_pem, target.identity.as_ref(), &alpn)?;
    let tcp = TcpStream::connect(target.addr).await;
    let tcp = tcp.context("connecting")?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(target.server_name.clone())?;
    let tls = TlsConnector::from(config).connect(name, tcp).await;
    let tls = tls.context("the TLS handshake")?;
    let chosen = tls.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let (requests, pings, control) = stream::connect(tls, control).await?;
    let requests = requests.ready().await.context("opening a stream")?;
    // grpc-go has refused servers that choose nothing since 1.67.
    ensure!(
        chosen.as_deref() == Some(b"h2") || !target.alpn.iter().any(|name| name == "h2"),
        "the server chose {chosen:?}"
    );
    let (host, port) = (&target.server_name, target.addr.port());
    let uri = format!("https://{host}:{port}/AgentService/Connect");
    let request = stream::request(&uri, &metadata.0)?;
    Ok((requests, request, pings, control))
}

async fn send(mut outgoing: Outgoing, mut queue: mpsc::Receiver<Packet>, frame: usize) {
    while let Some(packet) = queue.recv().await {
        let mut bytes = Bytes::from(frame::framed(&packet));
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(frame));
            if outgoing.send(piece).await.is_err() {
                return;
            }
        }
    }
}

/// One loop for all connections, as upstream has it: the slowest holds up the others.
async fn serve(mut incoming: Incoming, tunnels: Arc<Tunnels>) {
    let end = loop {
        match incoming.next().await {
            Ok(Some(packet)) => tunnels.handle(packet).await,
            Ok(None) => break incoming.end().await,
            Err(error) => break End::Failed(format!("{error:#}")),
        }
    };
    tunnels.end();
    *locked(&tunnels.end) = Some(end);
}

/// Packets of each connection, each way: upstream's default of `--xfr-channel-size` for an agent.
const QUEUE: usize = 150;
