//! A server's own lease: renewed while the server runs, deleted when it stops.
//!
//! ```text
//!     none ──create──▶ held ──replace every 15 s──▶ held ──stop──▶ deleted
//!       ▲                └── conflict, not found: looked at anew
//! ```
//!
//! No other server holds a lease of this name, since the name is the server's id: whatever is found
//! under it is taken over. Others' leases are `sweep`'s.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::sweep::Sweep;
use super::{LeaseLabels, REQUEST_LIMIT, SharedLeaseMetrics};
use crate::api_server::{ApiServer, ApiServerError};

/// Whose lease it is, and which others are of the same kind.
#[derive(Clone, Debug)]
pub struct ServerLeaseParams {
    /// How to reach the API server; `None` is the pod's own way.
    pub kubeconfig: Option<PathBuf>,
    /// The server's id, part of the lease's name and its holder.
    pub server_id: String,
    /// Where the leases are.
    pub namespace: String,
    /// What this lease and its like are labelled.
    pub labels: LeaseLabels,
}

/// A server's part in counting servers.
pub struct ServerLease {
    own: Own,
    sweep: Sweep,
}

impl ServerLease {
    /// Prepares the lease of a server. The other value is how many servers have one, once known.
    #[must_use]
    pub fn new(
        params: ServerLeaseParams,
        metrics: SharedLeaseMetrics,
    ) -> (Self, watch::Receiver<Option<u32>>) {
        let (count, counted) = watch::channel(None);
        let api = ApiServer::new(params.kubeconfig.clone());
        let own = Own {
            api: api.clone(),
            name: format!("{NAME_PREFIX}{}", params.server_id),
            params,
            held: None,
        };
        let sweep = Sweep {
            api,
            namespace: own.params.namespace.clone(),
            selector: own.params.labels.to_string(),
            own: own.name.clone(),
            metrics,
            count,
        };
        (Self { own, sweep }, counted)
    }

    /// Renews and sweeps until `stop` completes; then deletes the own lease, within 5 s.
    ///
    /// Requests that fail are repeated: nothing ends this but `stop`.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let (first, tried) = watch::channel(());
        let sweeping = async {
            // So that the first count has this server in it.
            let _ = tried.clone().changed().await;
            self.sweep.run().await;
        };
        tokio::select! {
            () = self.own.keep(&first) => {}
            () = sweeping => {}
            () = stop => {}
        }
        match within(DELETE_LIMIT, self.own.delete()).await {
            Ok(()) => tracing::info!(lease = self.own.name, "lease deleted"),
            Err(error) => {
                tracing::warn!(error = %telemetry::chain(&error), "deleting the own lease failed");
            }
        }
    }
}

struct Own {
    api: ApiServer,
    name: String,
    params: ServerLeaseParams,
    /// The lease as it was written last.
    held: Option<Lease>,
}

impl Own {
    /// Renews for ever; says so through `tried` after each attempt.
    async fn keep(&mut self, tried: &watch::Sender<()>) {
        let mut pause = RETRY_PERIOD;
        loop {
            let renewed = within(REQUEST_LIMIT, self.renew()).await;
            let _ = tried.send(());
            match renewed {
                Ok(()) => {
                    pause = RETRY_PERIOD;
                    sleep(RENEW_PERIOD).await;
                }
                Err(error) => {
                    tracing::warn!(error = %telemetry::chain(&error), "renewing the own lease failed");
                    self.held = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(RENEW_PERIOD / 2);
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<(), LeaseError> {
        let leases = self.leases().await?;
        let now = MicroTime(Timestamp::now());
        let before = match self.held.take() {
            Some(lease) => Some(lease),
            None => leases.get_opt(&self.name).await.map_err(Box::new)?,
        };
        let params = PostParams::default();
        let written = match before {
            Some(before) => {
                let renewed = self.params.renewed(before, now);
                leases.replace(&self.name, &params, &renewed).await
            }
            None => {
                let mut lease = self.params.renewed(Lease::default(), now);
                lease.metadata.name = Some(self.name.clone());
                leases.create(&params, &lease).await
            }
        };
        self.held = Some(written.map_err(Box::new)?);
        Ok(())
    }

    async fn delete(&self) -> Result<(), LeaseError> {
        let leases = self.leases().await?;
        let Some(lease) = leases.get_opt(&self.name).await.map_err(Box::new)? else {
            return Ok(());
        };
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        if holder.as_ref() != Some(&self.params.server_id) {
            return Ok(());
        }
        let params = DeleteParams::default().preconditions(Preconditions {
            resource_version: lease.metadata.resource_version,
            uid: lease.metadata.uid,
        });
        let deleted = leases.delete(&self.name, &params).await;
        deleted.map_err(Box::new)?;
        Ok(())
    }

    async fn leases(&self) -> Result<Api<Lease>, LeaseError> {
        let (client, _) = self.api.client().await?;
        Ok(Api::namespaced(client, &self.params.namespace))
    }
}

impl ServerLeaseParams {
    /// Returns `lease` as it is once this server has renewed it at `now`.
    fn renewed(&self, mut lease: Lease, now: MicroTime) -> Lease {
        let labels = lease.metadata.labels.get_or_insert_default();
        labels.extend(self.labels.0.clone());
        let before = lease.spec.take().unwrap_or_default();
        let kept = before.holder_identity.as_ref() == Some(&self.server_id);
        let acquired = before.acquire_time.clone().filter(|_| kept);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.server_id.clone()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            acquire_time: acquired.or_else(|| Some(now.clone())),
            renew_time: Some(now),
            ..before
        });
        lease
    }
}

/// Why something about leases could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum LeaseError {
    #[error(transparent)]
    Client(#[from] ApiServerError),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("asking the API server about leases")]
    Request(#[from] Box<kube::Error>),
}

async fn within<F>(limit: Duration, request: F) -> Result<(), LeaseError>
where
    F: Future<Output = Result<(), LeaseError>>,
{
    let answer = timeout(limit, request).await;
    answer.unwrap_or(Err(LeaseError::Late(limit)))
}

const NAME_PREFIX: &str = "konnectivity-proxy-server-";

/// How long a lease lasts without being renewed, and how often it is renewed: upstream's.
const DURATION_SECONDS: i32 = 30;
const RENEW_PERIOD: Duration = Duration::from_secs(15);

/// Pause after the first attempt that failed; doubles up to half of [`RENEW_PERIOD`].
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// How long a server that stops waits for its lease to be gone.
const DELETE_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> ServerLeaseParams {
        ServerLeaseParams {
            kubeconfig: None,
            server_id: "one".to_owned(),
            namespace: "kube-system".to_owned(),
            labels: "k8s-app=konnectivity-server".parse().unwrap(),
        }
    }

    fn at(second: i64) -> MicroTime {
        MicroTime(Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn renewal_keeps_acquisition_and_labels() {
        let mut lease = params().renewed(Lease::default(), at(100));
        let labels = lease.metadata.labels.as_mut().unwrap();
        labels.insert("foreign".to_owned(), "kept".to_owned());
        let renewed = params().renewed(lease.clone(), at(115));
        let spec = renewed.spec.unwrap();
        assert_eq!(spec.acquire_time, Some(at(100)));
        assert_eq!(spec.renew_time, Some(at(115)));
        assert_eq!(spec.lease_duration_seconds, Some(30));
        let labels = renewed.metadata.labels.unwrap();
        assert_eq!(labels["foreign"], "kept");
        assert_eq!(labels["k8s-app"], "konnectivity-server");
        // That of another holder is acquired anew.
        lease.spec.as_mut().unwrap().holder_identity = Some("two".to_owned());
        let taken = params().renewed(lease, at(115)).spec.unwrap();
        assert_eq!(taken.holder_identity.as_deref(), Some("one"));
        assert_eq!(taken.acquire_time, Some(at(115)));
    }
}
