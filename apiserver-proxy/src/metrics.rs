//! Every metric of the process, registered in one place so that the document of them is complete.
//!
//! What moves the counters is elsewhere: `serve`'s records, the node's side, the access log.

use std::sync::Arc;

use route::Snapshot;
use serve::{CurrentSnapshot, HandoverMetrics, Metrics};
use telemetry::access_log::Sink;
use telemetry::metrics::Description;
use telemetry::process::Build;
use telemetry::{AccessFormat, AccessLog, LogControl, Registry};
use tokio::time::Instant;

use crate::node::Node;

/// What the process says it is.
pub(crate) const BUILD: Build = Build {
    binary: "apiserver-proxy",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

/// Registers everything that the process exposes; returns what counts.
pub(crate) fn register(
    registry: &Registry,
    access_log: &AccessLog,
    log: &LogControl,
    snapshot: Arc<CurrentSnapshot>,
) -> (Metrics, HandoverMetrics, Arc<Node>) {
    access_log.register(registry);
    Metrics::collect_snapshot(registry, snapshot);
    let node = register_node(registry, log);
    let handover = HandoverMetrics::new(registry);
    (Metrics::register(registry), handover, node)
}

/// Registers what a process exposes that carries no connections; returns what counts.
pub(crate) fn register_node(registry: &Registry, log: &LogControl) -> Arc<Node> {
    log.register(registry);
    telemetry::process::register(registry, BUILD);
    Node::new(registry)
}

/// Returns every family that a running program exposes, sorted by name.
pub fn describe_metrics() -> Vec<Description> {
    let registry = Registry::new();
    if let Ok(access_log) = AccessLog::new(AccessFormat::Off, Sink::Stdout) {
        let (snapshot, now) = (Arc::new(Snapshot::empty()), Instant::now());
        let current: Arc<CurrentSnapshot> = Arc::new(move || (Arc::clone(&snapshot), now));
        register(&registry, &access_log, &LogControl::detached(), current);
    }
    registry.describe()
}
