//! Two shoots whose nodes share one address: the ExternalName set-up with its DNS zone.
//!
//! ```text
//!     pod ── kubernetes.default… ? ─▶ 10.0.0.2:53 ┐ node a ── PROXY or CONNECT ─┐ seed
//!         ── TLS ───────────────────▶ 10.0.0.2:443┘                             ├─▶ API server a
//!     pod ──────────────────────────▶ 10.0.0.2     node b ──────────────────────┴─▶ API server b
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use serve::Drain;
use sni_proxy::{Config, Environment, Gateway};
use telemetry::LogControl;
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::command;
use testkit::http::{self, Target};
use testkit::netns::{End, Namespace, Place, cable};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use crate::dns::{A, AAAA, By, FakeDns, Says, ask};
use crate::node::{LIMIT, Node, at, config};

const NAME: &str = "kubernetes.default.svc.cluster.local";
/// What both shoots' pods connect to, and where their names are resolved.
const SHARED: &str = "10.0.0.2:443";
const RESOLVER: &str = "10.0.0.2:53";

#[test]
fn two_shoots_reach_api_servers_by_proxy_header() {
    both_ways(|shoot| {
        json!({
            "address": format!("{}:8443", shoot.gateway()), "mode": "proxy-protocol",
            "destination": format!("{}:443", shoot.service()),
        })
    });
}

#[test]
fn two_shoots_reach_api_servers_by_connect() {
    both_ways(|shoot| {
        json!({
            "address": format!("{}:8443", shoot.gateway()), "mode": "http-connect",
            "destination": shoot.cluster(),
        })
    });
}

fn both_ways(upstream: impl Fn(&Shoot) -> Value) {
    let seed = Arc::new(Namespace::new("seed").unwrap());
    let shoots = [0, 1].map(|number| Shoot::new(number, &seed));
    let _gateway = SeedGateway::start(&seed, &shoots);
    let nodes = shoots.each_ref().map(|shoot| shoot.start(upstream(shoot)));

    for (shoot, other) in [(&shoots[0], &shoots[1]), (&shoots[1], &shoots[0])] {
        let address = shoot.resolve();
        let of = |authority: &Authority| {
            let target = Target::tls(SocketAddr::new(address, 443), authority.pem());
            shoot
                .pod
                .run(|| http::get(&target.server_name(NAME), "/version"))
                .unwrap()
        };
        let version = of(&shoot.authority).unwrap().json().unwrap();
        assert_eq!(version["shoot"], shoot.id());
        assert!(
            of(&other.authority).is_err(),
            "the other shoot's server answered"
        );
    }
    drop(nodes);
}

/// A shoot: an API server in the seed, a node with its proxy, a pod behind it.
#[derive(Debug)]
struct Shoot {
    number: u8,
    authority: Authority,
    server: ApiServer,
    node: Node,
    pod: Namespace,
    _resolver: FakeDns,
}

impl Shoot {
    fn new(number: u8, seed: &Namespace) -> Self {
        let authority = Authority::new(&format!("shoot {number}")).unwrap();
        let identity = authority.server(&[NAME]).unwrap();
        let listener = Place::In(seed).bind(at("127.0.0.1:0")).unwrap();
        let server = ApiServer::start(listener, &id(number), &identity).unwrap();
        let node = Node::new(&format!("node-{number}"));
        let pod = Namespace::new(&format!("pod-{number}")).unwrap();

        let uplink = format!("node{number}");
        lay(
            (seed, &uplink),
            (&node.ns, "eth0"),
            &format!("192.0.2.{}", number * 4),
        );
        lay(
            (&node.ns, "pod0"),
            (&pod, "eth0"),
            &format!("100.96.{number}.0"),
        );
        pod.add_route("default", &format!("100.96.{number}.1"))
            .unwrap();
        // The node-local cache, which knows every other name.
        node.ns.add_address("lo", "169.254.20.10/32").unwrap();
        let elsewhere = Says::Addresses(vec!["198.51.100.7".parse().unwrap()]);
        let resolver = FakeDns::start(&node.ns, "169.254.20.10:53", elsewhere);
        Self {
            number,
            authority,
            server,
            node,
            pod,
            _resolver: resolver,
        }
    }

    /// Starts the node's proxy.
    fn start(&self, upstream: Value) -> ChildGuard {
        self.node.start(&config(json!({
            "listen": [SHARED],
            "upstream": upstream,
            "dns": {
                "address": RESOLVER, "zone": NAME, "answer": ["10.0.0.2"],
                "forward": ["169.254.20.10:53"],
            },
        })))
    }

    /// Finds the API server as a pod does.
    fn resolve(&self) -> std::net::IpAddr {
        let shared = "10.0.0.2".parse().unwrap();
        for by in [By::Udp, By::Tcp] {
            let ask = |name, kind| ask(&self.pod, at(RESOLVER), by, name, kind);
            assert_eq!(ask(NAME, A), (0, vec![shared]), "{by:?}");
            assert_eq!(ask(NAME, AAAA), (0, Vec::new()), "{by:?}");
        }
        let other = ask(&self.pod, at(RESOLVER), By::Udp, "registry.example", A);
        assert_eq!(other, (0, vec!["198.51.100.7".parse().unwrap()]));

        // The C library's resolver comes to the same result.
        let wrapper = self.node.resolving_at("10.0.0.2");
        let mut getent = self.pod.command(&wrapper[0]);
        getent
            .args(&wrapper[1..])
            .args(["getent", "ahostsv4", NAME]);
        let found = command::run(&mut getent).unwrap();
        let first = found.split_whitespace().next().unwrap();
        assert_eq!(first, "10.0.0.2");
        first.parse().unwrap()
    }

    fn id(&self) -> String {
        id(self.number)
    }

    /// Returns the gateway's address on the node's cable.
    fn gateway(&self) -> String {
        format!("192.0.2.{}", self.number * 4 + 1)
    }

    /// Returns the address of the API server's Service in the seed.
    fn service(&self) -> String {
        format!("10.243.0.{}", self.number + 1)
    }

    fn cluster(&self) -> String {
        format!(
            "outbound|443||kube-apiserver.{}.svc.cluster.local",
            self.id()
        )
    }
}

fn id(number: u8) -> String {
    format!("shoot--foo--{number}")
}

/// Lays a cable whose ends have the first and the second address behind `network`.
fn lay(near: (&Namespace, &str), far: (&Namespace, &str), network: &str) {
    let end = |(namespace, device)| End { namespace, device };
    cable(end(near), end(far)).unwrap();
    let (prefix, last) = network.rsplit_once('.').unwrap();
    let last: u8 = last.parse().unwrap();
    for ((namespace, device), offset) in [(near, 1), (far, 2)] {
        let cidr = format!("{prefix}.{}/30", last + offset);
        namespace.add_address(device, &cidr).unwrap();
    }
}

/// The seed's gateway, in this process and in the seed's namespace.
struct SeedGateway {
    drain: Drain,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl SeedGateway {
    fn start(seed: &Arc<Namespace>, shoots: &[Shoot]) -> Self {
        let clusters = shoots.iter().map(|shoot| {
            let address = shoot.server.addr().to_string();
            json!({ "name": shoot.cluster(), "endpoints": [{ "address": address }] })
        });
        let routes = shoots.iter().flat_map(|shoot| {
            let (cluster, service) = (shoot.cluster(), format!("{}/32", shoot.service()));
            [
                json!({ "destinations": [service], "port": 443, "cluster": cluster }),
                json!({ "connectDestinations": [cluster], "cluster": cluster }),
            ]
        });
        let routes = json!({
            "clusters": clusters.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>(),
        });
        let dir = TempDir::new("seed").unwrap();
        dir.write("routes.yaml", routes.to_string()).unwrap();
        let gateway = json!({
            "workers": 1,
            "probes": { "address": "127.0.0.1:0" },
            "admin": { "address": "" },
            "listeners": [
                { "name": "node", "address": "0.0.0.0:8443", "protocol": "proxy-or-connect" },
            ],
            "routing": { "file": "routes.yaml" },
        });
        let path = dir.write("gateway.yaml", gateway.to_string()).unwrap();
        let seed = Arc::clone(seed);
        let (sender, started) = channel();
        let thread = thread::spawn(move || {
            seed.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let config: Config = settings::load(&path).unwrap();
                    let log = LogControl::detached();
                    let gateway = Gateway::start(config, None, &Environment::default(), log)
                        .await
                        .unwrap();
                    sender.send(gateway.drain().clone()).unwrap();
                    gateway.run(None).await.unwrap();
                });
            })
            .unwrap();
        });
        Self {
            drain: started.recv_timeout(LIMIT).expect("the gateway starts"),
            thread: Some(thread),
            _dir: dir,
        }
    }
}

impl Drop for SeedGateway {
    fn drop(&mut self) {
        self.drain.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
