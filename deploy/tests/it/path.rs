//! A seed and a shoot of which every pod is a manifest's, and a request on each of the four paths.
//!
//! ```text
//!   name, node proxy ──▶ Service ─▶ gateway ─▶ the shoot's API server         (a stand-in)
//!   API server ─┬─▶ vpn-server ═ gateway ═ vpn-client ─▶ kubelet              (kube-apiserver)
//!               └─▶ konnectivity-server ◀─ gateway ─ agent ─▶ kubelet         (the same, and the test)
//! ```
//!
//! The seed's API server is the shoot's as well where it asks a kubelet. What a cluster's own
//! controllers would do is done here: Endpoints, the addresses of Services, DNS.

use std::net::SocketAddr;
use std::path::PathBuf;

use deploy::{Account, Objects, Pod};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::http::{self, Proxy, Target};
use testkit::kubelet::Kubelet;
use testkit::netns::Place;
use testkit::peers::envoy::Envoy;
use testkit::tempdir::TempDir;
use testkit::wait;

use crate::api::{Api, LIMIT};
use crate::network::{GATEWAY, NODE, Network};
use crate::objects::{
    ADVERTISED, API, Authorities, KONNECTIVITY, KONNECTIVITY_SERVICE, SHOOT, VPN_SERVICE,
};
use crate::world::{World, metric};
use crate::{cluster, egress, envoy, objects, registry, rights, seed_policies, starts};

/// Containers that [`manifests_carry_every_path`] starts.
pub(crate) const STARTED: &[&str] = &[
    "apiserver-proxy/proxy",
    "apiserver-proxy/setup",
    "konnectivity-agent/konnectivity-agent",
    "konnectivity-server/konnectivity-server",
    "node-cache: sni-proxy/sni-proxy",
    "rhizome-netpol-controller/netpol-controller",
    "vpn-seed-server/vpn-server",
    "vpn-shoot/vpn-client",
];

/// The gateway as it is started here.
const GATEWAY_ON_NODE: &str = "seed/gateway/overlays/node-cache";
const GATEWAY_POD: &str = "sni-proxy-0";
const CONTROLLER: &str = "rhizome-netpol-controller";
const CONTROLLER_POD: &str = "rhizome-netpol-controller-0";

#[test]
fn manifests_carry_every_path() {
    let (network, dir) = (Network::lay(), TempDir::new("deploy").unwrap());
    let authorities = Authorities::new().unwrap();
    let mut stage = Stage::new(&network, dir, &authorities);
    cluster::apply(&stage.api);
    registry::hold(&stage.api);
    stage.settle();
    stage.start_seed();
    stage.start_shoot();
    stage.by_name_and_by_node_proxy();
    stage.by_vpn();
    // Which takes the number that the controller told the gateway.
    stage.wait_transport("udp");
    stage.by_konnectivity(&authorities);
    seed_policies::hold(&stage.api);
    let controller = Objects::build("seed/controller").unwrap();
    let world = &mut stage.world;
    rights::are_all_used_and_enough(&stage.api, &controller, || world.stop(CONTROLLER_POD));
    stage.by_the_nodes_cache();
    let _envoy = stage.by_envoy(&authorities);
    stage.by_konnectivity_of_an_api_server(&authorities);
    let started: Vec<&str> = stage.world.started.iter().map(String::as_str).collect();
    assert_eq!(started, STARTED);
}

struct Stage<'n> {
    world: World,
    api: Api<'n>,
    network: &'n Network,
    secrets: Vec<Value>,
    /// Services, as far as `vpn-server provision` has a say.
    annotated: Vec<Value>,
    shoot: Authority,
    _shoot_api: ApiServer,
    _kubelet: Kubelet,
    dir: TempDir,
}

impl<'n> Stage<'n> {
    fn new(network: &'n Network, dir: TempDir, authorities: &Authorities) -> Self {
        let provisioned = objects::provision(&dir, |_| {});
        let (own, annotated) = provisioned
            .into_iter()
            .partition(|own| own["kind"] == "Secret");
        let mut secrets: Vec<Value> = own;
        let selector = selector(&dir, &secrets, authorities);
        secrets.extend(authorities.secrets().unwrap());
        let address: SocketAddr = format!("{}:6443", Network::ip("api")).parse().unwrap();
        let account = format!("system:serviceaccount:garden:{CONTROLLER}");
        let api = Api::start(
            network.at("api"),
            &dir,
            address,
            (&selector.0, &selector.1),
            &[
                (VPN_SERVICE, Network::ip("vpn-seed-server-0")),
                (KONNECTIVITY_SERVICE, Network::ip("konnectivity-server")),
            ],
            &account,
            &[],
        );
        api.apply(&objects::namespaces());
        let definitions: Vec<Value> = Objects::read("tests/data/definitions.yaml")
            .unwrap()
            .into_iter()
            .collect();
        api.apply(&definitions);
        wait_served(&api, &definitions);
        let kubelet = Place::In(network.at("pod")).bind(format!("{NODE}:10250").parse().unwrap());
        let kubelet = Kubelet::start(
            kubelet.unwrap(),
            "node-a",
            &authorities.kubelets.server(&[NODE]).unwrap(),
        )
        .unwrap();
        api.server
            .create_node(Place::In(network.at("api")), "node-a", kubelet.addr())
            .unwrap();
        let shoot = Authority::new("shoot").unwrap();
        let identity = shoot.server(&[API, ADVERTISED]).unwrap();
        let listener = format!("{}:443", Network::ip("shoot-api")).parse().unwrap();
        let listener = Place::In(network.at("shoot-api")).bind(listener).unwrap();
        Self {
            world: World::new(dir.join("pods"), hosts()),
            _shoot_api: ApiServer::start(listener, SHOOT, &identity).unwrap(),
            _kubelet: kubelet,
            api,
            network,
            secrets,
            annotated,
            shoot,
            dir,
        }
    }

    /// Builds a component, with all Secrets.
    fn built(&self, directory: &str) -> Objects {
        let mut objects = Objects::build(directory).unwrap();
        objects.extend(self.secrets.iter().cloned());
        objects
    }

    /// Does what Gardener and the cluster's own controllers would do now.
    fn settle(&self) {
        self.api.apply(&objects::api_server());
        self.api.apply_as("vpn-provision", &self.annotated);
        let mut endpoints = vec![objects::endpoints(
            &objects::api_server()[0],
            &Network::ip("shoot-api"),
        )];
        for (directory, service, place) in [
            (
                "control-plane/vpn-server",
                "vpn-seed-server-0",
                "vpn-seed-server-0",
            ),
            (
                "control-plane/vpn-server",
                "vpn-seed-server-1",
                "vpn-seed-server-1",
            ),
            (
                "control-plane/konnectivity-server",
                "konnectivity-server-agents",
                "konnectivity-server",
            ),
        ] {
            let built = self.built(directory);
            let service = built.get("Service", service).unwrap();
            endpoints.push(objects::endpoints(service, &Network::ip(place)));
        }
        self.api.apply(&endpoints);
        let gateway = self.built("seed/gateway/base");
        let pod = Pod::of(&gateway, "Deployment", "sni-proxy", "sni-proxy-0").unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": pod.name, "labels": pod.metadata["labels"] }, "spec": pod.spec,
        });
        self.api
            .must("POST", "/api/v1/namespaces/istio-ingress/pods", Some(&pod));
    }

    /// Starts what is in the seed; the gateway is ready once the controller has told it everything.
    fn start_seed(&mut self) {
        let account = Account {
            api_server: self.api.server.addr(),
            authority: self.api.server.authority_pem().to_owned(),
            token: self.api.token("garden", CONTROLLER),
        };
        let built = self.built("seed/controller");
        let pod = ("Deployment", CONTROLLER, CONTROLLER_POD);
        self.world
            .start(self.network.at("controller"), pod, &built, Some(account));
        let built = self.built(GATEWAY_ON_NODE);
        self.publish(built.get("Service", "istio-ingressgateway").unwrap());
        starts::prepare_node(&self.world.host());
        self.start_gateway();
        self.world.of_overlay("node-cache", "sni-proxy/sni-proxy");
    }

    fn start_gateway(&mut self) {
        let built = self.built(GATEWAY_ON_NODE);
        let pod = ("Deployment", "sni-proxy", GATEWAY_POD);
        self.world
            .start(self.network.at("gateway"), pod, &built, None);
    }

    /// The gateway's pod is deleted while no controller is there, and another one comes to its node.
    fn by_the_nodes_cache(&mut self) {
        // A gateway writes its routes down within seconds of having them.
        let at = self.network.at("gateway");
        let (name, ok) = ("rhizome_xds_cache_writes_total", [("result", "ok")]);
        let written = || metric(at, 15021, name, &ok) > 0.0;
        wait::until("routes on the node", LIMIT, written).unwrap();
        self.world.kill(GATEWAY_POD);
        std::fs::remove_dir_all(self.world.directory.join(GATEWAY_POD)).unwrap();
        self.start_gateway();
        self.world.of_overlay("node-cache", "sni-proxy/sni-proxy");
        self.by_name_and_by_node_proxy();
    }

    /// Leads the ports of the gateway's Service to those of its pod, as a node's kernel would.
    fn publish(&self, service: &Value) {
        let gateway = self.network.at("gateway");
        let nft = |words: &str| {
            let mut nft = gateway.command(testkit::command::require("nft").unwrap());
            testkit::command::run(nft.args(words.split(' '))).unwrap();
        };
        nft("add table ip service");
        nft("add chain ip service ports { type nat hook prerouting priority -100 ; }");
        for port in service["spec"]["ports"].as_array().unwrap() {
            let protocol = port["protocol"].as_str().unwrap().to_lowercase();
            let (from, to) = (&port["port"], &port["targetPort"]);
            if from != to {
                nft(&format!(
                    "add rule ip service ports {protocol} dport {from} redirect to :{to}"
                ));
            }
        }
    }

    /// Starts servers and clients of the tunnels. Servers are ready when their clients are there.
    fn start_shoot(&mut self) {
        let (servers, clients) = (
            self.built("control-plane/vpn-server"),
            self.built("shoot/vpn-client/base"),
        );
        let mut waiting = Vec::new();
        for name in ["vpn-seed-server-0", "vpn-seed-server-1"] {
            waiting.push(self.world.begin(
                self.network.at(name),
                ("StatefulSet", "vpn-seed-server", name),
                &servers,
            ));
        }
        for name in ["vpn-shoot-0", "vpn-shoot-1"] {
            waiting.push(self.world.begin(
                self.network.at(name),
                ("StatefulSet", "vpn-shoot", name),
                &clients,
            ));
        }
        for (directory, name) in [
            ("control-plane/konnectivity-server", "konnectivity-server"),
            ("shoot/konnectivity-agent", "konnectivity-agent"),
        ] {
            let (built, pod) = (self.built(directory), format!("{name}-0"));
            let pod = ("Deployment", name, pod.as_str());
            waiting.push(self.world.begin(self.network.at(name), pod, &built));
        }
        let built = self.built("shoot/apiserver-proxy");
        let pod = ("DaemonSet", "apiserver-proxy", "apiserver-proxy-0");
        self.world.start(self.network.at("node"), pod, &built, None);
        // Clients and agents first: without them no server is ready.
        for pod in waiting.into_iter().rev() {
            self.world.finish(pod);
        }
    }

    /// A client that knows the name, and a pod that knows an address of its node.
    fn by_name_and_by_node_proxy(&self) {
        let node = self.network.at("node");
        let by_name: SocketAddr = format!("{GATEWAY}:443").parse().unwrap();
        let by_node: SocketAddr = format!("{ADVERTISED}:443").parse().unwrap();
        for target in [
            Target::tls(by_name, self.shoot.pem()).server_name(API),
            Target::tls(by_node, self.shoot.pem()),
        ] {
            let answer = node.run(|| http::get(&target, "/version")).unwrap();
            let answer = answer.unwrap_or_else(|error| panic!("{target:?}: {error:#}"));
            assert_eq!(answer.json().unwrap()["shoot"], SHOOT);
        }
    }

    /// A real API server, whose egress selector's file leads to the tunnel.
    fn by_vpn(&self) {
        self.by_api_server();
    }

    /// A real API server asks a kubelet, as its egress selector's file says.
    fn by_api_server(&self) {
        let answer = self
            .api
            .request("GET", "/api/v1/nodes/node-a/proxy/healthz", None);
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    }

    /// Envoy in the place of the gateway: everything else goes on, the VPN by TCP.
    fn by_envoy(&mut self, authorities: &Authorities) -> Envoy {
        self.world.kill(GATEWAY_POD);
        let envoy = envoy::start(self.network.at("gateway"), &self.world.directory);
        self.by_name_and_by_node_proxy();
        self.wait_transport("tcp");
        self.by_vpn();
        self.by_konnectivity(authorities);
        envoy
    }

    /// Waits until both clients use a transport to both servers.
    fn wait_transport(&self, transport: &str) {
        for client in ["vpn-shoot-0", "vpn-shoot-1"] {
            let name = "rhizome_tunnel_peer_transport";
            let labels = [("transport", transport)];
            let uses = || metric(self.network.at(client), 8080, name, &labels);
            let both = wait::until("both servers", LIMIT, || uses() == 2.0);
            assert!(both.is_ok(), "{client}, {transport}: {both:?}: {}", uses());
        }
    }

    /// The API server moves from the VPN to konnectivity, as its egress selector's other file says.
    fn by_konnectivity_of_an_api_server(&mut self, authorities: &Authorities) {
        let identity = authorities.frontend().unwrap();
        for (file, text) in [
            ("ca.crt", authorities.konnectivity.pem()),
            ("tls.crt", &identity.cert_pem),
            ("tls.key", &identity.key_pem),
        ] {
            self.dir
                .write(format!("konnectivity/{file}"), text)
                .unwrap();
        }
        let text = egress::shipped("konnectivity-http-connect.yaml").to_string();
        let files = self.dir.join("konnectivity").display().to_string();
        let text = text.replace("/etc/konnectivity", &files);
        self.dir.write(SELECTOR, text).unwrap();
        self.api.restart();
        let at = self.network.at("konnectivity-server");
        let (name, port) = (
            "rhizome_konnectivity_accepted_peers_total",
            [("port", "frontends")],
        );
        let before = metric(at, 8092, name, &port);
        self.by_api_server();
        assert!(metric(at, 8092, name, &port) > before);
    }

    /// As an API server asks. An agent whose gateway has gone comes again within seconds.
    fn by_konnectivity(&self, authorities: &Authorities) {
        let server: SocketAddr = format!("{}:8090", Network::ip("konnectivity-server"))
            .parse()
            .unwrap();
        let target = Target::tls(server, authorities.kubelets.pem());
        let target = target.timeout(LIMIT).proxy(Proxy::ConnectTls {
            authority: format!("{NODE}:10250"),
            server_name: KONNECTIVITY_SERVICE.to_owned(),
            authority_pem: authorities.konnectivity.pem().to_owned(),
            identity: authorities.frontend().unwrap(),
        });
        let asker = self.network.at("prometheus");
        let asked = || asker.run(|| http::get(&target, "/healthz")).unwrap();
        let answer = wait::until_ok("an agent", LIMIT, asked).unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    }
}

/// Writes the egress selector that is shipped for the tunnel, with paths in the place of those that an
/// API server's pod would have; and the authority of kubelets.
pub(crate) fn selector(
    dir: &TempDir,
    provisioned: &[Value],
    authorities: &Authorities,
) -> (PathBuf, PathBuf) {
    let mut objects = Objects::default();
    objects.extend(provisioned.iter().cloned());
    for (name, text) in objects.files("Secret", "vpn-seed-server-client").unwrap() {
        dir.write(name, text).unwrap();
    }
    let text = egress::shipped("vpn-http-connect.yaml").to_string();
    let text = text.replace("/etc/vpn", &dir.path().display().to_string());
    let selector = dir.write(SELECTOR, text).unwrap();
    let kubelets = authorities
        .kubelets
        .write(&dir.join("kubelets.crt"))
        .unwrap();
    (selector, kubelets)
}

/// Where an API server finds its egress selector.
const SELECTOR: &str = "egress.yaml";

fn hosts() -> String {
    let controller = Network::ip("controller");
    format!(
        "127.0.0.1 localhost\n{GATEWAY} {API} {KONNECTIVITY}\n\
         {controller} {CONTROLLER}.garden.svc.cluster.local\n"
    )
}

/// Waits until the kinds of definitions are served.
pub(crate) fn wait_served(api: &Api<'_>, definitions: &[Value]) {
    for own in definitions {
        let spec = &own["spec"];
        let version = format!(
            "{}/{}",
            spec["group"].as_str().unwrap(),
            spec["versions"][0]["name"].as_str().unwrap()
        );
        let kind = spec["names"]["kind"].as_str().unwrap();
        wait::until(kind, LIMIT, || api.serves(&version, kind)).unwrap();
    }
}
