//! The one task that owns the cluster's state, and decides what is written and what is served.
//!
//! ```text
//!   watches ─messages─▶ ClusterState, ObservedPolicies ─▶ affected Services, namespaces, groups
//!                                                 │            │            │
//!                                      plan, compare, write (leader)    translate, publish (all)
//! ```
//!
//! Nothing is written and no gateway is answered before every kind has been listed once, so that
//! an object that is not listed yet is never treated as absent; for Secrets the gateways that ask
//! for them wait. All replicas serve routes; the leader alone writes. Requests run in tasks of their
//! own and report back; nothing here waits for one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::affected::Affected;
use crate::config::Config;
use crate::events::Recorder;
use crate::lease::Leadership;
use crate::metrics::{Metrics, count};
use crate::observed::ObservedPolicies;
use crate::plan::{ApiServer, HostName, Problem, Reason};
use crate::publish::{self, Publisher};
use crate::routes::{self, GatewayEntry};
use crate::state::{ClusterState, Kind, ObjectKey, ObjectRef};
use crate::status::{LISTED, Summary};
use crate::sync::{self, Job, PlanInputs, PolicySync};
use crate::watch::Message;
use crate::write::Writer;

/// Messages applied before planning: changes that arrive together are planned once.
const BATCH: usize = 4096;

/// How long kinds that are served later may take to be listed before the others go on.
const HOLD: Duration = Duration::from_secs(5);

/// How often metrics, the status and Events are updated while nothing changes.
const STATUS_PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    pub(crate) messages: mpsc::Receiver<Message>,
    pub(crate) leadership: Leadership,
    /// Addresses of the API server, where it is configured by name.
    pub(crate) resolved: watch::Receiver<HostName>,
    pub(crate) writer: Writer,
    pub(crate) recorder: Recorder,
    pub(crate) publisher: Publisher,
    /// The gateways as they are configured now.
    pub(crate) gateways: watch::Receiver<Vec<GatewayEntry>>,
    pub(crate) server: Option<xds::Server>,
    pub(crate) metrics: Metrics,
    /// The last summary of all this, for probes and operators.
    pub(crate) summary: watch::Sender<Arc<Summary>>,
}

pub(crate) struct Reconciler {
    parts: Parts,
    state: ClusterState,
    observed: ObservedPolicies,
    sync: PolicySync,
    /// Route groups that are to be translated again.
    groups: BTreeSet<Arc<str>>,
    /// Secrets that are to be published again.
    secrets: BTreeSet<ObjectKey>,
    /// Keys seen so far in lists in progress.
    listing: BTreeMap<Kind, BTreeSet<ObjectKey>>,
    /// Kinds that must be listed before anything is done; `None` before it is known which.
    unlisted: Option<BTreeSet<Kind>>,
    synced: bool,
    /// Until when kinds that came later are waited for.
    held: Instant,
    leading: bool,
    /// It leads, and the owners of policies are not settled yet.
    unsettled: bool,
    /// The gateways changed, and not all was published for them since.
    incomplete: bool,
    problems: BTreeMap<Source, Vec<Problem>>,
    jobs: JoinSet<Job>,
    /// The key of each job, for one that panics.
    keys: HashMap<task::Id, sync::Key>,
    reported: Instant,
}

/// Where a problem was found.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Source {
    Group(Arc<str>),
    /// While planning.
    Key(sync::Key),
    /// While parsing.
    Object(ObjectRef),
}

impl Reconciler {
    pub(crate) fn new(parts: Parts) -> Self {
        let sync = PolicySync::new(&parts.config);
        Self {
            parts,
            state: ClusterState::default(),
            observed: ObservedPolicies::default(),
            sync,
            groups: BTreeSet::new(),
            secrets: BTreeSet::new(),
            listing: BTreeMap::new(),
            unlisted: None,
            synced: false,
            held: Instant::now(),
            leading: false,
            unsettled: false,
            incomplete: false,
            problems: BTreeMap::new(),
            jobs: JoinSet::new(),
            keys: HashMap::new(),
            reported: Instant::now(),
        }
    }

    /// Runs until the watches end, which they do when they are dropped.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::new();
        self.lead();
        self.report();
        loop {
            let free = self.synced && !self.holds(Instant::now());
            let due = [
                Some(self.reported + STATUS_PERIOD),
                self.sync.queue.next_due().filter(|_| free && self.leading),
                self.parts.publisher.next_due().filter(|_| free),
            ];
            let due = due.into_iter().flatten().min().unwrap_or(self.reported);
            // Keys are ready, so the loop does not block.
            let busy = free && self.leading && self.sync.queue.ready();
            tokio::select! {
                count = self.parts.messages.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for message in batch.drain(..) {
                        self.take(message);
                    }
                }
                () = self.parts.leadership.changed() => self.lead(),
                Ok(()) = self.parts.gateways.changed() => self.set_gateways(),
                Ok(()) = self.parts.resolved.changed() => self.enqueue_namespaces(),
                Some(job) = self.jobs.join_next_with_id() => self.finish(job),
                () = task::yield_now(), if busy => {}
                () = sleep_until(due) => {}
            }
            self.step();
        }
    }

    /// Returns whether kinds that have come later are still being listed: without all of them,
    /// objects seem to refer to what is not there. One that cannot be listed stops nothing.
    fn holds(&self, now: Instant) -> bool {
        let unlisted = self.unlisted.as_ref();
        now < self.held && unlisted.is_some_and(|kinds| !kinds.is_empty())
    }

    fn step(&mut self) {
        let now = Instant::now();
        if self.jobs.is_empty() {
            self.observed.settle();
        }
        self.check_synced();
        if self.synced && !self.holds(now) {
            self.translate();
            if std::mem::take(&mut self.incomplete) {
                self.parts.publisher.complete();
            }
            if std::mem::take(&mut self.unsettled) {
                let routed = |key: &ObjectKey| self.parts.publisher.routed(key);
                self.sync.settle((&self.state, &self.observed), routed);
            }
            self.parts.publisher.publish_whole(now);
            if self.leading {
                self.start_jobs(now);
            }
        }
        let changed = {
            let last = self.parts.summary.borrow();
            last.synced != self.synced || last.leading != self.leading
        };
        if now >= self.reported + STATUS_PERIOD || changed {
            self.reported = now;
            if self.leading {
                let (state, problems) = (&self.state, self.problems.values().flatten());
                let uid = |object: &ObjectRef| state.uid(object);
                self.parts.recorder.report(problems, uid, now);
            }
            self.report();
        }
    }

    // Messages.

    fn take(&mut self, message: Message) {
        match message {
            Message::Discovered(mut kinds) => {
                kinds.retain(|kind| !self.state.served.contains(kind));
                self.unlisted.get_or_insert_default().extend(kinds);
                self.held = Instant::now() + HOLD;
            }
            Message::Gone(kind, key) => self.remove(kind, &key),
            Message::Listed(kind) => self.listed(kind),
            Message::Listing(kind) => {
                self.listing.insert(kind, BTreeSet::new());
                if kind == Kind::NetworkPolicy {
                    self.observed.relist();
                }
            }
            Message::Object(kind, object) => self.apply(kind, *object),
            Message::Secret(key, secret) => {
                let own = self.watches_secrets(&key.namespace);
                if own && self.state.secrets.put(key.clone(), secret) {
                    self.enqueue_secret(key);
                }
            }
            Message::SecretsForbidden(namespace) => {
                let own = self.watches_secrets(&namespace);
                if own && self.state.secrets.forbid(namespace) {
                    self.enqueue_groups();
                }
            }
            Message::SecretsListed(namespace, seen) if self.watches_secrets(&namespace) => {
                for key in self.state.secrets.retain(&namespace, &seen) {
                    self.enqueue_secret(key);
                }
                if self.state.secrets.list(namespace) {
                    self.enqueue_groups();
                }
            }
            Message::SecretsListed(..) => {}
            Message::Unreadable(kind, key, why) => self.reject(kind, &key, why),
            Message::Unserved(kind) => {
                self.listing.remove(&kind);
                self.state.served.remove(&kind);
                self.retain(kind, &BTreeSet::new());
            }
        }
    }

    /// Returns whether the Secrets of a namespace are watched. It is not this task's copy that
    /// counts: what is said of a new gateway's may come before, of a removed one's after that.
    fn watches_secrets(&self, namespace: &str) -> bool {
        let gateways = self.parts.gateways.borrow();
        gateways.iter().any(|own| own.namespace == namespace)
    }

    fn enqueue_secret(&mut self, key: ObjectKey) {
        if self.synced {
            let groups = routes::groups_of_secret(&self.state, &key.name);
            self.groups.extend(groups);
        }
        self.secrets.insert(key);
    }

    fn enqueue_groups(&mut self) {
        if self.synced {
            self.groups.extend(routes::all_groups(&self.state));
        }
    }

    fn apply(&mut self, kind: Kind, object: DynamicObject) {
        let key = ObjectKey::of(&object);
        if let Some(seen) = self.listing.get_mut(&kind) {
            seen.insert(key.clone());
        }
        if kind == Kind::NetworkPolicy {
            let affected = self.observed.seen(key.clone(), &object);
            return self.enqueue_owner(&key, affected);
        }
        let (config, synced) = (&self.parts.config, self.synced);
        // Before the caches are synced nothing is affected: everything is planned then.
        let applied = self.state.apply(kind, object, |state| {
            synced.then(|| Affected::by(state, config, kind, &key))
        });
        let object = ObjectRef::new(kind, &key);
        let problem = applied.as_ref().err().map(|error| {
            let message = telemetry::chain(error).to_string();
            Problem::new(object.clone(), Reason::NotUnderstood, &message)
        });
        self.note(Source::Object(object), problem.into_iter().collect());
        // Of an invalid object the previous version stays in effect; it affects no other object.
        if let Ok(Some(Some(before))) = applied {
            self.enqueue(before);
            self.enqueue_object(kind, &key);
        }
    }

    fn reject(&mut self, kind: Kind, key: &ObjectKey, why: &str) {
        if let Some(seen) = self.listing.get_mut(&kind) {
            seen.insert(key.clone());
        }
        self.state.reject(kind, key);
        let object = ObjectRef::new(kind, key);
        let message = format!("invalid {} {key}: {why}", kind.name());
        let problem = Problem::new(object.clone(), Reason::NotUnderstood, &message);
        self.note(Source::Object(object), vec![problem]);
    }

    fn remove(&mut self, kind: Kind, key: &ObjectKey) {
        if kind == Kind::NetworkPolicy {
            let affected = self.observed.gone(key);
            return self.enqueue_owner(key, affected);
        }
        self.enqueue_object(kind, key);
        let unreadable = kind == Kind::Service && self.state.unreadable.contains(key);
        self.state.remove(kind, key);
        self.note(Source::Object(ObjectRef::new(kind, key)), Vec::new());
        if unreadable && self.leading {
            self.sync.add_service(key.clone(), Instant::now());
        }
        self.enqueue_object(kind, key);
    }

    fn listed(&mut self, kind: Kind) {
        let seen = self.listing.remove(&kind).unwrap_or_default();
        self.retain(kind, &seen);
        if self.state.served.insert(kind) && self.synced {
            self.enqueue_all();
        }
        // Lists are asked for at the start and when the API server was away.
        self.sync.queue.hasten(Instant::now());
    }

    /// Forgets the objects of a kind other than these, and waits for its list no longer.
    fn retain(&mut self, kind: Kind, seen: &BTreeSet<ObjectKey>) {
        for key in self.keys(kind) {
            if !seen.contains(&key) {
                self.remove(kind, &key);
            }
        }
        if let Some(unlisted) = &mut self.unlisted {
            unlisted.remove(&kind);
        }
    }

    fn keys(&self, kind: Kind) -> Vec<ObjectKey> {
        if kind == Kind::NetworkPolicy {
            return self.observed.keys().cloned().collect();
        }
        self.state.keys(kind).collect()
    }

    fn check_synced(&mut self) {
        let listed = self.unlisted.as_ref().is_some_and(BTreeSet::is_empty);
        if self.synced || !listed {
            return;
        }
        self.synced = true;
        tracing::info!(
            services = self.state.services.len(),
            namespaces = self.state.namespaces.len(),
            pods = self.state.pods.keys().len(),
            policies = self.observed.len(),
            "caches synced"
        );
        self.enqueue_all();
        self.translate();
        self.parts.publisher.complete();
    }

    fn lead(&mut self) {
        let leading = self.parts.leadership.leads();
        if leading == self.leading {
            return;
        }
        self.leading = leading;
        self.unsettled = leading;
        self.sync.queue.clear();
        // Only the leader plans; problems of objects and groups are known to all replicas.
        self.problems
            .retain(|source, _| matches!(source, Source::Group(_) | Source::Object(_)));
        if leading {
            self.enqueue_all();
        }
    }

    /// Publishes for other gateways, beginning as at the start.
    fn set_gateways(&mut self) {
        let config = Arc::make_mut(&mut self.parts.config);
        let (Some(routing), Some(server)) = (&mut config.routing, &self.parts.server) else {
            return;
        };
        routing.gateways = self.parts.gateways.borrow_and_update().clone();
        tracing::info!(gateways = routing.gateways.len(), "gateways changed");
        server.set_gateways(publish::access(&routing.gateways));
        self.parts.publisher = Publisher::new(Some(routing), Some(server));
        self.problems
            .retain(|source, _| !matches!(source, Source::Group(_)));
        self.incomplete = true;
        let namespaces = routing.gateways.iter().map(|own| &*own.namespace);
        self.state.secrets.keep(&namespaces.collect());
        self.secrets.extend(self.state.secrets.keys().cloned());
        if self.synced {
            self.enqueue_all();
        }
    }

    // What that affects.

    /// Enqueues what an object is about, as it is known now.
    fn enqueue_object(&mut self, kind: Kind, key: &ObjectKey) {
        if !self.synced {
            return;
        }
        let mut affected = Affected::by(&self.state, &self.parts.config, kind, key);
        if kind == Kind::Namespace && self.has_gateway(&key.name) {
            let services = self.parts.publisher.routed_services();
            affected.services.extend(services.cloned());
        }
        self.enqueue(affected);
    }

    fn enqueue(&mut self, affected: Affected) {
        self.groups.extend(affected.groups);
        if !self.leading {
            return;
        }
        let now = Instant::now();
        for service in affected.services {
            self.sync.add_service(service, now);
        }
        for namespace in affected.namespaces {
            self.sync.add_namespace(namespace, now);
        }
    }

    /// Returns whether a configured gateway's pods run in a namespace.
    fn has_gateway(&self, namespace: &str) -> bool {
        let mut gateways = self.parts.config.gateways().iter();
        gateways.any(|own| own.namespace == namespace)
    }

    fn enqueue_owner(&mut self, key: &ObjectKey, affected: Option<Affected>) {
        if let Some(mut affected) = affected.filter(|_| self.synced) {
            // Another Service's policy of that name may be gone, or the Service that lost it may
            // own it now.
            affected.services.extend(self.sync.owner(key).cloned());
            self.enqueue(affected);
        }
    }

    fn enqueue_namespaces(&mut self) {
        self.parts.resolved.borrow_and_update();
        if self.synced {
            self.enqueue(Affected {
                namespaces: self.state.namespaces.keys().cloned().collect(),
                ..Affected::default()
            });
        }
    }

    fn enqueue_all(&mut self) {
        if self.synced {
            // Owners of policies that are there, too: a Service may be gone since.
            let services = self.state.services.keys().chain(self.observed.services());
            self.enqueue(Affected {
                services: services.cloned().collect(),
                namespaces: self.state.namespaces.keys().cloned().collect(),
                groups: routes::all_groups(&self.state),
            });
        }
    }

    // Actions.

    fn translate(&mut self) {
        let secrets = std::mem::take(&mut self.secrets);
        self.parts.publisher.publish_secrets(&self.state, &secrets);
        if self.groups.is_empty() {
            return;
        }
        let groups = std::mem::take(&mut self.groups);
        let changed = self.parts.publisher.translate(&self.state, groups);
        for group in changed.problems {
            let problems = self.parts.publisher.problems(&group);
            self.note(Source::Group(group), problems);
        }
        self.enqueue(Affected {
            services: changed.services,
            ..Affected::default()
        });
    }

    fn start_jobs(&mut self, now: Instant) {
        let routed = |key: &ObjectKey| self.parts.publisher.routed(key);
        let api_server = ApiServer {
            host: self.parts.resolved.borrow().clone(),
            ..ApiServer::of(&self.state)
        };
        let mut found = Vec::new();
        let known = PlanInputs {
            state: &self.state,
            observed: &self.observed,
            api_server: &api_server,
        };
        for task in self.sync.start(&known, routed, now, &mut found) {
            let (writer, metrics) = (self.parts.writer.clone(), self.parts.metrics.clone());
            let key = task.key.clone();
            let job = self
                .jobs
                .spawn(async move { task.run(&writer, &metrics).await });
            self.keys.insert(job.id(), key);
        }
        for (key, problems) in found {
            self.note(Source::Key(key), problems);
        }
    }

    fn finish(&mut self, job: Result<(task::Id, Job), JoinError>) {
        match job {
            Ok((id, job)) => {
                self.keys.remove(&id);
                // A list that was begun before the write does not have it.
                if let Some(seen) = self.listing.get_mut(&Kind::NetworkPolicy) {
                    seen.extend(job.stored().cloned());
                }
                let metrics = &self.parts.metrics;
                self.sync.finish(job, &mut self.observed, metrics);
            }
            // Only a panic ends here.
            Err(error) => {
                tracing::error!(%error, "a sync task panicked");
                if let Some(key) = self.keys.remove(&error.id()) {
                    self.sync.queue.done(&key, true, Instant::now());
                }
            }
        }
    }

    fn note(&mut self, source: Source, problems: Vec<Problem>) {
        if problems.is_empty() {
            self.problems.remove(&source);
        } else {
            self.problems.insert(source, problems);
        }
    }

    // Status and metrics.

    fn report(&self) {
        let metrics = &self.parts.metrics;
        metrics.leading.set(i64::from(self.leading));
        for kind in Kind::ALL {
            let objects = if kind == Kind::NetworkPolicy {
                self.observed.len()
            } else {
                self.state.keys(kind).len()
            };
            if objects > 0 || self.state.served.contains(&kind) {
                metrics.objects.with(&[kind.as_str()]).set(count(objects));
            }
        }
        self.sync.report(metrics);
        let mut objects: BTreeMap<&str, BTreeSet<&ObjectRef>> = BTreeMap::new();
        for problem in self.problems.values().flatten() {
            let own = objects.entry(problem.reason.as_str()).or_default();
            own.insert(&problem.object);
        }
        let known = |values: &[String]| values.iter().all(|own| objects.contains_key(&**own));
        metrics.problems.retain(known);
        for (reason, objects) in &objects {
            metrics.problems.with(&[reason]).set(count(objects.len()));
        }
        let (publisher, config) = (&self.parts.publisher, &self.parts.config);
        let gateways = publisher.summary();
        publisher.report(&gateways, &self.state, config, metrics);
        let summary = Summary {
            synced: self.synced,
            leading: self.leading,
            services: self.state.services.len(),
            namespaces: self.state.namespaces.len(),
            policies: self.observed.len(),
            waiting: self.sync.queue.keys().count(),
            unlisted: self.unlisted.clone(),
            problems: {
                let all = self.problems.values().flatten();
                all.take(LISTED).cloned().collect()
            },
            problems_total: self.problems.values().map(Vec::len).sum(),
            gateways,
        };
        self.parts.summary.send_replace(Arc::new(summary));
    }
}

#[cfg(test)]
mod tests;
