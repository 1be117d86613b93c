//! Targets in a shoot, scraped by the configurations that ship: straight through the tunnel, and by
//! the API server through either tunnel.
//!
//! ```text
//!   Prometheus ─┬─ CONNECT ─▶ vpn-server or konnectivity ═════════════▶ kubelet
//!               ├─ GET http://… ─▶ the same ══════════════════════════▶ plain HTTP
//!               └─▶ kube-apiserver ═ vpn-server or konnectivity ═▶ kubelet, vpn-client, node proxy
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::http::Connection;
use testkit::kubelet::Kubelet;
use testkit::netns::Place;
use testkit::peers::kube::{Egress as Way, KubeApiServer, KubeParams};
use testkit::peers::prometheus::Prometheus;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::{NODE, PROXY_NAME, PROXY_PORT, Params, World};
use testkit::wait;

use crate::egress::{self, Egress};
use crate::programs::{LIMIT, Program, tunnel};

/// What a kubelet that is scraped says.
const KUBELET: &str = "kubelet_node_name{job=\"kubelet\",instance=\"node-0\"} == 1";

/// What a plain HTTP target has after three scrapes; each is a connection of its own.
const PLAIN: &str = "sum_over_time(up{job=\"coredns\",instance=\"coredns-0\"}[1m]) >= 3";

/// The first client, as the pods of its shoot know it.
const CLIENT: &str = "100.96.1.10";

#[test]
fn shoot_targets_are_scraped_by_vpn_server() {
    let mut world =
        World::lay(tunnel(), Params::default()).unwrap_or_else(|error| panic!("{error:#}"));
    world.start().unwrap_or_else(|error| panic!("{error:#}"));
    let dir = TempDir::new("scrape").unwrap();
    let seed = Place::In(&world.network.api_server);
    let kubelets = Authority::new("kubelets").unwrap();
    let listener = Place::In(&world.network.pod).bind(at(NODE, 10250)).unwrap();
    let kubelet = Kubelet::start(listener, "node-0", &kubelets.server(&[NODE]).unwrap()).unwrap();
    let server = SocketAddr::new(world.network.addresses.server(0), PROXY_PORT);
    let identity = { &world.credentials.api_server }
        .write(dir.path(), "kas")
        .unwrap();
    let way = Way::HttpConnectTls {
        server: format!("{PROXY_NAME}:{PROXY_PORT}"),
        authority: world.dir.join("proxy-ca.crt"),
        identity,
    };
    let address = SocketAddr::new(world.network.addresses.api_server(), 0);
    let names = (server.ip(), PROXY_NAME);
    let api = api_server(seed, &dir, address, (&way, names), &kubelets);
    api.create_node(seed, "node-0", kubelet.addr()).unwrap();
    for pod in [CLIENT_POD, NODE_POD] {
        create_pod(seed, &api, pod);
    }
    let _node_proxy = node_proxy(&world, &dir);

    tunnel_files(&world.credentials.authority, &dir, &kubelets);
    let (own, target) = (server.to_string(), kubelet.addr().to_string());
    let plain = format!("{CLIENT}:8080");
    let shipped = |name, proxy| shipped(name, &dir, &api, proxy, (&target, &plain));
    let by_tunnel = shipped("shoot-by-tunnel.yaml", Some(&own));
    let by_tunnel_dir = TempDir::new("by-tunnel").unwrap();
    let prometheus = start(seed, &by_tunnel_dir, &by_tunnel);
    wait_for(&prometheus, KUBELET);
    wait_for(&prometheus, PLAIN);
    let mut bare = by_tunnel.clone();
    let tls = bare["scrape_configs"][0]["tls_config"]
        .as_object_mut()
        .unwrap();
    for file in ["cert_file", "key_file"] {
        tls.remove(file).unwrap();
    }
    let bare_dir = TempDir::new("bare").unwrap();
    let without = start(seed, &bare_dir, &bare);
    wait_for(&without, "up{job=\"kubelet\"} == 0");
    drop((prometheus, without));

    let by_api_server = shipped("shoot-by-apiserver.yaml", None);
    let by_api_server_dir = TempDir::new("by-api-server").unwrap();
    let prometheus = start(seed, &by_api_server_dir, &by_api_server);
    wait_for(&prometheus, KUBELET);
    let client =
        "rhizome_ready{job=\"vpn-client\",namespace=\"kube-system\",instance=\"vpn-shoot-0\"} == 1";
    wait_for(&prometheus, client);
    let node_proxy = "rhizome_apiserver_proxy_addresses_settled{job=\"apiserver-proxy\",\
                      namespace=\"kube-system\",instance=\"apiserver-proxy-0\"} == 1";
    wait_for(&prometheus, node_proxy);
    // Of a pod without ports there is a target for each container.
    wait_for(&prometheus, "count(up{job=\"apiserver-proxy\"}) == 1");
}

#[test]
fn shoot_targets_are_scraped_by_konnectivity() {
    let dir = TempDir::new("scrape-konnectivity").unwrap();
    let egress = Egress::start(&dir);
    let kubelets = Authority::new("kubelets").unwrap();
    let identity = kubelets.server(&["127.0.0.1"]).unwrap();
    let listener = Place::Here.bind(at("127.0.0.1", 0)).unwrap();
    let kubelet = Kubelet::start(listener, "node-0", &identity).unwrap();
    let api = api_server(
        Place::Here,
        &dir,
        at("127.0.0.1", 0),
        (
            &egress.way(&dir),
            (at("127.0.0.1", 0).ip(), egress::SERVICE),
        ),
        &kubelets,
    );
    api.create_node(Place::Here, "node-0", kubelet.addr())
        .unwrap();
    let (target, plain) = (kubelet.addr().to_string(), egress.server_probes.to_string());
    let shipped = |name, proxy| shipped(name, &dir, &api, proxy, (&target, &plain));
    let prometheus_dir = TempDir::new("prometheus").unwrap();
    let config = shipped("shoot-by-apiserver.yaml", None);
    let prometheus = start(Place::Here, &prometheus_dir, &config);
    wait_for(&prometheus, KUBELET);
    assert!(
        egress.carried() > 0.0,
        "it was not konnectivity that carried it"
    );
    drop(prometheus);

    tunnel_files(&egress.authority, &dir, &kubelets);
    let proxy = egress.frontends.to_string();
    let config = shipped("shoot-by-tunnel.yaml", Some(&proxy));
    let prometheus_dir = TempDir::new("straight").unwrap();
    let prometheus = start(Place::Here, &prometheus_dir, &config);
    wait_for(&prometheus, KUBELET);
    wait_for(&prometheus, PLAIN);
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().unwrap(), port)
}

fn api_server(
    place: Place<'_>,
    dir: &TempDir,
    address: SocketAddr,
    (way, (proxy, name)): (&Way, (IpAddr, &str)),
    kubelets: &Authority,
) -> KubeApiServer {
    let selector = dir.join("egress.json");
    way.write(&selector).unwrap();
    let authority = kubelets.write(&dir.join("kubelet-ca.crt")).unwrap();
    let mut params = KubeParams::new(address, &[]).kubelets(&selector, &authority);
    params.hosts = vec![(proxy, name.to_owned())];
    KubeApiServer::start(place, &dir.join("kube"), &params)
        .unwrap_or_else(|error| panic!("{error:#}"))
}

/// Pods, by name and program.
const CLIENT_POD: (&str, &str) = ("vpn-shoot-0", "vpn-client");
const NODE_POD: (&str, &str) = ("apiserver-proxy-0", "apiserver-proxy");

/// Starts a node proxy where the tunnel's client is, which stands for that node.
fn node_proxy(world: &World, dir: &TempDir) -> Program {
    let config = json!({
        "listen": ["127.0.0.1:0"],
        "upstream": { "address": "127.0.0.1:9", "mode": "proxy-protocol" },
        "interface": { "manage": false },
        "noTrack": "off",
    });
    let at = Place::In(&world.network.clients[0]);
    Program::start_in(at, dir.path(), "apiserver-proxy", "node", &config)
}

/// Tells the API server of a pod at the tunnel client's address: no pod runs there.
fn create_pod(place: Place<'_>, api: &KubeApiServer, (name, program): (&str, &str)) {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": {
            "app.kubernetes.io/name": program, "app.kubernetes.io/part-of": "rhizome",
        } },
        "spec": { "nodeName": "node-0", "automountServiceAccountToken": false, "containers": [{
            "name": program, "image": "none",
        }] },
    });
    let path = "/api/v1/namespaces/kube-system/pods";
    let ask = |method: &str, path: &str, pod: &Value| {
        let (target, body) = (api.target(), pod.to_string());
        let answer = place.run(|| Connection::open(&target)?.request(method, path, Some(&body)));
        let answer = answer.unwrap().unwrap();
        assert!(answer.status < 300, "{path}: {}", answer.text());
    };
    wait::until("a service account", LIMIT, || {
        let target = api.target();
        let asked = place.run(|| testkit::http::get(&target, "/api/v1/namespaces/kube-system"));
        asked.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
    })
    .unwrap();
    ask("POST", path, &pod);
    pod["status"] = json!({ "phase": "Running", "podIP": CLIENT, "podIPs": [{ "ip": CLIENT }] });
    ask("PUT", &format!("{path}/{name}/status"), &pod);
}

/// Writes the files that the configurations name.
fn tunnel_files(proxy: &Authority, dir: &TempDir, kubelets: &Authority) {
    let monitoring = proxy.client("prometheus", &[], &[]).unwrap();
    let files = monitoring.write(dir.path(), "prometheus").unwrap();
    fs::create_dir_all(dir.join("tunnel")).unwrap();
    fs::copy(files.cert, dir.join("tunnel/tls.crt")).unwrap();
    fs::copy(files.key, dir.join("tunnel/tls.key")).unwrap();
    let both = format!("{}{}", proxy.pem(), kubelets.pem());
    fs::write(dir.join("tunnel/ca.crt"), both).unwrap();
}

/// Returns a configuration that ships, with the addresses, files and targets of this test.
fn shipped(
    name: &str,
    dir: &TempDir,
    api: &KubeApiServer,
    proxy: Option<&str>,
    (kubelet, plain): (&str, &str),
) -> Value {
    fs::create_dir_all(dir.join("shoot")).unwrap();
    fs::write(dir.join("shoot/ca.crt"), api.authority_pem()).unwrap();
    fs::write(dir.join("shoot/token"), api.token()).unwrap();
    let (server, files) = (api.addr().to_string(), dir.path().display().to_string());
    let mut replaced = vec![
        ("kube-apiserver:443", server.as_str()),
        ("/etc/prometheus", &files),
    ];
    replaced.extend(proxy.map(|proxy| ("vpn-seed-server:9443", proxy)));
    let client = format!("{CLIENT}:8080");
    let (pod, program) = NODE_POD;
    let container =
        |begins| monitoring::Target::container("kube-system", pod, program, begins, CLIENT);
    // A stand-in for CoreDNS: its labels, and another program's page.
    let labels = [
        ("pod_name", "coredns-0"),
        ("pod_label_k8s_app", "kube-dns"),
        ("pod_container_port_name", "metrics"),
    ];
    let labels = labels.map(|(name, value)| (name, value.to_owned()));
    let targets = [
        monitoring::Target::node("node-0", kubelet),
        monitoring::Target {
            role: "pod",
            address: plain.to_owned(),
            labels: labels.into(),
        },
        monitoring::Target::pod(
            "kube-system",
            CLIENT_POD.0,
            CLIENT_POD.1,
            ("probes", 8080),
            &client,
        ),
        container(true),
        container(false),
    ];
    monitoring::scrape_config(name, &targets, dir.path(), &replaced).unwrap()
}

fn start<'n>(place: Place<'n>, dir: &TempDir, config: &Value) -> Prometheus<'n> {
    let started = Prometheus::start(place, dir.path(), &config.to_string());
    started.unwrap_or_else(|error| panic!("{error:#}\n{config}"))
}

fn wait_for(prometheus: &Prometheus<'_>, expression: &str) {
    let there = || {
        prometheus
            .query(expression)
            .is_ok_and(|found| !found.is_empty())
    };
    if let Err(error) = wait::until(expression, LIMIT, there) {
        let (targets, log) = (prometheus.targets(), prometheus.log_tail());
        panic!("{error:#}\n{targets:#?}\n{log}");
    }
}
