//! A cluster: its endpoints, its limits, and its state that outlives snapshots.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::endpoint::Endpoint;
use crate::maglev::MaglevTable;
use crate::spec::{ClusterSpec, OutlierParams};

/// A named set of endpoints.
#[derive(Debug)]
pub struct Cluster {
    name: Arc<str>,
    endpoints: Box<[Arc<Endpoint>]>,
    settings: Arc<ClusterSpec>,
    maglev: OnceLock<Box<MaglevTable>>,
    runtime: Arc<Runtime>,
}

/// Returns `spec` without name and endpoints: clusters share equal ones.
pub(crate) fn settings_of(spec: &ClusterSpec) -> ClusterSpec {
    ClusterSpec {
        name: String::new(),
        endpoints: Vec::new(),
        outlier: spec.outlier.clone(),
        tcp: spec.tcp.clone(),
        ..*spec
    }
}

impl Cluster {
    /// Creates a cluster that goes on with the state of `previous`, the same name before.
    pub(crate) fn new(
        spec: &ClusterSpec,
        endpoints: Box<[Arc<Endpoint>]>,
        settings: Arc<ClusterSpec>,
        previous: Option<&Self>,
    ) -> Self {
        Self {
            name: previous.map_or_else(|| spec.name.as_str().into(), |old| Arc::clone(&old.name)),
            endpoints,
            settings,
            maglev: OnceLock::new(),
            runtime: previous
                .map(|old| Arc::clone(&old.runtime))
                .unwrap_or_default(),
        }
    }

    /// Tells whether the cluster is what `spec` describes.
    pub(crate) fn is(&self, spec: &ClusterSpec) -> bool {
        *self.name == *spec.name
            && *self.settings == settings_of(spec)
            && self.endpoints.len() == spec.endpoints.len()
            && self
                .endpoints
                .iter()
                .zip(&spec.endpoints)
                .all(|(endpoint, spec)| endpoint.is(spec))
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the endpoints, in the order of the specification.
    #[must_use]
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// Returns what the specification says besides name and endpoints, which are empty here.
    #[must_use]
    pub fn settings(&self) -> &Arc<ClusterSpec> {
        &self.settings
    }

    /// Counts a connection unless the cluster has `max_connections` of them, and tells whether it
    /// did; each success is followed by one call of [`release`](Self::release).
    #[must_use]
    pub fn try_acquire(&self) -> bool {
        let active = &self.runtime.active;
        if self.settings.max_connections == 0 {
            active.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let more =
            |count: u32| (count < self.settings.max_connections).then(|| count.saturating_add(1));
        active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Counts a connection that is open already, whatever `max_connections`; as
    /// [`try_acquire`](Self::try_acquire).
    pub fn acquire(&self) {
        self.runtime.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops counting a connection.
    pub fn release(&self) {
        let before = self.runtime.active.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a connection is released once");
    }

    /// Returns the number of connections counted now, by all snapshots.
    #[must_use]
    pub fn active(&self) -> u32 {
        self.runtime.active.load(Ordering::Relaxed)
    }

    /// Counts a failed attempt on one of the cluster's endpoints, and ejects the endpoint when it
    /// has failed [`consecutive_connect_failures`](OutlierParams) times in a row and no more than
    /// the permitted share of the cluster is ejected then.
    ///
    /// Only success ends the row: an endpoint that fails again after its ejection is ejected again
    /// at once, for `ejection` longer each time, up to ten times `ejection`. What fails while it is
    /// ejected does not prolong that.
    pub fn connect_failed(&self, endpoint: &Endpoint, failure: ConnectFailure, now: Instant) {
        self.runtime.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
        let in_a_row = endpoint.failed();
        let Some(params) = &self.settings.outlier else {
            return;
        };
        if in_a_row < params.consecutive_connect_failures {
            return;
        }
        // One thread ejects at a time, or two could exceed the share together. A thread that finds another
        // one at it goes on: the endpoint's next failure ejects it.
        if self.runtime.ejecting.swap(true, Ordering::Acquire) {
            return;
        }
        if !endpoint.is_ejected(now) && self.may_eject(params, now) {
            endpoint.eject(now, params.ejection);
        }
        self.runtime.ejecting.store(false, Ordering::Release);
    }

    fn may_eject(&self, params: &OutlierParams, now: Instant) -> bool {
        let ejected = self
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.is_ejected(now))
            .count();
        (ejected + 1) * 100 <= usize::from(params.max_ejected_percent) * self.endpoints.len()
    }

    /// Notes that connecting to an endpoint worked: its failures and its ejection are forgotten.
    pub fn connect_succeeded(&self, endpoint: &Endpoint) {
        endpoint.succeeded();
    }

    /// Returns the number of failed attempts of one kind since the cluster came up.
    #[must_use]
    pub fn connect_failures(&self, failure: ConnectFailure) -> u64 {
        self.runtime.failures[failure as usize].load(Ordering::Relaxed)
    }

    /// Returns the next number of the round.
    pub(crate) fn turn(&self) -> u32 {
        self.runtime.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number that the next call of [`turn`](Self::turn) will.
    pub(crate) fn next_turn(&self) -> u32 {
        self.runtime.turn.load(Ordering::Relaxed)
    }

    pub(crate) fn maglev(&self) -> &MaglevTable {
        if let Some(table) = self.maglev.get() {
            return table;
        }
        // Built before it is offered: threads that come at the same time build, none waits.
        let table = Box::new(MaglevTable::new(&self.endpoints));
        self.maglev.get_or_init(|| table)
    }
}

/// How an attempt to connect failed, as metrics and logs tell it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ConnectFailure {
    /// The endpoint refused.
    Refused = 0,
    /// The endpoint did not answer in time.
    Timeout,
    /// The endpoint could not be reached, or not be resolved.
    Failed,
}

impl ConnectFailure {
    /// All failures, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Refused, Self::Timeout, Self::Failed];

    /// Returns the label in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "connect_refused",
            Self::Timeout => "connect_timeout",
            Self::Failed => "connect_failed",
        }
    }
}

/// What all snapshots share of a cluster.
#[derive(Debug, Default)]
struct Runtime {
    active: AtomicU32,
    turn: AtomicU32,
    failures: [AtomicU64; ConnectFailure::ALL.len()],
    ejecting: AtomicBool,
}
