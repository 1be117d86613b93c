//! What all tasks of a server share.
//!
//! Plain data and handles; who uses them how is told where they are used.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use knp_proto::{Budget, StreamId, TenantId};
use serve::Drain;
use telemetry::{AccessLog, Throttle, lock};
use tokio::sync::watch;

use super::tenant::Tenant;
use super::tokens::Tokens;
use super::tunnels::Tunnels;
use crate::flags::ServerConfig;
use crate::link;
use crate::metrics::ServerMetrics;
use crate::registry::{Registry, TenantSource, TenantSpec, Tenants};

/// A server's state and settings.
pub(crate) struct Context {
    pub(crate) config: ServerConfig,
    pub(crate) registry: Arc<Registry>,
    pub(crate) tokens: Tokens,
    pub(crate) metrics: Arc<ServerMetrics>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) drain: Drain,
    pub(crate) refusals: Refusals,
    pub(crate) access_log: AccessLog,
    /// Servers that have a lease, where this one has.
    pub(crate) lease_count: Option<watch::Receiver<Option<u32>>>,
    pub(crate) tunnels: Tunnels,
    /// Each worker that accepts has a receiver, and each frontend.
    pub(crate) frontends: watch::Sender<()>,
    /// None yet at the start; see [`Context::sync`].
    pub(super) tenants: Mutex<BTreeMap<TenantId, Arc<Tenant>>>,
    /// Streams so far.
    pub(super) streams: AtomicU64,
}

/// Which refusals of peers are logged, the metrics count all: anyone can bring about as many as there are
/// packets.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<&'static str, Throttle>>);

impl Refusals {
    /// Returns how many with this reason were not logged before this one; nothing if it is not to be.
    pub(crate) fn permit(&self, reason: &'static str) -> Option<u64> {
        let mut reasons = lock(&self.0);
        let throttle = reasons.entry(reason);
        let throttle = throttle.or_insert_with(|| Throttle::new(REFUSAL_INTERVAL));
        throttle.permit(link::now())
    }
}

/// Time between two lines about refusals with one reason.
const REFUSAL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a connection may take for TLS, HTTP/2 and a token.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(15);

impl Context {
    /// Returns a number no other stream of this process has.
    pub(crate) fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of servers that agents are informed about `tenant`.
    pub(crate) fn server_count(&self, tenant: &TenantSpec) -> u32 {
        let counted = self.lease_count.as_ref();
        let counted = counted.and_then(|count| *count.borrow());
        counted.unwrap_or(tenant.server_count).max(1)
    }

    /// Returns the tenant of a peer that was let in by `spec`, if it still is served and would
    /// let it in now.
    pub(crate) fn tenant(&self, spec: &TenantSpec) -> Option<Arc<Tenant>> {
        let tenant = self.tenant_of_socket(&spec.id)?;
        tenant.spec().keeps_peers_of(spec).then_some(tenant)
    }

    /// Returns a tenant, if it is still served.
    pub(crate) fn tenant_of_socket(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        lock(&self.tenants).get(id).cloned()
    }

    /// Returns how many tunnels there are, those being dialed or closed included.
    pub(crate) fn tunnels_under_way(&self) -> usize {
        let tenants = lock(&self.tenants);
        tenants.values().map(|own| own.limits().tunnels()).sum()
    }

    /// Returns all tenants, by id.
    pub(crate) fn tenants(&self) -> Vec<Arc<Tenant>> {
        lock(&self.tenants).values().cloned().collect()
    }

    /// Serves what the registry says. Tenants that are gone, or that are another one by the
    /// same name, are cut.
    pub(crate) fn sync(&self, wanted: &Tenants) {
        let mut tenants = lock(&self.tenants);
        tenants.retain(|id, tenant| {
            let wanted = wanted.get(id);
            let stays = wanted.is_some_and(|spec| spec.keeps_peers_of(&tenant.spec()));
            if !stays {
                tracing::info!(tenant = %id, "tenant removed");
                tenant.remove("the tenant is no longer served");
            }
            stays
        });
        for spec in wanted.all() {
            match tenants.get(&spec.id) {
                Some(tenant) => tenant.reconfigure(Arc::clone(spec)),
                None => {
                    tracing::info!(tenant = %spec.id, "tenant added");
                    // A server of one tenant is not ready before there is an agent.
                    let many = matches!(self.config.tenants, TenantSource::Registry(_));
                    let (spec, expects) = (Arc::clone(spec), many || self.lease_count.is_some());
                    let tenant = Tenant::new(spec, &self.budget, &self.metrics, expects);
                    tenants.insert(tenant.id().clone(), tenant);
                }
            }
        }
    }
}
