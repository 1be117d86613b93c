//! Exponential back-off with full jitter.
//!
//! Full jitter, so that the gateways of a restarted controller do not reconnect all at
//! once. The random number is passed in.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Waits of one client.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            failures: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next wait, for a random number.
    pub(super) fn next(&mut self, random: u64) -> Duration {
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let ceiling = self.first.saturating_mul(doubled).min(self.most);
        self.failures = self.failures.saturating_add(1);
        // 32 bits of chance: steps of nanoseconds, as fine as a sleep is.
        let share =
            f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        ceiling.mul_f64(share)
    }
}

/// A random number that is good enough to spread waits.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_limit_and_reset_on_success() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        let waits: Vec<_> = (0..9).map(|_| backoff.next(u64::MAX).as_millis()).collect();
        assert_eq!(
            waits,
            [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]
        );
        for _ in 0..100 {
            assert_eq!(backoff.next(u64::MAX), Duration::from_secs(30));
        }
        backoff.reset();
        assert_eq!(backoff.next(u64::MAX), Duration::from_millis(200));
        assert_eq!(backoff.next(0), Duration::ZERO);
    }
}
