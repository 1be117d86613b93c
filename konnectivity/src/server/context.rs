//! What all tasks of a server share.
//!
//! Plain data and handles; who uses them how is told where they are used.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knp_proto::{Budget, ClusterId, LinkConfig, StreamId};
use serve::Drain;
use telemetry::AccessLog;
use tokio::sync::watch;

use super::cluster::Cluster;
use super::tunnels::Tunnels;
use crate::metrics::ServerMetrics;
use crate::pump::Liveness;
use crate::registry::{ClusterSpec, Clusters, Registry};
use crate::token::Tokens;

/// A server's state and settings.
pub(crate) struct Context {
    pub(crate) registry: Registry,
    pub(crate) tokens: Tokens,
    pub(crate) metrics: ServerMetrics,
    pub(crate) budget: Arc<Budget>,
    pub(crate) drain: Drain,
    pub(crate) access_log: AccessLog,
    pub(crate) server_id: String,
    /// Servers that have a lease, where this one has.
    pub(crate) lease_count: Option<watch::Receiver<Option<u32>>>,
    pub(crate) limits: Limits,
    pub(crate) tunnels: Tunnels,
    clusters: Mutex<BTreeMap<ClusterId, Arc<Cluster>>>,
    streams: AtomicU64,
}

/// Bounds and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For a dial altogether.
    pub(crate) dial: Duration,
    /// For TLS, HTTP/2 and a token.
    pub(crate) handshake: Duration,
    /// How soon a vanished agent is noticed.
    pub(crate) agents: Liveness,
    /// How soon a vanished API server is noticed.
    pub(crate) frontends: Liveness,
    /// Of links.
    pub(crate) link: LinkConfig,
}

impl Context {
    /// Serves no cluster yet; see [`Context::sync`].
    #[expect(
        clippy::too_many_arguments,
        reason = "it is called once, and all differ in type"
    )]
    pub(crate) fn new(
        registry: Registry,
        tokens: Tokens,
        metrics: ServerMetrics,
        budget: Arc<Budget>,
        drain: Drain,
        access_log: AccessLog,
        server_id: String,
        lease_count: Option<watch::Receiver<Option<u32>>>,
        limits: Limits,
    ) -> Self {
        Self {
            registry,
            tokens,
            metrics,
            budget,
            drain,
            access_log,
            server_id,
            lease_count,
            limits,
            tunnels: Tunnels::default(),
            clusters: Mutex::default(),
            streams: AtomicU64::new(1),
        }
    }

    /// Returns a number no other stream of this process has.
    pub(crate) fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of servers that agents are told of `cluster`.
    pub(crate) fn server_count(&self, cluster: &ClusterSpec) -> u32 {
        let counted = self.lease_count.as_ref();
        let counted = counted.and_then(|count| *count.borrow());
        counted.unwrap_or(cluster.server_count).max(1)
    }

    /// Returns the cluster of a peer that was let in by `spec`, if it still is served and would
    /// let it in now.
    pub(crate) fn cluster(&self, spec: &ClusterSpec) -> Option<Arc<Cluster>> {
        let cluster = self.lock().get(&spec.id).cloned()?;
        let changes = cluster.spec().changes_since(spec);
        (!changes.agents && !changes.frontends).then_some(cluster)
    }

    /// Returns a cluster, if it is still served.
    pub(crate) fn cluster_of_socket(&self, id: &ClusterId) -> Option<Arc<Cluster>> {
        self.lock().get(id).cloned()
    }

    /// Returns how many tunnels there are, those being dialed or closed included.
    pub(crate) fn tunnels_under_way(&self) -> usize {
        let clusters = self.lock();
        clusters.values().map(|own| own.limits().tunnels()).sum()
    }

    /// Returns all clusters, by id.
    pub(crate) fn clusters(&self) -> Vec<Arc<Cluster>> {
        self.lock().values().cloned().collect()
    }

    /// Serves what the registry says. Clusters that are gone, or that are another one by the
    /// same name, are cut.
    pub(crate) fn sync(&self, wanted: &Clusters) {
        let mut clusters = self.lock();
        clusters.retain(|id, cluster| {
            let stays = wanted.get(id).is_some_and(|spec| {
                let changes = spec.changes_since(&cluster.spec());
                !changes.agents && !changes.frontends
            });
            if !stays {
                tracing::info!(cluster = %id, "no longer served");
                cluster.remove("the cluster is no longer served");
            }
            stays
        });
        for spec in wanted.all() {
            match clusters.get(&spec.id) {
                Some(cluster) => cluster.reconfigure(Arc::clone(spec)),
                None => {
                    tracing::info!(cluster = %spec.id, "served");
                    let (spec, has_lease) = (Arc::clone(spec), self.lease_count.is_some());
                    let cluster = Cluster::new(spec, &self.budget, &self.metrics, has_lease);
                    clusters.insert(cluster.id().clone(), cluster);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClusterId, Arc<Cluster>>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
