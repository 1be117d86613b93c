//! From what a request asks for to a connection in the shoot, or to the answer why there is none.
//!
//! ```text
//!   host:port ─▶ address? in networks? ─▶ a tunnel? ─▶ name? resolved, those in networks ─▶ connect
//! ```
//!
//! Writes no answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use connect::Request;
use serve::{DialError as ConnectError, LookupError, Reason, alternate_families, race};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::{Shared, Worker};

/// How long a dial waits for a tunnel: a path that dies silently is replaced within this time, and an
/// API server would report the 503 to its user instead of asking again.
const TUNNEL_WAIT: Duration = Duration::from_secs(2);

/// Addresses of one name that one dial tries.
const MAX_ADDRESSES: usize = 8;

/// Why a dial failed; the text is the answer's body.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum DialError {
    #[error("the destination cannot be connected")]
    Connect(#[source] ConnectError),
    #[error("the name cannot be resolved in the shoot")]
    Lookup(#[source] LookupError),
    #[error("names are not resolved here: no DNS server of the shoot is configured")]
    NoResolver,
    #[error("no tunnel into the shoot is open")]
    NoTunnel,
    #[error("the destination is in none of the shoot's networks")]
    Outside,
    #[error("the target is not a host and a port")]
    Target,
    #[error("the destination did not answer in time")]
    Timeout,
}

impl DialError {
    /// Returns the status of the answer.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Target => 400,
            Self::NoResolver | Self::Outside => 403,
            Self::Connect(_) | Self::Lookup(_) => 502,
            Self::NoTunnel => 503,
            Self::Timeout => 504,
        }
    }

    /// Returns the label for logs and metrics.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Connect(error) => error.reason(),
            Self::Lookup(_) => Reason::ConnectFailed,
            Self::NoTunnel => Reason::NoEndpoint,
            Self::NoResolver | Self::Outside => Reason::UnknownDestination,
            Self::Target => Reason::Malformed,
            Self::Timeout => Reason::ConnectTimeout,
        }
    }
}

/// Connects to what a request asks for. Cancel-safe: a dropped attempt closes its sockets.
pub(super) async fn dial(
    request: &Request,
    worker: &Worker,
) -> Result<(TcpStream, SocketAddr), DialError> {
    let shared = &*worker.shared;
    let (host, port) = request.host_port().ok_or(DialError::Target)?;
    let deadline = Instant::now() + shared.config.connect_timeout.0;
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => {
            let address = within(shared, [address]);
            if !address.is_empty() {
                wait_for_tunnel(shared, deadline).await?;
            }
            address
        }
        Err(_) => {
            let names = worker.names.as_ref().ok_or(DialError::NoResolver)?;
            wait_for_tunnel(shared, deadline).await?;
            let looked_up = timeout_at(deadline, names.addresses(host)).await;
            let found = looked_up.map_err(|_| {
                shared.metrics.lookups.with(&["timeout"]).inc();
                DialError::Timeout
            })?;
            let result = found.as_ref().map_or_else(LookupError::reason, |_| "found");
            shared.metrics.lookups.with(&[result]).inc();
            let found = found.map_err(|error| {
                if matches!(error, LookupError::Timeout) {
                    DialError::Timeout
                } else {
                    DialError::Lookup(error)
                }
            })?;
            within(shared, found)
        }
    };
    if addresses.is_empty() {
        return Err(DialError::Outside);
    }
    let started = Instant::now();
    let connect = |address| shared.shoot.connect(address, &shared.config.tcp_options);
    match race(in_order(addresses, port), deadline, connect).await {
        Ok(connected) => {
            let seconds = &shared.listeners.connect_seconds;
            seconds.observe_duration(started.elapsed());
            Ok(connected)
        }
        Err(error) => {
            let error = ConnectError::from(error);
            if matches!(error, ConnectError::Timeout) {
                return Err(DialError::Timeout);
            }
            Err(DialError::Connect(error))
        }
    }
}

/// Orders addresses for dialing: families alternate, IPv6 first.
fn in_order(addresses: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let with_port = addresses.into_iter().map(|ip| SocketAddr::new(ip, port));
    let mut addresses: Vec<_> = with_port.collect();
    // Stable: within a family the order is the resolver's.
    addresses.sort_by_key(SocketAddr::is_ipv4);
    let mut ordered = alternate_families(&addresses);
    ordered.truncate(MAX_ADDRESSES);
    ordered
}

/// Returns the addresses that are in the shoot.
fn within(shared: &Shared, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    // An IPv4 address has one spelling only, whatever a client or a DNS server writes.
    let addresses = addresses.into_iter().map(|address| address.to_canonical());
    addresses
        .filter(|address| shared.shoot.contains(*address))
        .collect()
}

/// Waits for a tunnel, for [`TUNNEL_WAIT`] and until `deadline` at most. Cancel-safe.
async fn wait_for_tunnel(shared: &Shared, deadline: Instant) -> Result<(), DialError> {
    let mut status = shared.status.clone();
    let limit = deadline.min(Instant::now() + TUNNEL_WAIT);
    match timeout_at(limit, status.wait_for(|status| status.is_healthy())).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(DialError::NoTunnel),
    }
}
