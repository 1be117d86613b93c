//! Tries the addresses of a name until one answers (RFC 8305).
//!
//! ```text
//!   IPv6, IPv4, IPv6, … ─▶ attempt, 250 ms later or when it fails the next, … the first one wins
//! ```
//!
//! Does not know what an attempt is.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use serve::DialError;
use tokio::time::{Instant, sleep_until};

/// Time between attempts (RFC 8305 §5, Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses that are tried at most.
const MOST_ADDRESSES: usize = 8;

/// Returns what the first attempt that succeeded has, with its address. The caller bounds the
/// wait. Cancel-safe: attempts under way are dropped.
///
/// # Errors
/// That of the attempt that failed last.
pub(super) async fn race<T, F>(
    addresses: Vec<IpAddr>,
    attempt: impl Fn(IpAddr) -> F,
) -> Result<(T, IpAddr), DialError>
where
    F: Future<Output = io::Result<T>>,
{
    let mut waiting = in_turn(addresses).into_iter();
    let mut attempts: Vec<(IpAddr, Pin<Box<F>>)> = Vec::new();
    let mut last_error = DialError::Unresolved;
    loop {
        match waiting.next() {
            Some(address) => attempts.push((address, Box::pin(attempt(address)))),
            None if attempts.is_empty() => return Err(last_error),
            None => {}
        }
        let next_attempt = sleep_until(Instant::now() + ATTEMPT_DELAY);
        let one_ended = poll_fn(|cx| {
            for (index, (address, attempt)) in attempts.iter_mut().enumerate() {
                if let Poll::Ready(result) = attempt.as_mut().poll(cx) {
                    let address = *address;
                    drop(attempts.swap_remove(index));
                    return Poll::Ready((result, address));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            (result, address) = one_ended => match result {
                Ok(connected) => return Ok((connected, address)),
                Err(error) => last_error = error.into(),
            },
            () = next_attempt, if waiting.len() > 0 => {}
        }
    }
}

/// Alternates families, IPv6 first (RFC 8305 §4).
fn in_turn(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (six, four): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv6);
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn families_take_turns_and_not_everything_is_tried() {
        let all = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(ip).to_vec();
        assert_eq!(in_turn(all), ["fd00::1", "10.0.0.1", "10.0.0.2"].map(ip));
        let many = (0..50).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        assert_eq!(in_turn(many).len(), MOST_ADDRESSES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_does_not_hold_up_the_others() {
        let attempt = async |address: IpAddr| {
            if address == ip("10.0.0.1") {
                std::future::pending::<()>().await;
            }
            Ok::<_, io::Error>(())
        };
        let all = ["10.0.0.1", "10.0.0.2"].map(ip).to_vec();
        let started = Instant::now();
        let (_, address) = race(all, attempt).await.unwrap();
        assert_eq!(address, ip("10.0.0.2"));
        assert_eq!(started.elapsed(), ATTEMPT_DELAY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_followed_by_the_next_at_once() {
        let attempt = async |address: IpAddr| match address == ip("10.0.0.1") {
            true => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
            false => Ok(()),
        };
        let started = Instant::now();
        let all = ["10.0.0.1", "10.0.0.2"].map(ip).to_vec();
        assert!(race(all, attempt).await.is_ok());
        assert_eq!(started.elapsed(), Duration::ZERO);
        let refused = race(vec![ip("10.0.0.1")], attempt).await;
        assert!(matches!(refused, Err(DialError::Refused(_))));
    }
}
