//! An endpoint of a cluster, and its state that outlives snapshots.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::spec::{EndpointAddress, EndpointSpec};

/// One upstream address of a cluster.
#[derive(Debug)]
pub struct Endpoint {
    spec: EndpointSpec,
    runtime: Arc<Runtime>,
}

impl Endpoint {
    /// Creates an endpoint that goes on with the state of `previous`, the same address before.
    pub(crate) fn new(spec: &EndpointSpec, previous: Option<&Self>) -> Self {
        Self {
            spec: spec.clone(),
            runtime: previous
                .map(|old| Arc::clone(&old.runtime))
                .unwrap_or_default(),
        }
    }

    /// Tells whether the endpoint is what `spec` describes.
    pub(crate) fn is(&self, spec: &EndpointSpec) -> bool {
        self.spec == *spec
    }

    /// Returns where the endpoint listens.
    #[must_use]
    pub fn address(&self) -> &EndpointAddress {
        &self.spec.address
    }

    /// Returns its zone.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.spec.zone.as_deref()
    }

    /// Returns its share of the connections relative to others; at least 1.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.spec.weight
    }

    /// Returns its priority; the lowest number comes first.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.spec.priority
    }

    /// Returns the number of connections that are open to it, by all snapshots.
    #[must_use]
    pub fn active(&self) -> u32 {
        self.runtime.active.load(Ordering::Relaxed)
    }

    /// Counts a connection; each call is followed by one of [`end`](Self::end).
    pub fn begin(&self) {
        self.runtime.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops counting a connection.
    pub fn end(&self) {
        let before = self.runtime.active.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a connection ends once");
    }

    /// Returns the state at `now`.
    #[must_use]
    pub fn state(&self, now: Instant) -> EndpointState {
        if !self.spec.healthy {
            EndpointState::Unhealthy
        } else if self.is_ejected(now) {
            EndpointState::Ejected
        } else {
            EndpointState::Healthy
        }
    }

    /// Returns the number of attempts to connect that failed since the last that did not.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.runtime.failures.load(Ordering::Relaxed)
    }

    /// Returns for how long the endpoint stays ejected from `now` on; `None` when it is not.
    #[must_use]
    pub fn ejected_for(&self, now: Instant) -> Option<Duration> {
        if !self.is_ejected(now) {
            return None;
        }
        let until = self.runtime.ejected_until.load(Ordering::Relaxed);
        let left = u64::try_from(until.saturating_sub(ticks(now)));
        Some(Duration::from_nanos(left.unwrap_or(0)))
    }

    pub(crate) fn is_ejected(&self, now: Instant) -> bool {
        let until = self.runtime.ejected_until.load(Ordering::Relaxed);
        until != NOT_EJECTED && until > ticks(now)
    }

    /// Counts a failure; returns how many there are in a row.
    pub(crate) fn failed(&self) -> u32 {
        let failures = &self.runtime.failures;
        let more = |count: u32| Some(count.saturating_add(1));
        match failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(before) | Err(before) => before.saturating_add(1),
        }
    }

    /// Forgets failures and ejections, the current one included.
    pub(crate) fn succeeded(&self) {
        let runtime = &self.runtime;
        // Mostly there is nothing to forget; then the cache line stays shared.
        if runtime.failures.load(Ordering::Relaxed) != 0 {
            runtime.failures.store(0, Ordering::Relaxed);
        }
        if runtime.ejections.load(Ordering::Relaxed) != 0 {
            runtime.ejections.store(0, Ordering::Relaxed);
            runtime.ejected_until.store(NOT_EJECTED, Ordering::Relaxed);
        }
    }

    /// Ejects for `base` times the number of ejections in a row, [`MAX_EJECTION`] at most.
    pub(crate) fn eject(&self, now: Instant, base: Duration) {
        let ejections = self
            .runtime
            .ejections
            .load(Ordering::Relaxed)
            .saturating_add(1);
        self.runtime
            .ejections
            .store(ejections.min(MAX_EJECTION), Ordering::Relaxed);
        let length = base.saturating_mul(ejections.min(MAX_EJECTION));
        let until = ticks(now).saturating_add(nanoseconds(length));
        self.runtime.ejected_until.store(until, Ordering::Relaxed);
    }
}

/// State of an endpoint, as metrics tell it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum EndpointState {
    /// Used.
    Healthy = 0,
    /// Left out by the source of the table; used when no other endpoint is left.
    Unhealthy,
    /// Left out for a while because connecting failed; used when all others are, too.
    Ejected,
}

impl EndpointState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Healthy, Self::Unhealthy, Self::Ejected];

    /// Returns the label in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Ejected => "ejected",
        }
    }
}

/// An ejection lasts at most this many times the configured time.
const MAX_EJECTION: u32 = 10;

/// What all snapshots share of an endpoint.
#[derive(Debug)]
struct Runtime {
    active: AtomicU32,
    /// Failed attempts to connect in a row.
    failures: AtomicU32,
    /// Ejections since the last success.
    ejections: AtomicU32,
    /// End of the ejection, in [`ticks`].
    ejected_until: AtomicI64,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            active: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_until: AtomicI64::new(NOT_EJECTED),
        }
    }
}

/// The end of no ejection.
const NOT_EJECTED: i64 = i64::MIN;

/// Returns `now` in nanoseconds from a point that is the same for the whole process.
///
/// An `Instant` fits no atomic; the first one ever seen serves as the point, and any other one is
/// before or behind it.
fn ticks(now: Instant) -> i64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(|| now);
    match now.checked_duration_since(origin) {
        Some(since) => nanoseconds(since),
        None => -nanoseconds(origin.saturating_duration_since(now)),
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
