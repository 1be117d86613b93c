//! Connects to the first of several addresses that answers.
//!
//! ```text
//! one family:    a ──fails──▶ b ──fails──▶ c          each with its share of the time
//! the other:     (250 ms, or the first family failed) d ──▶ e       the first connection wins
//! ```
//!
//! That is what of RFC 8305 serves a program with few addresses for each name. Knows no names.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::error::DialError;
use super::target::Network;

/// How much later the second family begins, RFC 8305 §5.
const SECOND_FAMILY_AFTER: Duration = Duration::from_millis(250);

/// The least time an address gets while others wait; Go's figure.
const MIN_SHARE: Duration = Duration::from_secs(2);

/// Connections that say nothing are asked whether they live after this time, and this often.
const KEEPALIVE: Duration = Duration::from_secs(55);
/// Unanswered questions after which they are given up.
const KEEPALIVE_PROBES: u32 = 3;

/// Connects to one of `addresses`, which are not empty, by `deadline`; begins at the first of them
/// and its family. Cancel-safe: no connection outlives the future.
///
/// # Errors
/// What tells most of what happened at the addresses; [`DialError::Timeout`] at the deadline.
pub(super) async fn connect(
    network: Network,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<TcpStream, DialError> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        (addresses.iter().copied()).partition(|address| address.is_ipv6() == first_is_v6);
    if second.is_empty() {
        return in_sequence(network, &first, deadline).await;
    }
    let mut first_family = std::pin::pin!(in_sequence(network, &first, deadline));
    tokio::select! {
        connected = &mut first_family => return match connected {
            Ok(stream) => Ok(stream),
            Err(error) => in_sequence(network, &second, deadline)
                .await
                .map_err(|other| error.or_more_telling(other)),
        },
        () = sleep(SECOND_FAMILY_AFTER) => {}
    }
    let mut second_family = std::pin::pin!(in_sequence(network, &second, deadline));
    tokio::select! {
        connected = &mut first_family => match connected {
            Ok(stream) => Ok(stream),
            Err(error) => second_family
                .await
                .map_err(|other| error.or_more_telling(other)),
        },
        connected = &mut second_family => match connected {
            Ok(stream) => Ok(stream),
            Err(other) => first_family
                .await
                .map_err(|error| error.or_more_telling(other)),
        },
    }
}

/// Tries one address after the other, and tells of what happened what tells most.
async fn in_sequence(
    network: Network,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<TcpStream, DialError> {
    let mut told: Option<DialError> = None;
    for (number, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let others = u32::try_from(addresses.len() - number).unwrap_or(u32::MAX);
        let share = (left / others).max(MIN_SHARE.min(left));
        let error = match timeout_at(Instant::now() + share, one(network, *address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => DialError::Timeout {
                network: network.as_str(),
                address: *address,
            },
        };
        told = Some(match told {
            Some(before) => before.or_more_telling(error),
            None => error,
        });
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(told.unwrap_or_else(|| DialError::Timeout {
        network: network.as_str(),
        address: SocketAddr::from(([0, 0, 0, 0], 0)),
    }))
}

async fn one(network: Network, address: SocketAddr) -> Result<TcpStream, DialError> {
    let failed = |call| {
        move |error| DialError::Connect {
            network: network.as_str(),
            address,
            call,
            error,
        }
    };
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
