//! Metrics of the controller, and which families there are.

use telemetry::metrics::{CounterFamily, Description, GaugeFamily, Histogram};
use telemetry::process::Build;
use telemetry::{LogControl, Registry};

pub(crate) const BUILD: Build = Build {
    binary: "netpol-controller",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

/// Bounds of the buckets of the time to converge, seconds.
const CONVERGENCE: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// Handles of the controller's families. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) reconciles: CounterFamily,
    pub(crate) writes: CounterFamily,
    pub(crate) write_errors: CounterFamily,
    pub(crate) queue: GaugeFamily,
    pub(crate) convergence: Histogram,
    pub(crate) objects: GaugeFamily,
    pub(crate) watch_errors: CounterFamily,
    pub(crate) leading: GaugeFamily,
    pub(crate) problems: GaugeFamily,
    pub(crate) events: CounterFamily,
    pub(crate) routes: GaugeFamily,
    pub(crate) withheld: GaugeFamily,
    pub(crate) without_policy: GaugeFamily,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name, help, labels| registry.counter(name, help, labels);
        let gauge = |name, help, labels| registry.gauge(name, help, labels);
        Self {
            reconciles: counter(
                "rhizome_netpol_reconciles_total",
                "Reconciles of a Service's or a namespace's policies, by result.",
                &["controller", "result"],
            ),
            writes: counter(
                "rhizome_netpol_writes_total",
                "NetworkPolicies written: absent ones created, differing ones updated, unwanted ones deleted.",
                &["verb", "reason"],
            ),
            write_errors: counter(
                "rhizome_netpol_write_errors_total",
                "Writes that failed, by the status code of the answer; 0 when there was none.",
                &["verb", "code"],
            ),
            queue: gauge(
                "rhizome_netpol_queue_depth",
                "Services or namespaces in the queue.",
                &["controller"],
            ),
            convergence: registry
                .histogram(
                    "rhizome_netpol_convergence_seconds",
                    "Time from an event to the last write that it caused.",
                    &[],
                    &CONVERGENCE,
                )
                .with(&[]),
            objects: gauge(
                "rhizome_netpol_objects",
                "Objects in the caches, by resource.",
                &["resource"],
            ),
            watch_errors: counter(
                "rhizome_netpol_watch_errors_total",
                "Interruptions of watches; each watch is resumed.",
                &["resource"],
            ),
            leading: gauge("rhizome_netpol_leader", "1 while this replica writes.", &[]),
            problems: gauge(
                "rhizome_netpol_problems",
                "Objects with a problem that is reported as an Event, by reason.",
                &["reason"],
            ),
            events: counter(
                "rhizome_netpol_events_total",
                "Events that were written, held back as repetitions, dropped, or failed.",
                &["result"],
            ),
            routes: gauge(
                "rhizome_netpol_routes",
                "Routes served to a gateway.",
                &["gateway"],
            ),
            withheld: gauge(
                "rhizome_netpol_routes_withheld",
                "Routes withheld from a gateway because its protocol cannot express them.",
                &["gateway"],
            ),
            without_policy: gauge(
                "rhizome_route_without_policy",
                "Routed ports of Services without NetworkPolicies of this controller.",
                &[],
            ),
        }
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
    let none = xds::ServerParams {
        tls: None,
        gateways: Vec::new(),
        limits: xds::ServerLimits::default(),
        delta: true,
    };
    let _ = xds::Server::new(none, &registry);
    telemetry::process::register(&registry, BUILD);
    registry.describe()
}
