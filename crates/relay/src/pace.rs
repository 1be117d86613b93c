//! How many bytes may wait ahead of a line: as many as it takes in a short time.
//!
//! The kernel bounds what waits in a socket by bytes (`TCP_NOTSENT_LOWAT`, `SO_RCVBUF`), but what
//! keeps a fast line busy is half a second on a slow one, and delays all that comes behind. So the
//! bounds follow the rate at which a line took bytes while it was full, and grow while it runs dry.
//! Sets no option.

use std::time::{Duration, Instant};

/// Time over which a rate is measured.
const PERIOD: Duration = Duration::from_millis(100);

/// Steps that are made up for after a pause: bounds are 1,900 times as large after so many.
const MAX_STEPS: u128 = 64;

/// Time that bytes may wait in one socket.
const WAIT: Duration = Duration::from_millis(10);

/// A source is empty for less time between two reads, without anything amiss.
const DRY: Duration = Duration::from_millis(1);

/// With half as many, queues ahead of them drop more than is gained.
const MIN_BYTES: u32 = 8 * 1024;

/// The rate of one direction, and what may wait ahead of it.
#[derive(Debug)]
pub struct Pace {
    since: Instant,
    moved: u64,
    was_full: bool,
    was_dry: bool,
    /// Since when it may be dry.
    dry_since: Option<Instant>,
    bytes: u32,
    max: u32,
}

/// How the socket that bytes went to was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkState {
    /// It takes no more for now.
    Full,
    /// It would have taken more, and there was no more, or no turn left to move it.
    Dry,
    /// As [`SinkState::Dry`], but bytes wait elsewhere on the way to the line.
    Open,
}

impl Pace {
    /// Starts with `max` bytes, which are never exceeded.
    #[must_use]
    pub fn new(now: Instant, max: u32) -> Self {
        Self {
            since: now,
            moved: 0,
            was_full: false,
            was_dry: false,
            dry_since: None,
            bytes: max,
            max,
        }
    }

    /// Returns whether the bound is below `max`.
    #[must_use]
    pub fn is_below_max(&self) -> bool {
        self.bytes < self.max
    }

    /// Counts bytes that went on. Returns how many may wait once that has changed.
    pub fn moved(&mut self, now: Instant, bytes: u64, state: SinkState) -> Option<u32> {
        self.moved += bytes;
        self.was_full |= state == SinkState::Full;
        let dry_since = self.dry_since.take();
        self.was_dry |= dry_since.is_some_and(|since| now >= since + DRY);
        self.dry_since = (state == SinkState::Dry).then_some(now);
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < PERIOD {
            return None;
        }
        let before = self.bytes;
        // Slowly: congestion control itself slows down to look (BBR, for 200 ms in 10 s).
        for _ in 0..(elapsed.as_millis() / PERIOD.as_millis()).min(MAX_STEPS) {
            let step = self.bytes / 8;
            // A line that was both full and dry had too little queued, as while a lost packet is resent.
            self.bytes = match self.was_full && !self.was_dry {
                true => self.bytes - step,
                false => self.max.min(self.bytes + step),
            };
        }
        let bytes = u128::from(self.moved) * WAIT.as_micros() / elapsed.as_micros();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(MIN_BYTES);
        self.bytes = self.bytes.max(bytes);
        self.bytes = self.bytes.min(self.max);
        (self.since, self.moved) = (now, 0);
        (self.was_full, self.was_dry) = (false, false);
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
    fn after(pace: &mut Pace, now: &mut Instant, millis: u64, rate: u64, state: SinkState) -> u32 {
        for _ in 0..millis / 10 {
            *now += Duration::from_millis(10);
            pace.moved(*now, rate / 800, state);
        }
        pace.bytes
    }

    #[test]
    fn bytes_follow_the_rate_of_a_full_line() {
        let mut now = start();
        let mut pace = Pace::new(now, MAX);
        let mut after = |millis, rate, state| after(&mut pace, &mut now, millis, rate, state);
        assert_eq!(after(5000, 4_000_000, SinkState::Full), MIN_BYTES);
        assert_eq!(after(200, 40_000_000, SinkState::Full), 50_000);
        assert_eq!(after(200, 1_000_000_000, SinkState::Full), MAX);
        // Where congestion control only looks, little changes.
        assert!(after(300, 1_000_000, SinkState::Full) > MAX / 2);
        assert_eq!(after(5000, 40_000_000, SinkState::Full), 50_000);
        // One that takes all there is may be faster.
        assert_eq!(after(2000, 1_000_000, SinkState::Open), MAX);
        assert_eq!(after(5000, 4_000_000, SinkState::Full), MIN_BYTES);
        // So may one that was full and ran dry.
        for _ in 0..20 {
            after(90, 4_000_000, SinkState::Full);
            after(10, 4_000_000, SinkState::Dry);
        }
        assert!(after(10, 4_000_000, SinkState::Full) > 4 * MIN_BYTES);
        // A pause after it is no wait.
        assert_eq!(after(5000, 1_000_000, SinkState::Dry), MAX);
        pace.moved(now + Duration::from_secs(10), 1000, SinkState::Full);
        assert_eq!(pace.bytes, MAX);
    }

    #[test]
    fn interruption_counts_alike_however_often_it_is_looked_at() {
        for look in [50, 100, 1000] {
            let mut now = start();
            let mut pace = Pace::new(now, MAX);
            after(&mut pace, &mut now, 5000, 160_000_000, SinkState::Full);
            for _ in 0..1000 / look {
                now += Duration::from_millis(look);
                pace.moved(now, 0, SinkState::Full);
            }
            assert!((MAX / 4..MAX / 3).contains(&pace.bytes), "{}", pace.bytes);
        }
    }

    #[test]
    fn slowest_lines_count_between_rare_writes() {
        let mut now = start();
        let mut pace = Pace::new(now, MAX);
        for _ in 0..40 {
            now += Duration::from_secs(1);
            pace.moved(now, 32 * 1024, SinkState::Full);
        }
        assert_eq!(pace.bytes, MIN_BYTES);
    }
}
