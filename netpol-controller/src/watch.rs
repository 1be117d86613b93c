//! Watches: which kinds are served, and every change of their objects as one stream of messages.
//!
//! ```text
//!     discovery, every 10 s ──▶ one watch for each kind that is needed and served
//!                                  │ lists, then events; lists again when it must (410)
//!                                  ▼
//!                               messages, bounded ──▶ reconciler
//! ```
//!
//! An API server that is away changes nothing: the watches go on trying. Kinds whose definitions
//! are installed later are watched from then on. Looks into no object.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::{Stream, StreamExt};
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::discovery::Discovery;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::{Client, Error, ResourceExt};
use telemetry::Throttle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::config::Config;
use crate::metrics::Metrics;
use crate::state::{Kind, ObjectKey, Secret};

/// How often the API server is asked for added and removed kinds.
const DISCOVERY_PERIOD: Duration = Duration::from_secs(10);

/// The same while the API server does not answer.
const DISCOVERY_RETRY: Duration = Duration::from_secs(1);

/// How long a watch lasts, seconds, before it is renewed; one that is silent for longer is
/// dead, however its connection looks.
pub(crate) const WATCH_LASTS: u32 = 60;

/// Time between attempts to watch while there is no API server: it doubles, up to the second.
/// Short, to resume soon after the API server returns.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));

/// Messages that wait for the reconciler; a watch that is ahead waits.
pub(crate) const QUEUE: usize = 1024;

pub(crate) enum Message {
    /// These kinds are needed and served; each of them will be listed.
    Discovered(BTreeSet<Kind>),
    /// The definition of a kind is gone, and with it all objects.
    Unserved(Kind),
    /// All objects of a kind follow.
    Listing(Kind),
    /// An object as it is now.
    Object(Kind, Box<DynamicObject>),
    /// The list is complete; objects that it lacked are gone.
    Listed(Kind),
    /// An object is gone.
    Gone(Kind, ObjectKey),
    /// A Secret of a gateway's as it is now; none when it is gone.
    Secret(ObjectKey, Option<Secret>),
    /// The Secrets of a namespace may not be read.
    SecretsForbidden(Arc<str>),
    /// The Secrets of a namespace are these; others of it are gone.
    SecretsListed(Arc<str>, BTreeSet<ObjectKey>),
}

/// Returns whether a configuration needs a kind.
fn needed(config: &Config, kind: Kind) -> bool {
    let policies = config.policies();
    let (services, namespaces) = (policies.is_some(), config.namespaces.is_some());
    let routing = config.routing.is_some();
    match kind {
        Kind::Namespace => true,
        Kind::NetworkPolicy => services || namespaces,
        Kind::Service => services || routing,
        Kind::Pod | Kind::VirtualService | Kind::IstioGateway => services || routing,
        Kind::Gateway | Kind::TlsRoute => services || routing,
        Kind::Ingress => policies.is_some_and(|own| own.ingress_controller_selector.is_some()),
        Kind::EndpointSlice | Kind::DestinationRule | Kind::EnvoyFilter => routing,
        Kind::Endpoints => routing || namespaces,
        Kind::Shoot => namespaces,
    }
}

pub(crate) struct Watches {
    client: Client,
    config: Arc<Config>,
    messages: mpsc::Sender<Message>,
    metrics: Metrics,
    running: BTreeMap<Kind, Running>,
    /// Kinds that were not served when it was last asked.
    missing: BTreeSet<Kind>,
}

struct Running {
    /// Only `default/kubernetes` is watched.
    narrow: bool,
    /// The version that objects are asked for in.
    version: String,
    /// One task, which ends when this is dropped.
    task: JoinSet<()>,
}

impl Watches {
    pub(crate) fn new(
        client: Client,
        config: Arc<Config>,
        messages: mpsc::Sender<Message>,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            config,
            messages,
            metrics,
            running: BTreeMap::new(),
            missing: BTreeSet::new(),
        }
    }

    /// Discovers kinds and watches them, until it is dropped.
    pub(crate) async fn run(mut self) {
        let throttle = Throttle::new(Duration::from_secs(30));
        loop {
            match discover(&self.client, &self.config).await {
                Ok(served) => {
                    self.follow(served).await;
                    sleep(DISCOVERY_PERIOD).await;
                }
                Err(error) => {
                    if let Some(missed) = throttle.permit(Instant::now().into_std()) {
                        let error = telemetry::chain(&error);
                        tracing::warn!(%error, missed, "API discovery failed");
                    }
                    sleep(DISCOVERY_RETRY).await;
                }
            }
        }
    }

    async fn follow(&mut self, mut served: BTreeMap<Kind, ApiResource>) {
        // All Endpoints are needed only in place of slices.
        let narrow = self.config.routing.is_none() || served.contains_key(&Kind::EndpointSlice);
        if narrow && self.config.namespaces.is_none() {
            served.remove(&Kind::Endpoints);
        }
        let narrow = |kind| narrow && kind == Kind::Endpoints;
        // Removed only when missing twice: policies and routes go with a kind.
        let unserved = |kind: &&Kind| !served.contains_key(kind);
        let missing: BTreeSet<Kind> = self.running.keys().filter(unserved).copied().collect();
        let ends = |(kind, own): &(&Kind, &Running)| {
            if missing.contains(kind) {
                self.missing.contains(kind)
            } else {
                own.narrow != narrow(**kind)
            }
        };
        let ended = self.running.iter().filter(ends).map(|(kind, _)| *kind);
        let ended: Vec<Kind> = ended.collect();
        self.missing = missing;
        for kind in ended {
            self.end(kind).await;
            tracing::info!(resource = kind.as_str(), "no longer watching");
            let _ = self.messages.send(Message::Unserved(kind)).await;
        }
        // In another version the objects are the same: a new list takes the old one's place.
        for (kind, resource) in &served {
            let running = self.running.get(kind);
            if running.is_some_and(|own| own.version != resource.version) {
                self.end(*kind).await;
            }
        }
        let kinds: BTreeSet<Kind> = served.keys().copied().collect();
        if kinds.iter().any(|kind| !self.running.contains_key(kind)) {
            let _ = self.messages.send(Message::Discovered(kinds)).await;
        }
        for (kind, resource) in served {
            if self.running.contains_key(&kind) {
                continue;
            }
            let version = &resource.api_version;
            tracing::info!(resource = kind.as_str(), version, "watching");
            let watch = Watch {
                kind,
                resource,
                client: self.client.clone(),
                narrow: narrow(kind),
                messages: self.messages.clone(),
                metrics: self.metrics.clone(),
            };
            let running = Running {
                narrow: watch.narrow,
                version: watch.resource.version.clone(),
                task: JoinSet::from_iter([watch.run()]),
            };
            self.running.insert(kind, running);
        }
    }

    /// Ends a watch; its last messages are sent when this returns.
    async fn end(&mut self, kind: Kind) {
        if let Some(mut running) = self.running.remove(&kind) {
            running.task.shutdown().await;
        }
    }
}

/// As [`served`], of an API server that is ready: one that starts does not know all yet.
async fn discover(client: &Client, config: &Config) -> Result<BTreeMap<Kind, ApiResource>, Error> {
    let request = http::Request::get("/readyz").body(Vec::new());
    let request = request.map_err(Error::HttpError)?;
    match client.request_text(request).await {
        Ok(_) => {}
        // Without permission, or behind a proxy without this path, the check is skipped.
        Err(Error::Api(status)) if status.code < 500 => {}
        Err(error) => return Err(error),
    }
    served(client, config).await
}

/// Asks which of the needed kinds are served, and in which version.
pub(crate) async fn served(
    client: &Client,
    config: &Config,
) -> Result<BTreeMap<Kind, ApiResource>, Error> {
    let needed = || Kind::ALL.into_iter().filter(|kind| needed(config, *kind));
    let groups: Vec<&str> = needed().map(Kind::group).collect();
    let known = Discovery::new(client.clone()).filter(&groups).run().await?;
    let found = needed().filter_map(|kind| {
        let mut versions = kind.versions().iter();
        let (resource, _) = versions.find_map(|version| {
            known.resolve_gvk(&GroupVersionKind::gvk(kind.group(), version, kind.name()))
        })?;
        Some((kind, resource))
    });
    Ok(found.collect())
}

struct Watch {
    kind: Kind,
    resource: ApiResource,
    client: Client,
    narrow: bool,
    messages: mpsc::Sender<Message>,
    metrics: Metrics,
}

impl Watch {
    async fn run(self) {
        let (client, resource) = (self.client.clone(), &self.resource);
        let mut config = lasting(self.kind);
        if matches!(self.kind, Kind::Namespace | Kind::Pod) {
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, resource);
            let bare = |object: PartialObjectMeta<DynamicObject>| DynamicObject {
                types: object.types,
                metadata: object.metadata,
                data: serde_json::Value::Null,
            };
            return self.pass(watcher(api, config), bare).await;
        }
        let api: Api<DynamicObject> = if self.narrow {
            config = config.fields("metadata.name=kubernetes");
            Api::namespaced_with(client, "default", resource)
        } else {
            Api::all_with(client, resource)
        };
        self.pass(watcher(api, config), |object| object).await;
    }

    /// Passes events on; `whole` makes an object of what is watched.
    async fn pass<K>(
        &self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
        whole: fn(K) -> DynamicObject,
    ) {
        let throttle = Throttle::new(Duration::from_secs(30));
        let mut events = pin!(events.backoff(pauses()));
        while let Some(event) = events.next().await {
            let kind = self.kind;
            let message = match event {
                Ok(Event::Init) => Message::Listing(kind),
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    Message::Object(kind, Box::new(slim(whole(object))))
                }
                Ok(Event::InitDone) => Message::Listed(kind),
                Ok(Event::Delete(object)) => Message::Gone(kind, ObjectKey::of(&whole(object))),
                Err(error) => {
                    self.metrics.watch_errors.with(&[kind.as_str()]).inc();
                    if let Some(missed) = throttle.permit(Instant::now().into_std()) {
                        let error = telemetry::chain(&error);
                        let resource = kind.as_str();
                        tracing::warn!(resource, %error, missed, "watch interrupted");
                    }
                    continue;
                }
            };
            if self.messages.send(message).await.is_err() {
                return;
            }
        }
    }
}

/// Returns the times between attempts to watch.
pub(crate) fn pauses() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new()
        .with_min_delay(PAUSES.0)
        .with_max_delay(PAUSES.1)
        .without_max_times();
    ExponentialBackoff::from(pauses)
}

/// A `Cluster` holds a whole shoot, seed and cloud profile, of which some bytes are wanted.
const LARGE_PAGE: u32 = 10;

fn lasting(kind: Kind) -> watcher::Config {
    let config = watcher::Config::default().timeout(WATCH_LASTS);
    if kind == Kind::Shoot {
        config.page_size(LARGE_PAGE)
    } else {
        config
    }
}

/// Drops unused metadata that may be large.
fn slim(mut object: DynamicObject) -> DynamicObject {
    object.metadata.managed_fields = None;
    object
        .annotations_mut()
        .remove("kubectl.kubernetes.io/last-applied-configuration");
    object
}
