//! A gateway that another control plane leads: istiod, as Gardener has it.
//!
//! ```text
//!     client ─▶ gateway ─▶ fake upstream
//!                  ▲ ADS, incremental or state of the world: `istiod`, by hand
//! ```
//!
//! Nothing here is encoded by our crates: `shapes` has what istiod sends, `wire` how it is written.

mod istiod;
mod shapes;
mod wire;

use std::net::SocketAddr;

use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use self::istiod::Istiod;
use self::shapes::{ASSIGNMENT, CLUSTER, LISTENER};
use super::control::wait_ready;
use crate::support::{Client, End, Gateway, LIMIT};

/// A gateway's name as istiod reads it: type, address, pod and namespace, domain.
const NODE: &str = "router~10.0.0.9~gateway-0.istio-ingress~istio-ingress.svc.cluster.local";

/// Gardener's port for metrics, which the gateway has no listener for.
const METRICS: u16 = 15_022;

/// The upstreams of a shoot: its API server, and its tunnel's server.
struct Shoot {
    name: &'static str,
    address: &'static str,
    api: Upstream,
    vpn: Upstream,
}

impl Shoot {
    fn new(name: &'static str, address: &'static str) -> Self {
        let [api, vpn] = [(); 2].map(|()| Upstream::start(Behavior::Echo).unwrap());
        Self {
            name,
            address,
            api,
            vpn,
        }
    }

    fn server_name(&self) -> String {
        format!("api.{}.example.com", self.name)
    }

    fn api_cluster(&self) -> String {
        let name = self.name;
        format!("outbound|443||kube-apiserver.shoot--foo--{name}.svc.cluster.local")
    }

    fn vpn_cluster(&self) -> String {
        let name = self.name;
        format!("outbound|1194||vpn-seed-server.shoot--foo--{name}.svc.cluster.local")
    }
}

/// A control plane, and a gateway that asks it.
struct Stage {
    istiod: Istiod,
    gateway: Gateway,
    ports: [u16; 3],
}

impl Stage {
    /// Starts both; the gateway keeps what it gets in `cache`.
    fn start(delta: bool, shoots: &[Shoot]) -> Self {
        let ports: [u16; 3] = testkit::ports::free(3).unwrap().try_into().unwrap();
        let istiod = Istiod::start(delta);
        publish(&istiod, ports, shoots);
        let gateway = gateway(istiod.addr, ports, "cache");
        wait_ready(&gateway);
        Self {
            istiod,
            gateway,
            ports,
        }
    }

    /// Tells whether a connection by a shoot's name is served.
    fn is_served(&self, shoot: &Shoot) -> bool {
        is_served(&self.gateway, shoot)
    }

    /// Sends a CONNECT with `header`, and returns the status of the answer.
    fn connect(&self, header: &str, value: &str) -> (Client, String) {
        let mut client = Client::open(self.gateway.addr("tunnel"));
        let head = format!("CONNECT api.example.com:443 HTTP/1.0\r\n{header}: {value}\r\n\r\n");
        client.send(head.as_bytes());
        let answer = client.read_head();
        let status = answer.split(' ').nth(1).unwrap().to_owned();
        (client, status)
    }
}

fn is_served(gateway: &Gateway, shoot: &Shoot) -> bool {
    let mut client = Client::hello(gateway.addr("sni"), &shoot.server_name());
    let served = client.stream().peek(&mut [0]).is_ok_and(|read| read == 1);
    if !served {
        assert_eq!(client.end(), End::Closed);
    }
    served
}

/// Starts a gateway with listeners at these ports, under names of its own.
fn gateway(control: SocketAddr, [sni, node, tunnel]: [u16; 3], cache: &str) -> Gateway {
    let config = format!(
        r#"
listeners:
- {{ name: sni, address: "127.0.0.1:{sni}", protocol: tls }}
- {{ name: node, address: "127.0.0.1:{node}", protocol: proxy-or-connect }}
- {{ name: tunnel, address: "127.0.0.1:{tunnel}", protocol: connect }}
routing: {{ xds: {{ server: "http://{control}", node: "{NODE}", cache: "{cache}" }} }}
"#
    );
    let dir = TempDir::new("foreign").unwrap();
    std::fs::create_dir(dir.join("cache")).unwrap();
    Gateway::start_with(dir, None, &config)
}

/// Publishes what istiod makes of these shoots' objects, in the place of what it was before.
fn publish(istiod: &Istiod, [sni, node, tunnel]: [u16; 3], shoots: &[Shoot]) {
    let pairs = |key: fn(&Shoot) -> String| -> Vec<(String, String)> {
        let pair = |shoot: &Shoot| (key(shoot), shoot.api_cluster());
        shoots.iter().map(pair).collect()
    };
    istiod.change(|resources| {
        resources.clear();
        let clusters = resources.entry(CLUSTER).or_default();
        clusters.insert("BlackHoleCluster".to_owned(), shapes::black_hole());
        for shoot in shoots {
            for name in [shoot.api_cluster(), shoot.vpn_cluster()] {
                clusters.insert(name.clone(), shapes::cluster(&name));
            }
        }
        let assignments = resources.entry(ASSIGNMENT).or_default();
        for shoot in shoots {
            for (name, upstream) in [
                (shoot.api_cluster(), &shoot.api),
                (shoot.vpn_cluster(), &shoot.vpn),
            ] {
                let assignment = shapes::assignment(&name, &[upstream.addr()]);
                assignments.insert(name, assignment);
            }
        }
        let listeners = resources.entry(LISTENER).or_default();
        for (port, listener) in [
            (sni, shapes::sni_listener(sni, &pairs(Shoot::server_name))),
            (
                node,
                shapes::node_listener(node, &pairs(|shoot| shoot.address.to_owned())),
            ),
            (tunnel, shapes::tunnel_listener(tunnel)),
            (METRICS, shapes::metrics_listener(METRICS)),
        ] {
            listeners.insert(shapes::listener_name(port), listener);
        }
    });
}

fn shoots() -> [Shoot; 2] {
    [Shoot::new("a", "10.1.2.3"), Shoot::new("b", "10.1.2.4")]
}

#[test]
fn istiod_routes_names_nodes_and_tunnels() {
    let shoots = shoots();
    for (delta, round) in [(true, 1), (false, 2)] {
        let stage = Stage::start(delta, &shoots);
        for shoot in &shoots {
            Client::established(stage.gateway.addr("sni"), &shoot.server_name());
            let header = "X-Gardener-Destination";
            let (mut by_value, status) = stage.connect(header, &shoot.api_cluster());
            assert_eq!(status, "200");
            by_value.expect_echo(b"hello");
            let (mut tunnel, status) = stage.connect("Reversed-VPN", &shoot.vpn_cluster());
            assert_eq!(status, "200");
            tunnel.expect_echo(b"packets");

            let destination = format!("{}:443", shoot.address).parse().unwrap();
            let source = "10.9.8.7:6543".parse().unwrap();
            let mut node = Client::open(stage.gateway.addr("node"));
            node.send(&proxy_header::v2(source, destination, &[]));
            node.expect_echo(&ClientHello::for_name("kubernetes").encode());
            let accepted = [shoot.api.accepted(), shoot.vpn.accepted()];
            assert_eq!(accepted, [3 * round, round]);
        }
        let (_, status) = stage.connect(
            "Reversed-VPN",
            &shoots[0].vpn_cluster().replace("--a", "--c"),
        );
        assert_eq!(status, "404");
        // What no pattern admits, although there is such a cluster.
        let (_, status) = stage.connect("Reversed-VPN", "BlackHoleCluster");
        assert_eq!(status, "404");

        let labels = [("result", "nack")];
        assert_eq!(
            stage.gateway.value("rhizome_xds_responses_total", &labels),
            0.0
        );
        let url = |kind: &str| format!("type.googleapis.com/{kind}");
        let types = [CLUSTER, ASSIGNMENT, LISTENER].map(url);
        wait::until("every type to be accepted", LIMIT, || {
            types
                .iter()
                .all(|url| stage.istiod.seen().acked.contains(url))
        })
        .unwrap();
        let seen = stage.istiod.seen();
        assert_eq!(seen.nacks, [""; 0]);
        assert!(seen.nodes.iter().eq([NODE]));
        // The one listener with routes elsewhere is none of ours.
        assert!(
            !seen
                .asked
                .iter()
                .any(|url| url.contains("RouteConfiguration"))
        );
    }
}

#[test]
fn changes_of_istiod_take_effect() {
    let other = Upstream::start(Behavior::Echo).unwrap();
    for delta in [true, false] {
        let shoots = shoots();
        let stage = Stage::start(delta, &shoots);
        let [a, b] = &shoots;
        let mut old = Client::established(stage.gateway.addr("sni"), &a.server_name());
        assert!(stage.is_served(b));

        let before = other.accepted();
        stage.istiod.change(|resources| {
            let moved = shapes::assignment(&a.api_cluster(), &[other.addr()]);
            let assignments = resources.entry(ASSIGNMENT).or_default();
            assignments.insert(a.api_cluster(), moved);
        });
        wait::until("the new endpoint to be used", LIMIT, || {
            Client::established(stage.gateway.addr("sni"), &a.server_name());
            other.accepted() > before
        })
        .unwrap();

        publish(&stage.istiod, stage.ports, &shoots[..1]);
        wait::until("the other shoot to be gone", LIMIT, || !stage.is_served(b)).unwrap();
        let (_, status) = stage.connect("Reversed-VPN", &b.vpn_cluster());
        assert_eq!(status, "404");
        assert!(stage.is_served(a));
        old.expect_echo(b"never noticed");
        assert_eq!(stage.istiod.seen().nacks, [""; 0]);
    }
}

#[test]
fn istiods_tls_cluster_is_refused_by_its_field() {
    let shoots = shoots();
    for delta in [true, false] {
        let stage = Stage::start(delta, &shoots);
        stage.istiod.change(|resources| {
            let clusters = resources.entry(CLUSTER).or_default();
            clusters.insert(
                "outbound|443||tls".to_owned(),
                shapes::tls_cluster("outbound|443||tls"),
            );
        });
        let path = "Cluster outbound|443||tls: transport_socket.common_tls_context: it is missing";
        wait::until("a refusal", LIMIT, || {
            stage
                .istiod
                .seen()
                .nacks
                .iter()
                .any(|why| why.contains(path))
        })
        .unwrap();
        assert!(shoots.iter().all(|shoot| stage.is_served(shoot)));
    }
}

#[test]
fn routes_of_istiod_outlive_it_in_the_cache() {
    let shoots = shoots();
    let stage = Stage::start(true, &shoots);
    let kept = TempDir::new("foreign-cache").unwrap();
    let Stage {
        istiod,
        gateway: first,
        ports,
    } = stage;
    let from = first.dir.join("cache/routes.cache");
    wait::until("the cache to be written", LIMIT, || from.exists()).unwrap();
    std::fs::copy(&from, kept.join("routes.cache")).unwrap();
    drop(first);
    let control = istiod.addr;
    drop(istiod);
    let second = gateway(control, ports, &kept.path().display().to_string());
    wait_ready(&second);
    assert!(shoots.iter().all(|shoot| is_served(&second, shoot)));
}
