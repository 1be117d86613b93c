//! Counters and gauges: one shared atomic each, and shards for threads that write a lot.
//!
//! ```text
//!     Counter ──fetch_add──▶ base ┐
//!     LocalCounter ──store──▶ shard ├──▶ sum at scrape
//!     LocalCounter ──store──▶ shard ┘
//! ```
//!
//! A shard has one writer, so adding is a plain load and store on a cache line of its own. A
//! dropped shard is added to the base under the lock that a reader holds, so a sum never misses it
//! nor counts it twice.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Metric;
use super::encode::{FamilyEncoder, Kind};
use crate::lock;

/// A number that only rises. Clones are the same series.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<Cells>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.base.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the sum over all handles.
    pub fn value(&self) -> u64 {
        self.0.sum()
    }

    /// Makes a handle for one writer, whose additions need no locked instruction. What it counted
    /// stays in the sum after it is dropped.
    pub fn local(&self) -> LocalCounter {
        LocalCounter(Shard::new(&self.0))
    }
}

/// A [`Counter`]'s handle for one thread at a time: it may be sent, not shared.
#[derive(Debug)]
pub struct LocalCounter(Shard);

impl LocalCounter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.add(n);
    }
}

/// A number that rises and falls. Clones are the same series.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<Cells>);

impl Gauge {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Takes one off.
    pub fn dec(&self) {
        self.sub(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: i64) {
        self.0.base.fetch_add(n.cast_unsigned(), Ordering::Relaxed);
    }

    /// Takes `n` off.
    pub fn sub(&self, n: i64) {
        self.add(n.wrapping_neg());
    }

    /// Replaces the value. What [`LocalGauge`]s hold comes on top, so a gauge has either those or
    /// this.
    pub fn set(&self, value: i64) {
        self.0.base.store(value.cast_unsigned(), Ordering::Relaxed);
    }

    /// Returns the value, summed over all handles.
    pub fn value(&self) -> i64 {
        self.0.sum().cast_signed()
    }

    /// Makes a handle for one writer, as [`Counter::local`] does.
    pub fn local(&self) -> LocalGauge {
        LocalGauge(Shard::new(&self.0))
    }
}

/// A [`Gauge`]'s handle for one thread at a time: it may be sent, not shared.
#[derive(Debug)]
pub struct LocalGauge(Shard);

impl LocalGauge {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Takes one off.
    pub fn dec(&self) {
        self.sub(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: i64) {
        self.0.add(n.cast_unsigned());
    }

    /// Takes `n` off.
    pub fn sub(&self, n: i64) {
        self.add(n.wrapping_neg());
    }
}

/// Sums wrap, so that a gauge's negative numbers add up in two's complement.
#[derive(Debug, Default)]
struct Cells {
    base: AtomicU64,
    shards: Mutex<Vec<Arc<Padded>>>,
}

impl Cells {
    fn sum(&self) -> u64 {
        let shards = lock(&self.shards);
        let base = self.base.load(Ordering::Relaxed);
        shards.iter().fold(base, |sum, shard| {
            sum.wrapping_add(shard.0.load(Ordering::Relaxed))
        })
    }
}

/// 64 bytes: the cache line of x86-64 and of most arm64 cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Padded(AtomicU64);

#[derive(Debug)]
struct Shard {
    cells: Arc<Cells>,
    own: Arc<Padded>,
    /// Takes `Sync` away: two writers would lose additions.
    one_writer: PhantomData<Cell<()>>,
}

impl Shard {
    fn new(cells: &Arc<Cells>) -> Self {
        let own = Arc::new(Padded::default());
        lock(&cells.shards).push(own.clone());
        Self {
            cells: cells.clone(),
            own,
            one_writer: PhantomData,
        }
    }

    fn add(&self, n: u64) {
        let value = self.own.0.load(Ordering::Relaxed);
        self.own.0.store(value.wrapping_add(n), Ordering::Relaxed);
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let mut shards = lock(&self.cells.shards);
        shards.retain(|shard| !Arc::ptr_eq(shard, &self.own));
        self.cells
            .base
            .fetch_add(self.own.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Metric for Counter {
    type Params = ();
    const KIND: Kind = Kind::Counter;

    fn new((): &()) -> Self {
        Self::default()
    }

    fn write(&self, family: &mut FamilyEncoder<'_>, labels: &[(&str, &str)]) {
        family.sample(labels, self.value());
    }
}

impl Metric for Gauge {
    type Params = ();
    const KIND: Kind = Kind::Gauge;

    fn new((): &()) -> Self {
        Self::default()
    }

    fn write(&self, family: &mut FamilyEncoder<'_>, labels: &[(&str, &str)]) {
        family.sample(labels, self.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_counters_of_many_threads_add_up() {
        const PER_THREAD: u64 = 10_000;
        let counter = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let local = counter.local();
                scope.spawn(move || (0..PER_THREAD).for_each(|_| local.inc()));
            }
            let shared = counter.clone();
            scope.spawn(move || (0..PER_THREAD).for_each(|_| shared.inc()));
        });
        assert_eq!(counter.value(), 5 * PER_THREAD);
    }

    #[test]
    fn a_sum_never_falls_while_writers_come_and_go() {
        let counter = Counter::default();
        std::thread::scope(|scope| {
            let writer = counter.clone();
            let writing = scope.spawn(move || {
                for _ in 0..2_000 {
                    writer.local().add(3);
                }
            });
            let mut last = 0;
            while !writing.is_finished() {
                let now = counter.value();
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
        assert_eq!(counter.value(), 6_000);
    }

    #[test]
    fn dropped_shard_keeps_count_and_no_memory() {
        let counter = Counter::default();
        let local = counter.local();
        local.add(41);
        assert_eq!(counter.value(), 41);
        drop(local);
        counter.inc();
        assert_eq!(counter.value(), 42);
        assert!(lock(&counter.0.shards).is_empty());
    }

    #[test]
    fn gauges_go_below_zero_and_back() {
        let gauge = Gauge::default();
        let (one, other) = (gauge.local(), gauge.local());
        one.inc();
        other.sub(3);
        assert_eq!(gauge.value(), -2);
        drop(other);
        gauge.add(2);
        one.dec();
        assert_eq!(gauge.value(), -1);
        drop(one);
        gauge.set(7);
        assert_eq!(gauge.value(), 7);
    }
}
