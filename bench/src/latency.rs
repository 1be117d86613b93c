//! How long operations took: a histogram with three significant digits.
//!
//! ```text
//! one per connection: record ──┐
//! one per connection: record ──┴─▶ add ──▶ quantile, max, count
//! ```
//!
//! Knows nothing of when an operation should have begun.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Durations from 0.1 µs to ten minutes; shorter and longer ones count as these.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    nanoseconds: Histogram<u64>,
}

impl Latencies {
    pub(crate) fn new() -> Result<Self> {
        let nanoseconds =
            Histogram::new_with_bounds(SHORTEST, LONGEST, DIGITS).context("making a histogram")?;
        Ok(Self { nanoseconds })
    }

    pub(crate) fn record(&mut self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(LONGEST);
        self.nanoseconds.saturating_record(nanoseconds);
    }

    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.nanoseconds
            .add(&other.nanoseconds)
            .context("adding up histograms")
    }

    /// Returns the duration that the share `quantile` (0 to 1) of all operations did not exceed;
    /// zero when there were none.
    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.nanoseconds.value_at_quantile(quantile))
    }

    /// Returns the curve of the distribution: shares of all operations (0 to 1, closer together near
    /// 1), each with the duration that it did not exceed.
    pub(crate) fn curve(&self) -> Vec<(f64, Duration)> {
        let resolved = 1.0 - 1.0 / self.count().max(1) as f64;
        let steps = self.nanoseconds.iter_quantiles(STEPS_PER_HALVING);
        let mut curve: Vec<(f64, Duration)> = steps
            .map(|step| (step.quantile_iterated_to(), step.value_iterated_to()))
            // Closer to 1 than one of them is nothing but the longest.
            .take_while(|(share, _)| *share < resolved)
            .map(|(share, value)| (share, Duration::from_nanos(value)))
            .collect();
        curve.push((1.0, self.max()));
        curve
    }

    /// Returns the longest duration, zero when there was none.
    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.max())
    }

    pub(crate) fn count(&self) -> u64 {
        self.nanoseconds.len()
    }
}

const SHORTEST: u64 = 100;
const LONGEST: u64 = 600_000_000_000;
const DIGITS: u8 = 3;
/// Points of a curve for each halving of what is above.
const STEPS_PER_HALVING: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_two_histograms_together() {
        let (mut fast, mut slow) = (Latencies::new().unwrap(), Latencies::new().unwrap());
        for _ in 0..90 {
            fast.record(Duration::from_micros(100));
        }
        for _ in 0..10 {
            slow.record(Duration::from_millis(5));
        }
        fast.add(&slow).unwrap();
        let near = |duration: Duration, micros: f64| {
            (duration.as_secs_f64() * 1e6 / micros - 1.0).abs() < 0.002
        };
        assert_eq!(fast.count(), 100);
        assert!(near(fast.quantile(0.5), 100.0), "{:?}", fast.quantile(0.5));
        assert!(near(fast.quantile(0.95), 5000.0));
        assert!(near(fast.max(), 5000.0));
    }

    #[test]
    fn a_curve_rises_to_the_longest() {
        let mut latencies = Latencies::new().unwrap();
        for micros in 1..=1000 {
            latencies.record(Duration::from_micros(micros));
        }
        let curve = latencies.curve();
        assert!(curve.is_sorted(), "{curve:?}");
        assert!(curve.len() > 8);
        assert_eq!(curve.last().unwrap().0, 1.0);
        assert_eq!(curve.last().unwrap().1, latencies.max());
    }

    #[test]
    fn longer_than_the_longest_is_kept_as_the_longest() {
        let mut latencies = Latencies::new().unwrap();
        latencies.record(Duration::from_secs(10_000));
        assert_eq!(latencies.count(), 1);
        assert!(latencies.max() >= Duration::from_secs(599));
    }
}
