//! How fast [`AddressKeeper::run`](crate::AddressKeeper::run) may look again. Pure: `now` goes in.
//!
//! The first repair is immediate. If it is undone again and again, the gap between repairs doubles
//! up to half a second, so two processes that disagree cost the node nothing and an address is
//! still back within a second. Failures are tried again by themselves, ever more slowly.

use std::time::Duration;

use tokio::time::Instant;

/// Looks happen at least this often, should an event ever be missed.
const RESYNC: Duration = Duration::from_secs(60);
const GAP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// So long without a repair or a failure, and the next repair is immediate again.
const CALM: Duration = Duration::from_secs(10);

/// What a look at the kernel's state ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Failed,
    Repaired,
    Settled,
}

/// The two waits between looks.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    gap: Duration,
    retry: Option<Duration>,
    disturbed: Option<Instant>,
}

impl Pace {
    /// Takes note of a look that ended at `now`.
    pub(crate) fn looked(&mut self, now: Instant, outcome: Outcome) {
        self.retry = match outcome {
            Outcome::Failed => Some(self.retry.map_or(RETRY.0, |wait| RETRY.1.min(wait * 2))),
            Outcome::Repaired | Outcome::Settled => None,
        };
        if outcome != Outcome::Settled {
            self.gap = (self.gap(now) * 2).clamp(GAP.0, GAP.1);
            self.disturbed = Some(now);
        }
    }

    /// How long to wait before an event may cause the next look.
    pub(crate) fn gap(&self, now: Instant) -> Duration {
        match self.disturbed {
            Some(disturbed) if now.duration_since(disturbed) < CALM => self.gap,
            _ => Duration::ZERO,
        }
    }

    /// How long to wait for an event before looking anyway.
    pub(crate) fn patience(&self) -> Duration {
        self.retry.unwrap_or(RESYNC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_single_repair_is_not_delayed() {
        let now = Instant::now();
        let mut pace = Pace::default();

        pace.looked(now, Outcome::Settled);

        assert_eq!(pace.gap(now), Duration::ZERO);
        assert_eq!(pace.patience(), RESYNC);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fight_slows_down_to_a_bound_and_calms() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        let mut repairs = 0;
        let start = now;

        while now - start < Duration::from_secs(60) {
            pace.looked(now, Outcome::Repaired);
            repairs += 1;
            assert!((GAP.0..=GAP.1).contains(&pace.gap(now)));
            now += pace.gap(now);
        }

        assert!(
            (110..140).contains(&repairs),
            "{repairs} repairs in a minute"
        );
        assert_eq!(pace.gap(now + CALM), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_until_success() {
        let now = Instant::now();
        let mut pace = Pace::default();

        let waits: Vec<_> = (0..12)
            .map(|_| {
                pace.looked(now, Outcome::Failed);
                pace.patience()
            })
            .collect();
        pace.looked(now, Outcome::Settled);

        assert_eq!(waits[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(waits.last(), Some(&RETRY.1));
        assert_eq!(pace.patience(), RESYNC);
    }
}
