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
#[must_use]
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
    use std::convert::Infallible;
    use std::future::pending;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn families_alternate_from_that_of_the_first() {
        let all = addresses(&["10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1", "10.0.0.3:1"]);
        let wanted = addresses(&["10.0.0.1:1", "[fd00::1]:1", "10.0.0.2:1", "10.0.0.3:1"]);
        assert_eq!(alternate_families(&all), wanted);
        let ipv6_first = addresses(&["[fd00::1]:1", "[fd00::2]:1", "10.0.0.1:1"]);
        let wanted = addresses(&["[fd00::1]:1", "10.0.0.1:1", "[fd00::2]:1"]);
        assert_eq!(alternate_families(&ipv6_first), wanted);
        assert!(alternate_families(&[]).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_delays_the_next_by_250_ms() {
        let all = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let silent = all[0];
        let attempt = async |address| {
            if address == silent {
                pending::<()>().await;
            }
            Ok::<_, Infallible>(())
        };
        let started = Instant::now();
        let (_, address) = race(all.clone(), in_a_minute(), attempt).await.unwrap();
        assert_eq!(address, all[1]);
        assert_eq!(started.elapsed(), ATTEMPT_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_attempt_begins_the_next_at_once() {
        let all = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let refusing = all[0];
        let attempt = async |address| (address != refusing).then_some(()).ok_or("refused");
        let started = Instant::now();
        assert!(race(all.clone(), in_a_minute(), attempt).await.is_ok());
        assert_eq!(started.elapsed(), Duration::ZERO);
        let error = race(vec![refusing], in_a_minute(), attempt).await;
        assert_eq!(error.unwrap_err().failed, [(refusing, "refused")]);
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_reports_failed_and_silent_addresses() {
        let all = addresses(&["10.0.0.1:1", "10.0.0.2:1"]);
        let refusing = all[0];
        let attempt = async |address| {
            if address == refusing {
                return Err::<(), _>("refused");
            }
            pending().await
        };
        let deadline = in_a_minute();
        let error = race(all.clone(), deadline, attempt).await.unwrap_err();
        assert_eq!(error.failed, [(refusing, "refused")]);
        assert_eq!(error.pending, [all[1]]);
        assert_eq!(Instant::now(), deadline);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_under_way_are_bounded() {
        let all: Vec<SocketAddr> = (0..50_u8).map(|n| ([10, 0, 0, n], 1).into()).collect();
        let attempt = async |_| pending::<Result<(), Infallible>>().await;
        let error = race(all, in_a_minute(), attempt).await.unwrap_err();
        assert_eq!(error.pending.len(), MAX_ATTEMPTS);
        let none = race(Vec::new(), in_a_minute(), attempt).await.unwrap_err();
        assert!(none.failed.is_empty() && none.pending.is_empty());
    }
}
