//! An agent's view of how many servers there are: it watches their leases.
//!
//! ```text
//!     API server ──list, watch──▶ tally ──at each event, and when a lease runs out──▶ count
//! ```
//!
//! While the API server does not answer the last count stays: that no renewal is seen then says
//! nothing about the servers. Writes nothing.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::tally::Tally;
use super::{SharedLeaseMetrics, failure};
use crate::api_server::ApiServer;

/// Which leases are counted.
#[derive(Clone, Debug)]
pub struct LeaseCountParams {
    /// Where they are.
    pub namespace: String,
    /// A label selector, in Kubernetes' notation.
    pub selector: String,
}

/// Counts the servers whose lease is valid.
pub struct LeaseCount {
    api: ApiServer,
    params: LeaseCountParams,
    metrics: SharedLeaseMetrics,
    tally: Tally,
    count: watch::Sender<Option<u32>>,
    /// When the list that is under way began, or the watch after it.
    began: Instant,
    /// Until when the count stays, because the API server has failed.
    frozen: Option<Instant>,
}

impl LeaseCount {
    /// Prepares to count. The other value is the count: `None` before the first list, then at
    /// least 1.
    #[must_use]
    pub fn new(
        api: ApiServer,
        params: LeaseCountParams,
        metrics: SharedLeaseMetrics,
    ) -> (Self, watch::Receiver<Option<u32>>) {
        let (count, counted) = watch::channel(None);
        let this = Self {
            api,
            params,
            metrics,
            tally: Tally::default(),
            count,
            began: Instant::now(),
            frozen: None,
        };
        (this, counted)
    }

    /// Counts for ever.
    pub async fn run(mut self) {
        loop {
            match self.api.client().await {
                Ok((client, generation)) => {
                    let leases = Api::namespaced(client, &self.params.namespace);
                    self.follow(leases, generation).await;
                }
                Err(error) => {
                    tracing::warn!(error = %telemetry::chain(&error), "counting leases failed");
                    sleep(MAX_PAUSE).await;
                }
            }
        }
    }

    /// Watches until another client is to be used.
    async fn follow(&mut self, leases: Api<Lease>, generation: u64) {
        let config = watcher::Config::default().labels(&self.params.selector);
        self.began = Instant::now();
        let mut events = pin!(watcher(leases, config).default_backoff());
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.take(event),
                    Some(Err(error)) => self.fail(&error),
                    None => return,
                },
                () = sleep(self.pause(Timestamp::now())) => {
                    if !matches!(self.api.client().await, Ok((_, same)) if same == generation) {
                        return;
                    }
                }
            }
            self.publish(Timestamp::now());
        }
    }

    fn take(&mut self, event: Event<Lease>) {
        match event {
            Event::Apply(lease) => self.tally.apply(&lease),
            Event::Delete(lease) => self.tally.remove(&lease),
            Event::Init => {
                self.tally.begin();
                self.began = Instant::now();
                // Nothing is known to be right before the list is complete.
                return;
            }
            Event::InitApply(lease) => {
                self.tally.listed(&lease);
                return;
            }
            Event::InitDone => {
                self.tally.done();
                self.metrics.listed(200, "", self.began.elapsed());
                // From here on there is something to say.
                self.count
                    .send_replace(Some(self.tally.count(Timestamp::now())));
            }
        }
        self.frozen = None;
    }

    fn fail(&mut self, error: &watcher::Error) {
        self.frozen = Some(Instant::now() + FREEZE);
        let refused = match error {
            watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
                failure(error)
            }
            // What was granted and broke later is no answer to a request.
            watcher::Error::WatchError(_)
            | watcher::Error::WatchFailed(_)
            | watcher::Error::NoResourceVersion => None,
        };
        if let Some((code, reason)) = refused {
            self.metrics.listed(code, reason, self.began.elapsed());
        }
        self.began = Instant::now();
        tracing::warn!(error = %telemetry::chain(error), "watching leases failed");
    }

    /// Publishes the count when it is known and has changed.
    fn publish(&self, now: Timestamp) {
        if self.frozen.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let valid = self.tally.count(now);
        self.count.send_if_modified(|count| match count {
            Some(before) if *before != valid => {
                *before = valid;
                true
            }
            Some(_) | None => false,
        });
    }

    /// Returns how long to wait for an event before the count may have changed.
    fn pause(&self, now: Timestamp) -> Duration {
        let next = self.tally.next_end(now);
        let next = next.and_then(|next| Duration::try_from(next).ok());
        next.map_or(MAX_PAUSE, |next| next.clamp(MIN_PAUSE, MAX_PAUSE))
    }
}

/// A lease is noticed to have run out this much late at most, so that many do not keep it busy.
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// How often a changed kubeconfig is looked for, and a missing one.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// How long after a failure the count stays, unless the API server is heard of again: twice what
/// servers take to renew, and their leases' duration.
const FREEZE: Duration = Duration::from_secs(60);
