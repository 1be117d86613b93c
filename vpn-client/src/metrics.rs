//! Every metric of the process, registered in one place so that the document of them is complete.
//!
//! What moves the counters is elsewhere: attempts to connect, the kernel's settings, reloads, and
//! the tunnel itself.

use telemetry::metrics::Description;
use telemetry::process::Build;
use telemetry::{LogControl, Registry};
use tunnel::{Transport, transport_name};

/// The process's build information.
pub(crate) const BUILD: Build = Build {
    binary: "vpn-client",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

/// Seconds until the gateway was connected: from a LAN to a time-out.
const BUCKETS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Statuses that gateways are known to answer a CONNECT with; others are `other`.
const STATUSES: [u16; 14] = [
    301, 302, 307, 308, 400, 401, 403, 404, 407, 429, 431, 502, 503, 504,
];

telemetry::families! {
    /// What counts.
    #[derive(Clone, Debug)]
    pub(crate) struct Metrics {
        /// Attempts to connect to the gateway, by result.
        dials: counter["server", "transport", "result"] = "rhizome_vpn_client_dials_total",
        /// Refused CONNECT requests, by status.
        refusals: counter["server", "status"] = "rhizome_vpn_client_connect_refusals_total",
        /// Seconds until a TCP connection to the gateway was open.
        pub(crate) connect_seconds: histogram(BUCKETS) = "rhizome_vpn_client_connect_seconds",
        /// Reloads of keys and servers that took effect.
        pub(crate) reloads: counter = "rhizome_vpn_client_reloads_total",
        /// Reloads that failed; the previous keys and servers stay in effect.
        pub(crate) reload_failures: counter = "rhizome_vpn_client_reload_failures_total",
        /// 1 while the keys and servers in effect are those of the files.
        pub(crate) reload_good: gauge = "rhizome_vpn_client_reload_good",
        /// 1 while the configuration in effect is that of the file: keys and servers aside, a change
        /// takes a restart.
        pub(crate) config_good: gauge = "rhizome_vpn_client_config_good",
        /// 1 while forwarding and masquerading are in place.
        pub(crate) network_settled: gauge = "rhizome_vpn_client_network_settled",
        /// Failed attempts to keep forwarding and masquerading in place, by reason.
        network_failures: counter["reason"] = "rhizome_vpn_client_network_failures_total",
        /// 1 while the rule is in place that gives packets this pod's address.
        pub(crate) masquerade: gauge = "rhizome_vpn_client_masquerade_active",
    }
}

impl Metrics {
    /// Registers everything that the process exposes, but the tunnel's own.
    pub(crate) fn new(registry: &Registry, log: &LogControl) -> Self {
        log.register(registry);
        telemetry::process::register(registry, BUILD);
        Self::register(registry)
    }

    /// Counts an attempt to connect.
    pub(crate) fn dialed(&self, server: &str, transport: Transport, result: &'static str) {
        self.dials
            .with(&[server, transport_name(transport), result])
            .inc();
    }

    /// Counts a refused CONNECT request.
    pub(crate) fn refused(&self, server: &str, status: u16) {
        let known = STATUSES.contains(&status).then(|| status.to_string());
        let status = known.as_deref().unwrap_or("other");
        self.refusals.with(&[server, status]).inc();
    }

    /// Ends the series of servers for which `keep` returns false.
    pub(crate) fn retain_servers(&self, keep: impl Fn(&str) -> bool) {
        let of_kept = |labels: &[String]| labels.first().is_some_and(|server| keep(server));
        self.dials.retain(of_kept);
        self.refusals.retain(of_kept);
    }

    /// Counts a failure to look after the kernel's settings.
    pub(crate) fn network_failed(&self, reason: &'static str) {
        self.network_failures.with(&[reason]).inc();
        self.network_settled.set(0);
    }
}

/// Returns every family that a running program exposes, sorted by name.
#[must_use]
pub fn describe_metrics() -> Vec<Description> {
    let registry = Registry::new();
    let _ = Metrics::new(&registry, &LogControl::detached());
    tunnel::register_metrics(&registry);
    registry.describe()
}
