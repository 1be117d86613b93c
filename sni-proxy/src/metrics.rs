//! Which metrics this binary has.
//!
//! The families' owners register them: `serve`, `routing`, `terminate`, `wireguard`, `xds`, `telemetry`. One that a
//! new struct registers must be registered here as well.

use std::sync::Arc;

use route::Snapshot;
use serve::{CurrentSnapshot, HandoverMetrics, Metrics};
use telemetry::access_log::Sink;
use telemetry::metrics::Description;
use telemetry::process::Build;
use telemetry::{AccessFormat, AccessLog, LogControl, Registry};
use tokio::time::Instant;

/// What this binary was built from.
pub(crate) const BUILD: Build = Build {
    binary: "sni-proxy",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

/// Returns every family that a running gateway exposes, sorted by name.
pub fn describe_metrics() -> Vec<Description> {
    let registry = Registry::new();
    if let Ok(access_log) = AccessLog::new(AccessFormat::Off, Sink::Stdout) {
        access_log.register(&registry);
    }
    LogControl::detached().register(&registry);
    let _ = Metrics::register(&registry);
    let _ = HandoverMetrics::new(&registry);
    let _ = crate::routing::refused(&registry);
    let (snapshot, now) = (Arc::new(Snapshot::empty()), Instant::now());
    let current: Arc<CurrentSnapshot> = Arc::new(move || (Arc::clone(&snapshot), now));
    Metrics::collect_snapshot(&registry, Arc::clone(&current));
    let _ = crate::wireguard::Metrics::new(&registry);
    crate::wireguard::Metrics::collect_snapshot(&registry, Arc::clone(&current));
    let _ = crate::terminate::Metrics::register(&registry);
    crate::terminate::Metrics::collect_snapshot(&registry, current);
    let _ = xds::ClientMetrics::new(&registry, tls::Metrics::new(&registry));
    telemetry::process::register(&registry, BUILD);
    registry.describe()
}
