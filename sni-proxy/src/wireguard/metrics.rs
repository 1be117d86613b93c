//! The metrics of WireGuard listeners beyond those that all listeners have.
//!
//! Proven flows count as connections there: opened, active, closed by reason, bytes relayed. Here
//! are the others, datagrams, why they were dropped, and what trying keys costs.

use std::cell::OnceCell;
use std::sync::Arc;

use serve::CurrentSnapshot;
use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Kind, LocalCounter, LocalGauge};

use super::dropped::Dropped;

telemetry::families! {
    /// The families, registered once per process.
    #[derive(Clone, Debug)]
    pub(crate) struct Metrics {
        /// Datagrams forwarded; rx came from clients, tx from servers.
        datagrams: counter["listener", "direction"] = "rhizome_wireguard_datagrams_total",
        /// Datagrams not forwarded, by why.
        dropped: counter["listener", "reason"] = "rhizome_wireguard_dropped_total",
        /// Flows known now: fresh ones were only heard from, proven ones had an answer from their
        /// server.
        flows: gauge["listener", "standing"] = "rhizome_wireguard_flows",
        /// Flows that ended without an answer from their server.
        unproven: counter["listener"] = "rhizome_wireguard_unproven_total",
    } with {
        /// Of trying keys.
        pub(super) scans: ScanMetrics,
    }
}

/// What trying keys costs, and what comes of it.
#[derive(Clone, Debug)]
pub(crate) struct ScanMetrics {
    pub(super) found: Counter,
    pub(super) unknown: Counter,
    pub(super) budget: Counter,
}

impl Metrics {
    /// Registers the families.
    pub(crate) fn new(registry: &Registry) -> Self {
        let scans = registry.counter(
            "rhizome_wireguard_scans_total",
            "Handshakes without a route id that keys were tried for, by what came of it.",
            &["result"],
        );
        let scans = ScanMetrics {
            found: scans.with(&["found"]),
            unknown: scans.with(&["unknown"]),
            budget: scans.with(&["budget"]),
        };
        Self::register(registry, scans)
    }

    /// Registers what is read from the current snapshot at scrape time.
    pub(crate) fn collect_snapshot(registry: &Registry, current: Arc<CurrentSnapshot>) {
        registry.collect(move |out| {
            let (snapshot, _) = current();
            let keys = snapshot.wireguard_routes().map(|(keys, _)| keys.len());
            let help = "Public keys of WireGuard servers in the routing snapshot in effect.";
            out.value(
                "rhizome_wireguard_keys",
                help,
                Kind::Gauge,
                keys.sum::<usize>(),
            );
        });
    }

    /// Resolves the series of one listener for one worker thread.
    pub(super) fn listener(&self, name: &str) -> ListenerMetrics {
        ListenerMetrics {
            name: name.to_owned(),
            rx: self.datagrams.with(&[name, "rx"]).local(),
            tx: self.datagrams.with(&[name, "tx"]).local(),
            fresh: self.flows.with(&[name, "fresh"]).local(),
            proven: self.flows.with(&[name, "proven"]).local(),
            unproven: self.unproven.with(&[name]).local(),
            dropped_family: self.dropped.clone(),
            dropped: std::array::from_fn(|_| OnceCell::new()),
        }
    }
}

/// The series of one listener, written by one worker thread.
#[derive(Debug)]
pub(super) struct ListenerMetrics {
    name: String,
    pub(super) rx: LocalCounter,
    pub(super) tx: LocalCounter,
    pub(super) fresh: LocalGauge,
    pub(super) proven: LocalGauge,
    pub(super) unproven: LocalCounter,
    dropped_family: CounterFamily,
    dropped: [OnceCell<LocalCounter>; Dropped::ALL.len()],
}

impl ListenerMetrics {
    /// Counts datagrams that were not forwarded.
    pub(super) fn dropped(&self, reason: Dropped, count: u64) {
        self.dropped[reason as usize]
            .get_or_init(|| {
                let family = &self.dropped_family;
                family.with(&[&self.name, reason.as_str()]).local()
            })
            .add(count);
    }
}
