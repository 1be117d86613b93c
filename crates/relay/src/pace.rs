//! How many bytes may wait ahead of a line: as many as it takes in a short time.
//!
//! The kernel bounds what waits in a socket by bytes (`TCP_NOTSENT_LOWAT`, `SO_RCVBUF`), but what keeps
//! a fast line busy is half a second on a slow one, and delays all that comes behind. So the bounds
//! follow the rate at which a line took bytes while it was full. Sets no option.

use std::time::{Duration, Instant};

/// Time over which a rate is measured.
const PERIOD: Duration = Duration::from_millis(100);

/// A line that took nothing for this long was interrupted, which does not tell its rate.
const PAUSE: Duration = Duration::from_millis(400);

/// Time that bytes may wait in one socket.
const WAIT: Duration = Duration::from_millis(10);

/// With half as many, queues ahead of them drop more than is gained.
const MIN_BYTES: u32 = 8 * 1024;

/// The rate of one direction, and what may wait ahead of it.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    moved: u64,
    was_full: bool,
    bytes: u32,
    max: u32,
}

impl Pace {
    /// Starts with `max` bytes, which are never exceeded.
    #[must_use]
    pub fn new(now: Instant, max: u32) -> Self {
        Self {
            since: now,
            moved: 0,
            was_full: false,
            bytes: max,
            max,
        }
    }

    /// Returns whether fewer may wait than at most.
    #[must_use]
    pub fn is_below_max(&self) -> bool {
        self.bytes < self.max
    }

    /// Counts bytes that went on, and whether more would have but for a full socket. Returns how many
    /// may wait once that has changed.
    pub fn moved(&mut self, now: Instant, bytes: u64, full: bool) -> Option<u32> {
        self.moved += bytes;
        self.was_full |= full;
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < PERIOD {
            return None;
        }
        let before = self.bytes;
        if !self.was_full {
            self.bytes = before.saturating_mul(2);
        } else if elapsed < PAUSE {
            let bytes = u128::from(self.moved) * WAIT.as_micros() / elapsed.as_micros();
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(MIN_BYTES);
            // Slowly, since congestion control slows down now and then to look (BBR, 200 ms in 10 s).
            self.bytes = bytes.max(before - before / 8);
        }
        self.bytes = self.bytes.min(self.max);
        (self.since, self.moved, self.was_full) = (now, 0, false);
        (self.bytes != before).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 128 * 1024;

    fn start() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// Moves `rate` bits a second for `millis`; returns what may wait then.
    fn after(pace: &mut Pace, now: &mut Instant, millis: u64, rate: u64, full: bool) -> u32 {
        for _ in 0..millis / 10 {
            *now += Duration::from_millis(10);
            pace.moved(*now, rate / 800, full);
        }
        pace.bytes
    }

    #[test]
    fn bytes_follow_the_rate_of_a_full_line() {
        let mut now = start();
        let mut pace = Pace::new(now, MAX);
        let mut after = |millis, rate, full| after(&mut pace, &mut now, millis, rate, full);
        assert_eq!(after(5000, 4_000_000, true), MIN_BYTES);
        assert_eq!(after(200, 40_000_000, true), 50_000);
        assert_eq!(after(200, 1_000_000_000, true), MAX);
        // Where congestion control only looks, little changes.
        assert!(after(300, 1_000_000, true) > MAX / 2);
        assert_eq!(after(5000, 40_000_000, true), 50_000);
        // One that takes all there is may be faster.
        assert_eq!(after(1000, 1_000_000, false), MAX);
    }

    #[test]
    fn pause_tells_no_rate() {
        let mut now = start();
        let mut pace = Pace::new(now, MAX);
        after(&mut pace, &mut now, 5000, 16_000_000, true);
        now += Duration::from_secs(5);
        assert_eq!(pace.moved(now, 1, true), None);
        now += Duration::from_millis(200);
        assert_eq!(pace.moved(now, 600_000, true), Some(30_000));
    }
}
