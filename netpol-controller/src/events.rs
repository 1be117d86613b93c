//! Events: problems of an object, reported where its owner looks.
//!
//! ```text
//!     problems of one object ─▶ one text for each reason ─▶ reported in the last 10 minutes? ─▶ POST
//! ```
//!
//! At most one write for each object and reason in ten minutes, and few at a time: a cluster full
//! of mistakes is not flooded. An Event that cannot be written is counted and forgotten; nothing
//! waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::Metrics;
use crate::plan::{Problem, Reason};
use crate::state::ObjectRef;

/// How long the same object and reason are not reported again.
const QUIET: Duration = Duration::from_secs(600);

/// Objects and reasons that are remembered; beyond it the oldest are forgotten, and reported again.
const REMEMBERED: usize = 16 * 1024;

/// Events that wait to be written; more are dropped and counted.
const QUEUE: usize = 1024;

/// Time between two writes.
const SPACING: Duration = Duration::from_millis(50);

/// How long one write may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Most characters of a message (core/v1 Event: 1,024 bytes).
const MESSAGE_LIMIT: usize = 1000;

/// The name under which Events are reported.
const COMPONENT: &str = "rhizome-netpol-controller";

/// An Event to be written.
#[derive(Debug)]
pub(crate) struct PendingEvent {
    object: ObjectRef,
    uid: String,
    reason: Reason,
    message: String,
}

/// Chooses which Events are written.
#[derive(Debug)]
pub(crate) struct Recorder {
    events: mpsc::Sender<PendingEvent>,
    reported: BTreeMap<(ObjectRef, Reason), Instant>,
    /// Problems that were not reported yet: too soon, or too many.
    postponed: BTreeSet<(ObjectRef, Reason)>,
    metrics: Metrics,
}

impl Recorder {
    /// Starts writing Events with `client`, as the replica `identity`.
    pub(crate) fn start(client: Client, identity: String, metrics: Metrics) -> Self {
        let (events, mut due) = mpsc::channel::<PendingEvent>(QUEUE);
        let written = metrics.clone();
        tokio::spawn(async move {
            while let Some(note) = due.recv().await {
                let result = post(&client, &identity, note).await;
                written.events.with(&[result]).inc();
                sleep(SPACING).await;
            }
        });
        Self {
            events,
            reported: BTreeMap::new(),
            postponed: BTreeSet::new(),
            metrics,
        }
    }

    /// Reports the problems of objects; `uid` returns an object's unique id.
    pub(crate) fn report(
        &mut self,
        problems: &[Problem],
        uid: impl Fn(&ObjectRef) -> String,
        now: Instant,
    ) {
        let mut texts: BTreeMap<(&ObjectRef, Reason), BTreeSet<&str>> = BTreeMap::new();
        for problem in problems {
            let key = (&problem.object, problem.reason);
            texts.entry(key).or_default().insert(&problem.message);
        }
        for ((object, reason), messages) in texts {
            let key = (object.clone(), reason);
            let quiet = self.reported.get(&key).is_some_and(|at| now < *at + QUIET);
            if quiet {
                self.metrics.events.with(&["held-back"]).inc();
                self.postpone(key);
                continue;
            }
            let note = PendingEvent {
                object: object.clone(),
                uid: uid(object),
                reason,
                message: joined(&messages),
            };
            if self.events.try_send(note).is_err() {
                self.metrics.events.with(&["dropped"]).inc();
                self.postpone(key);
                continue;
            }
            self.remember(key, now);
        }
    }

    /// Reports what was postponed, as far as it still holds: `problems` are all current ones.
    pub(crate) fn record_postponed(
        &mut self,
        problems: impl Iterator<Item = Problem>,
        uid: impl Fn(&ObjectRef) -> String,
        now: Instant,
    ) {
        let quiet = |key| self.reported.get(key).is_some_and(|at| now < *at + QUIET);
        let due: BTreeSet<_> = self
            .postponed
            .iter()
            .filter(|key| !quiet(key))
            .cloned()
            .collect();
        if due.is_empty() {
            return;
        }
        self.postponed.retain(|key| !due.contains(key));
        let due: Vec<Problem> = problems
            .filter(|problem| due.contains(&(problem.object.clone(), problem.reason)))
            .collect();
        self.report(&due, uid, now);
    }

    fn postpone(&mut self, key: (ObjectRef, Reason)) {
        if self.postponed.len() < REMEMBERED {
            self.postponed.insert(key);
        }
    }

    fn remember(&mut self, key: (ObjectRef, Reason), now: Instant) {
        if self.reported.len() >= REMEMBERED {
            self.reported.retain(|_, at| now < *at + QUIET);
        }
        if self.reported.len() >= REMEMBERED
            && let Some(oldest) = self.reported.iter().min_by_key(|(_, at)| **at)
        {
            let oldest = oldest.0.clone();
            self.reported.remove(&oldest);
        }
        self.reported.insert(key, now);
    }
}

/// Joins messages, and cuts what is too long at a character.
fn joined(messages: &BTreeSet<&str>) -> String {
    let all: Vec<&str> = messages.iter().copied().collect();
    let mut text = all.join("; ");
    if text.len() > MESSAGE_LIMIT {
        text.truncate(text.floor_char_boundary(MESSAGE_LIMIT));
        text.push('…');
    }
    text
}

async fn post(client: &Client, identity: &str, note: PendingEvent) -> &'static str {
    // Events of what has no namespace lie in `default`.
    let namespace = match &*note.object.key.namespace {
        "" => "default",
        namespace => namespace,
    };
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let event = event(namespace, identity, &note);
    match timeout(REQUEST_LIMIT, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => "written",
        Ok(Err(error)) => {
            let (object, error) = (note.object, telemetry::chain(&error));
            tracing::debug!(%object, %error, "writing an Event failed");
            "failed"
        }
        Err(_) => "failed",
    }
}

fn event(namespace: &str, identity: &str, note: &PendingEvent) -> Event {
    let now = Timestamp::now();
    let kind = note.object.kind;
    let api_version = match kind.group() {
        "" => "v1".to_owned(),
        group => format!("{group}/{}", kind.versions()[0]),
    };
    // Without `eventTime`, with which Kubernetes 1.20 refuses Events of what has no namespace.
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}.", shortened(&note.object.key.name))),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(api_version),
            kind: Some(kind.name().to_owned()),
            name: Some(note.object.key.name.to_string()),
            namespace: Some(note.object.key.namespace.to_string()),
            uid: Some(note.uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        reason: Some(note.reason.as_str().to_owned()),
        action: Some("Reconcile".to_owned()),
        message: Some(note.message.clone()),
        type_: Some("Warning".to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(identity.to_owned()),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: None,
        }),
        ..Event::default()
    }
}

/// Leaves space for the suffix that the API server appends to a name (253 characters in all).
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(240)]
}
