//! Connects to the first of several addresses that answers (RFC 8305, "happy eyeballs").
//!
//! ```text
//!     addresses, families alternating ─▶ attempt ─ 250 ms, or a failure ─▶ the next, … the first wins
//! ```
//!
//! Knows neither names nor sockets: an attempt is the caller's.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// Time between attempts (RFC 8305 §5, Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Attempts of one race under way at once; further ones wait for one of them to fail.
const MAX_ATTEMPTS: usize = 8;

/// How a race ended without a connection. Both are empty if there was no address.
#[derive(Debug)]
pub struct RaceError<E> {
    /// Failed attempts, in the order in which they failed.
    pub failed: Vec<(SocketAddr, E)>,
    /// Addresses that had not answered at the deadline, in the order in which they were tried.
    pub pending: Vec<SocketAddr>,
}

/// Returns the result of the first attempt that succeeds by `deadline`, with its address. Addresses are
/// tried in their order. Cancel-safe: attempts under way are dropped.
///
/// # Errors
/// What became of the attempts.
pub async fn race<T, E, F>(
    addresses: Vec<SocketAddr>,
    deadline: Instant,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<(T, SocketAddr), RaceError<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = addresses.into_iter();
    let mut attempts: Vec<(SocketAddr, Pin<Box<F>>)> = Vec::new();
    let mut failed = Vec::new();
    loop {
        if attempts.len() < MAX_ATTEMPTS
            && let Some(address) = waiting.next()
        {
            attempts.push((address, Box::pin(attempt(address))));
        }
        if attempts.is_empty() {
            let pending = Vec::new();
            return Err(RaceError { failed, pending });
        }
        let next = match waiting.len() {
            0 => deadline,
            _ => deadline.min(Instant::now() + ATTEMPT_DELAY),
        };
        let one_ended = poll_fn(|cx| {
            for (index, (address, attempt)) in attempts.iter_mut().enumerate() {
                if let Poll::Ready(result) = attempt.as_mut().poll(cx) {
                    let address = *address;
                    drop(attempts.remove(index));
                    return Poll::Ready((address, result));
                }
            }
            Poll::Pending
        });
        match timeout_at(next, one_ended).await {
            Ok((address, Ok(connected))) => return Ok((connected, address)),
            Ok((address, Err(error))) => failed.push((address, error)),
            Err(_) if Instant::now() >= deadline => {
                let pending = attempts.iter().map(|(address, _)| *address).collect();
                return Err(RaceError { failed, pending });
            }
            Err(_) => {}
        }
    }
}

/// Orders addresses so that families alternate, beginning with that of the first address (RFC 8305 §4).
/// Within a family the order stays.
pub fn alternate_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .iter()
        .copied()
        .partition(|address| address.is_ipv6() == first_is_ipv6);
    (0..first.len().max(second.len()))
        .flat_map(|index| [first.get(index), second.get(index)])
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &str) -> Vec<SocketAddr> {
        let parse = |text: &str| text.parse().unwrap();
        texts.split_whitespace().map(parse).collect()
    }

    /// Port 1 connects, port 2 refuses, and the others are silent.
    async fn attempt(address: SocketAddr) -> Result<(), &'static str> {
        match address.port() {
            1 => Ok(()),
            2 => Err("refused"),
            _ => std::future::pending().await,
        }
    }

    #[test]
    fn families_alternate_from_that_of_the_first() {
        for (all, ordered) in [
            (
                "10.0.0.1:1 10.0.0.2:1 [fd00::1]:1 10.0.0.3:1",
                "10.0.0.1:1 [fd00::1]:1 10.0.0.2:1 10.0.0.3:1",
            ),
            (
                "[fd00::1]:1 [fd00::2]:1 10.0.0.1:1",
                "[fd00::1]:1 10.0.0.1:1 [fd00::2]:1",
            ),
            ("", ""),
        ] {
            assert_eq!(alternate_families(&addresses(all)), addresses(ordered));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn next_attempt_follows_delay_or_failure() {
        for (all, delay) in [
            ("10.0.0.1:3 10.0.0.2:1", ATTEMPT_DELAY),
            ("10.0.0.1:2 10.0.0.2:1", Duration::ZERO),
        ] {
            let (all, started) = (addresses(all), Instant::now());
            let limit = started + Duration::from_secs(60);
            let (_, address) = race(all.clone(), limit, attempt).await.unwrap();
            assert_eq!((address, started.elapsed()), (all[1], delay));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_and_silent_addresses_are_reported() {
        for (all, failed, pending, waits) in [
            ("10.0.0.1:2", "10.0.0.1:2", "", false),
            ("10.0.0.1:2 10.0.0.2:3", "10.0.0.1:2", "10.0.0.2:3", true),
            ("", "", "", false),
        ] {
            let limit = Instant::now() + Duration::from_secs(60);
            let error = race(addresses(all), limit, attempt).await.unwrap_err();
            let refused = addresses(failed).into_iter().map(|at| (at, "refused"));
            assert_eq!(error.failed, refused.collect::<Vec<_>>());
            assert_eq!(error.pending, addresses(pending));
            assert_eq!(Instant::now() == limit, waits);
        }
        let many = (0..50_u8).map(|n| ([10, 0, 0, n], 3).into()).collect();
        let limit = Instant::now() + Duration::from_secs(60);
        let error = race(many, limit, attempt).await.unwrap_err();
        assert_eq!(error.pending.len(), MAX_ATTEMPTS);
    }
}
