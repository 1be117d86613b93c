//! Histograms with fixed bounds, counted by atomics, and shards for threads that observe a lot.
//!
//! A shard has one writer, so observing is plain loads and stores. A dropped shard is added to the base under the
//! lock that a reader holds, as `value` does it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Metric;
use super::encode::{FamilyEncoder, Kind};
use crate::lock;

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

    fn bucket(&self, value: f64) -> usize {
        self.0.partition_point(|&bound| bound < value)
    }
}

/// A distribution. Clones are the same series.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Cells>);

#[derive(Debug)]
struct Cells {
    bounds: Buckets,
    base: Distribution,
    shards: Mutex<Vec<Arc<Distribution>>>,
}

#[derive(Debug)]
struct Distribution {
    /// One per bound and one for what lies above all of them; not cumulative.
    counts: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// Makes one that belongs to no family, for series that are written at scrape time.
    ///
    /// # Panics
    /// When the bounds do not rise or are not finite.
    #[must_use]
    pub fn detached(bounds: &[f64]) -> Self {
        Metric::new(&Buckets::new(bounds))
    }

    /// Counts `value` into the first bucket whose bound is not below it. What is not a number is
    /// left out, since one would spoil the sum for ever.
    pub fn observe(&self, value: f64) {
        if value.is_nan() {
            return;
        }
        let own = &self.0.base;
        own.counts[self.0.bounds.bucket(value)].fetch_add(1, Ordering::Relaxed);
        own.add(value);
    }

    /// Counts a time, in seconds.
    pub fn observe_duration(&self, elapsed: Duration) {
        self.observe(elapsed.as_secs_f64());
    }

    /// Makes a handle for one writer, whose observations need no locked instruction. What it counted stays in
    /// the sums after it is dropped.
    #[must_use]
    pub fn local(&self) -> LocalHistogram {
        let own = Arc::new(Distribution::new(&self.0.bounds));
        lock(&self.0.shards).push(Arc::clone(&own));
        LocalHistogram {
            cells: Arc::clone(&self.0),
            own,
            not_sync: PhantomData,
        }
    }

    /// Adds what another one with the same bounds has counted.
    pub fn add(&self, other: &Self) {
        let (counts, sum) = other.totals();
        for (total, count) in self.0.base.counts.iter().zip(counts) {
            total.fetch_add(count, Ordering::Relaxed);
        }
        self.0.base.add(sum);
    }

    /// Writes the current values as a series of `family`.
    pub fn write_to(&self, family: &mut FamilyEncoder<'_>, labels: &[(&str, &str)]) {
        let (counts, sum) = self.totals();
        family.histogram(labels, &self.0.bounds.0, &counts, sum);
    }

    /// Returns how many values were counted.
    pub fn count(&self) -> u64 {
        self.totals().0.iter().sum()
    }

    /// Returns the sum of the values.
    pub fn sum(&self) -> f64 {
        self.totals().1
    }

    fn totals(&self) -> (Vec<u64>, f64) {
        let shards = lock(&self.0.shards);
        let (mut counts, mut sum) = (vec![0; self.0.base.counts.len()], 0.0);
        for part in shards.iter().map(|own| &**own).chain([&self.0.base]) {
            for (total, count) in counts.iter_mut().zip(&part.counts) {
                *total += count.load(Ordering::Relaxed);
            }
            sum += f64::from_bits(part.sum.load(Ordering::Relaxed));
        }
        (counts, sum)
    }
}

impl Distribution {
    fn new(bounds: &Buckets) -> Self {
        Self {
            counts: (0..=bounds.0.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0.0_f64.to_bits()),
        }
    }

    fn add(&self, value: f64) {
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.sum.fetch_update(set, fetch, add);
    }
}

/// A [`Histogram`]'s handle for one thread at a time: it may be sent, not shared.
#[derive(Debug)]
pub struct LocalHistogram {
    cells: Arc<Cells>,
    own: Arc<Distribution>,
    not_sync: PhantomData<Cell<()>>,
}

impl LocalHistogram {
    /// Counts a time, in seconds.
    pub fn observe_duration(&self, elapsed: Duration) {
        let value = elapsed.as_secs_f64();
        let count = &self.own.counts[self.cells.bounds.bucket(value)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let sum = f64::from_bits(self.own.sum.load(Ordering::Relaxed)) + value;
        self.own.sum.store(sum.to_bits(), Ordering::Relaxed);
    }
}

impl Drop for LocalHistogram {
    fn drop(&mut self) {
        let mut shards = lock(&self.cells.shards);
        let base = &self.cells.base;
        for (total, count) in base.counts.iter().zip(&self.own.counts) {
            total.fetch_add(count.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        base.add(f64::from_bits(self.own.sum.load(Ordering::Relaxed)));
        shards.retain(|shard| !Arc::ptr_eq(shard, &self.own));
    }
}

impl Metric for Histogram {
    type Params = Buckets;
    const KIND: Kind = Kind::Histogram;

    fn new(bounds: &Buckets) -> Self {
        Self(Arc::new(Cells {
            bounds: bounds.clone(),
            base: Distribution::new(bounds),
            shards: Mutex::default(),
        }))
    }

    fn write(&self, family: &mut FamilyEncoder<'_>, labels: &[(&str, &str)]) {
        self.write_to(family, labels);
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
        assert_eq!(histogram.totals().0, [3, 2, 2]);
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
    fn local_handle_keeps_its_counts_when_dropped() {
        let histogram = Histogram::detached(&[1.0]);
        let local = histogram.local();
        local.observe_duration(Duration::from_millis(500));
        local.observe_duration(Duration::from_secs(2));
        let other = histogram.local();
        other.observe_duration(Duration::from_millis(500));
        assert_eq!(histogram.totals(), (vec![2, 1], 3.0));
        drop(local);
        assert_eq!(histogram.totals(), (vec![2, 1], 3.0));
        drop(other);
        assert!(lock(&histogram.0.shards).is_empty());
        assert_eq!(histogram.totals(), (vec![2, 1], 3.0));
    }

    #[test]
    #[should_panic(expected = "must be finite and rise")]
    fn bounds_that_do_not_rise_are_refused() {
        let _ = Buckets::new(&[1.0, 1.0]);
    }
}
