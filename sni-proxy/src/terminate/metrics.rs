//! What terminating routes count. Series of a route are read from the snapshot in effect, and go with it.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http::StatusCode;
use serve::CurrentSnapshot;
use telemetry::lock;
use telemetry::metrics::{
    Counter, CounterFamily, Encoder, Gauge, Histogram, Kind, LocalCounter, LocalGauge,
    LocalHistogram, Registry,
};

use super::Termination;

/// Seconds of a request: from an object of the watch cache to API servers' own limit.
const REQUEST_BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0,
];

telemetry::labels! {
    /// How a handshake with a client ended.
    #[repr(u8)]
    pub(crate) enum Handshake {
        /// The client refused it, such as a certificate of ours that it does not trust.
        Alert = "alert",
        /// The certificate that the client showed is not trusted.
        Certificate = "certificate",
        /// The connection ended before.
        Closed = "closed",
        /// Both agreed on new keys.
        Full = "full",
        /// There is no version, cipher or protocol in common.
        Incompatible = "incompatible",
        /// The client broke the protocol.
        Protocol = "protocol",
        /// A session went on.
        Resumed = "resumed",
        /// It was not over in time.
        Timeout = "timeout",
    }
}

telemetry::labels! {
    /// What a client speaks.
    pub(crate) enum Protocol {
        /// RFC 9112.
        Http1 = "http/1.1",
        /// RFC 9113.
        Http2 = "h2",
    }
}

telemetry::labels! {
    /// Whose requests the connections of a pool carry.
    #[repr(u8)]
    pub(crate) enum PoolKind {
        /// Those without certificate and token.
        Anonymous = "anonymous",
        /// Clients' that showed a certificate; the front proxy's is shown for them.
        Identity = "identity",
        /// Those with a token, of clients of which one was accepted.
        Token = "token",
        /// Those with a token, of other clients.
        Unproven = "unproven",
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

/// The handshakes of one listener, of one worker.
#[derive(Debug)]
pub(crate) struct Handshakes {
    listener: String,
    family: CounterFamily,
    counts: [OnceCell<LocalCounter>; Handshake::ALL.len()],
}

impl Handshakes {
    pub(crate) fn count(&self, outcome: Handshake) {
        let labels = || [self.listener.as_str(), outcome.as_str()];
        self.counts[outcome as usize]
            .get_or_init(|| self.family.with(&labels()).local())
            .inc();
    }
}

impl Metrics {
    /// Resolves the series of one listener for one worker.
    pub(crate) fn listener(&self, name: &str) -> Handshakes {
        Handshakes {
            listener: name.to_owned(),
            family: self.handshakes.clone(),
            counts: Default::default(),
        }
    }

    /// Registers what is read from the current snapshot.
    pub(crate) fn collect_snapshot(registry: &Registry, current: Arc<CurrentSnapshot>) {
        registry.collect(move |out| {
            let (snapshot, _) = current();
            let mut all = ByCluster::new();
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

type ByCluster = BTreeMap<Arc<str>, Vec<Arc<Termination>>>;

fn collect(out: &mut Encoder, all: &ByCluster) {
    requests(out, all);
    pools(out, all);
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

fn requests(out: &mut Encoder, all: &ByCluster) {
    out.family(
        "rhizome_requests_total",
        "Requests of terminating routes that were answered, by the client's protocol and the status.",
        Kind::Counter,
        |family| {
            family.labels(&["cluster", "protocol", "code"]);
            for (cluster, routes) in all {
                let mut sums: BTreeMap<(Protocol, u16), u64> = BTreeMap::new();
                for route in routes {
                    for (key, count) in &*lock(&route.stats.answered) {
                        *sums.entry(*key).or_default() += count.value();
                    }
                }
                for ((protocol, code), count) in sums {
                    let (protocol, code) = (protocol.as_str(), code.to_string());
                    let labels = [("cluster", &**cluster), ("protocol", protocol), ("code", &code)];
                    family.sample(&labels, count);
                }
            }
        },
    );
    out.family(
        "rhizome_requests_active",
        "Requests of terminating routes whose answer has not ended, watches and upgraded ones as well.",
        Kind::Gauge,
        |family| {
            family.labels(&["cluster"]);
            for (cluster, routes) in all {
                let active = routes.iter().map(|own| own.stats.active.value());
                family.sample(&[("cluster", &**cluster)], active.sum::<i64>());
            }
        },
    );
    out.family(
        "rhizome_request_seconds",
        "Seconds from a request's head to the end of its answer; without watches, followed logs and upgraded requests.",
        Kind::Histogram,
        |family| {
            family.labels(&["cluster"]);
            for (cluster, routes) in all {
                let seconds = Histogram::detached(&REQUEST_BUCKETS);
                for route in routes {
                    seconds.add(&route.stats.seconds);
                }
                seconds.write_to(family, &[("cluster", &**cluster)]);
            }
        },
    );
}

fn pools(out: &mut Encoder, all: &ByCluster) {
    let mut family = |name, help, of: fn(&PoolStats) -> &Gauge| {
        out.family(name, help, Kind::Gauge, |family| {
            family.labels(&["cluster", "pool"]);
            for (cluster, routes) in all {
                for pool in PoolKind::ALL {
                    let open = routes
                        .iter()
                        .map(|own| of(&own.stats.pools[pool as usize]).value());
                    let labels = [("cluster", &**cluster), ("pool", pool.as_str())];
                    family.sample(&labels, open.sum::<i64>());
                }
            }
        });
    };
    family(
        "rhizome_upstream_connections_active",
        "Open connections to the API servers of terminating routes: for clients with a certificate (`identity`), requests with a token that was accepted (`token`) or not yet (`unproven`), and others (`anonymous`).",
        |pool| &pool.connections,
    );
    family(
        "rhizome_upstream_streams_active",
        "Requests on these connections, upgraded ones as well.",
        |pool| &pool.streams,
    );
}

/// What one route counts, over all workers.
#[derive(Debug)]
pub(crate) struct RouteStats {
    active: Gauge,
    seconds: Histogram,
    /// By protocol and status; a worker looks here once for each.
    answered: Mutex<BTreeMap<(Protocol, u16), Counter>>,
    pools: [PoolStats; PoolKind::ALL.len()],
}

#[derive(Debug, Default)]
struct PoolStats {
    connections: Gauge,
    streams: Gauge,
}

impl Default for RouteStats {
    fn default() -> Self {
        Self {
            active: Gauge::default(),
            seconds: Histogram::detached(&REQUEST_BUCKETS),
            answered: Mutex::default(),
            pools: Default::default(),
        }
    }
}

/// What one worker counts for a route, without a locked instruction.
#[derive(Debug)]
pub(crate) struct WorkerStats {
    route: Arc<RouteStats>,
    pub(super) active: LocalGauge,
    pub(super) seconds: LocalHistogram,
    /// Few, since API servers use few statuses.
    answered: RefCell<Vec<((Protocol, u16), LocalCounter)>>,
    pools: [LocalPoolStats; PoolKind::ALL.len()],
}

/// One pool's.
#[derive(Debug)]
pub(crate) struct LocalPoolStats {
    pub(super) connections: LocalGauge,
    pub(super) streams: LocalGauge,
}

impl WorkerStats {
    pub(crate) fn new(route: &Arc<RouteStats>) -> Rc<Self> {
        Rc::new(Self {
            route: Arc::clone(route),
            active: route.active.local(),
            seconds: route.seconds.local(),
            answered: RefCell::default(),
            pools: PoolKind::ALL.map(|pool| LocalPoolStats {
                connections: route.pools[pool as usize].connections.local(),
                streams: route.pools[pool as usize].streams.local(),
            }),
        })
    }

    /// For tests, which read nothing.
    #[cfg(test)]
    pub(crate) fn detached() -> Rc<Self> {
        Self::new(&Arc::default())
    }

    pub(crate) fn pool(&self, kind: PoolKind) -> &LocalPoolStats {
        &self.pools[kind as usize]
    }

    pub(crate) fn answered(&self, protocol: Protocol, status: StatusCode) {
        let key = (protocol, status.as_u16());
        let mut known = self.answered.borrow_mut();
        if let Some((_, count)) = known.iter().find(|(own, _)| *own == key) {
            return count.inc();
        }
        let mut all = lock(&self.route.answered);
        let count = all.entry(key).or_default().local();
        count.inc();
        known.push((key, count));
    }
}
