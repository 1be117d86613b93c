//! Counters, gauges and histograms, and the registry that a scrape reads.
//!
//! ```text
//!     Registry ──▶ Family (name, help, label names) ──▶ Counter, Gauge, Histogram
//!        │                                                    ▲ handles, cloned into hot loops
//!        └──▶ closures that write series at scrape time
//! ```
//!
//! Handles are resolved once and then cost an atomic operation, or not even that
//! ([`Counter::local`]). Label values must come from closed sets; nothing here limits how many
//! series a family has, and a series stays until [`Family::remove`].
//!
//! Names are exposed as registered: there is no forced `_total`, because metrics of programs that
//! are replaced keep the names their dashboards know.

mod docs;
mod encode;
mod histogram;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::admin::Process;
use crate::lock;

pub use docs::check_docs;
pub use encode::{Encoder, Exposition, FamilyEncoder, Kind};
pub use histogram::{Buckets, Histogram, LocalHistogram};
pub use value::{Counter, Gauge, LocalCounter, LocalGauge};

/// What is known about a family before it has any series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name as exposed.
    pub name: String,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// One sentence for people.
    pub help: String,
    /// Label names, in the order in which they are exposed.
    pub labels: Vec<String>,
}

/// All metrics of one process. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By their first family.
    collectors: Mutex<BTreeMap<String, Arc<Collector>>>,
    /// Every sample name in use, so that a clash is found at start-up.
    names: Mutex<BTreeSet<String>>,
    /// Asked whether the process is ready, once it answers probes.
    process: OnceLock<Weak<dyn Process>>,
}

struct Collector {
    families: Vec<Description>,
    write: Box<dyn Fn(&mut Encoder) + Send + Sync>,
}

impl Registry {
    /// Makes an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a counter.
    ///
    /// # Panics
    /// When a name is malformed or taken. Registration belongs to start-up.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> CounterFamily {
        self.family(name, help, labels, ())
    }

    /// Registers a gauge.
    ///
    /// # Panics
    /// As [`Registry::counter`].
    pub fn gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> GaugeFamily {
        self.family(name, help, labels, ())
    }

    /// Registers a histogram with the given upper bounds, in rising order and without `+Inf`,
    /// which is always there.
    ///
    /// # Panics
    /// As [`Registry::counter`], and when the bounds do not rise or are not finite.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        buckets: &[f64],
    ) -> HistogramFamily {
        self.family(name, help, labels, Buckets::new(buckets))
    }

    /// Registers a closure that writes series at scrape time, for what is cheaper to walk than to
    /// count.
    ///
    /// It runs once right away to learn its families, so it must name every family it can ever
    /// write each time, series or none (see [`FamilyEncoder::labels`]), and must not wait for a
    /// lock its caller holds. It runs on the thread that answers the scrape.
    ///
    /// # Panics
    /// As [`Registry::counter`], for the families it writes.
    pub fn collect(&self, write: impl Fn(&mut Encoder) + Send + Sync + 'static) {
        let families = encode::families_of(&write);
        for family in &families {
            self.reserve(family);
        }
        let first = families.first().map(|family| family.name.clone());
        let collector = Collector {
            families,
            write: Box::new(write),
        };
        let mut collectors = lock(&self.inner.collectors);
        collectors.insert(first.unwrap_or_default(), Arc::new(collector));
    }

    /// Sets the process that answers probes; the first one stays.
    pub(crate) fn attach(&self, process: &Arc<dyn Process>) {
        let _ = self.inner.process.set(Arc::downgrade(process));
    }

    /// Returns a way to ask whether the process is ready; it answers `None` until there is one that
    /// answers probes. It does not keep the registry alive, so a collector may hold it.
    pub(crate) fn readiness(&self) -> impl Fn() -> Option<bool> + Send + Sync + use<> {
        let inner = Arc::downgrade(&self.inner);
        move || {
            let process = inner.upgrade()?.process.get()?.upgrade()?;
            Some(process.ready().is_ok())
        }
    }

    /// Lists every registered family, sorted by name.
    pub fn describe(&self) -> Vec<Description> {
        let collectors = self.collectors();
        let families = collectors.iter().flat_map(|one| one.families.clone());
        let mut all: Vec<_> = families.collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Writes all series, sorted by name; those that one closure writes are together.
    pub fn encode(&self, exposition: Exposition) -> String {
        let mut encoder = Encoder::new(exposition);
        for collector in self.collectors() {
            (collector.write)(&mut encoder);
        }
        encoder.finish()
    }

    fn family<M: Metric>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        params: M::Params,
    ) -> Family<M> {
        let family: Family<M> = Family {
            inner: Arc::new(FamilyInner {
                name,
                labels,
                params,
                series: Mutex::default(),
            }),
        };
        let inner = family.inner.clone();
        self.collect(move |out| {
            out.family(name, help, M::KIND, |family| {
                family.labels(labels);
                for (values, metric) in lock(&inner.series).iter() {
                    let values = values.iter().map(String::as_str);
                    let pairs: Vec<_> = labels.iter().copied().zip(values).collect();
                    metric.write(family, &pairs);
                }
            });
        });
        family
    }

    /// Copies the list, so that a scrape holds no lock that registration or lookup needs.
    fn collectors(&self) -> Vec<Arc<Collector>> {
        let collectors = lock(&self.inner.collectors);
        collectors.values().cloned().collect()
    }

    fn reserve(&self, family: &Description) {
        if let Err(problem) = encode::check(family) {
            panic!("metric {:?}: {problem}", family.name);
        }
        let mut names = lock(&self.inner.names);
        for name in encode::exposed_names(&family.name, family.kind) {
            assert!(
                names.insert(name),
                "metric {:?}: the name is taken",
                family.name
            );
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(lock(&self.inner.collectors).keys())
            .finish_non_exhaustive()
    }
}

/// A family of counters.
pub type CounterFamily = Family<Counter>;
/// A family of gauges.
pub type GaugeFamily = Family<Gauge>;
/// A family of histograms.
pub type HistogramFamily = Family<Histogram>;

/// All series of one name. Clones are the same family.
#[derive(Clone, Debug)]
pub struct Family<M: Metric> {
    inner: Arc<FamilyInner<M>>,
}

impl<M: Metric> Family<M> {
    /// Returns the series with these label values, in the order of the label names, making it
    /// when there is none. It takes a lock: keep the handle rather than asking again.
    ///
    /// # Panics
    /// When the number of values is not that of the label names.
    #[must_use]
    pub fn with(&self, values: &[&str]) -> M {
        let inner = &self.inner;
        assert_eq!(
            values.len(),
            inner.labels.len(),
            "label values of metric {:?}",
            inner.name
        );
        let key: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        lock(&inner.series)
            .entry(key)
            .or_insert_with(|| M::new(&inner.params))
            .clone()
    }

    /// Ends the series with these label values, and returns whether there was one. Handles that
    /// are still held go on counting unseen.
    pub fn remove(&self, values: &[&str]) -> bool {
        let key: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        lock(&self.inner.series).remove(&key).is_some()
    }

    /// Ends every series for which `keep` returns false.
    pub fn retain(&self, mut keep: impl FnMut(&[String]) -> bool) {
        lock(&self.inner.series).retain(|values, _| keep(values));
    }
}

#[derive(Debug)]
struct FamilyInner<M: Metric> {
    name: &'static str,
    labels: &'static [&'static str],
    params: M::Params,
    series: Mutex<BTreeMap<Vec<String>, M>>,
}

/// A kind of series: [`Counter`], [`Gauge`] or [`Histogram`].
pub trait Metric: Clone + fmt::Debug + Send + Sync + 'static {
    /// What making one needs to know.
    type Params: fmt::Debug + Send + Sync;
    /// The kind, as exposed.
    const KIND: Kind;
    /// Makes one at zero.
    fn new(params: &Self::Params) -> Self;
    /// Writes the current value.
    fn write(&self, family: &mut FamilyEncoder<'_>, labels: &[(&str, &str)]);
}

#[cfg(test)]
mod tests;
