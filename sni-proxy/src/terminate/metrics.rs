//! What terminating routes count. Series of a route are read from the snapshot in effect, and go with it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http::StatusCode;
use serve::CurrentSnapshot;
use telemetry::lock;
use telemetry::metrics::{Encoder, Kind, Registry};

use super::Termination;

telemetry::labels! {
    /// How a handshake with a client ended.
    #[repr(u8)]
    pub(crate) enum Handshake {
        /// The certificate it showed is not trusted.
        Certificate = "certificate",
        /// It broke the protocol, or has no version or cipher in common.
        Failed = "failed",
        /// Both agreed on new keys.
        Full = "full",
        /// A session went on.
        Resumed = "resumed",
        /// It was not over in time.
        Timeout = "timeout",
    }
}

telemetry::families! {
    /// Those of listeners.
    #[derive(Clone, Debug)]
    pub(crate) struct Metrics {
        /// Handshakes of TLS that ends here, by how they ended.
        handshakes: counter["listener", "outcome"] = "rhizome_tls_handshakes_total",
    }
}

impl Metrics {
    pub(crate) fn handshake(&self, listener: &str, outcome: Handshake) {
        self.handshakes.with(&[listener, outcome.as_str()]).inc();
    }

    /// Registers what is read from the current snapshot.
    pub(crate) fn collect_snapshot(registry: &Registry, current: Arc<CurrentSnapshot>) {
        registry.collect(move |out| {
            let (snapshot, _) = current();
            let mut all: BTreeMap<Arc<str>, Vec<Arc<Termination>>> = BTreeMap::new();
            for route in snapshot.routes() {
                if let Some(own) = route.handler().and_then(route::Handler::get) {
                    let of_cluster = all.entry(Arc::clone(route.cluster().name())).or_default();
                    if !of_cluster.iter().any(|known| Arc::ptr_eq(known, &own)) {
                        of_cluster.push(own);
                    }
                }
            }
            collect(out, &all);
        });
    }
}

fn collect(out: &mut Encoder, all: &BTreeMap<Arc<str>, Vec<Arc<Termination>>>) {
    out.family(
        "rhizome_requests_total",
        "Requests of terminating routes that were answered, by the client's protocol and the status.",
        Kind::Counter,
        |family| {
            family.labels(&["cluster", "protocol", "code"]);
            for (cluster, routes) in all {
                let mut sums: BTreeMap<(&str, u16), u64> = BTreeMap::new();
                for route in routes {
                    for (key, count) in &*lock(&route.requests.answered) {
                        *sums.entry(*key).or_default() += count;
                    }
                }
                for ((protocol, code), count) in sums {
                    let code = code.to_string();
                    let labels = [("cluster", &**cluster), ("protocol", protocol), ("code", &code)];
                    family.sample(&labels, count);
                }
            }
        },
    );
    out.family(
        "rhizome_requests_active",
        "Requests of terminating routes whose answer has not ended.",
        Kind::Gauge,
        |family| {
            family.labels(&["cluster"]);
            for (cluster, routes) in all {
                let active = routes
                    .iter()
                    .map(|own| own.requests.active.load(Ordering::Relaxed));
                family.sample(&[("cluster", &**cluster)], active.sum::<i64>());
            }
        },
    );
    out.family(
        "rhizome_terminate_fallback",
        "1 while a terminating route is passed through for want of secrets.",
        Kind::Gauge,
        |family| {
            family.labels(&["cluster"]);
            for (cluster, routes) in all {
                let fallback = routes.iter().any(|own| own.secrets.current().is_none());
                family.sample(&[("cluster", &**cluster)], u8::from(fallback));
            }
        },
    );
    out.family(
        "rhizome_tls_certificate_not_after_seconds",
        "When a certificate of a terminating route ends, in seconds since 1970; of authorities the first.",
        Kind::Gauge,
        |family| {
            family.labels(&["cluster", "certificate"]);
            for (cluster, routes) in all {
                let ends = |of: fn(&tls::Terminating) -> Option<SystemTime>| {
                    let secrets = routes.iter().filter_map(|own| own.secrets.last());
                    secrets.filter_map(|own| of(&own.tls)).min()
                };
                for (certificate, ends) in [
                    ("serving", ends(|own| Some(own.serving_ends))),
                    ("identity", ends(|own| own.identity_ends)),
                    ("authorities", ends(|own| Some(own.authorities_end))),
                ] {
                    let since = ends.and_then(|own| own.duration_since(SystemTime::UNIX_EPOCH).ok());
                    if let Some(since) = since {
                        let labels = [("cluster", &**cluster), ("certificate", certificate)];
                        family.sample(&labels, since.as_secs());
                    }
                }
            }
        },
    );
}

/// The requests of one route, over all workers.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    active: AtomicI64,
    /// By protocol and status.
    answered: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

/// A request that is active until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Termination>);

impl Counted {
    pub(crate) fn new(own: &Arc<Termination>) -> Self {
        own.requests.active.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(own))
    }

    pub(crate) fn answered(&self, protocol: &'static str, status: StatusCode) {
        let key = (protocol, status.as_u16());
        *lock(&self.0.requests.answered).entry(key).or_default() += 1;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.requests.active.fetch_sub(1, Ordering::Relaxed);
    }
}
