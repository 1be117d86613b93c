//! Which of several replicas writes: an election by a Lease (`coordination.k8s.io/v1`).
//!
//! ```text
//!     candidate ──free, or not renewed for its duration──▶ leader ──renewed every 2 s──▶ leader
//!         ▲                                                  │ not renewed for 10 s, or taken
//!         └──────────────────────────────────────────────────┘
//! ```
//!
//! Clocks of machines are not compared: a Lease counts as abandoned when this process has not seen
//! it change for as long as it is to last. A leader that cannot renew stops being one well before
//! others may take over. What a leader may do is `reconciler`'s.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::config::LeaderElection;

/// How long a Lease lasts without being renewed.
const DURATION: Duration = Duration::from_secs(15);

/// How long a leader goes on after it last renewed: less than [`DURATION`], so that two never
/// write.
const RENEW_LIMIT: Duration = Duration::from_secs(10);

/// Time between attempts to renew or to acquire.
const PERIOD: Duration = Duration::from_secs(2);

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Whether this process leads, and until when it may believe that. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    until: watch::Receiver<Option<Instant>>,
}

impl Leadership {
    /// Leadership without an election, for a process that writes alone.
    pub(crate) fn alone() -> Self {
        let far = Instant::now() + Duration::from_secs(60 * 60 * 24 * 365 * 30);
        Self {
            until: watch::channel(Some(far)).1,
        }
    }

    /// Returns whether a request that is begun now is the leader's. It must end within
    /// [`WRITE_LIMIT`].
    pub(crate) fn leads(&self) -> bool {
        let until = *self.until.borrow();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits until the answer may have changed. Cancel-safe; for ever when it never does.
    pub(crate) async fn changed(&mut self) {
        if self.until.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How long a request of a leader may last: what was begun at the last moment ends before another
/// replica may lead.
pub(crate) const WRITE_LIMIT: Duration = DURATION.saturating_sub(RENEW_LIMIT);

/// A candidate's view of one Lease.
pub(crate) struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// Until when this process leads.
    until: watch::Sender<Option<Instant>>,
    /// The holder and renewal seen last, and when that was first seen here.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    /// Stands for election as `identity`. The other value says whether this process leads.
    pub(crate) fn new(
        client: Client,
        config: &LeaderElection,
        identity: String,
    ) -> (Self, Leadership) {
        let (until, receiver) = watch::channel(None);
        let election = Self {
            api: Api::namespaced(client, &config.namespace),
            name: config.name.clone(),
            identity,
            until,
            seen: None,
        };
        (election, Leadership { until: receiver })
    }

    /// Runs the election until `stop` completes; then releases the Lease, if it is held.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = self.round() => {}
                () = &mut stop => break,
            }
            tokio::select! {
                () = sleep(PERIOD) => {}
                () = &mut stop => break,
            }
        }
        if self.until.send_replace(None).is_some() {
            // Bounded by the time the process has left to end.
            match timeout(Duration::from_millis(500), self.release()).await {
                Ok(Ok(())) => tracing::info!("lease released"),
                Ok(Err(error)) => tracing::warn!(%error, "releasing the lease failed"),
                Err(_) => tracing::warn!("releasing the lease timed out"),
            }
        }
    }

    async fn round(&mut self) {
        let asked = Instant::now();
        let held = *self.until.borrow();
        // A leader that gets no answer in time stops being one at that moment, not after it.
        let limit = held.map_or(REQUEST_LIMIT, |until| {
            REQUEST_LIMIT.min(until.saturating_duration_since(asked))
        });
        match timeout(limit, self.attempt()).await {
            Ok(Ok(true)) => {
                if self.until.send_replace(Some(asked + RENEW_LIMIT)).is_none() {
                    tracing::info!(identity = self.identity, "leading");
                }
            }
            Ok(Ok(false)) => self.lose("another replica holds the lease"),
            // Another replica was faster; the next round shows which.
            Ok(Err(Error::Api(status))) if status.code == 409 => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %telemetry::chain(&error), "renewing the lease failed");
            }
            Err(_) => tracing::warn!("renewing the lease timed out"),
        }
        if held.is_some_and(|until| Instant::now() >= until) && *self.until.borrow() == held {
            self.lose("the lease could not be renewed");
        }
    }

    fn lose(&self, why: &str) {
        if self.until.send_replace(None).is_some() {
            tracing::warn!(why, "no longer leading");
        }
    }

    /// Acquires or renews; returns whether the Lease is held then.
    async fn attempt(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None)),
            };
            self.api.create(&PostParams::default(), &lease).await?;
            return Ok(true);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if !self.may_take(&spec) {
            return Ok(false);
        }
        let renewed = Lease {
            spec: Some(self.spec(Some(&spec))),
            ..lease
        };
        // With the version that was read: of two that try at once, one gets a conflict.
        let params = PostParams::default();
        self.api.replace(&self.name, &params, &renewed).await?;
        Ok(true)
    }

    fn may_take(&mut self, spec: &LeaseSpec) -> bool {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        let now = Instant::now();
        let lasts = spec.lease_duration_seconds.unwrap_or_default();
        let lasts = Duration::from_secs(u64::try_from(lasts).unwrap_or_default());
        match &self.seen {
            Some((seen, since)) if seen == spec => now.duration_since(*since) > lasts,
            Some(_) | None => {
                self.seen = Some((spec.clone(), now));
                false
            }
        }
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let kept = before.filter(|own| own.holder_identity.as_ref() == Some(&self.identity));
        let taken = i32::from(before.is_some() && kept.is_none());
        let transitions = before.and_then(|own| own.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: kept
                .and_then(|own| own.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            lease_transitions: Some(transitions.saturating_add(taken)),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }

    async fn release(&self) -> Result<(), Error> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let params = PostParams::default();
        self.api.replace(&self.name, &params, &lease).await?;
        Ok(())
    }
}
