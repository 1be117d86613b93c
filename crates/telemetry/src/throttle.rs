//! Lets a repeating warning through at most once per interval, and says how many were held back.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// A rate limit for one warning.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # let now = Instant::now();
/// static FULL: telemetry::Throttle = telemetry::Throttle::new(Duration::from_secs(10));
/// if let Some(suppressed) = FULL.permit(now) {
///     tracing::warn!(suppressed, "connection limit reached");
/// }
/// ```
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Makes a limit of one per `interval`. The first is always let through.
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::new(State {
                last: None,
                suppressed: 0,
            }),
        }
    }

    /// Returns how many were held back since the last one let through, or `None` when this one is
    /// to be held back as well.
    pub fn permit(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        let due = state
            .last
            .is_none_or(|last| now.saturating_duration_since(last) >= self.interval);
        if due {
            state.last = Some(now);
            return Some(std::mem::take(&mut state.suppressed));
        }
        state.suppressed = state.suppressed.saturating_add(1);
        None
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any starting point will do")]
mod tests {
    use super::*;

    #[test]
    fn throttle_passes_one_per_interval() {
        let throttle = Throttle::new(Duration::from_secs(10));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);

        assert_eq!(throttle.permit(at(0)), Some(0));
        assert_eq!(throttle.permit(at(1)), None);
        assert_eq!(throttle.permit(at(9)), None);
        assert_eq!(throttle.permit(at(10)), Some(2));
        assert_eq!(throttle.permit(at(19)), None);
        assert_eq!(throttle.permit(at(40)), Some(1));
    }

    #[test]
    fn earlier_time_is_throttled() {
        let throttle = Throttle::new(Duration::from_secs(1));
        let start = Instant::now();
        assert_eq!(throttle.permit(start + Duration::from_secs(5)), Some(0));
        assert_eq!(throttle.permit(start), None);
    }
}
