//! Servers beside API servers, scaled under load, and a server of the Deployment beside them.
//!
//! ```text
//!   load ─▶ kube-apiserver-0..3: sidecar ◀─ gateway ◀─ konnectivity-agent-sidecar-0, -1 ─▶ pod
//!   load ─▶ konnectivity-server          ◀─ gateway ◀─ konnectivity-agent               ─▶ pod
//!             leases: a real kube-apiserver ◀── sidecars, their agents
//! ```
//!
//! The test asks what API servers ask, and writes the gateway's routes. It fills no Service.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use deploy::{Account, Objects, Pod, Sandbox};
use serde_json::{Value, json};
use testkit::certs::Identity;
use testkit::http::Connection;
use testkit::konnectivity::{FakeFrontend, GrpcFrontend, HttpFrontend, Tunnel};
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::process::{ChildGuard, Signal};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::api::LIMIT;
use crate::network::{GATEWAY, NODE, Network};
use crate::objects::{
    Authorities, KONNECTIVITY, KONNECTIVITY_SERVICE, KONNECTIVITY_SIDECAR, SHOOT,
};
use crate::world::{World, metric};

/// The container that [`sidecars_serve_while_api_servers_scale`] starts and no other test does.
pub(crate) const STARTED: &[&str] = &["konnectivity-agent-sidecar/konnectivity-agent"];

/// The patch of the API servers' Deployment.
pub(crate) const PATCH: &str = "control-plane/konnectivity-sidecar/kube-apiserver.yaml";

/// Pods of API servers, by their namespaces.
const SERVERS: [&str; 4] = [
    "kube-apiserver-0",
    "kube-apiserver-1",
    "kube-apiserver-2",
    "kube-apiserver-3",
];
const DEPLOYMENT: &str = "konnectivity-server";

/// How long an API server that was told to end serves on: below the sidecar's `--graceful-shutdown-delay`.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(10);

#[test]
fn sidecars_serve_while_api_servers_scale() {
    let network = lay();
    let mut stage = Stage::new(&network);
    let destination = SocketAddr::new(NODE.parse().unwrap(), 7777);
    let echo = Place::In(network.at("pod")).bind(destination).unwrap();
    let _echo = Upstream::serve(echo, Behavior::Echo).unwrap();
    let load = Load::new(destination);
    stage.start_deployment();
    thread::scope(|scope| {
        let _end = EndOnDrop(&load);
        let api_server = DeploymentClient::new(&stage.authorities);
        let at = network.at("prometheus");
        let load = &load;
        scope.spawn(move || at.run(|| load.run(DEPLOYMENT, api_server.frontend())));
        let begin = |stage: &mut Stage<'_>, from: usize, to: usize| {
            stage.route(&SERVERS[..to]);
            for server in &SERVERS[from..to] {
                let frontend = stage.start_server(server);
                scope.spawn(move || load.run(server, frontend));
            }
        };

        begin(&mut stage, 0, 2);
        stage.start_agents();
        load.wait_more();
        let mut held = dial(&stage.frontend(SERVERS[0]), destination).unwrap();

        begin(&mut stage, 2, 4);
        load.wait_more();
        stage.wait_links(4);
        load.wait_more();

        let mut ending = dial(&stage.frontend(SERVERS[1]), destination).unwrap();
        // Pods of a Deployment that scales down are told to end at once, and no longer led to.
        stage.route(&SERVERS[..1]);
        for server in &SERVERS[1..] {
            stage.tell_to_end(server);
        }
        // Their API servers serve on.
        wait::pause(SHUTDOWN_DELAY);
        load.wait_more();
        assert_eq!(ending.echo(b"still").unwrap(), b"still");
        for server in &SERVERS[1..] {
            load.end(server);
        }
        for server in &SERVERS[1..] {
            stage.wait_end(server);
        }
        load.wait_more();
        stage.wait_links(1);
        load.wait_more();
        assert_eq!(held.echo(b"still").unwrap(), b"still");
    });
    let counts = load.counts();
    assert!(
        counts.failed.is_empty(),
        "{counts:#?}\n{}",
        stage.world.logs()
    );
}

/// Returns what the patch makes of the API servers' Deployment.
pub(crate) fn patched() -> Objects {
    let patch = Objects::read(PATCH).unwrap();
    let mut patch = patch.get("Deployment", "kube-apiserver").unwrap().clone();
    // A patch has no namespace; what it is applied to has.
    patch["metadata"]["namespace"] = json!(SHOOT);
    let mut built = Objects::default();
    built.extend([patch]);
    built
}

fn lay() -> Network {
    let mut network = Network::lay();
    for server in SERVERS {
        network.add_to_seed(server);
    }
    for (name, host) in [
        ("konnectivity-agent-sidecar-0", 31),
        ("konnectivity-agent-sidecar-1", 32),
    ] {
        network.add_to_shoot("shoot", name, host);
        // Where the address that the API server advertises leads.
        let agent = network.at(name);
        network.plug(agent, "seed", "seed");
        agent
            .add_address("seed", &format!("10.0.1.{host}/16"))
            .unwrap();
    }
    network
}

struct Stage<'n> {
    network: &'n Network,
    dir: TempDir,
    authorities: Authorities,
    secrets: Vec<Value>,
    account: Account,
    world: World,
    servers: BTreeMap<&'static str, ChildGuard>,
    _gateway: ChildGuard,
    _api: KubeApiServer,
}

impl<'n> Stage<'n> {
    fn new(network: &'n Network) -> Self {
        let dir = TempDir::new("sidecars").unwrap();
        let authorities = Authorities::new().unwrap();
        let address = SocketAddr::new(Network::ip("api").parse().unwrap(), 6443);
        let api = KubeApiServer::start(
            Place::In(network.at("api")),
            &dir.join("kube"),
            &KubeParams::new(address, &[]),
        )
        .unwrap_or_else(|error| panic!("{error:#}"));
        let asker = Asker { network, api: &api };
        asker.prepare();
        let account = Account {
            api_server: address,
            authority: api.authority_pem().to_owned(),
            token: asker.token("konnectivity-agent-sidecar"),
        };
        let mut secrets = authorities.of_konnectivity(SHOOT).unwrap();
        let token = asker.token("konnectivity-server");
        secrets.extend(shoot_access(address, api.authority_pem(), &token));
        route(&dir, &[]);
        let gateway = start_gateway(network, &dir);
        let hosts = format!(
            "127.0.0.1 localhost\n{GATEWAY} {KONNECTIVITY}\n{GATEWAY} {KONNECTIVITY_SIDECAR}\n"
        );
        Self {
            network,
            world: World::new(dir.join("pods"), hosts),
            dir,
            authorities,
            secrets,
            account,
            servers: BTreeMap::new(),
            _gateway: gateway,
            _api: api,
        }
    }

    fn built(&self, mut objects: Objects) -> Objects {
        objects.extend(self.secrets.iter().cloned());
        objects
    }

    /// Starts a server of the Deployment with an agent of its own.
    fn start_deployment(&mut self) {
        for (directory, name) in [
            ("control-plane/konnectivity-server", DEPLOYMENT),
            ("shoot/konnectivity-agent", "konnectivity-agent"),
        ] {
            let built = self.built(Objects::build(directory).unwrap());
            let (at, pod) = (self.network.at(name), format!("{name}-0"));
            let begun = self.world.begin(at, ("Deployment", name, &pod), &built);
            self.servers.insert(name, begun.child);
        }
        let ready = || crate::world::ask(self.network.at(DEPLOYMENT), 8092, READY).is_some();
        wait::until("the Deployment's server to be ready", LIMIT, ready).unwrap();
    }

    /// Starts the sidecar in a pod; returns what its API server dials by.
    fn start_server(&mut self, name: &'static str) -> FakeFrontend {
        let built = self.built(patched());
        let pod = Pod::of(&built, "Deployment", "kube-apiserver", name).unwrap();
        let sandbox = Sandbox {
            place: Place::In(self.network.at(name)),
            directory: self.world.directory.clone(),
            hosts: self.world.hosts.clone(),
            account: None,
        };
        let container = pod.container("konnectivity-server").unwrap();
        let child = sandbox.start(container, &built).unwrap();
        self.servers.insert(name, child);
        let socket = self.socket(name);
        // It is there a moment before it listens.
        let listens = || UnixStream::connect(&socket).is_ok();
        wait::until("a sidecar's socket", LIMIT, listens).unwrap();
        self.frontend(name)
    }

    fn socket(&self, name: &str) -> PathBuf {
        let pid = self.servers[name].pid();
        format!("/proc/{pid}/root/run/konnectivity/server.sock").into()
    }

    fn frontend(&self, name: &str) -> FakeFrontend {
        FakeFrontend::Grpc(GrpcFrontend::uds(&self.socket(name)).unwrap())
    }

    fn tell_to_end(&mut self, name: &str) {
        let child = self.servers.get_mut(name).unwrap();
        child.signal(Signal::TERM).unwrap();
    }

    fn wait_end(&mut self, name: &str) {
        let mut child = self.servers.remove(name).unwrap();
        assert!(child.wait_exit(LIMIT).unwrap().success(), "{name}");
    }

    fn start_agents(&mut self) {
        let built = self.built(Objects::build("shoot/konnectivity-agent-sidecar").unwrap());
        for name in AGENTS {
            let pod = ("Deployment", "konnectivity-agent-sidecar", name);
            let account = Some(self.account.clone());
            self.world
                .start(self.network.at(name), pod, &built, account);
        }
    }

    /// Waits until each of the sidecars' agents has a link to each of `count` servers.
    fn wait_links(&self, count: u32) {
        for name in AGENTS {
            let links = || {
                let metric_name = "konnectivity_network_proxy_agent_open_server_connections";
                metric(self.network.at(name), 8093, metric_name, &[])
            };
            let all = wait::until("links", LIMIT, || links() == f64::from(count));
            assert!(all.is_ok(), "{name} has {} of {count} links", links());
        }
    }

    fn route(&self, servers: &[&str]) {
        route(&self.dir, servers);
    }
}

const AGENTS: [&str; 2] = [
    "konnectivity-agent-sidecar-0",
    "konnectivity-agent-sidecar-1",
];
const READY: &str = "/readyz/shoot--foo--bar";

/// What an API server dials the Deployment's server with.
struct DeploymentClient {
    authority: String,
    identity: Identity,
}

impl DeploymentClient {
    fn new(authorities: &Authorities) -> Self {
        Self {
            authority: authorities.konnectivity.pem().to_owned(),
            identity: authorities.frontend().unwrap(),
        }
    }

    fn frontend(&self) -> FakeFrontend {
        let address = SocketAddr::new(Network::ip(DEPLOYMENT).parse().unwrap(), 8090);
        let (authority, identity) = (&self.authority, Some(&self.identity));
        let frontend = HttpFrontend::tls(address, KONNECTIVITY_SERVICE, authority, identity);
        FakeFrontend::Http(frontend.unwrap())
    }
}

/// Asks the API server as an operator.
struct Asker<'a> {
    network: &'a Network,
    api: &'a KubeApiServer,
}

impl Asker<'_> {
    fn post(&self, path: &str, body: &Value) -> Value {
        let target = self.api.target().timeout(LIMIT);
        let ask = || {
            let mut connection = Connection::open(&target)?;
            connection.request("POST", path, Some(&body.to_string()))
        };
        let answer = self.network.at("api").run(ask).unwrap().unwrap();
        let done = matches!(answer.status, 200 | 201 | 409);
        assert!(done, "{path}: {} {}", answer.status, answer.text());
        answer.json().unwrap()
    }

    /// Applies the manifest's accounts and roles, and makes the account that Gardener makes.
    fn prepare(&self) {
        let space = json!({ "metadata": { "name": "kube-system" } });
        self.post("/api/v1/namespaces", &space);
        let server = json!({ "metadata": { "name": "konnectivity-server" } });
        self.post(&format!("{CORE}/serviceaccounts"), &server);
        let built = Objects::build("shoot/konnectivity-agent-sidecar").unwrap();
        let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system";
        for (kind, path) in [
            ("ServiceAccount", format!("{CORE}/serviceaccounts")),
            ("Role", format!("{rbac}/roles")),
            ("RoleBinding", format!("{rbac}/rolebindings")),
        ] {
            for object in built.of_kind(kind) {
                self.post(&path, object);
            }
        }
    }

    fn token(&self, account: &str) -> String {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": { "expirationSeconds": 3600 },
        });
        let path = format!("{CORE}/serviceaccounts/{account}/token");
        let answer = self.post(&path, &request);
        answer["status"]["token"].as_str().unwrap().to_owned()
    }
}

/// Returns Gardener's Secrets for a component with access to the shoot.
pub(crate) fn shoot_access(api_server: SocketAddr, authority: &str, token: &str) -> [Value; 2] {
    let directory = "/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig";
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "shoot",
        "contexts": [{ "name": "shoot", "context": { "cluster": "shoot", "user": "shoot" } }],
        "clusters": [{ "name": "shoot", "cluster": {
            "server": format!("https://{api_server}"),
            "certificate-authority-data": BASE64_STANDARD.encode(authority),
        }}],
        "users": [{ "name": "shoot", "user": { "tokenFile": format!("{directory}/token") } }],
    });
    [
        (
            "generic-token-kubeconfig",
            "kubeconfig",
            kubeconfig.to_string(),
        ),
        (
            "shoot-access-konnectivity-server",
            "token",
            token.to_owned(),
        ),
    ]
    .map(|(name, file, text)| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "namespace": SHOOT }, "stringData": { file: text },
        })
    })
}

const CORE: &str = "/api/v1/namespaces/kube-system";

fn start_gateway(network: &Network, dir: &TempDir) -> ChildGuard {
    let config = json!({
        "listeners": [{ "name": "tls", "address": format!("{GATEWAY}:443"), "protocol": "tls" }],
        "probes": { "address": "127.0.0.1:15021" }, "admin": { "address": "" },
        "routing": { "file": "routes.yaml" },
    });
    let config = dir.write("sni-proxy.yaml", config.to_string()).unwrap();
    let program = deploy::program("sni-proxy").unwrap();
    let mut command = Place::In(network.at("gateway")).command(program);
    command.arg("--config").arg(config);
    let mut child = ChildGuard::spawn("gateway", &command, &dir.join("gateway.log")).unwrap();
    let ready = || crate::world::ask(network.at("gateway"), 15021, "/readyz").is_some();
    child.wait_ready(LIMIT, ready).unwrap();
    child
}

/// Has the gateway lead the sidecars' name to these pods, and that of the Deployment to its own.
fn route(dir: &TempDir, servers: &[&str]) {
    let cluster = |name: &str, pods: &[&str]| {
        let endpoints = pods.iter().map(|pod| {
            let address = format!("{}:8091", Network::ip(pod));
            json!({ "address": address })
        });
        // Any of them, as often as not one that the agent knows.
        let endpoints: Vec<Value> = endpoints.collect();
        json!({ "name": name, "endpoints": endpoints, "balance": "random" })
    };
    let routes = json!({
        "clusters": [cluster("sidecar", servers), cluster("deployment", &[DEPLOYMENT])],
        "routes": [
            { "serverNames": [KONNECTIVITY_SIDECAR], "cluster": "sidecar" },
            { "serverNames": [KONNECTIVITY], "cluster": "deployment" },
        ],
    });
    let fresh = dir.write("routes.new", routes.to_string()).unwrap();
    fs::rename(fresh, dir.join("routes.yaml")).unwrap();
}

/// Requests to each server all the time.
struct Load {
    destination: SocketAddr,
    clock: Stopwatch,
    counts: Mutex<Counts>,
    over: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    /// Requests that were answered, by server.
    answered: BTreeMap<&'static str, u64>,
    /// Servers that are to be asked no more.
    ended: Vec<&'static str>,
    /// Those whose last request was answered.
    idle: Vec<&'static str>,
    failed: Vec<String>,
}

impl Load {
    fn new(destination: SocketAddr) -> Self {
        Self {
            destination,
            clock: Stopwatch::start(),
            counts: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    /// Asks one server until it is to end.
    fn run(&self, server: &'static str, frontend: FakeFrontend) {
        self.with(|counts| *counts.answered.entry(server).or_default() = 0);
        while !self.over.load(Ordering::SeqCst) && !self.counts().ended.contains(&server) {
            let began = self.clock.elapsed();
            let asked = dial(&frontend, self.destination);
            self.with(|counts| match asked {
                Ok(_) => *counts.answered.entry(server).or_default() += 1,
                Err(error) => {
                    let lasted = self.clock.elapsed() - began;
                    let failed = format!("{server} at {began:?} for {lasted:?}: {error:#}");
                    counts.failed.push(failed);
                }
            });
            wait::pause(Duration::from_millis(50));
        }
        self.with(|counts| counts.idle.push(server));
    }

    /// Ends the requests to a server; returns once the last one was answered.
    fn end(&self, server: &'static str) {
        self.with(|counts| counts.ended.push(server));
        let idle = || self.counts().idle.contains(&server);
        wait::until("the last request to a server", LIMIT, idle).unwrap();
    }

    /// Waits until each server that is asked has answered some more.
    fn wait_more(&self) {
        let before = self.counts();
        let more = || {
            let now = self.counts();
            let mut asked = now.answered.iter();
            asked.all(|(server, answered)| {
                let before = before.answered.get(server).copied().unwrap_or_default();
                now.ended.contains(server) || *answered > before + 20
            })
        };
        let done = wait::until("requests to each server", LIMIT, more);
        done.unwrap_or_else(|error| panic!("{error:#}: {:#?}", self.counts()));
    }

    fn counts(&self) -> Counts {
        self.with(|counts| counts.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Counts) -> T) -> T {
        act(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A test that fails must not wait for its threads.
struct EndOnDrop<'l>(&'l Load);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

/// Opens a tunnel on which words come back.
fn dial(frontend: &FakeFrontend, destination: SocketAddr) -> Result<Tunnel> {
    let dialed = frontend.connect(&destination.to_string())?;
    let mut tunnel = dialed.map_err(|refusal| anyhow!("{refusal:?}"))?;
    let back = tunnel.echo(b"word").context("echo")?;
    ensure!(back == b"word", "{back:?}");
    Ok(tunnel)
}
