//! How many bytes may wait ahead of a line: as many as it takes in a short time.
//!
//! The kernel bounds what waits in a socket by bytes (`TCP_NOTSENT_LOWAT`, `SO_RCVBUF`), but what
//! keeps a fast line busy is half a second on a slow one, and delays all that comes behind. So the
//! bounds follow the rate at which a line took bytes while it was full, and with BBR, which keeps its own
//! queue short, the round trip; they grow while the line runs dry, or much passes unhindered. A new or idle line starts
//! at 16 KiB: bulk would fill up a slow one before anything is measured. Sets no option.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use socket2::SockRef;

/// Time over which a rate is measured.
const PERIOD: Duration = Duration::from_millis(100);

/// Steps that are made up for at once; after so many bounds have reached their end.
const MAX_STEPS: u128 = 64;

/// Time that bytes may wait in one socket.
const WAIT: Duration = Duration::from_millis(10);

/// Or the least round trip divided by this, if that is longer: BBR that runs short of bytes behind what others
/// have in a line's buffer does not raise its estimate of the rate.
const ROUND_TRIP_DIVISOR: u32 = 3;

/// What may wait in a socket ahead of a line of which nothing is known: 30 ms of 4 Mb/s. A fast one is known after
/// [`PERIOD`].
const FIRST_BYTES: u32 = 16 * 1024;

/// A source may be held up by what may wait in its socket while that passes so often in a [`PERIOD`]: its round trip
/// is 25 ms then.
const MANY: u64 = 4;

/// A source is empty for less time between two reads, without anything amiss.
const DRY: Duration = Duration::from_millis(1);

/// With half as many, queues ahead of them drop more than is gained.
pub const MIN_BYTES: u32 = 8 * 1024;

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
    /// Starts with few bytes, and never exceeds `max`.
    #[must_use]
    pub fn new(now: Instant, max: u32) -> Self {
        Self {
            since: now,
            moved: 0,
            was_full: false,
            was_dry: false,
            dry_since: None,
            bytes: max.min(FIRST_BYTES),
            max,
        }
    }

    /// Returns how many bytes may wait.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns whether the bound is below `max`.
    #[must_use]
    pub fn is_below_max(&self) -> bool {
        self.bytes < self.max
    }

    /// Counts bytes that went on. Returns how many may wait once that has changed. `round_trip` is called
    /// ten times a second at most.
    pub fn moved(
        &mut self,
        now: Instant,
        bytes: u64,
        state: SinkState,
        round_trip: impl Fn() -> Duration,
    ) -> Option<u32> {
        let before = self.bytes;
        // A pause belongs neither to what came before it nor to what follows.
        self.was_full &= !self.was_dry_for(now, PERIOD);
        if !self.was_full && self.end_period(now, &round_trip) {
            self.dry_since = None;
        }
        self.moved += bytes;
        self.was_full |= state == SinkState::Full;
        self.was_dry |= self.was_dry_for(now, DRY);
        self.dry_since = match (state, self.dry_since) {
            (SinkState::Full | SinkState::Open, _) => None,
            // The other direction may have asked.
            (SinkState::Dry, Some(since)) if bytes == 0 => Some(since),
            (SinkState::Dry, _) => Some(now),
        };
        if self.was_full {
            self.end_period(now, &round_trip);
        }
        (self.bytes != before).then_some(self.bytes)
    }

    fn was_dry_for(&self, now: Instant, time: Duration) -> bool {
        self.dry_since.is_some_and(|since| now >= since + time)
    }

    /// Draws conclusions from what has passed, once that has lasted long enough.
    fn end_period(&mut self, now: Instant, round_trip: &impl Fn() -> Duration) -> bool {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < PERIOD {
            return false;
        }
        let in_period = u128::from(self.moved) * PERIOD.as_micros() / elapsed.as_micros();
        // Slowly: congestion control itself slows down to look (BBR, for 200 ms in 10 s).
        for _ in 0..(elapsed.as_millis() / PERIOD.as_millis()).min(MAX_STEPS) {
            let step = self.bytes / 8;
            let (less, more) = (self.bytes - step, self.max.min(self.bytes + step));
            self.bytes = match (self.was_full, self.was_dry) {
                (true, false) => less,
                // It had too little queued, as while a lost packet is resent.
                (true, true) => more,
                (false, _) if in_period >= u128::from(MANY * u64::from(self.bytes)) => more,
                // What comes next may fill up a slow line: starts again.
                (false, _) if self.bytes > FIRST_BYTES => less.max(FIRST_BYTES),
                (false, _) => more.min(FIRST_BYTES),
            };
        }
        let wait = match self.bytes < self.max && self.moved > 0 {
            true => WAIT.max(round_trip() / ROUND_TRIP_DIVISOR),
            false => WAIT,
        };
        let bytes = u128::from(self.moved) * wait.as_micros() / elapsed.as_micros();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(MIN_BYTES);
        self.bytes = self.bytes.max(bytes).min(self.max);
        (self.since, self.moved) = (now, 0);
        (self.was_full, self.was_dry) = (false, false);
        true
    }
}

/// Returns the least round trip of the last 10 s of a TCP connection whose congestion control is BBR, in which its
/// own queue does not count; zero of any other, or where there was none.
#[must_use]
pub fn round_trip(socket: &impl AsFd) -> Duration {
    let congestion = SockRef::from(socket).tcp_congestion();
    // The kernel leaves zeros behind it.
    if !congestion.is_ok_and(|name| name.split(|byte| *byte == 0).next() == Some(b"bbr")) {
        return Duration::ZERO;
    }
    let info = getsockopt(socket, BbrInfo).unwrap_or_default();
    match info[MIN_RTT] {
        // Not measured.
        u32::MAX => Duration::ZERO,
        micros => Duration::from_micros(micros.into()),
    }
}

/// `struct tcp_bbr_info` (linux/inet_diag.h): five times `__u32`, since Linux 4.9; the kernel returns as many bytes as
/// are asked for. Other congestion controls have less, at which `nix` would panic.
#[derive(Clone, Copy, Debug)]
struct BbrInfo;

/// Where `bbr_min_rtt` is in it, in µs.
const MIN_RTT: usize = 2;

// Any bytes are valid integers.
nix::getsockopt_impl!(
    BbrInfo,
    libc::IPPROTO_TCP,
    libc::TCP_CC_INFO,
    [u32; 5],
    GetStruct<[u32; 5]>
);

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 128 * 1024;

    const NO_ROUND_TRIP: Duration = Duration::ZERO;

    fn start() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// Moves `rate` bits a second for `millis`; returns what may wait then.
    fn after(pace: &mut Pace, now: &mut Instant, millis: u64, rate: u64, state: SinkState) -> u32 {
        for _ in 0..millis / 10 {
            *now += Duration::from_millis(10);
            pace.moved(*now, rate / 800, state, || NO_ROUND_TRIP);
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
        // As much as passes in 25 ms may wait, if that passes unhindered.
        assert!((110_000..=125_000).contains(&after(5000, 40_000_000, SinkState::Open)));
        assert_eq!(after(5000, 1_000_000_000, SinkState::Open), MAX);
        assert_eq!(after(5000, 4_000_000, SinkState::Full), MIN_BYTES);
        // So may one that was full and ran dry.
        for _ in 0..20 {
            after(90, 4_000_000, SinkState::Full);
            after(10, 4_000_000, SinkState::Dry);
        }
        assert!(after(10, 4_000_000, SinkState::Full) > 4 * MIN_BYTES);
    }

    #[test]
    fn line_that_was_not_full_starts_again() {
        let mut now = start();
        let mut pace = Pace::new(now, MAX);
        assert_eq!(pace.bytes, FIRST_BYTES);
        for (rate, bulk) in [(1_000_000_000, MAX), (4_000_000, MIN_BYTES)] {
            let full = |pace: &mut Pace, now: &mut Instant| {
                assert_eq!(after(pace, now, 5000, rate, SinkState::Full), bulk);
            };
            full(&mut pace, &mut now);
            // Pings, say, or nothing for a while, or what another line is too slow for.
            for (rate, state) in [(100_000, SinkState::Dry), (4_000_000, SinkState::Open)] {
                assert_eq!(after(&mut pace, &mut now, 5000, rate, state), FIRST_BYTES);
                full(&mut pace, &mut now);
            }
            // The first of what follows a pause is not taken for all of it.
            for before in [SinkState::Dry, SinkState::Open] {
                after(&mut pace, &mut now, 200, rate, before);
                now += Duration::from_secs(10);
                pace.moved(now, 1000, SinkState::Full, || NO_ROUND_TRIP);
                assert_eq!(pace.bytes, FIRST_BYTES, "{before:?}");
            }
        }
        // Nor is a pause taken for what it began in.
        let mut pace = Pace::new(now, MAX);
        after(&mut pace, &mut now, 5050, 4_000_000, SinkState::Full);
        after(&mut pace, &mut now, 10, 4_000_000, SinkState::Dry);
        now += Duration::from_secs(10);
        pace.moved(now, 1000, SinkState::Full, || NO_ROUND_TRIP);
        assert_eq!(pace.bytes, FIRST_BYTES);
        // What is fast is known soon.
        let mut pace = Pace::new(now, MAX);
        assert_eq!(
            after(&mut pace, &mut now, 100, 1_000_000_000, SinkState::Full),
            MAX
        );
        assert_eq!(Pace::new(now, MIN_BYTES).bytes, MIN_BYTES);
    }

    #[test]
    fn line_runs_dry_however_often_it_is_looked_at() {
        let mut now = start();
        let mut pace = Pace::new(now, MAX);
        after(&mut pace, &mut now, 5000, 4_000_000, SinkState::Full);
        for _ in 0..20 {
            after(&mut pace, &mut now, 90, 4_000_000, SinkState::Full);
            for _ in 0..20 {
                now += DRY / 2;
                pace.moved(now, 0, SinkState::Dry, || NO_ROUND_TRIP);
            }
            pace.moved(now, 5000, SinkState::Full, || NO_ROUND_TRIP);
        }
        assert!(pace.bytes > 4 * MIN_BYTES, "{}", pace.bytes);
    }

    #[test]
    fn more_waits_on_line_with_longer_round_trip() {
        for (round_trip, expected) in [(30, 10_000), (300, 100_000), (4000, MAX)] {
            let mut now = start();
            let mut pace = Pace::new(now, MAX);
            for _ in 0..500 {
                now += Duration::from_millis(10);
                let round_trip = || Duration::from_millis(round_trip);
                pace.moved(now, 10_000, SinkState::Full, round_trip);
            }
            assert_eq!(pace.bytes, expected, "{round_trip} ms");
        }
    }

    #[test]
    fn interruption_counts_alike_however_often_it_is_looked_at() {
        for look in [50, 100, 1000] {
            let mut now = start();
            let mut pace = Pace::new(now, MAX);
            after(&mut pace, &mut now, 5000, 160_000_000, SinkState::Full);
            for _ in 0..1000 / look {
                now += Duration::from_millis(look);
                pace.moved(now, 0, SinkState::Full, || NO_ROUND_TRIP);
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
            pace.moved(now, 32 * 1024, SinkState::Full, || NO_ROUND_TRIP);
        }
        assert_eq!(pace.bytes, MIN_BYTES);
    }
}
