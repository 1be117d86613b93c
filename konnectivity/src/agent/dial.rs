//! Opens connections to destinations in the agent's network.
//!
//! ```text
//! "tcp", "host:port" ──Target──▶ Names ──▶ addresses ──permits──▶ race ──▶ TcpStream
//! ```
//!
//! Everything together takes at most [`DialParams::timeout`], and no more than
//! [`DialParams::max_pending`] are under way. Reports nothing to a server and counts nothing; the
//! caller has the error, whose text is Go's.

mod allowed;
mod error;
mod names;
mod target;

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serve::{RaceError, alternate_families, race};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

pub use allowed::{AllowedRange, AllowedRangeError};
pub(crate) use error::{DialError, DialFault, LookupFault};
use names::Names;
use target::{Host, Network, Target};

use crate::grpc::NOTSENT_LOWAT;

/// TCP keepalive probes of an idle connection: after this time, at this interval, and so many without an
/// answer until it is given up.
const KEEPALIVE: Duration = Duration::from_secs(55);
const KEEPALIVE_PROBES: u32 = 3;

/// How destinations are dialed.
#[derive(Clone, Debug)]
pub struct DialParams {
    /// Where connections may lead; without any range, everywhere.
    pub allowed: Vec<AllowedRange>,
    /// Dials that may be under way at once; above it they fail at once.
    pub max_pending: usize,
    /// How long one may take, names included.
    pub timeout: Duration,
}

impl Default for DialParams {
    fn default() -> Self {
        Self {
            allowed: Vec::new(),
            max_pending: 1000,
            timeout: Duration::from_secs(5),
        }
    }
}

impl DialParams {
    /// Returns whether `destination` may be connected to. The unspecified address counts as
    /// loopback, which is where the kernel takes it, and an IPv4-mapped one as IPv4.
    pub(crate) fn permits(&self, destination: SocketAddr) -> bool {
        let destination = allowed::effective(destination);
        let mut ranges = self.allowed.iter();
        self.allowed.is_empty() || ranges.any(|range| range.contains(destination))
    }
}

/// Opens connections on the thread that owns it.
#[derive(Debug)]
pub(crate) struct Dialer {
    params: DialParams,
    names: Names,
    pending: Semaphore,
}

impl Dialer {
    /// Makes a dialler.
    pub(crate) fn new(params: DialParams) -> Self {
        Self {
            names: Names::new(params.max_pending),
            pending: Semaphore::new(params.max_pending.min(Semaphore::MAX_PERMITS)),
            params,
        }
    }

    /// Connects to `address`, which is `host:port`, over the network `protocol`, which is `tcp` or
    /// one of its families. Cancel-safe: dropped, it leaves no connection and no question behind.
    pub(crate) async fn dial(&self, protocol: &str, address: &str) -> Result<TcpStream, DialError> {
        let target = Target::parse(protocol, address)?;
        let dialed = self.dial_target(&target, address).await;
        dialed.map_err(|fault| target.network.failed(fault))
    }

    async fn dial_target(&self, target: &Target, address: &str) -> Result<TcpStream, DialFault> {
        let limit = self.params.max_pending;
        let Ok(_pending) = self.pending.try_acquire() else {
            return Err(DialFault::TooMany(address.to_owned(), limit));
        };
        let deadline = Instant::now() + self.params.timeout;
        let mut addresses = self.addresses(target, deadline).await?;
        let first = addresses.first().copied();
        addresses.retain(|address| self.params.permits(*address));
        if let (Some(refused), []) = (first, addresses.as_slice()) {
            return Err(DialFault::Forbidden(refused, address.to_owned()));
        }
        // Stable: apart from the family, the order is the resolver's.
        addresses.sort_by_key(SocketAddr::is_ipv4);
        connect(&addresses, deadline).await
    }

    /// Connects to a server by its `host` and `port`, to which no list applies; of several
    /// addresses, the one numbered `first` comes first. What waits in the kernel is bounded, as on the
    /// server's side. Cancel-safe.
    pub(crate) async fn dial_server(
        &self,
        host: &str,
        port: u16,
        first: u64,
        limit: Duration,
    ) -> Result<TcpStream, DialError> {
        let target = Target {
            network: Network::Tcp,
            host: Host::parse(host),
            port,
        };
        let deadline = Instant::now() + limit;
        let dialing = async {
            let mut addresses = self.addresses(&target, deadline).await?;
            rotate(&mut addresses, first);
            let stream = connect(&addresses, deadline).await?;
            // Without it the link works all the same.
            let _ = SockRef::from(&stream).set_tcp_notsent_lowat(NOTSENT_LOWAT);
            Ok(stream)
        };
        let dialed = dialing.await;
        dialed.map_err(|fault| target.network.failed(fault))
    }

    /// Reads the resolver's configuration anew for the next name.
    pub(crate) fn reload(&self) {
        self.names.forget();
    }

    /// Returns what may be dialed for `target`; never nothing.
    async fn addresses(
        &self,
        target: &Target,
        deadline: Instant,
    ) -> Result<Vec<SocketAddr>, DialFault> {
        let port = target.port;
        let (name, found) = match &target.host {
            Host::Address(ip, zone) => {
                let mut address = SocketAddr::new(*ip, port);
                if let SocketAddr::V6(v6) = &mut address {
                    v6.set_scope_id(*zone);
                }
                (ip.to_string(), vec![address])
            }
            Host::Local => {
                let both = [
                    IpAddr::from(Ipv4Addr::LOCALHOST),
                    Ipv6Addr::LOCALHOST.into(),
                ];
                let found = both.map(|ip| SocketAddr::new(ip, port));
                (String::new(), found.to_vec())
            }
            Host::Name(name) => {
                let found = timeout_at(deadline, self.names.addresses(name)).await;
                let found = found
                    .unwrap_or(Err(LookupFault::Timeout))
                    .map_err(|fault| DialFault::Lookup(name.clone(), fault))?;
                let found = found.into_iter().map(|ip| SocketAddr::new(ip, port));
                (name.clone(), found.collect())
            }
        };
        let usable: Vec<_> = (found.into_iter())
            .map(allowed::effective)
            .filter(|address| target.network.takes(address.ip()))
            .collect();
        if usable.is_empty() {
            return Err(DialFault::Lookup(name, LookupFault::NoSuchHost));
        }
        Ok(usable)
    }
}

/// Connects to one of `addresses`, which are not empty, by `deadline`. Families alternate, beginning with
/// that of the first address. Cancel-safe: no connection outlives the future.
///
/// # Errors
/// The most telling of what happened at the addresses; [`DialFault::Timeout`] at the deadline.
async fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, DialFault> {
    let raced = race(alternate_families(addresses), deadline, connect_one).await;
    let RaceError { failed, pending } = match raced {
        Ok((stream, _)) => return Ok(stream),
        Err(error) => error,
    };
    let failures = failed.into_iter().map(|(_, error)| error);
    let failures = failures.chain(pending.into_iter().map(DialFault::Timeout));
    // Of equals the first.
    let specific = failures.min_by_key(|error| Reverse(error.weight()));
    Err(specific.unwrap_or_else(|| DialFault::Timeout(([0, 0, 0, 0], 0).into())))
}

async fn connect_one(address: SocketAddr) -> Result<TcpStream, DialFault> {
    let failed = |call| move |error| DialFault::Connect(address, call, error);
    let socket = match address.ip() {
        IpAddr::V4(_) => TcpSocket::new_v4(),
        IpAddr::V6(_) => TcpSocket::new_v6(),
    }
    .map_err(failed("socket"))?;
    let stream = socket.connect(address).await.map_err(failed("connect"))?;
    set_options(&stream).map_err(failed("setsockopt"))?;
    Ok(stream)
}

fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Puts the address whose `turn` it is first, the others after it in their order. Servers that share
/// a name are all reached this way, in whatever order they are named each time.
fn rotate(addresses: &mut [SocketAddr], first: u64) {
    addresses.sort_unstable();
    if let Some(first) = first.checked_rem(addresses.len() as u64) {
        addresses.rotate_left(usize::try_from(first).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests;
