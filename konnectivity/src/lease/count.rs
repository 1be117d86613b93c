//! An agent's view of how many servers there are: it watches their leases.
//!
//! ```text
//!     API server ──list, watch──▶ store ──at each event, and when a lease runs out──▶ count
//! ```
//!
//! While nothing is heard of the API server the last count stays: that no renewal is seen then says
//! nothing about the servers. Nor does it change while a list is read. Writes nothing.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{SharedLeaseMetrics, failure, is_valid, valid_until};
use crate::api_server::ApiServer;

/// Which leases are counted.
#[derive(Clone, Debug)]
pub struct LeaseCountParams {
    /// How to reach the API server; `None` is the pod's own way.
    pub kubeconfig: Option<PathBuf>,
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
    seen: Store<Lease>,
    writer: Writer<Lease>,
    count: watch::Sender<Option<u32>>,
    /// When the list that is under way began, or the watch after it.
    began: Instant,
    /// When an event came last.
    heard: Instant,
}

impl LeaseCount {
    /// Prepares to count. The other value is the count: `None` before the first list, then at
    /// least 1.
    #[must_use]
    pub fn new(
        params: LeaseCountParams,
        metrics: SharedLeaseMetrics,
    ) -> (Self, watch::Receiver<Option<u32>>) {
        let (count, counted) = watch::channel(None);
        let (seen, writer) = reflector::store();
        let this = Self {
            api: ApiServer::new(params.kubeconfig.clone()),
            params,
            metrics,
            seen,
            writer,
            count,
            began: Instant::now(),
            heard: Instant::now(),
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
        let config = watcher::Config::default()
            .labels(&self.params.selector)
            .timeout(WATCH_SECONDS);
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
        self.writer.apply_watcher_event(&event);
        match event {
            Event::Apply(_) | Event::Delete(_) => {}
            Event::Init => {
                self.began = Instant::now();
                // Nothing is known to be right before the list is complete.
                return;
            }
            Event::InitApply(_) => return,
            Event::InitDone => {
                self.metrics.listed(200, "", self.began.elapsed());
                // From here on there is something to say.
                let valid = self.valid(Timestamp::now());
                self.count.send_replace(Some(valid));
            }
        }
        self.heard = Instant::now();
    }

    fn fail(&mut self, error: &watcher::Error) {
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
        if self.heard.elapsed() >= SILENCE {
            return;
        }
        let valid = self.valid(now);
        self.count
            .send_if_modified(|count| count.is_some() && count.replace(valid) != Some(valid));
    }

    /// Returns how many are valid at `now`: at least one, since the agent has found a server.
    fn valid(&self, now: Timestamp) -> u32 {
        let valid = self.seen.state_filter(|lease| is_valid(lease, now)).len();
        u32::try_from(valid).unwrap_or(u32::MAX).max(1)
    }

    /// Returns how long to wait for an event before the count may have changed.
    fn pause(&self, now: Timestamp) -> Duration {
        let seen = self.seen.state();
        let ends = seen.iter().filter_map(|lease| valid_until(lease));
        let next = ends.filter(|until| now < *until).min();
        let next = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
        next.map_or(MAX_PAUSE, |next| next.clamp(MIN_PAUSE, MAX_PAUSE))
    }
}

/// A lease is noticed to have run out this much late at most, so that many do not keep it busy.
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// How often a changed kubeconfig is looked for, and a missing one.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Without an event for this long the count stays: less than the 15 s after which servers renew. A watch that
/// has gone silent sees no lease run out before, and one that goes on counts at the next renewal.
const SILENCE: Duration = Duration::from_secs(12);

/// How long a watch lasts before it is begun anew; one that has gone silent is given up 5 s later.
const WATCH_SECONDS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::validity::tests::{at, lease};
    use crate::metrics::AgentMetrics;

    fn counting() -> (LeaseCount, watch::Receiver<Option<u32>>) {
        let params = LeaseCountParams {
            kubeconfig: None,
            namespace: "kube-system".to_owned(),
            selector: "a=b".to_owned(),
        };
        let metrics = AgentMetrics::new(&telemetry::Registry::new());
        LeaseCount::new(params, metrics)
    }

    #[test]
    fn count_falls_with_time_and_never_below_one() {
        let (mut counting, _) = counting();
        for (name, renewed) in [("a", 100), ("b", 102)] {
            counting.take(Event::Apply(lease(name, None, Some(renewed), Some(30))));
        }
        assert_eq!(counting.valid(at(129)), 2);
        assert_eq!(counting.pause(at(129)), Duration::from_secs(1));
        assert_eq!(counting.valid(at(130)), 1);
        assert_eq!(counting.valid(at(999)), 1);
        assert_eq!(counting.pause(at(999)), MAX_PAUSE);
    }

    #[test]
    fn complete_list_replaces_what_was_known() {
        let (mut counting, counted) = counting();
        let lease = |name| lease(name, None, Some(100), Some(30));
        for name in ["a", "b", "c"] {
            counting.take(Event::Apply(lease(name)));
        }
        counting.take(Event::Init);
        counting.take(Event::InitApply(lease("d")));
        counting.take(Event::InitApply(lease("e")));
        assert_eq!((counting.valid(at(101)), *counted.borrow()), (3, None));
        counting.take(Event::InitDone);
        assert_eq!(counting.valid(at(101)), 2);
        assert!(counted.borrow().is_some());
        counting.take(Event::Delete(lease("d")));
        counting.take(Event::Apply(lease("f")));
        counting.take(Event::Apply(lease("g")));
        assert_eq!(counting.valid(at(101)), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_watch_lowers_no_count() {
        let (mut counting, counted) = counting();
        let renewed = |name, second| lease(name, None, Some(second), Some(30));
        counting.take(Event::InitDone);
        counting.take(Event::Apply(renewed("a", 100)));
        counting.take(Event::Apply(renewed("b", 114)));
        counting.publish(at(115));
        assert_eq!(*counted.borrow(), Some(2));

        // 16 s after what came last.
        tokio::time::advance(Duration::from_secs(16)).await;
        counting.publish(at(130));
        assert_eq!(*counted.borrow(), Some(2), "nothing was heard of either");

        counting.take(Event::Apply(renewed("b", 129)));
        counting.publish(at(130));
        assert_eq!(*counted.borrow(), Some(1), "only one was renewed");
    }
}
