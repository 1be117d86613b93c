//! Histograms with fixed bounds, counted by atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Metric;
use super::encode::{FamilyEncoder, Kind};

/// Upper bounds of a histogram's buckets, rising, without `+Inf`.
#[derive(Clone, Debug)]
pub struct Buckets(Arc<[f64]>);

impl Buckets {
    pub(super) fn new(bounds: &[f64]) -> Self {
        let rising = bounds.windows(2).all(|pair| pair[0] < pair[1]);
        let finite = bounds.iter().all(|bound| bound.is_finite());
        assert!(
            rising && finite,
            "histogram bounds must be finite and rise: {bounds:?}"
        );
        Self(bounds.into())
    }
}

/// A distribution. Clones are the same series.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Cells>);

#[derive(Debug)]
struct Cells {
    bounds: Buckets,
    /// One per bound and one for what lies above all of them; not cumulative.
    counts: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// Counts `value` into the first bucket whose bound is not below it. What is not a number is
    /// left out, since one would spoil the sum for ever.
    pub fn observe(&self, value: f64) {
        if value.is_nan() {
            return;
        }
        let bucket = self.0.bounds.0.partition_point(|&bound| bound < value);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.0.sum.fetch_update(set, fetch, add);
    }

    /// Counts a time, in seconds.
    pub fn observe_duration(&self, elapsed: Duration) {
        self.observe(elapsed.as_secs_f64());
    }

    /// Returns how many values were counted.
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }

    fn counts(&self) -> Vec<u64> {
        let counts = self.0.counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.0.sum.load(Ordering::Relaxed))
    }
}

impl Metric for Histogram {
    type Params = Buckets;
    const KIND: Kind = Kind::Histogram;

    fn new(bounds: &Buckets) -> Self {
        let counts = (0..=bounds.0.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Cells {
            bounds: bounds.clone(),
            counts,
            sum: AtomicU64::new(0),
        }))
    }

    fn write(&self, family: &mut FamilyEncoder<'_>, labels: &[(&str, &str)]) {
        family.histogram(labels, &self.0.bounds.0, &self.counts(), self.sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_it() {
        let histogram = Histogram::new(&Buckets::new(&[1.0, 2.0]));
        for value in [0.0, 1.0, 1.5, 2.0, 2.1, f64::INFINITY, -1.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.counts(), [3, 2, 2]);
    }

    #[test]
    fn nan_is_not_observed() {
        let histogram = Histogram::new(&Buckets::new(&[1.0]));
        histogram.observe(f64::NAN);
        histogram.observe_duration(Duration::from_millis(250));
        assert_eq!(histogram.count(), 1);
        assert!((histogram.sum() - 0.25).abs() < f64::EPSILON);
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::new(&Buckets::new(&[10.0]));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5_000).for_each(|_| histogram.observe(2.0)));
            }
        });
        assert_eq!(histogram.count(), 20_000);
        assert!((histogram.sum() - 40_000.0).abs() < f64::EPSILON);
    }

    #[test]
    #[should_panic(expected = "must be finite and rise")]
    fn bounds_that_do_not_rise_are_refused() {
        let _ = Buckets::new(&[1.0, 1.0]);
    }
}
