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

#[cfg(test)]
mod tests {
    use super::*;

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
