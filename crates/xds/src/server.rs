//! Serves resources to gateways by the aggregated discovery service, in both of its variants.
//!
//! ```text
//!   GatewayHandle::update ──▶ store ──woken──▶ stream of each client ──▶ one response at a time
//!                                                 ▲ subscribe, ACK, NACK
//!   accept ─▶ TLS ─▶ HTTP/2 ─▶ gRPC ─▶ admitted? ─┘
//! ```
//!
//! `store` holds the resources, `stream` decides what a client is sent next (both without
//! sockets and clocks), `serve` moves it. Resource bodies are opaque here.

mod admission;
mod clients;
mod delta;
mod full;
mod lane;
mod metrics;
mod serve;
mod store;
mod stream;
mod stream_task;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::resource::{Audience, Resource, ResourceType};

pub use clients::{ClientStatus, TypeStatus};

/// What the server is made from.
#[derive(Clone, Debug)]
pub struct ServerParams {
    /// The server's certificate and trusted CAs; `None` = plain, for loopback alone.
    pub tls: Option<tls::ServerTls>,
    /// The gateways, by distinct names.
    pub gateways: Vec<GatewayAccess>,
    /// Bounds.
    pub limits: ServerLimits,
    /// Whether the incremental variant is offered.
    pub delta: bool,
}

/// Who may ask for the resources of a gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayAccess {
    /// What a client puts into `node.cluster`.
    pub name: String,
    /// DNS or URI names, one of which the client's certificate must carry. Not looked at without
    /// TLS.
    pub clients: Vec<String>,
}

/// The bounds of a [`Server`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerLimits {
    /// Connections at a time; further ones are closed.
    pub connections: usize,
    /// Streams at a time; further ones end with `RESOURCE_EXHAUSTED`. With TLS each gateway has
    /// an equal share of them, so that no gateway's clients lock out another's.
    pub streams: usize,
    /// Requests that a stream may send per second in the long run; it is read no faster.
    pub requests_per_second: u32,
    /// Requests that a stream may send at once.
    pub request_burst: u32,
    /// The longest request, bytes.
    pub request_bytes: usize,
    /// Names that a stream may subscribe to, per type.
    pub names: usize,
    /// Bytes of all names that a stream may subscribe to.
    pub name_bytes: usize,
    /// Bytes of resources after which an incremental response is closed and the next begun.
    pub response_bytes: usize,
    /// The longest that a change waits for another one to be acknowledged first.
    pub order_wait: Duration,
    /// Time for the TLS handshake, and then for the first request of a stream. A connection
    /// without a stream that was admitted is closed after twice this.
    pub handshake: Duration,
    /// How often a silent client is asked whether it is there.
    pub keepalive: Duration,
    /// How long it may take to answer that.
    pub keepalive_timeout: Duration,
    /// How long clients are given to take note of the end.
    pub closing: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            streams: 1024,
            requests_per_second: 200,
            request_burst: 2000,
            // What a client of 100,000 resources has to say of them when it comes back: names of
            // some 250 bytes, and versions.
            request_bytes: 32 * 1024 * 1024,
            names: 100_000,
            name_bytes: 64 * 1024 * 1024,
            response_bytes: 1024 * 1024,
            order_wait: Duration::from_secs(5),
            handshake: Duration::from_secs(10),
            keepalive: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            closing: Duration::from_millis(300),
        }
    }
}

/// A discovery server. Clones are the same.
#[derive(Clone, Debug)]
pub struct Server {
    inner: watch::Sender<Arc<Inner>>,
}

/// What is served until the gateways change.
#[derive(Debug)]
struct Inner {
    params: ServerParams,
    gateways: BTreeMap<Arc<str>, Arc<Gateway>>,
    clients: clients::Clients,
    metrics: Arc<metrics::Metrics>,
}

impl Inner {
    fn new(params: ServerParams, metrics: Arc<metrics::Metrics>) -> Arc<Self> {
        let share = params.limits.streams / params.gateways.len().max(1);
        let gateways = params.gateways.iter().map(|access| {
            let name: Arc<str> = access.name.as_str().into();
            let gateway = Gateway::new(name.clone(), access, share.max(1), &metrics);
            (name, Arc::new(gateway))
        });
        Arc::new(Self {
            gateways: gateways.collect(),
            clients: clients::Clients::default(),
            metrics,
            params,
        })
    }
}

impl Server {
    /// Makes a server and registers its metrics.
    ///
    /// # Panics
    /// When the metrics are registered already.
    #[must_use]
    pub fn new(params: ServerParams, registry: &telemetry::Registry) -> Self {
        let metrics = Arc::new(metrics::Metrics::register(registry));
        let reloads = tls::Metrics::new(registry);
        if let Some(tls) = &params.tls {
            tls.count_in(&reloads, "xds");
        }
        Self {
            inner: watch::Sender::new(Inner::new(params, metrics)),
        }
    }

    /// Changes the gateways, all of which then have no resources and are not complete. Every stream
    /// ends with `UNAVAILABLE`; clients come back, and keep what they have until they are answered.
    pub fn set_gateways(&self, gateways: Vec<GatewayAccess>) {
        let last = self.inner.borrow().clone();
        let is_named = |name: &String| gateways.iter().any(|own| own.name == *name);
        last.metrics.retain(is_named);
        let params = ServerParams {
            gateways,
            ..last.params.clone()
        };
        let inner = Inner::new(params, last.metrics.clone());
        self.inner.send_replace(inner);
    }

    /// Returns the handle of a gateway, if there is one of this name.
    #[must_use]
    pub fn gateway(&self, name: &str) -> Option<GatewayHandle> {
        let gateway = self.inner.borrow().gateways.get(name)?.clone();
        Some(GatewayHandle { gateway })
    }

    /// Serves clients until `shutdown` completes; then streams and connections are ended at once,
    /// with `UNAVAILABLE` for who takes note of it within [`ServerLimits::closing`]. Certificates
    /// are read again when they change. Nothing that a client does ends it; dropping it cuts every
    /// connection.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()> + Send) {
        let mut serving = self.inner.subscribe();
        let mut shutdown = pin!(shutdown);
        loop {
            let inner = serving.borrow_and_update().clone();
            let until = async {
                tokio::select! {
                    () = &mut shutdown => true,
                    _ = serving.changed() => false,
                }
            };
            if serve::serve(&inner, &listener, until).await {
                return;
            }
        }
    }

    /// Returns who is connected and how far each client is, in order of arrival.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.inner.borrow().clients.list()
    }
}

/// Sets what the clients of one gateway are to have. Clones are the same.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    gateway: Arc<Gateway>,
}

impl GatewayHandle {
    /// Removes and sets resources, in this order and at once. What is set to what it was is no
    /// change. It costs what is passed, not what is held.
    pub fn update(&self, set: Vec<Resource>, removed: Vec<(ResourceType, Audience, Arc<str>)>) {
        let mut store = self.gateway.store();
        if store.update(set, removed) {
            drop(store);
            self.gateway.wake();
        }
    }

    /// Marks the resources as complete. No client is answered before, so that a controller
    /// that has just started withdraws nothing from its clients.
    pub fn complete(&self) {
        self.gateway.store().complete();
        self.gateway.wake();
    }

    /// Sets whether the secrets are complete, as they are unless this says otherwise before
    /// [`Self::complete`]. Until they are, no client is told that one does not exist: it would
    /// do without.
    pub fn complete_secrets(&self, complete: bool) {
        self.gateway.store().complete_secrets(complete);
        self.gateway.wake();
    }

    /// Sets whether those for [`Audience::Whole`] are complete too. Before, clients that need
    /// them keep what they have; [`Self::whole_wanted`] reports when they are needed.
    pub fn complete_whole(&self, complete: bool) {
        self.gateway.store().whole_complete(complete);
        self.gateway.wake();
    }

    /// Returns the number of clients that need [`Audience::Whole`], and notifies when the first one
    /// comes or the last one goes.
    #[must_use]
    pub fn whole_wanted(&self) -> watch::Receiver<usize> {
        self.gateway.whole_clients.subscribe()
    }
}

/// One gateway's resources and the streams that hang on them.
#[derive(Debug)]
struct Gateway {
    name: Arc<str>,
    clients: Vec<String>,
    store: Mutex<store::Store>,
    /// Notified of changes; streams wait on it.
    changed: watch::Sender<()>,
    whole_clients: watch::Sender<usize>,
    metrics: metrics::GatewayMetrics,
    /// Streams of those whose certificate is good for it.
    places: Arc<Semaphore>,
}

impl Gateway {
    fn new(
        name: Arc<str>,
        access: &GatewayAccess,
        streams: usize,
        metrics: &metrics::Metrics,
    ) -> Self {
        Self {
            metrics: metrics.of_gateway(&name),
            name,
            clients: access.clients.clone(),
            store: Mutex::default(),
            changed: watch::Sender::default(),
            whole_clients: watch::Sender::default(),
            places: Arc::new(Semaphore::new(streams)),
        }
    }

    fn store(&self) -> MutexGuard<'_, store::Store> {
        telemetry::lock(&self.store)
    }

    fn wake(&self) {
        self.changed.send_replace(());
    }
}
