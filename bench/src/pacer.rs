//! When the next operation begins, and from when on its latency counts.
//!
//! Without a rate the loop is closed: one operation follows the other. With one it is open: an
//! operation that had to wait because the one before was not over counts from when it was due, so
//! that a stall shows in all operations it delayed and not in one. What our own timer was late
//! (tokio's has steps of a millisecond) is not counted.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The plan of one connection's operations.
#[derive(Debug)]
pub(crate) struct Pacer {
    interval: Option<Duration>,
    due: Instant,
}

impl Pacer {
    /// Plans one operation each `interval` from `start` on, or one after the other.
    pub(crate) fn new(interval: Option<Duration>, start: Instant) -> Self {
        Self {
            interval,
            due: start,
        }
    }

    /// Waits until the next operation is due, and returns from when on it counts.
    pub(crate) async fn next(&mut self) -> Instant {
        let now = Instant::now();
        let Some(interval) = self.interval else {
            return now;
        };
        let due = self.due;
        self.due += interval;
        if due <= now {
            return due;
        }
        sleep_until(due).await;
        Instant::now()
    }
}

/// Operations that are due at fixed times, for a load that does not wait by itself. Times are those
/// since any fixed moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    interval: Duration,
    due: Duration,
}

impl Arrivals {
    /// Plans one operation each `interval` from `start` on.
    pub(crate) fn new(interval: Duration, start: Duration) -> Self {
        Self {
            interval,
            due: start,
        }
    }

    /// Returns when the next operation is due.
    pub(crate) fn due(&self) -> Duration {
        self.due
    }

    /// Takes the next operation if it is due at `now`, and returns from when on it counts: from
    /// when it was due.
    pub(crate) fn take(&mut self, now: Duration) -> Option<Duration> {
        let due = self.due;
        (due <= now).then(|| {
            self.due += self.interval;
            due
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_begun_in_time_is_still_due() {
        let second = Duration::from_secs(1);
        let mut arrivals = Arrivals::new(second, second);
        assert_eq!(arrivals.take(Duration::ZERO), None);
        let late = 3 * second;
        let taken: Vec<_> = std::iter::from_fn(|| arrivals.take(late)).collect();
        assert_eq!(taken, [second, 2 * second, 3 * second]);
        assert_eq!(arrivals.due(), 4 * second);
    }

    #[tokio::test]
    async fn a_delayed_operation_counts_from_when_it_was_due() {
        let long_ago = Instant::now() - Duration::from_secs(10);
        let mut pacer = Pacer::new(Some(Duration::from_secs(1)), long_ago);
        assert_eq!(pacer.next().await, long_ago);
        assert_eq!(pacer.next().await, long_ago + Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_closed_loop_counts_from_now() {
        let before = Instant::now();
        let mut pacer = Pacer::new(None, before - Duration::from_secs(10));
        assert!(pacer.next().await >= before);
    }
}
