//! Counts the servers' leases every 15 s, and deletes those that have expired.
//!
//! ```text
//!     list by label ──▶ valid ───▶ count
//!                   └─▶ expired ─▶ delete, unless it was renewed meanwhile
//! ```
//!
//! Leaves this server's own lease alone, however late it is: `own` renews it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{REQUEST_LIMIT, SharedLeaseMetrics, failure, is_valid};
use crate::api_server::ApiServer;

pub(super) struct Sweep {
    pub(super) api: ApiServer,
    pub(super) namespace: String,
    pub(super) selector: String,
    /// The name of this server's own lease.
    pub(super) own: String,
    pub(super) metrics: SharedLeaseMetrics,
    pub(super) count: watch::Sender<Option<u32>>,
}

impl Sweep {
    /// Sweeps for ever. Cancel-safe.
    pub(super) async fn run(&self) {
        let mut rounds = interval(PERIOD);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let client = match self.api.client().await {
                Ok((client, _)) => client,
                Err(error) => {
                    tracing::warn!(error = %telemetry::chain(&error), "sweeping leases failed");
                    continue;
                }
            };
            let leases = Api::namespaced(client, &self.namespace);
            let Some(found) = self.list(&leases).await else {
                continue;
            };
            let (valid, expired) = divide(found, &self.own, Timestamp::now());
            self.count.send_replace(Some(valid));
            for lease in expired {
                self.cull(&leases, lease).await;
            }
        }
    }

    /// Returns all leases of the kind; `None` when the API server did not give them.
    async fn list(&self, leases: &Api<Lease>) -> Option<Vec<Lease>> {
        let asked = Instant::now();
        let params = ListParams::default().labels(&self.selector);
        match timeout(REQUEST_LIMIT, leases.list(&params)).await {
            Ok(Ok(list)) => {
                self.metrics.listed(200, "", asked.elapsed());
                Some(list.items)
            }
            Ok(Err(error)) => {
                if let Some((code, reason)) = failure(&error) {
                    self.metrics.listed(code, reason, asked.elapsed());
                }
                tracing::warn!(error = %telemetry::chain(&error), "listing leases failed");
                None
            }
            Err(_) => {
                tracing::warn!("listing leases timed out");
                None
            }
        }
    }

    async fn cull(&self, leases: &Api<Lease>, lease: Lease) {
        let Some(name) = lease.metadata.name else {
            return;
        };
        let params = DeleteParams::default().preconditions(Preconditions {
            // A server that renews it at this moment keeps it.
            resource_version: lease.metadata.resource_version,
            uid: lease.metadata.uid,
        });
        let asked = Instant::now();
        match timeout(REQUEST_LIMIT, leases.delete(&name, &params)).await {
            Ok(Ok(_)) => {
                self.metrics.deleted(200, "", asked.elapsed());
                self.metrics.culled();
                tracing::info!(lease = name, "expired lease deleted");
            }
            Ok(Err(error)) => {
                if let Some((code, reason)) = failure(&error) {
                    self.metrics.deleted(code, reason, asked.elapsed());
                }
                // Renewed, or deleted by another server that sweeps too.
                tracing::debug!(lease = name, error = %telemetry::chain(&error), "lease not deleted");
            }
            Err(_) => tracing::warn!(lease = name, "deleting an expired lease timed out"),
        }
    }
}

/// Returns how many leases are valid at `now`, this server's `own` always among them, and those
/// that expired.
fn divide(leases: Vec<Lease>, own: &str, now: Timestamp) -> (u32, Vec<Lease>) {
    let is_own = |lease: &Lease| lease.metadata.name.as_deref() == Some(own);
    let others = leases.into_iter().filter(|lease| !is_own(lease));
    let (valid, expired): (Vec<_>, Vec<_>) = others.partition(|lease| is_valid(lease, now));
    let valid = u32::try_from(valid.len()).unwrap_or(u32::MAX);
    (valid.saturating_add(1), expired)
}

/// Time between two looks: upstream's.
const PERIOD: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::validity::tests::{at, lease};

    #[test]
    fn the_own_lease_counts_and_is_never_swept() {
        let leases = [("own", 100), ("valid", 190), ("dead", 100)];
        let leases = leases.map(|(name, renewed)| lease(name, None, Some(renewed), Some(30)));
        let (valid, expired) = divide(leases.into(), "own", at(200));
        assert_eq!(valid, 2);
        let names: Vec<_> = expired.into_iter().map(|one| one.metadata.name).collect();
        assert_eq!(names, [Some("dead".to_owned())]);
    }
}
