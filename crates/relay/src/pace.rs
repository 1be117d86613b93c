//! How many bytes may wait ahead of a line: as many as it takes in a short time.
//!
//! The kernel bounds what waits in a socket by bytes (`TCP_NOTSENT_LOWAT`, `SO_RCVBUF`), but what
//! keeps a fast line busy is half a second on a slow one, and delays all that comes behind. So the
//! bounds follow the rate at which a line took bytes while it was full, and with BBR, which keeps its own
//! queue short, the round trip; they grow while the line runs dry. Sets no option.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;
use socket2::SockRef;

/// Time over which a rate is measured.
const PERIOD: Duration = Duration::from_millis(100);

/// Steps that are made up for after a pause: bounds are 1,900 times as large after so many.
const MAX_STEPS: u128 = 64;

/// Time that bytes may wait in one socket.
const WAIT: Duration = Duration::from_millis(10);

/// Or the round trip divided by this, if that is longer: BBR that runs short of bytes behind what others
/// have in a line's buffer does not raise its estimate of the rate.
const ROUND_TRIP_DIVISOR: u32 = 3;

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

    /// Counts bytes that went on. Returns how many may wait once that has changed. `round_trip` is called
    /// ten times a second at most.
    pub fn moved(
        &mut self,
        now: Instant,
        bytes: u64,
        state: SinkState,
        round_trip: impl FnOnce() -> Duration,
    ) -> Option<u32> {
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
        let wait = match self.bytes < self.max && self.moved > 0 {
            true => WAIT.max(round_trip() / ROUND_TRIP_DIVISOR),
            false => WAIT,
        };
        let bytes = u128::from(self.moved) * wait.as_micros() / elapsed.as_micros();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(MIN_BYTES);
        self.bytes = self.bytes.max(bytes);
        self.bytes = self.bytes.min(self.max);
        (self.since, self.moved) = (now, 0);
        (self.was_full, self.was_dry) = (false, false);
        (self.bytes != before).then_some(self.bytes)
    }
}

/// Returns the smoothed round trip of a TCP connection whose congestion control is BBR; zero of any other.
#[must_use]
pub fn round_trip(socket: &impl AsFd) -> Duration {
    let congestion = SockRef::from(socket).tcp_congestion();
    if !congestion.is_ok_and(|name| name.starts_with(b"bbr")) {
        return Duration::ZERO;
    }
    let info = getsockopt(socket, TcpInfo).unwrap_or_default();
    Duration::from_micros(info[RTT].into())
}

/// The beginning of `struct tcp_info` (linux/tcp.h): eight fields of a byte, then `__u32`.
#[derive(Clone, Copy, Debug)]
struct TcpInfo;

/// Where `tcpi_rtt` is in it, in µs. Linux has had it since 2.4, and returns as many bytes as are asked for.
const RTT: usize = 17;

// Any bytes are valid integers; `nix` checks that the kernel has filled all of them.
nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    [u32; RTT + 1],
    GetStruct<[u32; RTT + 1]>
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
        pace.moved(now + Duration::from_secs(10), 1000, SinkState::Full, || {
            NO_ROUND_TRIP
        });
        assert_eq!(pace.bytes, MAX);
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
