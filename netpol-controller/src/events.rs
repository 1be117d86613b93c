//! Events: problems of an object, reported where its owner looks.
//!
//! ```text
//!     problems of one object ─▶ one text for each reason ─▶ reported in the last 10 minutes? ─▶ POST
//! ```
//!
//! At most one write for each object and reason in ten minutes, and few at a time: a cluster full
//! of mistakes is not flooded. A problem that stays is reported again before Kubernetes forgets its
//! Event. One that cannot be written is counted, and tried again ten minutes later; nothing waits for
//! it.

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

/// How long an unchanged text is not reported again: API servers forget Events after an hour.
const REPEAT: Duration = Duration::from_secs(45 * 60);

/// Events that wait to be written; more are dropped, counted and tried again.
const QUEUE: usize = 1024;

/// Time between two writes.
const SPACING: Duration = Duration::from_millis(50);

/// How long one write may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Most characters of a message (core/v1 Event: 1,024 bytes).
const MESSAGE_LIMIT: usize = 1000;

/// What became of an Event that was not written.
const FAILED: &str = "failed";

const COMPONENT: &str = "rhizome-netpol-controller";

/// Chooses which Events are written.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// What is to be written, each with the unique id of its object.
    events: mpsc::Sender<(Problem, String)>,
    /// What could not be written.
    failed: mpsc::Receiver<(ObjectRef, Reason)>,
    reported: BTreeMap<(ObjectRef, Reason), Report>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Report {
    at: Instant,
    message: String,
    /// There is another message since.
    held_back: bool,
    /// It could not be written.
    failed: bool,
}

impl Recorder {
    pub(crate) fn start(client: Client, identity: String, metrics: Metrics) -> Self {
        let (events, mut due) = mpsc::channel::<(Problem, String)>(QUEUE);
        let (lost, failed) = mpsc::channel(QUEUE);
        let written = metrics.clone();
        tokio::spawn(async move {
            while let Some((problem, uid)) = due.recv().await {
                let key = (problem.object.clone(), problem.reason);
                let result = post(&client, &identity, problem, uid).await;
                written.events.with(&[result]).inc();
                if result == FAILED {
                    // The recorder looks every second; what it has no space for is repeated later.
                    let _ = lost.try_send(key);
                }
                sleep(SPACING).await;
            }
        });
        Self {
            events,
            failed,
            reported: BTreeMap::new(),
            metrics,
        }
    }

    /// Reports what is new among all current problems; `uid` returns an object's unique id.
    pub(crate) fn report<'p>(
        &mut self,
        problems: impl Iterator<Item = &'p Problem>,
        uid: impl Fn(&ObjectRef) -> String,
        now: Instant,
    ) {
        let mut texts: BTreeMap<(ObjectRef, Reason), BTreeSet<&str>> = BTreeMap::new();
        for problem in problems {
            let key = (problem.object.clone(), problem.reason);
            texts.entry(key).or_default().insert(&problem.message);
        }
        while let Ok(key) = self.failed.try_recv() {
            if let Some(last) = self.reported.get_mut(&key) {
                last.failed = true;
            }
        }
        let quiet = |last: &Report| now < last.at + QUIET;
        let known = |last: &Report| !last.failed && now < last.at + REPEAT;
        self.reported
            .retain(|key, last| texts.contains_key(key) || quiet(last));
        for (key, messages) in texts {
            let message = joined(&messages);
            match self.reported.get_mut(&key) {
                Some(last) if last.message == message && (known(last) || quiet(last)) => continue,
                Some(last) if quiet(last) => {
                    if !std::mem::replace(&mut last.held_back, true) {
                        self.metrics.events.with(&["held-back"]).inc();
                    }
                    continue;
                }
                Some(_) | None => {}
            }
            let problem = Problem {
                object: key.0.clone(),
                reason: key.1,
                message: message.clone(),
            };
            if self.events.try_send((problem, uid(&key.0))).is_err() {
                self.metrics.events.with(&["dropped"]).inc();
                continue;
            }
            let report = Report {
                at: now,
                message,
                held_back: false,
                failed: false,
            };
            self.reported.insert(key, report);
        }
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

async fn post(client: &Client, identity: &str, note: Problem, uid: String) -> &'static str {
    // Events of what has no namespace lie in `default`.
    let namespace = match &*note.object.key.namespace {
        "" => "default",
        namespace => namespace,
    };
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let event = event(namespace, identity, &note, uid);
    match timeout(REQUEST_LIMIT, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => "written",
        Ok(Err(error)) => {
            let (object, error) = (note.object, telemetry::chain(&error));
            tracing::debug!(%object, %error, "writing an Event failed");
            FAILED
        }
        Err(_) => FAILED,
    }
}

fn event(namespace: &str, identity: &str, note: &Problem, uid: String) -> Event {
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
            uid: Some(uid).filter(|uid| !uid.is_empty()),
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

#[cfg(test)]
mod tests {
    use telemetry::Registry;

    use super::*;
    use crate::state::{Kind, ObjectKey};

    #[test]
    fn event_is_repeated_while_its_problem_stays() {
        let (events, mut due) = mpsc::channel(QUEUE);
        let (lost, failed) = mpsc::channel(QUEUE);
        let mut recorder = Recorder {
            events,
            failed,
            reported: BTreeMap::new(),
            metrics: Metrics::new(&Registry::new()),
        };
        let start = Instant::now();
        let object = ObjectRef::new(Kind::Service, &ObjectKey::new("a", "s"));
        let mut written = |minutes: u64, message: &str| {
            let problem = Problem::new(object.clone(), Reason::InvalidAnnotation, message);
            let now = start + Duration::from_secs(60 * minutes);
            recorder.report([&problem].into_iter(), |_| String::new(), now);
            due.try_recv().is_ok()
        };
        assert!(written(0, "bad"));
        assert!(!written(1, "bad") && !written(44, "bad"));
        // Kubernetes forgets it after an hour.
        assert!(written(45, "bad") && !written(89, "bad"));
        assert!(written(90, "bad"));
        let key = (object.clone(), Reason::InvalidAnnotation);
        lost.try_send(key).unwrap();
        // An API server that refuses Events is not asked again at once.
        assert!(!written(91, "bad") && !written(99, "bad"));
        assert!(written(100, "bad") && !written(111, "bad"));
        assert!(written(112, "worse") && !written(113, "bad"));
        assert!(written(122, "bad"));
    }
}
