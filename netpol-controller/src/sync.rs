//! Reconciles policies: due keys are planned, compared with the observed policies, and written.
//!
//! ```text
//!     due key ─plan─▶ wanted ─compare with observed─▶ nothing to do
//!                                                └──▶ Task: writes, in parallel ─▶ Job: results
//! ```
//!
//! One key is worked on once at a time. A failed write is tried again later and stops no other.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use crate::config::Config;
use crate::metrics::Metrics;
use crate::observed::{Fingerprint, ObservedPolicies};
use crate::plan::{
    self, ApiServer, Claims, NamespaceSettings, Policy, PolicySettings, Problem, RoutedPort,
};
use crate::queue::Queue;
use crate::state::{ClusterState, ObjectKey};
use crate::write::{Write, WriteError, Writer, Written};

/// Keys planned in one step, before messages are handled again.
const STRIDE: usize = 64;

/// Writes of one Service or namespace that run at a time.
const PARALLEL: usize = 16;

/// A key of the queue.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Key {
    /// The general policies of a namespace.
    Namespace(Arc<str>),
    /// The policies of a Service.
    Service(ObjectKey),
}

pub(crate) struct PolicySync {
    policies: Option<PolicySettings>,
    namespaces: Option<NamespaceSettings>,
    pub(crate) queue: Queue<Key>,
    claims: Claims,
}

/// What is planned from and compared with.
#[derive(Clone, Copy)]
pub(crate) struct PlanInputs<'a> {
    pub(crate) state: &'a ClusterState,
    pub(crate) observed: &'a ObservedPolicies,
    pub(crate) api_server: &'a ApiServer,
}

/// Writes that a key calls for.
pub(crate) struct Task {
    pub(crate) key: Key,
    writes: Vec<Write>,
    /// Written after the others, and only if one of them is there: `deny-all` alone would lock a
    /// namespace up.
    last: Option<Write>,
    /// One of the others is there already.
    others: bool,
}

/// What became of a task.
#[derive(Debug)]
pub(crate) struct Job {
    key: Key,
    written: Vec<Written>,
    failed: bool,
}

impl PolicySync {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            policies: config.policies().cloned(),
            namespaces: config.namespaces.clone(),
            queue: Queue::new(config.controllers.network_policy.concurrent_syncs),
            claims: Claims::default(),
        }
    }

    pub(crate) fn add_service(&mut self, key: ObjectKey, now: Instant) {
        if self.policies.is_some() {
            self.queue.add(Key::Service(key), now);
        }
    }

    pub(crate) fn add_namespace(&mut self, name: Arc<str>, now: Instant) {
        if self.namespaces.is_some() {
            self.queue.add(Key::Namespace(name), now);
        }
    }

    pub(crate) fn owner(&self, policy: &ObjectKey) -> Option<&ObjectKey> {
        self.claims.owner(policy)
    }

    /// Settles all owners before anything is written: else a younger Service would write a
    /// policy that an older one owns.
    pub(crate) fn settle(
        &mut self,
        (state, observed): (&ClusterState, &ObservedPolicies),
        routed: impl Fn(&ObjectKey) -> Vec<RoutedPort>,
    ) {
        let Some(settings) = &self.policies else {
            return;
        };
        // Claims of Services that went while another replica wrote go with the rest.
        self.claims = Claims::default();
        for key in state.services.keys() {
            let mut plan = plan::service(state, settings, &routed(key), key);
            let existing = observed.of_service(key);
            self.claims.settle(state, key, existing, &mut plan);
        }
        for key in &state.unreadable {
            self.claims.hold(key, observed.of_service(key));
        }
    }

    pub(crate) fn report(&self, metrics: &Metrics) {
        let mut counts = [0_i64; 2];
        for key in self.queue.keys() {
            counts[usize::from(matches!(key, Key::Service(_)))] += 1;
        }
        metrics.queue.with(&["namespace"]).set(counts[0]);
        metrics.queue.with(&["service"]).set(counts[1]);
    }

    /// Plans what is due, up to some number, and returns the tasks that result. `found` gets the
    /// problems of each key that was planned.
    pub(crate) fn start(
        &mut self,
        known: &PlanInputs<'_>,
        routed: impl Fn(&ObjectKey) -> Vec<RoutedPort>,
        now: Instant,
        found: &mut Vec<(Key, Vec<Problem>)>,
    ) -> Vec<Task> {
        let mut tasks = Vec::new();
        for _ in 0..STRIDE {
            let Some(key) = self.queue.take(now) else {
                break;
            };
            let (task, problems) = match &key {
                Key::Namespace(name) => self.namespace(known, name),
                Key::Service(service) => self.service(known, &routed(service), service, now),
            };
            match task {
                Some(task) => tasks.push(task),
                None => drop(self.queue.done(&key, false, now)),
            }
            found.push((key, problems));
        }
        tasks
    }

    /// Plans everything, and returns the due writes and the problems. For a dry run, which
    /// writes nothing.
    pub(crate) fn review(
        &mut self,
        known: &PlanInputs<'_>,
        routed: impl Fn(&ObjectKey) -> Vec<RoutedPort>,
    ) -> (Vec<Write>, BTreeSet<Problem>) {
        let (state, observed) = (known.state, known.observed);
        let now = Instant::now();
        for key in state.services.keys().chain(observed.services()) {
            self.add_service(key.clone(), now);
        }
        for name in state.namespaces.keys() {
            self.add_namespace(Arc::clone(name), now);
        }
        self.settle((state, observed), &routed);
        let mut plans = BTreeMap::new();
        while let Some(key) = self.queue.take(now) {
            let plan = match &key {
                Key::Namespace(name) => self.namespace(known, name),
                Key::Service(service) => self.service(known, &routed(service), service, now),
            };
            self.queue.done(&key, false, now);
            plans.insert(key, plan);
        }
        let (mut writes, mut problems) = (Vec::new(), BTreeSet::new());
        for (task, found) in plans.into_values() {
            writes.extend(
                task.into_iter()
                    .flat_map(|task| task.writes.into_iter().chain(task.last)),
            );
            problems.extend(found);
        }
        (writes, problems)
    }

    fn service(
        &mut self,
        known: &PlanInputs<'_>,
        routed: &[RoutedPort],
        key: &ObjectKey,
        now: Instant,
    ) -> (Option<Task>, Vec<Problem>) {
        let (state, observed) = (known.state, known.observed);
        let Some(settings) = self.policies.as_ref() else {
            return (None, Vec::new());
        };
        if state.unreadable.contains(key) {
            return (None, Vec::new());
        }
        let mut plan = plan::service(state, settings, routed, key);
        let existing = observed.of_service(key);
        for other in self.claims.settle(state, key, existing, &mut plan) {
            if other != *key {
                self.queue.add(Key::Service(other), now);
            }
        }
        let wanted: BTreeSet<&ObjectKey> = plan.policies.iter().map(|own| &own.key).collect();
        let unwanted = observed.of_service(key).filter(|own| {
            let others = self.claims.owner(own).is_some_and(|owner| owner != key);
            !wanted.contains(own) && !plan.keeps(own) && !others
        });
        let free = plan
            .policies
            .iter()
            .filter(|own| !(observed.contains(&own.key) && plan.keeps(&own.key)));
        let mut writes: Vec<Write> = free.filter_map(|own| due(observed, own)).collect();
        // Last, so that what one policy allowed and another one allows now is never forbidden.
        writes.extend(unwanted.map(|own| deletion(observed, own)));
        let task = Task {
            key: Key::Service(key.clone()),
            writes,
            last: None,
            others: false,
        };
        (task.if_any(), plan.problems)
    }

    fn namespace(&self, known: &PlanInputs<'_>, name: &Arc<str>) -> (Option<Task>, Vec<Problem>) {
        let Some(settings) = &self.namespaces else {
            return (None, Vec::new());
        };
        let observed = known.observed;
        let plan = plan::namespace(known.state, settings, known.api_server, name);
        let at = |policy: &str| ObjectKey::new(name, policy);
        let mut writes: Vec<Write> = plan
            .unwanted
            .iter()
            .map(|policy| at(policy))
            .filter(|key| observed.described(key))
            .map(|key| deletion(observed, &key))
            .collect();
        let deny_all = |key: &ObjectKey| &*key.name == plan::DENY_ALL;
        let mut last = None;
        for write in plan.policies.iter().filter_map(|own| due(observed, own)) {
            let fresh = matches!(&write, Write::Create(policy) if deny_all(&policy.key));
            if fresh {
                last = Some(write);
            } else {
                writes.push(write);
            }
        }
        let mut own = plan.policies.iter().map(|policy| &policy.key);
        let others = own.any(|key| !deny_all(key) && observed.contains(key));
        let task = Task {
            key: Key::Namespace(Arc::clone(name)),
            writes,
            last,
            others,
        };
        (task.if_any(), plan.problems)
    }

    pub(crate) fn finish(&mut self, job: Job, observed: &mut ObservedPolicies, metrics: &Metrics) {
        for written in job.written {
            match written {
                Written::Deleted(key, version) => observed.deleted(&key, version),
                Written::Stored(key, wanted, answer) => observed.written(&key, wanted, answer),
            }
        }
        let controller = match &job.key {
            Key::Namespace(_) => "namespace",
            Key::Service(_) => "service",
        };
        let result = if job.failed { "error" } else { "ok" };
        metrics.reconciles.with(&[controller, result]).inc();
        let now = Instant::now();
        let since = self.queue.done(&job.key, job.failed, now);
        if let Some(since) = since.filter(|_| !job.failed) {
            let took = now.duration_since(since);
            metrics.convergence.observe(took.as_secs_f64());
        }
    }
}

fn due(observed: &ObservedPolicies, policy: &Policy) -> Option<Write> {
    if observed.is(&policy.key, Fingerprint::wanted(policy)) {
        None
    } else if observed.contains(&policy.key) {
        Some(Write::Update(policy.clone()))
    } else {
        Some(Write::Create(policy.clone()))
    }
}

fn deletion(observed: &ObservedPolicies, key: &ObjectKey) -> Write {
    Write::Delete(key.clone(), observed.version(key))
}

impl Task {
    fn if_any(self) -> Option<Self> {
        let none = self.writes.is_empty() && self.last.is_none();
        (!none).then_some(self)
    }

    /// Does the writes and returns their results. No write begins once this replica no longer
    /// leads.
    pub(crate) async fn run(self, writer: &Writer, metrics: &Metrics) -> Job {
        let mut job = Job {
            key: self.key,
            written: Vec::new(),
            failed: false,
        };
        let mut unfinished = self.writes.len();
        let due = stream::iter(self.writes).take_while(|_| ready(writer.leads()));
        let writes = due.map(|write| one(writer, metrics, write));
        let mut results = writes.buffer_unordered(PARALLEL);
        while let Some(result) = results.next().await {
            unfinished -= 1;
            job.take(result);
        }
        job.failed |= unfinished > 0;
        if let Some(last) = self.last {
            let stored = |own: &Written| matches!(own, Written::Stored(..));
            if writer.leads() && (self.others || job.written.iter().any(stored)) {
                job.take(one(writer, metrics, last).await);
            } else {
                job.failed = true;
            }
        }
        job
    }
}

impl Job {
    pub(crate) fn stored(&self) -> impl Iterator<Item = &ObjectKey> {
        self.written.iter().filter_map(|written| match written {
            Written::Stored(key, ..) => Some(key),
            Written::Deleted(..) => None,
        })
    }

    fn take(&mut self, result: Result<Written, WriteError>) {
        match result {
            Ok(written) => self.written.push(written),
            Err(error) => {
                self.failed = true;
                tracing::warn!(error = %telemetry::chain(&error), "writing a NetworkPolicy failed");
            }
        }
    }
}

async fn one(writer: &Writer, metrics: &Metrics, write: Write) -> Result<Written, WriteError> {
    let labels = write.labels();
    tracing::debug!(verb = labels[0], policy = %write.key(), "writing a NetworkPolicy");
    let result = writer.write(write).await;
    match &result {
        Ok(_) => metrics.writes.with(&labels).inc(),
        Err(error) => {
            let code = error.code().to_string();
            metrics.write_errors.with(&[error.verb, &code]).inc();
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use kube::core::DynamicObject;
    use serde_json::{Value, json};

    use super::*;
    use crate::state::Kind;

    /// A Service whose policies are asked for in every namespace, unless its selectors are bad.
    fn service(namespace: &str, name: &str, day: u8, selectors: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "namespace": namespace, "name": name,
                "creationTimestamp": format!("2026-01-0{day}T00:00:00Z"),
                "annotations": {
                    "networking.resources.gardener.cloud/namespace-selectors": selectors,
                },
            },
            "spec": {
                "selector": { "app": name },
                "ports": [{ "port": 443, "protocol": "TCP", "targetPort": 10250 }],
            },
        })
    }

    /// A cluster of these Services.
    fn state(services: &[Value]) -> ClusterState {
        let mut state = ClusterState::default();
        let mut apply = |kind, object: &Value| {
            let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            state.apply(kind, object, |_| ()).unwrap();
        };
        for name in ["a", "a-b", "c"] {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
            });
            apply(Kind::Namespace, &namespace);
        }
        for service in services {
            apply(Kind::Service, service);
        }
        state
    }

    /// What a leader that has just begun would write.
    fn writes(state: &ClusterState, observed: &ObservedPolicies) -> Vec<Write> {
        let mut sync = PolicySync {
            policies: Some(PolicySettings::default()),
            namespaces: None,
            queue: Queue::new(1),
            claims: Claims::default(),
        };
        let known = PlanInputs {
            state,
            observed,
            api_server: &ApiServer::of(state),
        };
        sync.review(&known, |_| Vec::new()).0
    }

    fn store(observed: &mut ObservedPolicies, write: &Write) {
        let (Write::Create(policy) | Write::Update(policy)) = write else {
            return;
        };
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {
                "namespace": &*policy.key.namespace, "name": &*policy.key.name,
                "labels": policy.labels,
                "annotations": { plan::DESCRIPTION: policy.description },
            },
            "spec": policy.spec,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        observed.seen(policy.key.clone(), &object);
    }

    #[test]
    fn new_leader_leaves_policies_that_another_service_keeps() {
        let older = |selectors: &str| service("a-b", "x", 1, selectors);
        let younger = service("a", "b-x", 2, "[{}]");
        let mut observed = ObservedPolicies::default();
        for write in writes(&state(&[older("[{}]"), younger.clone()]), &observed) {
            store(&mut observed, &write);
        }
        let shared = ObjectKey::new("c", "egress-to-a-b-x-tcp-10250");
        let owner = ObjectKey::new("a-b", "x");
        assert!(observed.of_service(&owner).any(|own| *own == shared));

        let frozen = state(&[older("?"), younger.clone()]);
        let mut unreadable = state(std::slice::from_ref(&younger));
        unreadable.reject(Kind::Service, &owner);
        for state in [&frozen, &unreadable] {
            let written = writes(state, &observed);
            assert!(written.is_empty(), "{written:?}");
        }
        let written = writes(&state(&[younger]), &observed);
        assert!(written.iter().any(|write| *write.key() == shared));
    }
}
