//! Every metric of the process, registered in one place so that the document of them is complete.
//!
//! What moves the counters is elsewhere: the proxy, the links, the keys, the tunnel.

use telemetry::metrics::Description;
use telemetry::process::Build;
use telemetry::{AccessLog, LogControl, Registry};

/// What the process says it is.
pub(crate) const BUILD: Build = Build {
    binary: "vpn-server",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

telemetry::families! {
    /// What counts, beside the tunnel.
    #[derive(Clone, Debug)]
    pub(crate) struct Instruments {
        /// Changed files of keys and peers that were taken, or refused with the last good ones
        /// kept.
        pub(crate) keys: counter["result"] = "rhizome_vpn_keys_reloads_total",
        /// 1 while the keys and peers in effect are those of the files.
        pub(crate) keys_good: gauge = "rhizome_vpn_keys_good",
        /// 1 while the configuration in effect is that of the file: keys aside, a change takes a
        /// restart.
        pub(crate) config_good: gauge = "rhizome_vpn_config_good",
        /// TCP connections to the tunnel's port, by what became of them: taken, or refused because
        /// of limit, source_limit, evicted, silent, gone.
        pub(crate) links: counter["result"] = "rhizome_vpn_links_total",
    } with {
        pub(crate) listeners: serve::Metrics,
        pub(crate) proxy: ProxyMetrics,
        pub(crate) tls: tls::Metrics,
    }
}

impl Instruments {
    /// Registers everything that is not the tunnel's.
    pub(crate) fn new(registry: &Registry, access_log: &AccessLog, log: &LogControl) -> Self {
        access_log.register(registry);
        log.register(registry);
        telemetry::process::register(registry, BUILD);
        let listeners = serve::Metrics::register(registry);
        let tls = tls::Metrics::new(registry);
        let proxy = ProxyMetrics::register(registry);
        let instruments = Self::register(registry, listeners, proxy, tls);
        for result in ["taken", "refused"] {
            let _ = instruments.keys.with(&[result]);
        }
        // Without good ones no server starts.
        instruments.keys_good.set(1);
        instruments.config_good.set(1);
        instruments
    }
}

telemetry::families! {
    /// What the proxy counts beside its connections.
    #[derive(Clone, Debug)]
    pub(crate) struct ProxyMetrics {
        /// Answers of the proxy, by HTTP status; 200 is an open connection.
        pub(crate) answers: counter["status"] = "rhizome_vpn_proxy_answers_total",
        /// TLS handshakes with clients of the proxy that failed, by why.
        pub(crate) handshakes: counter["reason"] = "rhizome_vpn_proxy_handshakes_failed_total",
        /// Names that the proxy looked up, in its cache or in the shoot, by result.
        pub(crate) lookups: counter["result"] = "rhizome_vpn_proxy_lookups_total",
    }
}

/// Returns every metric of the process, sorted by name.
#[must_use]
pub fn describe_metrics() -> Vec<Description> {
    let registry = Registry::new();
    let off = telemetry::AccessFormat::Off;
    if let Ok(access_log) = AccessLog::new(off, telemetry::access_log::Sink::Stdout) {
        let _ = Instruments::new(&registry, &access_log, &LogControl::detached());
    }
    tunnel::register_metrics(&registry);
    registry.describe()
}
