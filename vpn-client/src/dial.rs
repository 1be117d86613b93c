//! Connects the gateway for the tunnel, whenever that asks for it.
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use route::EndpointAddress;
use serve::{Dialer, NameSet, alternate_families};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tunnel::{Dial, Dials, Transport};

use crate::config::Endpoint;
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

/// Connects the gateway.
#[derive(Debug)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    /// The gateway's name, resolved; empty if it is an address.
    names: NameSet,
    /// What the header says for each server.
    values: ArcSwap<BTreeMap<String, String>>,
    dialer: Dialer,
    metrics: Metrics,
    /// Attempts by TCP so far, so that each begins at another address.
    attempts: AtomicUsize,
    /// The same by UDP, for each server.
    udp_attempts: Mutex<BTreeMap<String, usize>>,
    /// Where TCP reached the gateway last; UDP most likely reaches it there too.
    reached: Mutex<Option<IpAddr>>,
}

impl Connector {
    /// Creates a connector; `names` has the endpoint's host name if it is one.
    pub(crate) fn new(
        endpoint: Endpoint,
        names: NameSet,
        values: BTreeMap<String, String>,
        metrics: Metrics,
    ) -> Self {
        Self {
            endpoint,
            names,
            values: ArcSwap::from_pointee(values),
            dialer: Dialer::new(metrics.connect_seconds.clone()),
            metrics,
            attempts: AtomicUsize::new(0),
            udp_attempts: Mutex::default(),
            reached: Mutex::new(None),
        }
    }

    /// Replaces what the header says for each server.
    pub(crate) fn set_values(&self, values: BTreeMap<String, String>) {
        self.metrics
            .retain_servers(|server| values.contains_key(server));
        lock(&self.udp_attempts).retain(|server, _| values.contains_key(server));
        self.values.store(Arc::new(values));
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
        if let EndpointAddress::Host { name, .. } = &self.endpoint.tcp {
            self.names.refresh(name);
        }
        dial.failed(telemetry::chain(error));
    }

    /// Opens a stream to a server through the gateway. Cancel-safe: what is dropped is closed.
    pub(crate) async fn tcp(&self, server: &str) -> Result<Stream, DialError> {
        let limit = self.endpoint.connect_timeout;
        let deadline = Instant::now() + limit;
        let value = self.values.load().get(server).cloned();
        let value = value.ok_or(DialError::Unknown)?;
        let endpoint = &self.endpoint;
        let offset = self.attempts.fetch_add(1, Ordering::Relaxed);
        let connecting = self.dialer.connect(
            &endpoint.tcp,
            &self.names,
            &endpoint.options,
            deadline,
            offset,
        );
        let (mut stream, addr) = Box::pin(connecting).await.map_err(DialError::Reach)?;
        let target = endpoint.tcp.to_string();
        let answer = connect::ask(&mut stream, &target, &endpoint.header, &value);
        let early = timeout_at(deadline, answer)
            .await
            .map_err(|_| DialError::Timeout { limit })??;
        *lock(&self.reached) = Some(addr.ip());
        tracing::debug!(server, gateway = %addr, "connected by TCP");
        Ok((stream.into_std().map_err(DialError::Socket)?, early))
    }

    /// Opens a socket that is connected to the gateway. That says nothing of whether datagrams
    /// arrive. Cancel-safe.
    pub(crate) async fn udp(&self, server: &str) -> Result<std::net::UdpSocket, DialError> {
        let limit = self.endpoint.connect_timeout;
        let addresses = tokio::time::timeout(limit, self.udp_addresses(server))
            .await
            .map_err(|_| DialError::Timeout { limit })?;
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
    async fn udp_addresses(&self, server: &str) -> Vec<SocketAddr> {
        let (name, port) = match &self.endpoint.udp {
            EndpointAddress::Ip(addr) => return vec![*addr],
            EndpointAddress::Host { name, port } => (name, *port),
        };
        let known = self.names.addresses(name).await;
        let known = known.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        let reached = *lock(&self.reached);
        in_order(known, reached, self.next_udp_offset(server))
    }

    fn next_udp_offset(&self, server: &str) -> usize {
        let mut attempts = lock(&self.udp_attempts);
        let next = attempts.entry(server.to_owned()).or_default();
        let offset = *next;
        *next = offset.wrapping_add(1);
        offset
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
