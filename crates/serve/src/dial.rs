//! Connecting to an endpoint within a deadline.
//!
//! ```text
//!     address ─▶ connect                                      one attempt
//!     name ─▶ addresses, families in turn ─▶ connect, 250 ms later the next, … first one wins
//! ```
//!
//! Does not choose endpoints or retry on others; that is the connection's own loop.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use route::{ConnectFailure, EndpointAddress, TcpOptions};
use socket2::SockRef;
use telemetry::metrics::Histogram;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::reason::Reason;
use crate::resolve::NameSet;
use crate::tcp::apply_tcp_options;

/// Time between attempts on the addresses of one name (RFC 8305 §5, Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses of one name that one dial tries.
const MOST_ADDRESSES: usize = 8;

/// Why an endpoint was not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The endpoint could not be reached, or a socket not be had.
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
    #[must_use]
    pub fn failure(&self) -> ConnectFailure {
        match self {
            Self::Refused(_) => ConnectFailure::Refused,
            Self::Timeout => ConnectFailure::Timeout,
            Self::Failed(_) | Self::Option(_) | Self::Unresolved => ConnectFailure::Failed,
        }
    }

    /// Returns how this ends a connection.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Refused(_) => Reason::ConnectRefused,
            Self::Timeout => Reason::ConnectTimeout,
            Self::Failed(_) | Self::Option(_) | Self::Unresolved => Reason::ConnectFailed,
        }
    }

    /// Tells whether the fault is this host's (descriptors, ports, memory), not the endpoint's.
    #[must_use]
    pub fn is_local(&self) -> bool {
        use rustix::io::Errno;
        let Self::Failed(error) = self else {
            return matches!(self, Self::Option(_));
        };
        matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::ADDRNOTAVAIL)
        )
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

/// Opens connections to endpoints.
#[derive(Clone, Debug)]
pub struct Dialer {
    connect_seconds: Histogram,
}

impl Dialer {
    /// Creates a dialer that observes how long connecting takes.
    #[must_use]
    pub fn new(connect_seconds: Histogram) -> Self {
        Self { connect_seconds }
    }

    /// Connects to `address` by `deadline` with the given socket options.
    ///
    /// `names` resolves host names; `turn` spreads connections over the addresses of one name.
    ///
    /// # Errors
    /// Why the endpoint was not connected. Cancel-safe: a dropped attempt closes its socket.
    pub async fn connect(
        &self,
        address: &EndpointAddress,
        names: &NameSet,
        tcp: &TcpOptions,
        deadline: Instant,
        turn: usize,
    ) -> Result<(TcpStream, SocketAddr), DialError> {
        let started = Instant::now();
        let connected = match address {
            EndpointAddress::Ip(addr) => timeout_at(deadline, connect(*addr, tcp)).await,
            EndpointAddress::Host { name, port } => {
                let dial = Box::pin(connect_name(name, *port, names, tcp, turn));
                timeout_at(deadline, dial).await
            }
        };
        let connected = connected.map_err(|_| DialError::Timeout)??;
        self.connect_seconds.observe_duration(started.elapsed());
        Ok(connected)
    }
}

async fn connect(addr: SocketAddr, tcp: &TcpOptions) -> Result<(TcpStream, SocketAddr), DialError> {
    let socket = if addr.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    apply_tcp_options(SockRef::from(&socket), tcp).map_err(DialError::Option)?;
    Ok((socket.connect(addr).await?, addr))
}

type Attempt<'a> =
    Pin<Box<dyn Future<Output = Result<(TcpStream, SocketAddr), DialError>> + Send + 'a>>;

/// Connects to the first address of a name that answers (RFC 8305).
async fn connect_name(
    name: &str,
    port: u16,
    names: &NameSet,
    tcp: &TcpOptions,
    turn: usize,
) -> Result<(TcpStream, SocketAddr), DialError> {
    let addresses = names.addresses(name).await;
    let mut waiting = in_order(&addresses, turn).into_iter();
    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    let mut last_error = DialError::Unresolved;
    loop {
        match waiting.next() {
            Some(ip) => attempts.push(Box::pin(connect(SocketAddr::new(ip, port), tcp))),
            None if attempts.is_empty() => return Err(last_error),
            None => {}
        }
        let next_attempt = sleep_until(Instant::now() + ATTEMPT_DELAY);
        let one_ended = poll_fn(|cx| {
            for index in 0..attempts.len() {
                if let Poll::Ready(result) = attempts[index].as_mut().poll(cx) {
                    drop(attempts.swap_remove(index));
                    return Poll::Ready(result);
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            result = one_ended => match result {
                Ok(connected) => return Ok(connected),
                Err(error) => last_error = error,
            },
            () = next_attempt, if waiting.len() > 0 => {}
        }
    }
}

/// Orders addresses for dialling: IPv6 and IPv4 in turn (RFC 8305 §4), each family starting at
/// another place for each connection, so that the addresses of one name share the load.
fn in_order(addresses: &[IpAddr], turn: usize) -> Vec<IpAddr> {
    let family = |ipv6: bool| {
        let all: Vec<IpAddr> = addresses
            .iter()
            .copied()
            .filter(|ip| ip.is_ipv6() == ipv6)
            .collect();
        let start = if all.is_empty() { 0 } else { turn % all.len() };
        (0..all.len())
            .map(move |index| all[(start + index) % all.len()])
            .collect::<Vec<_>>()
    };
    let (six, four) = (family(true), family(false));
    let longest = six.len().max(four.len());
    (0..longest)
        .flat_map(|index| [six.get(index), four.get(index)])
        .flatten()
        .copied()
        .take(MOST_ADDRESSES)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_load_is_spread() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let all = [
            ip("10.0.0.1"),
            ip("10.0.0.2"),
            ip("fd00::1"),
            ip("10.0.0.3"),
        ];
        let texts = |turn| -> Vec<String> {
            in_order(&all, turn)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(texts(0), ["fd00::1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(texts(1), ["fd00::1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]);
        let many: Vec<IpAddr> = (0..50_u8).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        assert_eq!(in_order(&many, 7).len(), MOST_ADDRESSES);
        assert!(in_order(&[], 3).is_empty());
    }

    #[test]
    fn local_faults_are_not_the_endpoints() {
        let from = |errno: rustix::io::Errno| DialError::from(io::Error::from(errno));
        assert!(from(rustix::io::Errno::MFILE).is_local());
        assert!(!from(rustix::io::Errno::HOSTUNREACH).is_local());
        assert_eq!(
            from(rustix::io::Errno::CONNREFUSED).reason(),
            Reason::ConnectRefused
        );
        assert_eq!(
            from(rustix::io::Errno::TIMEDOUT).reason(),
            Reason::ConnectTimeout
        );
    }
}
