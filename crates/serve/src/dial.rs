//! Connecting to an endpoint within a deadline.
//!
//! ```text
//!     address ─▶ connect
//!     name ─▶ addresses, families alternating ─▶ race
//! ```
//!
//! Does not choose endpoints or retry on others; that is the connection's own loop.

use std::io;
use std::net::{IpAddr, SocketAddr};

use relay::Socket;
use route::{ConnectFailure, EndpointAddress, TcpOptions};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Type};
use telemetry::metrics::Histogram;
use tokio::time::{Instant, timeout_at};

use crate::race::{RaceError, alternate_families, race};
use crate::reason::Reason;
use crate::resolve::NameSet;
use crate::tcp::apply_tcp_options;

/// Addresses of one name that one dial tries.
const MAX_ADDRESSES: usize = 8;

/// Why an endpoint was not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The endpoint could not be reached, or no socket could be opened.
    #[error("connecting")]
    Failed(#[source] io::Error),
    /// The kernel refused an option of the socket.
    #[error("preparing a socket")]
    Option(#[source] io::Error),
    /// The endpoint refused.
    #[error("connecting: refused")]
    Refused(#[source] io::Error),
    /// The endpoint, or the resolver, did not answer in time.
    #[error("connecting within the time limit")]
    Timeout,
    /// The name has no address.
    #[error("no address for the endpoint's name")]
    Unresolved,
}

impl DialError {
    /// Returns how this counts for the endpoint.
    pub fn failure(&self) -> ConnectFailure {
        match self {
            Self::Refused(_) => ConnectFailure::Refused,
            Self::Timeout => ConnectFailure::Timeout,
            Self::Failed(_) | Self::Option(_) | Self::Unresolved => ConnectFailure::Failed,
        }
    }

    /// Returns how this ends a connection.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Refused(_) => Reason::ConnectRefused,
            Self::Timeout => Reason::ConnectTimeout,
            Self::Failed(_) | Self::Option(_) | Self::Unresolved => Reason::ConnectFailed,
        }
    }

    /// Tells whether the fault is this host's (descriptors, ports, memory), not the endpoint's.
    pub fn is_local(&self) -> bool {
        let Self::Failed(error) = self else {
            return matches!(self, Self::Option(_));
        };
        matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::ADDRNOTAVAIL)
        )
    }

    /// Tells whether another endpoint may do better: local ports run out toward one address at a time (ip(7)).
    pub fn is_worth_another(&self) -> bool {
        let ports = |error| Errno::from_io_error(error) == Some(Errno::ADDRNOTAVAIL);
        !self.is_local() || matches!(self, Self::Failed(error) if ports(error))
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            Self::Refused(error)
        } else if error.kind() == io::ErrorKind::TimedOut {
            Self::Timeout
        } else {
            Self::Failed(error)
        }
    }
}

impl<E> From<RaceError<E>> for DialError
where
    Self: From<E>,
{
    fn from(mut error: RaceError<E>) -> Self {
        match error.failed.pop() {
            _ if !error.pending.is_empty() => Self::Timeout,
            Some((_, last)) => last.into(),
            None => Self::Unresolved,
        }
    }
}

/// Opens connections to endpoints.
#[derive(Clone, Debug)]
pub struct Dialer {
    connect_seconds: Histogram,
}

impl Dialer {
    /// Creates a dialer that observes how long connecting takes.
    pub fn new(connect_seconds: Histogram) -> Self {
        Self { connect_seconds }
    }

    /// Connects to `address` by `deadline` with the given socket options.
    ///
    /// `names` resolves host names; `offset`, another one for each connection, spreads connections over
    /// the addresses of one name.
    ///
    /// # Errors
    /// Why the endpoint was not connected. Cancel-safe: a dropped attempt closes its socket.
    pub async fn connect(
        &self,
        address: &EndpointAddress,
        names: &NameSet,
        tcp: &TcpOptions,
        deadline: Instant,
        offset: usize,
    ) -> Result<(Socket, SocketAddr), DialError> {
        let started = Instant::now();
        let connected = match address {
            EndpointAddress::Ip(addr) => timeout_at(deadline, connect(*addr, tcp))
                .await
                .map_err(|_| DialError::Timeout)?
                .map(|stream| (stream, *addr)),
            EndpointAddress::Host { name, port } => {
                Box::pin(connect_name(name, *port, names, tcp, deadline, offset)).await
            }
        }?;
        self.connect_seconds.observe_duration(started.elapsed());
        Ok(connected)
    }
}

async fn connect(addr: SocketAddr, tcp: &TcpOptions) -> Result<Socket, DialError> {
    let (domain, kind) = (Domain::for_address(addr), Type::STREAM.nonblocking());
    let socket = socket2::Socket::new(domain, kind, None)?;
    apply_tcp_options(SockRef::from(&socket), tcp).map_err(DialError::Option)?;
    Ok(Socket::connect(socket, addr).await?)
}

/// Connects to the first address of a name that answers.
async fn connect_name(
    name: &str,
    port: u16,
    names: &NameSet,
    tcp: &TcpOptions,
    deadline: Instant,
    offset: usize,
) -> Result<(Socket, SocketAddr), DialError> {
    let known = timeout_at(deadline, names.addresses(name)).await;
    let addresses = in_order(&known.map_err(|_| DialError::Timeout)?, port, offset);
    let connected = race(addresses, deadline, |address| connect(address, tcp)).await;
    connected.map_err(DialError::from).inspect_err(|error| {
        // The answer may live longer than the endpoint at its addresses.
        if !error.is_local() {
            names.refresh(name);
        }
    })
}

/// Orders addresses for dialing: families alternate, IPv6 first, and each family starts at another
/// address for each connection, so that the addresses of one name share the load.
fn in_order(addresses: &[IpAddr], port: u16, offset: usize) -> Vec<SocketAddr> {
    let (mut six, mut four): (Vec<_>, Vec<_>) = addresses
        .iter()
        .map(|ip| SocketAddr::new(*ip, port))
        .partition(SocketAddr::is_ipv6);
    for family in [&mut six, &mut four] {
        let start = offset.checked_rem(family.len()).unwrap_or(0);
        family.rotate_left(start);
    }
    six.append(&mut four);
    let mut ordered = alternate_families(&six);
    ordered.truncate(MAX_ADDRESSES);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_spreads_load_within_each_family() {
        let all = ["10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.3"];
        let all = all.map(|ip| ip.parse::<IpAddr>().unwrap());
        let texts = |offset| -> Vec<String> {
            let ordered = in_order(&all, 1, offset);
            ordered.iter().map(|at| at.ip().to_string()).collect()
        };
        assert_eq!(texts(0), ["fd00::1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(texts(1), ["fd00::1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]);
        let many: Vec<IpAddr> = (0..50_u8).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        assert_eq!(in_order(&many, 1, 7).len(), MAX_ADDRESSES);
        assert!(in_order(&[], 1, 3).is_empty());
    }

    #[test]
    fn local_faults_are_not_the_endpoints() {
        for (errno, reason, is_local, is_worth_another) in [
            (Errno::MFILE, Reason::ConnectFailed, true, false),
            (Errno::ADDRNOTAVAIL, Reason::ConnectFailed, true, true),
            (Errno::HOSTUNREACH, Reason::ConnectFailed, false, true),
            (Errno::CONNREFUSED, Reason::ConnectRefused, false, true),
            (Errno::TIMEDOUT, Reason::ConnectTimeout, false, true),
        ] {
            let error = DialError::from(io::Error::from(errno));
            assert_eq!((error.reason(), error.is_local()), (reason, is_local));
            assert_eq!(error.is_worth_another(), is_worth_another, "{errno}");
        }
    }
}
