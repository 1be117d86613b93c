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
//! are installed later are watched from then on. Looks into no object; one that cannot be read is
//! reported alone.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::{Stream, StreamExt};
use kube::api::Api;
use kube::core::{
    ApiResource, DynamicObject, DynamicResourceScope, GroupVersionKind, ObjectMeta,
    PartialObjectMeta,
};
use kube::discovery::Discovery;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::{Client, Error, Resource, ResourceExt};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
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
    /// An object that cannot be read, and why.
    Unreadable(Kind, ObjectKey, &'static str),
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
            let bare = |object: PartialObjectMeta<DynamicObject>| {
                let object = DynamicObject {
                    types: object.types,
                    metadata: object.metadata,
                    data: Value::Null,
                };
                let is_cut = false;
                Received { object, is_cut }
            };
            return self.pass(watcher(api, config), bare).await;
        }
        let api: Api<Received> = if self.narrow {
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
        whole: fn(K) -> Received,
    ) {
        let throttle = Throttle::new(Duration::from_secs(30));
        let mut events = pin!(events.backoff(pauses()));
        while let Some(event) = events.next().await {
            let kind = self.kind;
            let message = match event {
                Ok(Event::Init) => Message::Listing(kind),
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    let Received { object, is_cut } = whole(object);
                    if is_cut {
                        Message::Unreadable(kind, ObjectKey::of(&object), TOO_DEEP)
                    } else {
                        Message::Object(kind, Box::new(slim(object)))
                    }
                }
                Ok(Event::InitDone) => Message::Listed(kind),
                Ok(Event::Delete(object)) => {
                    Message::Gone(kind, ObjectKey::of(&whole(object).object))
                }
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

/// Most levels of an object that are read. Deeper ones would make the list fail that the object is in:
/// serde_json reads 127, with those of the list.
const MAX_DEPTH: usize = 100;

/// An object as it is received.
///
/// A field without a schema may be nested to any depth. That is this object's problem: the others in
/// its list are read.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) object: DynamicObject,
    /// It lacks what is nested too deep.
    pub(crate) is_cut: bool,
}

/// Why an object that is cut is not understood.
pub(crate) const TOO_DEEP: &str = "it is nested too deep";

impl<'de> Deserialize<'de> for Received {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let is_cut = Cell::new(false);
        let whole = Nested {
            left: MAX_DEPTH,
            is_cut: &is_cut,
        };
        let value = whole.deserialize(deserializer)?;
        let object = serde_json::from_value(value).map_err(D::Error::custom)?;
        let is_cut = is_cut.get();
        Ok(Self { object, is_cut })
    }
}

/// A value, of which some levels are read and the others skipped.
#[derive(Clone, Copy)]
struct Nested<'c> {
    left: usize,
    is_cut: &'c Cell<bool>,
}

impl Nested<'_> {
    fn inner(self) -> Self {
        let left = self.left.saturating_sub(1);
        Self { left, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Nested<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.left > 0 {
            return deserializer.deserialize_any(self);
        }
        // What is ignored is not recursed into.
        IgnoredAny::deserialize(deserializer)?;
        self.is_cut.set(true);
        Ok(Value::Null)
    }
}

impl<'de> Visitor<'de> for Nested<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(self.inner())? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = serde_json::Map::new();
        while let Some(name) = fields.next_key()? {
            all.insert(name, fields.next_value_seed(self.inner())?);
        }
        Ok(all.into())
    }
}

impl Resource for Received {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.object.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.object.metadata
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use telemetry::Registry;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn filter(name: &str, value: &str) -> String {
        let meta = json!({ "namespace": "tenant", "name": name, "resourceVersion": "1" });
        let kind = r#""apiVersion":"networking.istio.io/v1alpha3","kind":"EnvoyFilter""#;
        format!(r#"{{{kind},"spec":{{"value":{value}}},"metadata":{meta}}}"#)
    }

    /// Answers a list with `items`, and a watch with `change`.
    async fn serve(mut stream: TcpStream, items: Vec<String>, change: String) {
        let mut head = Vec::new();
        while let Ok(byte) = stream.read_u8().await {
            head.push(byte);
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            let request = String::from_utf8(std::mem::take(&mut head)).unwrap();
            let (field, body) = if request.contains("watch=true") {
                let event = format!("{{\"type\":\"MODIFIED\",\"object\":{change}}}\n");
                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                ("transfer-encoding: chunked".to_owned(), chunk)
            } else {
                let items = items.join(",");
                let list = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#);
                (format!("content-length: {}", list.len()), list)
            };
            let answer = format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn object_is_reported_alone_when_nested_too_deep() {
        // What an API server takes, in a field without a schema.
        let deep = "{\"a\":".repeat(2000) + "1" + &"}".repeat(2000);
        let items = vec![filter("deep", &deep), filter("good", "{}")];
        let change = filter("good", &deep);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, items.clone(), change.clone()));
            }
        });
        let kind = Kind::EnvoyFilter;
        let version = GroupVersionKind::gvk(kind.group(), kind.versions()[0], kind.name());
        let (messages, mut received) = mpsc::channel(16);
        let watch = Watch {
            kind,
            resource: ApiResource::from_gvk(&version),
            client: Client::try_from(kube::Config::new(config.parse().unwrap())).unwrap(),
            narrow: false,
            messages,
            metrics: Metrics::new(&Registry::new()),
        };
        let _task = JoinSet::from_iter([watch.run()]);
        let mut seen = Vec::new();
        while seen.len() < 5 {
            let message = timeout(LIMIT, received.recv()).await.unwrap().unwrap();
            seen.push(match message {
                Message::Listing(_) => "listing".to_owned(),
                Message::Object(_, object) => ObjectKey::of(&object).to_string(),
                Message::Unreadable(_, key, why) => {
                    assert_eq!(why, TOO_DEEP);
                    format!("{key} is unreadable")
                }
                Message::Listed(_) => "listed".to_owned(),
                Message::Discovered(_)
                | Message::Unserved(_)
                | Message::Gone(..)
                | Message::Secret(..)
                | Message::SecretsForbidden(_)
                | Message::SecretsListed(..) => "another".to_owned(),
            });
        }
        let expected = [
            "listing",
            "tenant/deep is unreadable",
            "tenant/good",
            "listed",
            "tenant/good is unreadable",
        ];
        assert_eq!(seen, expected);
    }
}
