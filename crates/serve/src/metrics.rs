//! The metrics of listeners, relays and dialing, under the names that dashboards rely on.
//!
//! Labels are resolved once per listener; counting a byte touches one thread-owned cell. Series
//! that describe clusters are read from the current snapshot at scrape time, so they end with
//! their cluster.

use std::cell::OnceCell;
use std::sync::Arc;

use route::{ConnectFailure, EndpointState, Snapshot};
use telemetry::metrics::{
    Counter, CounterFamily, Encoder, Kind, LocalCounter, LocalGauge, Registry,
};
use tokio::time::Instant;

use crate::reason::Reason;

/// Seconds to connect to an endpoint: from within a rack to the usual time limit.
const CONNECT_BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 5.0,
];

/// Returns the snapshot in effect, and when its source last confirmed it.
pub type CurrentSnapshot = dyn Fn() -> (Arc<Snapshot>, Instant) + Send + Sync;

telemetry::families! {
    /// The metric families of this crate, registered once per process.
    #[derive(Clone, Debug)]
    pub struct Metrics {
        /// Connections accepted.
        connections: counter["listener"] = "rhizome_listener_connections_total",
        /// Connections open now.
        active: gauge["listener"] = "rhizome_listener_connections_active",
        /// Connections ended, by reason.
        closed: counter["listener", "reason"] = "rhizome_connections_closed_total",
        /// Bytes relayed; rx came from downstream, tx from upstream.
        bytes: counter["listener", "direction"] = "rhizome_relay_bytes_total",
        /// Bytes relayed through user space instead of being spliced.
        copied: counter["listener"] = "rhizome_relay_copied_bytes_total",
        /// Seconds until an endpoint was connected.
        pub connect_seconds: histogram(CONNECT_BUCKETS) = "rhizome_connect_seconds",
        /// Times accepting paused because descriptors or memory ran out.
        pub accept_paused: counter = "rhizome_accept_paused_total",
    }
}

impl Metrics {
    /// Resolves the series of one listener for one worker thread.
    pub fn listener(&self, name: &str) -> ListenerMetrics {
        ListenerMetrics {
            connections: self.connections.with(&[name]).local(),
            active: self.active.with(&[name]).local(),
            closed_family: self.closed.clone(),
            closed: std::array::from_fn(|_| OnceCell::new()),
            rx: self.bytes.with(&[name, "rx"]).local(),
            tx: self.bytes.with(&[name, "tx"]).local(),
            copied: self.copied.with(&[name]).local(),
        }
    }

    /// Returns what one listener has counted so far, over all workers.
    pub fn totals(&self, listener: &str) -> ListenerTotals {
        ListenerTotals {
            connections: self.connections.with(&[listener]).value(),
            active: u64::try_from(self.active.with(&[listener]).value()).unwrap_or(0),
            rx_bytes: self.bytes.with(&[listener, "rx"]).value(),
            tx_bytes: self.bytes.with(&[listener, "tx"]).value(),
        }
    }

    /// Registers the series that are read from the current snapshot at scrape time.
    pub fn collect_snapshot(registry: &Registry, current: Arc<CurrentSnapshot>) {
        registry.collect(move |out| {
            let (snapshot, confirmed) = current();
            let now = Instant::now();
            clusters(out, &snapshot, now);
            let name = "rhizome_snapshot_generation";
            let help = "Number of the routing snapshot in effect; rises with every update.";
            out.value(name, help, Kind::Gauge, snapshot.generation());
            let name = "rhizome_snapshot_age_seconds";
            let help = "Seconds since the routing snapshot in effect was loaded or confirmed by its source.";
            let age = now.saturating_duration_since(confirmed);
            out.value(name, help, Kind::Gauge, age.as_secs_f64());
        });
    }
}

fn clusters(out: &mut Encoder, snapshot: &Snapshot, now: Instant) {
    let shown = if out.only_describes() { 0 } else { usize::MAX };
    let clusters = || snapshot.clusters().take(shown);
    out.family(
        "rhizome_cluster_connections_active",
        "Connections open to a cluster.",
        Kind::Gauge,
        |family| {
            family.labels(&["cluster"]);
            for cluster in clusters() {
                family.sample(&[("cluster", cluster.name())], u64::from(cluster.active()));
            }
        },
    );
    out.family(
        "rhizome_cluster_connect_failures_total",
        "Failed attempts to connect to an endpoint of a cluster, by reason.",
        Kind::Counter,
        |family| {
            family.labels(&["cluster", "reason"]);
            for cluster in clusters() {
                for failure in ConnectFailure::ALL {
                    let count = cluster.connect_failures(failure);
                    let labels = [
                        ("cluster", cluster.name().as_ref()),
                        ("reason", failure.as_str()),
                    ];
                    if count > 0 {
                        family.sample(&labels, count);
                    }
                }
            }
        },
    );
    out.family(
        "rhizome_cluster_endpoints",
        "Endpoints of a cluster, by state.",
        Kind::Gauge,
        |family| {
            family.labels(&["cluster", "state"]);
            for cluster in clusters() {
                let mut counts = [0_u64; EndpointState::ALL.len()];
                for endpoint in cluster.endpoints() {
                    counts[endpoint.state(now.into_std()) as usize] += 1;
                }
                for (state, count) in EndpointState::ALL.into_iter().zip(counts) {
                    let labels = [
                        ("cluster", cluster.name().as_ref()),
                        ("state", state.as_str()),
                    ];
                    family.sample(&labels, count);
                }
            }
        },
    );
}

/// What one listener has counted, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerTotals {
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub active: u64,
    /// Bytes from downstream.
    pub rx_bytes: u64,
    /// Bytes from upstream.
    pub tx_bytes: u64,
}

/// The series of one listener, written by one worker thread.
#[derive(Debug)]
pub struct ListenerMetrics {
    pub(crate) connections: LocalCounter,
    pub(crate) active: LocalGauge,
    closed_family: CounterFamily,
    closed: [OnceCell<Counter>; Reason::ALL.len()],
    pub(crate) rx: LocalCounter,
    pub(crate) tx: LocalCounter,
    pub(crate) copied: LocalCounter,
}

impl ListenerMetrics {
    pub(crate) fn closed(&self, listener: &str, reason: Reason) {
        self.closed[reason as usize]
            .get_or_init(|| self.closed_family.with(&[listener, reason.as_str()]))
            .inc();
    }
}
