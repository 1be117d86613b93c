//! A server and clients of one test, and the routes of many shoots.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use route::{ClusterSpec, EndpointSpec, RouteMatch, RouteSpec};
use telemetry::Registry;
use telemetry::metrics::Exposition;
use testkit::certs::{Authority, IdentityFiles};
use testkit::tempdir::TempDir;
use tls::{ClientAuth, ClientTls, ClientTlsParams, ServerTls, ServerTlsParams};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use xds::{
    ClientLimits, ClientMetrics, ClientParams, GatewayAccess, GatewayHandle, GatewayParams,
    OwnListener, OwnProtocol, Resource, Server, ServerLimits, ServerParams, Sink, State, Table,
};

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const CLIENT_URI: &str = "spiffe://example.com/gateway";

/// The certificates of a test.
pub(crate) struct Pki {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
    server: IdentityFiles,
    client: IdentityFiles,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new("xds").unwrap();
        let authority = Authority::new("one").unwrap();
        authority.write(&dir.join("ca.crt")).unwrap();
        let server = authority.server(&["127.0.0.1"]).unwrap();
        let client = authority.client("gateway", &[], &[CLIENT_URI]).unwrap();
        Self {
            server: server.write(dir.path(), "server").unwrap(),
            client: client.write(dir.path(), "client").unwrap(),
            dir,
            authority,
        }
    }

    pub(crate) fn server_tls(&self) -> ServerTls {
        let params = ServerTlsParams {
            cert: self.server.cert.clone(),
            key: self.server.key.clone(),
            client_ca: Some(self.dir.join("ca.crt")),
            client_auth: ClientAuth::Required,
            alpn: vec![xds::ALPN_H2.to_vec()],
        };
        ServerTls::load(params).unwrap()
    }

    pub(crate) fn client_tls(&self) -> ClientTls {
        self.client_tls_of(&self.client)
    }

    pub(crate) fn client_tls_of(&self, files: &IdentityFiles) -> ClientTls {
        let params = ClientTlsParams {
            ca: self.dir.join("ca.crt"),
            cert: Some(files.cert.clone()),
            key: Some(files.key.clone()),
            alpn: vec![xds::ALPN_H2.to_vec()],
        };
        ClientTls::load(params).unwrap()
    }
}

/// A server that runs until it is dropped.
pub(crate) struct Serving {
    pub(crate) server: Server,
    pub(crate) gateway: GatewayHandle,
    pub(crate) addr: SocketAddr,
    pub(crate) registry: Registry,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

pub(crate) fn server_params(tls: Option<ServerTls>) -> ServerParams {
    let access = |name: &str, client: &str| GatewayAccess {
        name: name.to_owned(),
        clients: vec![client.to_owned()],
    };
    ServerParams {
        tls,
        gateways: vec![
            access("default", CLIENT_URI),
            access("other", "spiffe://other"),
        ],
        limits: ServerLimits::default(),
        delta: true,
    }
}

impl Serving {
    pub(crate) async fn start(params: ServerParams) -> Self {
        // A port that no connection is given between this server's end and the next one's start.
        let port = testkit::ports::free(1).unwrap()[0];
        Self::start_at(params, ([127, 0, 0, 1], port).into()).await
    }

    pub(crate) async fn start_at(params: ServerParams, addr: SocketAddr) -> Self {
        let registry = Registry::new();
        let server = Server::new(params, &registry);
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = server.clone();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            running.serve(listener, stopped).await;
        });
        Self {
            gateway: server.gateway("default").unwrap(),
            server,
            addr,
            registry,
            stop: Some(stop),
            task,
        }
    }

    /// Stops as on SIGTERM and waits for the end.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }

    pub(crate) fn set(&self, resources: Vec<Resource>) {
        self.gateway.update(resources, vec![]);
    }

    pub(crate) fn count(&self, series: &str) -> u64 {
        count(&self.registry, series)
    }

    /// Bytes of all responses so far.
    pub(crate) fn pushed(&self) -> u64 {
        [
            "cluster",
            "assignment",
            "listener",
            "route",
            "secret",
            "wireguard",
        ]
        .map(|kind| {
            self.count(&format!(
                r#"rhizome_xds_push_bytes_total{{gateway="default",type="{kind}"}}"#
            ))
        })
        .iter()
        .sum()
    }

    /// Waits until a series is at least this.
    pub(crate) async fn until(&self, series: &str, least: u64) {
        until(&format!("{series} to be {least}"), || {
            self.count(series) >= least
        })
        .await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The calls that a client's sink got.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) tables: u64,
    pub(crate) table: Option<Table>,
    pub(crate) confirmed: u64,
    pub(crate) secrets: tls::Secrets,
    pub(crate) complete: bool,
}

/// Decides what becomes of a table.
type Judge = Box<dyn Fn(&Table) -> Result<(), String> + Send>;

/// A client that runs until it is dropped.
pub(crate) struct Client {
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) registry: Registry,
    changed: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Client {
    pub(crate) fn start(params: ClientParams) -> Self {
        Self::start_picky(params, |_| Ok(()))
    }

    /// With a sink that refuses some tables.
    pub(crate) fn start_picky(
        params: ClientParams,
        judge: impl Fn(&Table) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (told, changed) = watch::channel(0);
        let sink = Recorder {
            seen: seen.clone(),
            told,
            judge: Box::new(judge),
        };
        let registry = Registry::new();
        let metrics = ClientMetrics::new(&registry, tls::Metrics::new(&registry));
        let task = tokio::spawn(async move {
            xds::run(params, sink, metrics).await;
        });
        Self {
            seen,
            registry,
            changed,
            task,
        }
    }

    /// Waits until what was seen is as wanted.
    pub(crate) async fn until(&self, what: &str, mut wanted: impl FnMut(&Seen) -> bool) {
        let mut changed = self.changed.clone();
        let seen = self.seen.clone();
        let waiting = changed.wait_for(|_| wanted(&seen.lock().unwrap()));
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(
            waited.is_ok_and(|waited| waited.is_ok()),
            "waited in vain for {what}"
        );
    }

    pub(crate) async fn until_routes(&self, count: usize) {
        self.until(&format!("{count} routes"), |seen| {
            let table = seen.table.as_ref();
            table.is_some_and(|table| table.spec.routes.len() == count)
        })
        .await;
    }

    /// Waits until it is said, after now, that nothing is missing.
    pub(crate) async fn until_confirmed(&self) {
        let before = self.seen.lock().unwrap().confirmed;
        self.until("a confirmation", |seen| seen.confirmed > before)
            .await;
    }

    pub(crate) fn tables(&self) -> u64 {
        self.seen.lock().unwrap().tables
    }

    /// The endpoints of a cluster in the table in effect.
    pub(crate) fn endpoints(&self, cluster: &str) -> Option<Vec<String>> {
        let seen = self.seen.lock().unwrap();
        let clusters = &seen.table.as_ref()?.spec.clusters;
        let found = clusters.iter().find(|spec| spec.name == cluster)?;
        let endpoints = found.endpoints.iter();
        Some(endpoints.map(|one| one.address.to_string()).collect())
    }

    pub(crate) fn count(&self, series: &str) -> u64 {
        count(&self.registry, series)
    }

    /// Ends it as a process ends that has the time for it.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Recorder {
    seen: Arc<Mutex<Seen>>,
    told: watch::Sender<u64>,
    judge: Judge,
}

impl Sink for Recorder {
    fn apply(&mut self, table: Table) -> Result<(), String> {
        (self.judge)(&table)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.tables += 1;
        seen.table = Some(table);
        drop(seen);
        self.told.send_modify(|count| *count += 1);
        Ok(())
    }

    fn secrets(&mut self, all: tls::Secrets, complete: bool) {
        let mut seen = self.seen.lock().unwrap();
        (seen.secrets, seen.complete) = (all, complete);
        drop(seen);
        self.told.send_modify(|count| *count += 1);
    }

    fn confirmed(&mut self) {
        self.seen.lock().unwrap().confirmed += 1;
        self.told.send_modify(|count| *count += 1);
    }
}

pub(crate) fn client_params(addr: SocketAddr, tls: Option<ClientTls>) -> ClientParams {
    let scheme = if tls.is_some() { "https" } else { "http" };
    ClientParams {
        secrets: tls.is_some(),
        server: format!("{scheme}://{addr}").parse().unwrap(),
        tls,
        node: "gateway-0".to_owned(),
        cluster: "default".to_owned(),
        own: own(),
        start: State::default(),
        cache: None,
        limits: ClientLimits {
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(200),
            confirm: Duration::from_millis(100),
            cache: Duration::from_millis(100),
            ..ClientLimits::default()
        },
    }
}

pub(crate) fn own() -> Vec<OwnListener> {
    vec![OwnListener {
        name: "tls".to_owned(),
        port: 443,
        protocol: OwnProtocol::Tls,
    }]
}

/// The listeners of a gateway, and everything of shoots `0..count`.
pub(crate) fn shoots(count: usize) -> Vec<Resource> {
    let mut all = xds::base(&gateway_params());
    all.extend((0..count).flat_map(shoot));
    all
}

/// A cluster, its assignment and a route.
pub(crate) fn shoot(number: usize) -> Vec<Resource> {
    let mut resources = xds::cluster(&cluster(number, 1));
    let parts = xds::parts(
        &format!("shoot-{number}"),
        &[shoot_route(number)],
        &gateway_params(),
    );
    assert!(parts.withheld.is_empty());
    resources.extend(parts.resources);
    resources
}

pub(crate) fn shoot_route(number: usize) -> RouteSpec {
    let name = format!("api.shoot-{number}.example.com");
    RouteSpec::new(RouteMatch::ServerNames(vec![name]), cluster_name(number))
}

/// The assignment alone, with another number of endpoints.
pub(crate) fn endpoints(number: usize, count: u8) -> Vec<Resource> {
    let mut resources = xds::cluster(&cluster(number, count));
    resources.retain(|one| one.kind == xds::ResourceType::ClusterLoadAssignment);
    resources
}

pub(crate) fn cluster_name(number: usize) -> String {
    format!("outbound|443||kube-apiserver.shoot--{number}.svc.cluster.local")
}

fn cluster(number: usize, count: u8) -> ClusterSpec {
    let mut spec = ClusterSpec::new(cluster_name(number));
    let endpoint = |last: u8| format!("10.1.{}.{last}:443", number % 256).parse().unwrap();
    spec.endpoints = (1..=count)
        .map(|last| EndpointSpec::new(endpoint(last)))
        .collect();
    spec
}

pub(crate) fn gateway_params() -> GatewayParams {
    GatewayParams::default()
}

fn count(registry: &Registry, series: &str) -> u64 {
    let text = registry.encode(Exposition::Text);
    let value = text.lines().find_map(|line| {
        let value = line.strip_prefix(series)?.strip_prefix(' ')?;
        value.parse::<f64>().ok()
    });
    value.unwrap_or(0.0) as u64
}

/// Lets others run until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "waited in vain for {what}");
}

pub(crate) fn rewrite(path: &Path, text: &str) {
    let beside = path.with_extension("fresh");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, path).unwrap();
}
