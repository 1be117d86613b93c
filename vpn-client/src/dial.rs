//! Connects a server's gateway for the tunnel, whenever that asks for it.
//!
//! ```text
//!   Dials ─▶ TCP: name ─▶ connect ─▶ CONNECT, 200 ─▶ Dial::tcp
//!         └▶ UDP: name ─▶ connected socket ────────▶ Dial::udp        else: Dial::failed
//! ```
//!
//! Decides neither when to connect nor what is used: that is the tunnel's. Every attempt is a task
//! of its own and ends by `endpoint.connectTimeout`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use route::EndpointAddress;
use serve::{Dialer, NameSet, Resolver, alternate_families};
use telemetry::lock;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tunnel::{Dial, Dials, Transport};

use crate::config::{Endpoint, Gateway};
use crate::connect::{self, ConnectError};
use crate::metrics::Metrics;

/// Attempts under way at once: more than connections to 16 servers, the most there are, and those that
/// end after the tunnel has given them up.
const MAX_ATTEMPTS: usize = 384;

/// Why the gateway was not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DialError {
    #[error(transparent)]
    Ask(#[from] ConnectError),
    #[error("too many attempts to connect at once")]
    Busy,
    #[error("reaching the gateway")]
    Reach(#[source] serve::DialError),
    #[error("preparing a socket")]
    Socket(#[source] io::Error),
    #[error("no answer from the gateway within {limit:?}")]
    Timeout { limit: Duration },
    #[error("there is no such server any more")]
    Unknown,
    #[error("no address for the gateway's name")]
    Unresolved,
}

impl DialError {
    /// Returns the label for metrics.
    fn reason(&self) -> &'static str {
        match self {
            Self::Ask(error) => error.reason(),
            Self::Busy => "busy",
            Self::Reach(serve::DialError::Unresolved) => "unresolved",
            Self::Reach(error) => error.reason().as_str(),
            Self::Socket(_) => "socket",
            Self::Timeout { .. } => "timeout",
            Self::Unknown => "unknown_server",
            Self::Unresolved => "unresolved",
        }
    }
}

/// A stream to a server, and what was read from it already.
pub(crate) type Stream = (std::net::TcpStream, Vec<u8>);

/// Connects gateways.
#[derive(Debug)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    resolver: Resolver,
    servers: ArcSwap<Servers>,
    dialer: Dialer,
    metrics: Metrics,
    /// Attempts by TCP so far, so that each begins at another address.
    attempts: AtomicUsize,
    /// What attempts for each server have come to.
    tried: Mutex<BTreeMap<String, Tried>>,
}

/// The gateway of each server, and the names of all, resolved.
#[derive(Debug)]
struct Servers {
    gateways: BTreeMap<String, Gateway>,
    names: NameSet,
}

impl Servers {
    fn new(gateways: BTreeMap<String, Gateway>, resolver: &Resolver) -> Arc<Self> {
        let names = gateways.values();
        let names = resolver.names(names.filter_map(|gateway| gateway.tcp.host_name()));
        Arc::new(Self { gateways, names })
    }

    fn gateway(&self, server: &str) -> Result<&Gateway, DialError> {
        self.gateways.get(server).ok_or(DialError::Unknown)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// Attempts by UDP so far.
    udp: usize,
    /// Where TCP reached the gateway last; UDP most likely reaches it there too.
    reached: Option<IpAddr>,
}

impl Connector {
    /// Creates a connector, which resolves names on the current runtime.
    pub(crate) fn new(
        endpoint: Endpoint,
        gateways: BTreeMap<String, Gateway>,
        metrics: Metrics,
    ) -> Self {
        let resolver = Resolver::system(Handle::current(), endpoint.family);
        Self {
            endpoint,
            servers: ArcSwap::new(Servers::new(gateways, &resolver)),
            resolver,
            dialer: Dialer::new(metrics.connect_seconds.clone()),
            metrics,
            attempts: AtomicUsize::new(0),
            tried: Mutex::default(),
        }
    }

    /// Replaces the gateways, for attempts from now on.
    pub(crate) fn set_gateways(&self, gateways: BTreeMap<String, Gateway>) {
        self.metrics
            .retain_servers(|server| gateways.contains_key(server));
        lock(&self.tried).retain(|server, _| gateways.contains_key(server));
        self.servers.store(Servers::new(gateways, &self.resolver));
    }

    /// Serves attempts until the tunnel has ended. Dropping it ends those under way.
    pub(crate) async fn serve(self: Arc<Self>, mut dials: Dials) {
        let mut attempts = JoinSet::new();
        loop {
            tokio::select! {
                dial = dials.next() => match dial {
                    None => return,
                    Some(dial) if attempts.len() >= MAX_ATTEMPTS => {
                        self.failed(dial, &DialError::Busy);
                    }
                    Some(dial) => {
                        attempts.spawn(Arc::clone(&self).attempt(dial));
                    }
                },
                Some(_) = attempts.join_next() => {}
            }
        }
    }

    async fn attempt(self: Arc<Self>, dial: Dial) {
        let (server, transport) = (dial.server.clone(), dial.transport);
        match transport {
            Transport::Tcp => match self.tcp(&server).await {
                Ok((stream, early)) => {
                    self.metrics.dialed(&server, transport, "connected");
                    dial.tcp(stream, early);
                }
                Err(error) => self.failed(dial, &error),
            },
            Transport::Udp => match self.udp(&server).await {
                Ok(socket) => {
                    self.metrics.dialed(&server, transport, "connected");
                    dial.udp(socket);
                }
                Err(error) => self.failed(dial, &error),
            },
        }
    }

    fn failed(&self, dial: Dial, error: &DialError) {
        if let DialError::Ask(ConnectError::Refused { status }) = error {
            self.metrics.refused(&dial.server, *status);
        }
        self.metrics
            .dialed(&dial.server, dial.transport, error.reason());
        // The answer may live longer than the gateway at its addresses.
        let servers = self.servers.load();
        let gateway = servers.gateway(&dial.server).ok();
        if let Some(name) = gateway.and_then(|own| own.tcp.host_name()) {
            servers.names.refresh(name);
        }
        dial.failed(telemetry::chain(error));
    }

    /// Opens a stream to a server through the gateway. Cancel-safe: what is dropped is closed.
    pub(crate) async fn tcp(&self, server: &str) -> Result<Stream, DialError> {
        let limit = self.endpoint.connect_timeout;
        let deadline = Instant::now() + limit;
        let servers = self.servers.load_full();
        let gateway = servers.gateway(server)?;
        let endpoint = &self.endpoint;
        let offset = self.attempts.fetch_add(1, Ordering::Relaxed);
        let connecting = self.dialer.connect(
            &gateway.tcp,
            &servers.names,
            &endpoint.options,
            deadline,
            offset,
        );
        let (mut stream, addr) = Box::pin(connecting).await.map_err(DialError::Reach)?;
        let target = gateway.tcp.to_string();
        let answer = connect::ask(&mut stream, &target, &endpoint.header, &gateway.value);
        let early = timeout_at(deadline, answer)
            .await
            .map_err(|_| DialError::Timeout { limit })??;
        let reached = Some(addr.ip());
        lock(&self.tried)
            .entry(server.to_owned())
            .or_default()
            .reached = reached;
        tracing::debug!(server, gateway = %addr, "connected by TCP");
        Ok((stream.into_std(), early))
    }

    /// Opens a socket that is connected to the gateway. That says nothing of whether datagrams
    /// arrive. Cancel-safe.
    pub(crate) async fn udp(&self, server: &str) -> Result<std::net::UdpSocket, DialError> {
        let limit = self.endpoint.connect_timeout;
        let addresses = tokio::time::timeout(limit, self.udp_addresses(server))
            .await
            .map_err(|_| DialError::Timeout { limit })??;
        let mut failure = DialError::Unresolved;
        for addr in addresses {
            match udp::connect(addr, self.endpoint.buffers) {
                Ok(socket) => {
                    tracing::debug!(server, gateway = %addr, "connected by UDP");
                    return Ok(socket);
                }
                Err(error) => failure = DialError::Socket(error),
            }
        }
        Err(failure)
    }

    /// Returns the addresses to try, best first. A wrong one shows only later, by silence, so that
    /// each attempt begins at another one.
    async fn udp_addresses(&self, server: &str) -> Result<Vec<SocketAddr>, DialError> {
        let servers = self.servers.load_full();
        let (name, port) = match &servers.gateway(server)?.udp {
            EndpointAddress::Ip(addr) => return Ok(vec![*addr]),
            EndpointAddress::Host { name, port } => (name, *port),
        };
        let before = lock(&self.tried).get(server).copied();
        if before.is_some_and(|tried| tried.udp > 0) {
            // The one before ended in silence, as one by TCP in an error.
            servers.names.refresh(name);
        }
        let known = servers.names.addresses(name).await;
        let known = known.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        let mut tried = lock(&self.tried);
        let tried = tried.entry(server.to_owned()).or_default();
        let offset = tried.udp;
        tried.udp = offset.wrapping_add(1);
        Ok(in_order(known, tried.reached, offset))
    }
}

/// Orders addresses: where TCP reached the gateway first, then families alternating, IPv6 first; each
/// further attempt begins one later.
fn in_order(mut known: Vec<SocketAddr>, reached: Option<IpAddr>, offset: usize) -> Vec<SocketAddr> {
    known.sort_by_key(SocketAddr::is_ipv4);
    let mut ordered = alternate_families(&known);
    // Stable: the others keep their order.
    ordered.sort_by_key(|address| Some(address.ip()) != reached);
    let start = offset.checked_rem(ordered.len()).unwrap_or(0);
    ordered.rotate_left(start);
    ordered
}

#[cfg(test)]
mod tests;
