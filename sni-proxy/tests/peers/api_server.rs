//! kubectl and a real kube-apiserver with the gateway between: by server name, and through our
//! node proxy in all its modes. Certificates are verified on every way.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::http;
use testkit::netns::Place;
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::wait::{self, Stopwatch};

use crate::gateway::{self, CLUSTER, NAME};
use crate::node::{self, Node};
use crate::ours::{LIMIT, Ours};
use crate::programs::{announce, client};

/// How long a watch must live, and how often the routes change meanwhile.
const WATCH: Duration = Duration::from_secs(60);
const RELOADS: u32 = 10;

/// A way to the API server, with kubectl's configuration for it.
struct Way {
    name: &'static str,
    config: PathBuf,
}

struct Stage {
    dir: TempDir,
    server: KubeApiServer,
    gateway: Ours,
    nodes: Vec<Node>,
    ways: Vec<Way>,
}

impl Stage {
    fn new() -> Self {
        for peer in ["etcd", "kube-apiserver", "kubectl"] {
            announce(peer);
        }
        let dir = TempDir::new("api-server").unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let names = [NAME, "127.0.9.1", "127.0.9.2", "127.0.9.3"];
        let params = KubeParams::new(address, &names);
        let server = KubeApiServer::start(Place::Here, &dir.join("kube"), &params)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let gateway = gateway::plain(&dir, &gateway::to_one(server.addr()));
        let mut stage = Self {
            dir,
            server,
            gateway,
            nodes: Vec::new(),
            ways: Vec::new(),
        };
        stage.lay_ways();
        stage
    }

    fn lay_ways(&mut self) {
        let direct = self.server.addr();
        self.add_way("direct", direct, Some(NAME));
        let tls = self.gateway.listener("tls");
        self.add_way("by-name", tls, Some(NAME));
        let front = self.gateway.listener("node");
        let binary = gateway::node_proxy();
        for (name, address, upstream) in [
            ("proxy-v1", "127.0.9.1", node::by_proxy_header(front, 1)),
            ("proxy-v2", "127.0.9.2", node::by_proxy_header(front, 2)),
            ("connect", "127.0.9.3", node::by_connect(front, CLUSTER)),
        ] {
            let node = Node::start(&binary, self.dir.path(), address, &upstream);
            // The certificate is good for the node's address, as it is for a Service's.
            self.add_way(name, node.addr, None);
            self.nodes.push(node);
        }
    }

    fn add_way(&mut self, name: &'static str, addr: SocketAddr, server_name: Option<&str>) {
        let config = self.dir.join(format!("kubeconfig-{name}"));
        self.server
            .write_kubeconfig(&config, addr, server_name)
            .unwrap();
        self.ways.push(Way { name, config });
    }

    /// The ways that lead through the gateway.
    fn ours(&self) -> &[Way] {
        &self.ways[1..]
    }

    fn direct(&self) -> &Way {
        &self.ways[0]
    }

    /// Prepares kubectl to go `way`.
    fn kubectl(&self, way: &Way) -> Command {
        let mut kubectl = client("kubectl");
        self.configure(&mut kubectl, way);
        kubectl
    }

    fn configure(&self, kubectl: &mut Command, way: &Way) {
        kubectl.arg("--kubeconfig").arg(&way.config);
        kubectl
            .arg("--cache-dir")
            .arg(self.dir.join(format!("cache-{}", way.name)));
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            kubectl.env_remove(proxy);
        }
    }

    /// Runs kubectl, which must succeed.
    fn run(&self, way: &Way, arguments: &[&str]) -> String {
        command::run(self.kubectl(way).args(arguments))
            .unwrap_or_else(|error| panic!("{}: {error:#}", way.name))
    }
}

/// A list of `count` config maps of `bytes` bytes each, as a file for `kubectl create`.
fn many(dir: &TempDir, namespace: &str, count: usize, bytes: usize) -> PathBuf {
    let items: Vec<Value> = (0..count)
        .map(|number| {
            json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": format!("large-{number}"), "namespace": namespace },
                "data": { "filler": format!("{number}").repeat(bytes) },
            })
        })
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    dir.write(format!("many-{namespace}.json"), list.to_string())
        .unwrap()
}

#[test]
fn kubectl_reads_and_writes_on_every_way() {
    let stage = Stage::new();
    for way in stage.ours() {
        let space = format!("space-{}", way.name);
        stage.run(way, &["create", "namespace", &space]);
        let large = many(&stage.dir, &space, 9, 500_000);
        let large = large.to_str().unwrap();
        stage.run(way, &["create", "-f", large]);
        stage.run(way, &["-n", &space, "label", "configmap/large-3", "a=b"]);
        stage.run(way, &["-n", &space, "delete", "configmap", "large-4"]);
        let names = stage.run(way, &["-n", &space, "get", "configmaps", "-o", "name"]);
        assert_eq!(names.matches("configmap/large-").count(), 8, "{names}");
        // What the gateway carried is to the byte what the API server says without it.
        // At one revision: the list names it, and others write meanwhile.
        let path = format!("/api/v1/namespaces/{space}/configmaps");
        let now: Value =
            serde_json::from_str(&stage.run(way, &["get", "--raw", &format!("{path}?limit=1")]))
                .unwrap();
        let revision = now["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{path}?resourceVersion={revision}&resourceVersionMatch=Exact");
        let list = stage.run(way, &["get", "--raw", &path]);
        assert!(list.len() > 4_000_000, "{}: {}", way.name, list.len());
        assert!(
            list == stage.run(stage.direct(), &["get", "--raw", &path]),
            "{}: the lists differ",
            way.name
        );
        let missing = command::run(stage.kubectl(way).args(["get", "pod", "missing"]));
        assert!(missing.unwrap_err().to_string().contains("NotFound"));
    }
    for (key, value) in [
        ("server_name", NAME.to_owned()),
        ("destination", stage.nodes[0].addr.to_string()),
        ("destination", stage.nodes[1].addr.to_string()),
        ("connect", CLUSTER.to_owned()),
    ] {
        let record = stage
            .gateway
            .wait_record(&value, |record| record[key] == value);
        assert_eq!(record["reason"], "closed", "{record}");
    }
}

/// A `kubectl get --watch` that runs, with what it has printed.
struct Watcher {
    name: &'static str,
    child: ChildGuard,
}

impl Watcher {
    fn start(stage: &Stage, way: &Way) -> Self {
        // Without the `timeout` in front: it runs for longer, and its guard ends it.
        let mut kubectl = Command::new(command::require("kubectl").unwrap());
        stage.configure(&mut kubectl, way);
        kubectl.args(["get", "configmaps", "--watch", "--output", "name"]);
        let log = stage.dir.join(format!("watch-{}", way.name));
        let child = ChildGuard::spawn(way.name, &kubectl, &log).unwrap();
        Self {
            name: way.name,
            child,
        }
    }

    fn wait_for(&mut self, event: &str) {
        let line = format!("configmap/{event}");
        self.child
            .wait_log(&line, LIMIT)
            .unwrap_or_else(|error| panic!("{}: {error:#}", self.name));
    }
}

/// Changes the routes in the `number`th way there is to do that, and waits until that is in effect
/// or refused. What the watches run through changes too, or is gone for new connections.
fn reload(stage: &Stage, number: u32) {
    let gateway = &stage.gateway;
    let refused = || gateway.metric("rhizome_snapshot_refused_total", &[]);
    let generation = || gateway.metric("rhizome_snapshot_generation", &[]);
    let (was_refused, was_generation) = (refused(), generation());
    let mut routes = gateway::to_one(stage.server.addr());
    let other = gateway::cluster(&format!("other-{number}"), stage.server.addr());
    routes["clusters"].as_array_mut().unwrap().push(other);
    let broken = number % 5 == 4;
    match number % 5 {
        // Added to, by rename.
        0 => drop(
            stage
                .dir
                .replace("routes.yaml", routes.to_string())
                .unwrap(),
        ),
        // The same in place.
        1 => drop(stage.dir.write("routes.yaml", routes.to_string()).unwrap()),
        // The watches' own cluster leads elsewhere.
        2 => {
            routes["clusters"][0]["endpoints"][0]["address"] = json!("127.0.0.1:1");
            stage
                .dir
                .replace("routes.yaml", routes.to_string())
                .unwrap();
        }
        // No route is left.
        3 => {
            routes["routes"] = json!([]);
            stage
                .dir
                .replace("routes.yaml", routes.to_string())
                .unwrap();
        }
        // Broken.
        _ => drop(stage.dir.replace("routes.yaml", "clusters: [").unwrap()),
    }
    wait::until("the routes to be in effect or refused", LIMIT, || {
        if broken {
            refused() > was_refused
        } else {
            generation() > was_generation
        }
    })
    .unwrap();
    // New connections follow what is in effect: the broken file left the one before it.
    let tls = stage.server.target_at(gateway.listener("tls"));
    let version = http::get(&tls.server_name(NAME), "/version");
    assert_eq!(version.is_ok(), number % 5 < 2, "reload {number}");
}

#[test]
fn watches_see_every_event_and_no_reload() {
    let stage = Stage::new();
    let clock = Stopwatch::start();
    let mut watchers: Vec<Watcher> = stage
        .ours()
        .iter()
        .map(|way| Watcher::start(&stage, way))
        .collect();
    create(&stage, "first");
    for watcher in &mut watchers {
        watcher.wait_for("first");
    }
    let open = stage.gateway.active();
    assert!(open >= 4.0, "{open}");
    assert!(stage.gateway.records().is_empty());
    for number in 0..RELOADS {
        for (event, act) in [("before", true), ("after", false)] {
            let event = format!("{event}-{number}");
            create(&stage, &event);
            for watcher in &mut watchers {
                watcher.wait_for(&event);
            }
            if act {
                reload(&stage, number);
            }
        }
        // The pace of the reloads, which is the length of the watches.
        let due = WATCH * (number + 1) / RELOADS;
        wait::pause(due.saturating_sub(clock.elapsed()));
    }
    create(&stage, "last");
    for watcher in &mut watchers {
        watcher.wait_for("last");
        assert!(watcher.child.exit_status().unwrap().is_none());
    }
    // No client reconnected: every initial connection is still open, and the only ones that have
    // ended are the connections that each reload tried.
    wait::until("the connections of the beginning", LIMIT, || {
        stage.gateway.active() == open
    })
    .unwrap();
    let ended = stage.gateway.records().len();
    assert_eq!(ended, usize::try_from(RELOADS).unwrap());
    assert!(clock.elapsed() >= WATCH);
    for node in &stage.nodes {
        assert!(node.process.active() >= 1.0);
    }
}

fn create(stage: &Stage, name: &str) {
    let direct = stage.direct();
    stage.run(direct, &["create", "configmap", name]);
}
