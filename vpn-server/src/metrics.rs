//! Every metric of the process, registered in one place so that the document of them is complete.
//!
//! What moves the counters is elsewhere: the proxy, the links, the keys, the tunnel.

use telemetry::metrics::{CounterFamily, Description};
use telemetry::process::Build;
use telemetry::{AccessLog, LogControl, Registry};

/// What the process says it is.
pub(crate) const BUILD: Build = Build {
    binary: "vpn-server",
    version: env!("CARGO_PKG_VERSION"),
    revision: option_env!("RHIZOME_REVISION"),
};

/// What counts, beside the tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Instruments {
    pub(crate) listeners: serve::Metrics,
    pub(crate) proxy: ProxyMetrics,
    /// By what became of a TCP connection to the tunnel's port.
    pub(crate) links: CounterFamily,
    /// By what became of changed files of keys and peers.
    pub(crate) keys: CounterFamily,
    pub(crate) tls: tls::Metrics,
}

impl Instruments {
    /// Registers everything that is not the tunnel's.
    pub(crate) fn register(registry: &Registry, access_log: &AccessLog, log: &LogControl) -> Self {
        access_log.register(registry);
        log.register(registry);
        telemetry::process::register(registry, BUILD);
        let keys = registry.counter(
            "rhizome_vpn_keys_reloads_total",
            "Changed files of keys and peers that were taken, or refused with the last good \
             ones kept.",
            &["result"],
        );
        for result in ["taken", "refused"] {
            let _ = keys.with(&[result]);
        }
        Self {
            listeners: serve::Metrics::new(registry),
            proxy: ProxyMetrics::new(registry),
            links: registry.counter(
                "rhizome_vpn_links_total",
                "TCP connections to the tunnel's port, by what became of them: taken, or refused \
                 because of limit, source_limit, evicted, silent, gone.",
                &["result"],
            ),
            keys,
            tls: tls::Metrics::new(registry),
        }
    }
}

/// What the proxy counts beside its connections.
#[derive(Clone, Debug)]
pub(crate) struct ProxyMetrics {
    handshakes: CounterFamily,
    answers: CounterFamily,
    lookups: CounterFamily,
}

impl ProxyMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            handshakes: registry.counter(
                "rhizome_vpn_proxy_handshakes_failed_total",
                "TLS handshakes with clients of the proxy that failed, by why.",
                &["reason"],
            ),
            answers: registry.counter(
                "rhizome_vpn_proxy_answers_total",
                "Answers of the proxy, by HTTP status; 200 is an open connection.",
                &["status"],
            ),
            lookups: registry.counter(
                "rhizome_vpn_proxy_lookups_total",
                "Names that the proxy looked up, in its cache or in the shoot, by result.",
                &["result"],
            ),
        }
    }

    pub(crate) fn handshake_failed(&self, reason: &'static str) {
        self.handshakes.with(&[reason]).inc();
    }

    /// `status` is one of ours, and so from a closed set.
    pub(crate) fn answered(&self, status: u16) {
        self.answers.with(&[&status.to_string()]).inc();
    }

    pub(crate) fn looked_up(&self, result: &'static str) {
        self.lookups.with(&[result]).inc();
    }
}

/// Returns every metric of the process, sorted by name.
#[must_use]
pub fn describe_metrics() -> Vec<Description> {
    let registry = Registry::new();
    let off = telemetry::AccessFormat::Off;
    if let Ok(access_log) = AccessLog::new(off, telemetry::access_log::Sink::Stdout) {
        Instruments::register(&registry, &access_log, &LogControl::detached());
    }
    tunnel::register_metrics(&registry);
    registry.describe()
}
