//! How long operations took: a histogram with three significant digits.
//!
//! ```text
//! one per connection: record ──┐
//! one per connection: record ──┴─▶ add ──▶ quantile, max, count
//! ```
//!
//! Knows nothing of when an operation should have begun.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Durations from 0.1 µs to ten minutes; shorter and longer ones count as these.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    nanoseconds: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let nanoseconds = Histogram::new_with_bounds(SHORTEST, LONGEST, DIGITS);
        Self {
            nanoseconds: nanoseconds.expect("fixed bounds, the lower one above 0"),
        }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(LONGEST);
        self.nanoseconds.saturating_record(nanoseconds);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let added = self.nanoseconds.add(&other.nanoseconds);
        added.expect("all histograms have the same bounds");
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

    fn of(micros: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::default();
        for micros in micros {
            latencies.record(Duration::from_micros(micros));
        }
        latencies
    }

    #[test]
    fn quantiles_of_two_histograms_together() {
        let mut both = of([100; 90]);
        both.add(&of([5000; 10]));
        assert_eq!(both.count(), 100);
        for (found, micros) in [
            (both.quantile(0.5), 100.0),
            (both.quantile(0.95), 5000.0),
            (both.max(), 5000.0),
        ] {
            let off = (found.as_secs_f64() * 1e6 / micros - 1.0).abs();
            assert!(off < 0.002, "{found:?} for {micros} µs");
        }
    }

    #[test]
    fn a_curve_rises_to_the_longest() {
        let latencies = of(1..=1000);
        let curve = latencies.curve();
        assert!(curve.is_sorted(), "{curve:?}");
        assert!(curve.len() > 8);
        assert_eq!(curve.last(), Some(&(1.0, latencies.max())));
    }

    #[test]
    fn latency_above_maximum_is_clamped() {
        let latencies = of([10_000_000_000]);
        assert_eq!(latencies.count(), 1);
        assert!(latencies.max() >= Duration::from_secs(599));
    }
}
