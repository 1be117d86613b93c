//! Metrics of the controller, and which families there are.

use telemetry::metrics::{Description, GaugeFamily};
use telemetry::process::Build;
use telemetry::{LogControl, Registry};

use crate::publish::server_params;

pub(crate) const BUILD: Build = Build {
    binary: "netpol-controller",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

/// Bounds of the buckets of the time to converge, seconds.
const CONVERGENCE: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

telemetry::families! {
    /// Handles of the controller's families. Clones are the same.
    #[derive(Clone, Debug)]
    pub(crate) struct Metrics {
        /// Reconciles of a Service's or a namespace's policies, by result.
        pub(crate) reconciles: counter["controller", "result"] = "rhizome_netpol_reconciles_total",
        /// NetworkPolicies written: absent ones created, differing ones updated, unwanted ones
        /// deleted.
        pub(crate) writes: counter["verb", "reason"] = "rhizome_netpol_writes_total",
        /// Writes that failed, by the status code of the answer; 0 when there was none.
        pub(crate) write_errors: counter["verb", "code"] = "rhizome_netpol_write_errors_total",
        /// Services or namespaces in the queue.
        pub(crate) queue: gauge["controller"] = "rhizome_netpol_queue_depth",
        /// Time from an event to the last write that it caused.
        pub(crate) convergence: histogram(CONVERGENCE) = "rhizome_netpol_convergence_seconds",
        /// Objects in the caches, by resource.
        pub(crate) objects: gauge["resource"] = "rhizome_netpol_objects",
        /// Interruptions of watches; each watch is resumed.
        pub(crate) watch_errors: counter["resource"] = "rhizome_netpol_watch_errors_total",
        /// 1 while this replica writes.
        pub(crate) leading: gauge = "rhizome_netpol_leader",
        /// Objects with a problem that is reported as an Event, by reason.
        pub(crate) problems: gauge["reason"] = "rhizome_netpol_problems",
        /// Events that were written, held back as repetitions, dropped, or failed.
        pub(crate) events: counter["result"] = "rhizome_netpol_events_total",
        /// Routes served to a gateway.
        pub(crate) routes: gauge["gateway"] = "rhizome_netpol_routes",
        /// Routes withheld from a gateway because its protocol cannot express them.
        pub(crate) withheld: gauge["gateway"] = "rhizome_netpol_routes_withheld",
    } with {
        /// Has no series without routing.
        pub(crate) without_policy: GaugeFamily,
    }
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let without_policy = registry.gauge(
            "rhizome_route_without_policy",
            "Routed ports of Services without NetworkPolicies of this controller.",
            &[],
        );
        Self::register(registry, without_policy)
    }
}

pub(crate) fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns every family that a running controller exposes, sorted by name.
#[must_use]
pub fn describe_metrics() -> Vec<Description> {
    let registry = Registry::new();
    LogControl::detached().register(&registry);
    let _ = Metrics::new(&registry);
    let _ = xds::Server::new(server_params(&[], None), &registry);
    telemetry::process::register(&registry, BUILD);
    registry.describe()
}
