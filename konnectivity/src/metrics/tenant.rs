//! What one tenant's tunnels count: in the families of the process, and where asked for in the
//! tenant's own series.
//!
//! ```text
//!     TenantMetrics ──▶ pending_backend_dials, ready_backends, … (sums over all tenants)
//!          └──▶ TenantSeries ──▶ rhizome_konnectivity_cluster_…{cluster}
//! ```
//!
//! When the last handle of a tenant goes, so does what it added to the sums, and its series end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use knp_proto::{DialRefused, Strategy, Tenant, TenantId};
use telemetry::metrics::{Counter, Encoder, Gauge, Kind};
use telemetry::{Registry, lock};

use super::server::{DialFailure, PeerPort, ServerMetrics};
use super::{Direction, Held, LinkMetrics};

/// Handles for one tenant.
#[derive(Debug)]
pub(crate) struct TenantMetrics {
    /// Those of the process.
    pub(crate) server: Arc<ServerMetrics>,
    link: Arc<LinkMetrics>,
    series: Option<Arc<TenantSeries>>,
    ready: Mutex<Ready>,
}

/// What this tenant has added to gauges that are sums.
#[derive(Debug, Default)]
struct Ready {
    backends: BTreeMap<Strategy, i64>,
    connections: i64,
}

impl TenantMetrics {
    pub(super) fn new(
        server: Arc<ServerMetrics>,
        link: LinkMetrics,
        series: Option<Arc<TenantSeries>>,
    ) -> Self {
        Self {
            server,
            link: Arc::new(link),
            series,
            ready: Mutex::default(),
        }
    }

    /// Handles for the tenant's links and their tunnels.
    pub(crate) fn link(&self) -> &Arc<LinkMetrics> {
        &self.link
    }

    /// Counts an API server's connection that was let in.
    pub(crate) fn frontend_accepted(&self, port: PeerPort) {
        self.server.peer_accepted(port);
        if let Some(series) = &self.series {
            series.accepted_frontends.inc();
        }
    }

    /// Counts a dial that waits for an agent's answer for as long as what is returned lives.
    pub(crate) fn pending_dial(&self) -> Held {
        let own = self.series.as_ref().map(|series| &series.pending);
        Held::new(&self.server.pending_dials, own)
    }

    /// Counts a frontend's connection to a destination for as long as what is returned lives.
    pub(crate) fn established(&self) -> Held {
        let own = self.series.as_ref().map(|series| &series.established);
        Held::new(&self.server.established, own)
    }

    /// Counts a failed dial; one dial may fail in more than one way.
    pub(crate) fn dial_failure(&self, reason: DialFailure) {
        self.server.dial_failures.with(&[reason.as_str()]).inc();
        if let Some(series) = &self.series {
            let labels = [series.name(), reason.as_str()];
            series.families.dial_failures.with(&labels).inc();
        }
    }

    /// Counts a dial that was refused because of one of the tenant's limits.
    pub(crate) fn dial_refused(&self, refused: DialRefused) {
        let Some(limit) = limit(refused) else { return };
        self.server.refused_dials.with(&[limit]).inc();
        if let Some(series) = &self.series {
            let labels = [series.name(), limit];
            series.families.refused_dials.with(&labels).inc();
        }
    }

    /// Sets how many keys one of the tenant's strategies has to choose from.
    pub(crate) fn ready_backends(&self, strategy: Strategy, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        let mut ready = lock(&self.ready);
        let before = ready.backends.insert(strategy, keys).unwrap_or(0);
        let gauge = self.server.ready_backends.with(&[strategy.as_str()]);
        gauge.add(keys - before);
    }

    /// Sets how many agents' streams the tenant's first strategy has to choose from.
    pub(crate) fn ready_connections(&self, streams: usize) {
        let streams = i64::try_from(streams).unwrap_or(i64::MAX);
        let mut ready = lock(&self.ready);
        let gauge = &self.server.ready_connections;
        gauge.add(streams - ready.connections);
        ready.connections = streams;
    }
}

impl Drop for TenantMetrics {
    fn drop(&mut self) {
        let ready = std::mem::take(&mut *lock(&self.ready));
        for (strategy, keys) in ready.backends {
            let gauge = self.server.ready_backends.with(&[strategy.as_str()]);
            gauge.sub(keys);
        }
        self.server.ready_connections.sub(ready.connections);
    }
}

/// The label of a dial refused by a limit; nothing for what is no limit's doing.
fn limit(refused: DialRefused) -> Option<&'static str> {
    match refused {
        DialRefused::PendingDials => Some("pending_dials"),
        DialRefused::Rate => Some("rate"),
        DialRefused::Tunnels => Some("tunnels"),
        DialRefused::DuplicateId | DialRefused::Ended => None,
        _ => Some("other"),
    }
}

/// The values that [`limit`] gives the label, from the start.
pub(super) const LIMITS: [&str; 3] = ["pending_dials", "rate", "tunnels"];

telemetry::families! {
    /// The families with the label `cluster`, and which tenants have series in them; `forget` ends
    /// those of each.
    #[derive(Debug)]
    pub(super) struct TenantFamilies {
        /// Connections of API servers that were let in, by tenant.
        accepted_frontends: counter["cluster"] =
            "rhizome_konnectivity_cluster_accepted_frontends_total",
        /// Bytes relayed for tunnels, by tenant.
        bytes: counter["cluster", "direction"] = "rhizome_konnectivity_cluster_relayed_bytes_total",
        /// Failed dials, by tenant, with upstream's reasons.
        dial_failures: counter["cluster", "reason"] =
            "rhizome_konnectivity_cluster_dial_failures_total",
        /// Connections of frontends to destinations, by tenant.
        established: gauge["cluster"] = "rhizome_konnectivity_cluster_established_connections",
        /// Streams of agents, by tenant.
        links: gauge["cluster"] = "rhizome_konnectivity_cluster_links",
        /// Dials that wait for an agent's answer, by tenant.
        pending: gauge["cluster"] = "rhizome_konnectivity_cluster_pending_dials",
        /// Dials refused because of a limit, by tenant.
        refused_dials: counter["cluster", "limit"] =
            "rhizome_konnectivity_cluster_refused_dials_total",
        /// Tunnels whose socket has not taken waiting data for a while, by tenant.
        stalled: gauge["cluster"] = "rhizome_konnectivity_cluster_stalled_tunnels",
    } with {
        live: Live,
    }
}

/// Tenants that have series.
type Live = Arc<Mutex<BTreeMap<TenantId, Weak<TenantSeries>>>>;

impl TenantFamilies {
    pub(super) fn new(registry: &Registry) -> Arc<Self> {
        let live = Live::default();
        collect_buffered(registry, &live);
        Arc::new(Self::register(registry, live))
    }

    /// Makes a tenant's series.
    pub(super) fn series(self: &Arc<Self>, tenant: &Arc<Tenant>) -> Arc<TenantSeries> {
        let name = tenant.id().as_str();
        let series = Arc::new(TenantSeries {
            accepted_frontends: self.accepted_frontends.with(&[name]),
            established: self.established.with(&[name]),
            bytes: Direction::ALL.map(|way| self.bytes.with(&[name, way.as_str()])),
            links: self.links.with(&[name]),
            pending: self.pending.with(&[name]),
            stalled: self.stalled.with(&[name]),
            families: Arc::clone(self),
            tenant: Arc::clone(tenant),
        });
        lock(&self.live).insert(tenant.id().clone(), Arc::downgrade(&series));
        series
    }

    fn forget(&self, tenant: &TenantId) {
        let mut live = lock(&self.live);
        if live
            .get(tenant)
            .is_some_and(|series| series.strong_count() > 0)
        {
            // Removed and added again: the series are the new one's.
            return;
        }
        live.remove(tenant);
        let name = tenant.as_str();
        let keep = |values: &[String]| values.first().is_none_or(|first| first != name);
        self.accepted_frontends.retain(keep);
        self.bytes.retain(keep);
        self.dial_failures.retain(keep);
        self.refused_dials.retain(keep);
        for gauges in [&self.established, &self.links, &self.pending, &self.stalled] {
            gauges.remove(&[name]);
        }
    }
}

/// Reads what tunnels hold at a scrape, since the limits keep count of it anyway.
fn collect_buffered(registry: &Registry, live: &Live) {
    let live = Arc::clone(live);
    registry.collect(move |encoder: &mut Encoder| {
        let tenants: Vec<_> = lock(&live).values().filter_map(Weak::upgrade).collect();
        encoder.family(
            "rhizome_konnectivity_cluster_buffered_bytes",
            "Bytes held for, or promised to, tunnels, by tenant.",
            Kind::Gauge,
            |family| {
                family.labels(&["cluster"]);
                for series in &tenants {
                    let held = series.tenant.buffered_bytes() as u64;
                    family.sample(&[("cluster", series.name())], held);
                }
            },
        );
    });
}

/// The series of one tenant; they end when it is dropped.
#[derive(Debug)]
pub(super) struct TenantSeries {
    tenant: Arc<Tenant>,
    families: Arc<TenantFamilies>,
    accepted_frontends: Counter,
    established: Gauge,
    /// By [`Direction`].
    pub(super) bytes: [Counter; 2],
    pub(super) links: Gauge,
    pending: Gauge,
    pub(super) stalled: Gauge,
}

impl TenantSeries {
    fn name(&self) -> &str {
        self.tenant.id().as_str()
    }
}

impl Drop for TenantSeries {
    fn drop(&mut self) {
        self.families.forget(self.tenant.id());
    }
}
