//! A control plane of one test: a discovery server on a thread of its own, and what it publishes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use route::{ClusterSpec, EndpointSpec, RouteMatch, RouteSpec};
use telemetry::Registry;
use telemetry::metrics::Exposition;
use testkit::metrics::Metrics;
use testkit::tempdir::TempDir;
use testkit::wait;
use tls::ServerTls;
use tokio::sync::oneshot;
use xds::{
    Audience, GatewayAccess, GatewayHandle, GatewayParams, Resource, ResourceType, Server,
    ServerLimits, ServerParams,
};

use crate::support::{Gateway, LIMIT};

/// The name in a gateway's certificate.
pub(super) const CLIENT: &str = "spiffe://example.com/gateway";

/// The longest that a gateway waits before it asks again.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// What a resource is known by.
type Key = (ResourceType, Audience, Arc<str>);

/// A running control plane. Dropping it stops it, as a SIGTERM would.
pub(super) struct Control {
    pub(super) server: Server,
    pub(super) addr: SocketAddr,
    handle: GatewayHandle,
    registry: Registry,
    params: GatewayParams,
    published: RefCell<BTreeMap<String, Vec<Key>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts without TLS, and with the listeners alone.
    pub(super) fn start() -> Self {
        // A port that no connection is given between this server's end and the next one's start.
        let port = testkit::ports::free(1).unwrap()[0];
        Self::start_at(([127, 0, 0, 1], port).into(), None)
    }

    /// Starts at an address that another one may have had before.
    pub(super) fn start_at(addr: SocketAddr, tls: Option<ServerTls>) -> Self {
        let registry = Registry::new();
        let params = ServerParams {
            tls,
            gateways: vec![GatewayAccess {
                name: "default".to_owned(),
                clients: vec![CLIENT.to_owned()],
            }],
            limits: ServerLimits::default(),
            delta: true,
        };
        let server = Server::new(params, &registry);
        let handle = server.gateway("default").unwrap();
        let params = GatewayParams::default();
        handle.update(xds::base(&params), Vec::new());
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, binding) = channel();
        let serving = server.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind(addr).await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                let stopped = async {
                    let _ = stopped.await;
                };
                serving.serve(listener, stopped).await;
            });
        });
        Self {
            addr: binding.recv().unwrap(),
            server,
            handle,
            registry,
            params,
            published: RefCell::default(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Publishes a group in the place of what it was before.
    pub(super) fn publish(&self, group: &str, clusters: &[ClusterSpec], routes: &[RouteSpec]) {
        let parts = xds::parts(group, routes, &self.params);
        assert!(parts.withheld.is_empty());
        let mut resources: Vec<Resource> = clusters.iter().flat_map(xds::cluster).collect();
        resources.extend(parts.resources);
        let key = |own: &Resource| (own.kind, own.audience, Arc::clone(&own.name));
        let now: Vec<Key> = resources.iter().map(key).collect();
        let before = self
            .published
            .borrow_mut()
            .insert(group.to_owned(), now.clone());
        let mut gone = before.unwrap_or_default();
        gone.retain(|key| !now.contains(key));
        self.handle.update(resources, gone);
    }

    /// Publishes a group of one cluster, which `name.test` and the CONNECT value `name` lead to.
    pub(super) fn publish_one(&self, name: &str, endpoints: &[SocketAddr]) {
        let cluster = cluster(name, endpoints);
        self.publish(
            name,
            &[cluster],
            &[by_name(name, name), by_connect(name, name)],
        );
    }

    /// Publishes something that no encoder of ours makes; [`Control::unpublish`] takes it back.
    pub(super) fn publish_raw(&self, kind: ResourceType, name: &str, body: &[u8]) {
        let resource = Resource {
            kind,
            name: name.into(),
            body: body.to_vec().into(),
            audience: Audience::All,
        };
        self.handle.update(vec![resource], Vec::new());
    }

    /// Publishes secrets, or other resources that no route is encoded to.
    pub(super) fn publish_resources(&self, resources: Vec<Resource>) {
        self.handle.update(resources, Vec::new());
    }

    pub(super) fn unpublish(&self, kind: ResourceType, name: &str) {
        let gone = vec![(kind, Audience::All, name.into())];
        self.handle.update(Vec::new(), gone);
    }

    /// Takes a group away.
    pub(super) fn withdraw(&self, group: &str) {
        self.publish(group, &[], &[]);
    }

    /// Says that everything is there.
    pub(super) fn complete(&self) {
        self.handle.complete();
    }

    /// Returns what the client said when it last refused a type, while it is connected.
    pub(super) fn refusal(&self, kind: ResourceType) -> Option<String> {
        let clients = self.server.clients();
        clients
            .iter()
            .find_map(|client| client.types.get(kind.as_str())?.nack.clone())
    }

    /// Waits until the client has refused a type with words that `wanted` is part of.
    pub(super) fn wait_refusal(&self, kind: ResourceType, wanted: &str) -> String {
        let mut last = None;
        let found = wait::until_some("a refusal", LIMIT, || {
            last = self.refusal(kind);
            last.clone().filter(|words| words.contains(wanted))
        });
        found.unwrap_or_else(|error| panic!("{error} with {wanted:?}; last: {last:?}"))
    }

    /// Returns a sum of samples, 0 when there is none yet.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let metrics = Metrics::parse(&self.registry.encode(Exposition::Text)).unwrap();
        metrics.value(name, labels).unwrap_or(0.0)
    }

    /// Waits until `count` clients have a stream: as long as one may wait that was refused often.
    pub(super) fn wait_clients(&self, count: usize) {
        wait::until(&format!("{count} clients"), MAX_BACKOFF + LIMIT, || {
            self.server.clients().len() == count
        })
        .unwrap();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking());
        }
    }
}

pub(super) fn cluster(name: &str, endpoints: &[SocketAddr]) -> ClusterSpec {
    let mut spec = ClusterSpec::new(name);
    let endpoint = |addr: &SocketAddr| EndpointSpec::new(addr.to_string().parse().unwrap());
    spec.endpoints = endpoints.iter().map(endpoint).collect();
    spec
}

/// A route from `name.test` to a cluster.
pub(super) fn by_name(name: &str, cluster: &str) -> RouteSpec {
    RouteSpec::new(
        RouteMatch::ServerNames(vec![format!("{name}.test")]),
        cluster,
    )
}

/// A route from a CONNECT value to a cluster.
pub(super) fn by_connect(value: &str, cluster: &str) -> RouteSpec {
    RouteSpec::new(
        RouteMatch::ConnectDestinations(vec![value.to_owned()]),
        cluster,
    )
}

/// A route from a node proxy's destination to a cluster.
pub(super) fn by_destination(prefix: &str, port: Option<u16>, cluster: &str) -> RouteSpec {
    let prefixes = vec![prefix.parse().unwrap()];
    RouteSpec::new(RouteMatch::Destinations { prefixes, port }, cluster)
}

/// The listeners of a gateway, named as the control plane names them.
pub(super) const LISTENERS: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
- { name: vpn, address: "127.0.0.1:0", protocol: connect }
"#;

/// Returns the configuration of a gateway that asks at `addr`, and keeps what it got in `cache`.
pub(super) fn asking(addr: SocketAddr) -> String {
    format!(
        "{LISTENERS}routing: {{ xds: {{ server: \"http://{addr}\", node: gateway-0, cache: cache }} }}\n"
    )
}

/// Starts a gateway that asks a control plane.
pub(super) fn gateway(control: &Control) -> Gateway {
    Gateway::start_with(TempDir::new("xds").unwrap(), None, &asking(control.addr))
}

/// Waits until a gateway is ready.
pub(super) fn wait_ready(gateway: &Gateway) {
    wait::until("the gateway to be ready", LIMIT, || {
        gateway.readiness() == 200
    })
    .unwrap();
}
