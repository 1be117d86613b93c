//! Envoy as the gateway: a PROXY listener that tells shoots apart by destination, the same with
//! server names besides, and a CONNECT listener that reads the cluster from a header.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;

use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::http::{self, Connection, Target};
use testkit::netns::Place;
use testkit::peers::envoy::{Envoy, Gateway, GatewayListener};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

use crate::node::{self, Node};
use crate::ours::LIMIT;
use crate::programs::{announce, free};

const HEADER: &str = "X-Gardener-Destination";

/// Where a node proxy listens, and the only cluster, of tests that need no second.
const NODE: &str = "127.0.9.1";
const CLUSTER: &str = "outbound|443||kube-apiserver.a.svc.cluster.local";

/// One shoot: its API server, whose clients trust no other server's certificate.
pub(crate) struct Shoot {
    pub(crate) name: &'static str,
    pub(crate) cluster: String,
    pub(crate) api: ApiServer,
    pub(crate) authority: Authority,
}

impl Shoot {
    pub(crate) fn new(name: &'static str) -> Self {
        let authority = Authority::new(name).unwrap();
        let server_name = format!("api.{name}.example.com");
        let names = [server_name.as_str(), "127.0.9.1", "127.0.9.2", "127.0.9.3"];
        let identity = authority.server(&names).unwrap();
        Self {
            name,
            cluster: format!("outbound|443||kube-apiserver.{name}.svc.cluster.local"),
            api: ApiServer::on_loopback(name, &identity).unwrap(),
            authority,
        }
    }

    /// Returns a target that trusts this shoot's API server alone.
    pub(crate) fn target(&self, addr: SocketAddr) -> Target {
        Target::tls(addr, self.authority.pem())
    }

    /// Asks for a few bytes and for many.
    fn answers_at(&self, addr: SocketAddr) {
        let version = http::get(&self.target(addr), "/version").unwrap();
        assert_eq!(version.json().unwrap()["shoot"], self.name);
        let big = http::get(&self.target(addr), "/big?bytes=5000000").unwrap();
        assert_eq!(big.body.len(), 5_000_000);
    }
}

/// Starts Envoy as a gateway with one listener before `shoots`.
pub(crate) fn envoy(dir: &TempDir, shoots: &[&Shoot], listener: GatewayListener) -> Envoy {
    start(dir, &resources(shoots, listener))
}

fn resources(shoots: &[&Shoot], listener: GatewayListener) -> Value {
    let clusters = shoots.iter().copied();
    let gateway = Gateway {
        listeners: vec![listener],
        clusters: clusters
            .map(|shoot| (shoot.cluster.clone(), vec![shoot.api.addr()]))
            .collect(),
    };
    gateway.resources()
}

fn start(dir: &TempDir, resources: &Value) -> Envoy {
    announce("envoy");
    Envoy::start(Place::Here, dir.path(), "gateway", resources)
        .unwrap_or_else(|error| panic!("{error:#}"))
}

/// A listener for PROXY headers, with the destinations of the shoots' nodes.
pub(crate) fn by_destination(listen: SocketAddr, routes: &[(&str, &Shoot)]) -> GatewayListener {
    let routes = routes
        .iter()
        .map(|(address, shoot)| (address.parse().unwrap(), shoot.cluster.clone()));
    GatewayListener::ProxyProtocol {
        listen,
        routes: routes.collect(),
    }
}

/// A listener for CONNECT requests.
pub(crate) fn by_header(listen: SocketAddr) -> GatewayListener {
    GatewayListener::Connect {
        listen,
        header: HEADER.to_owned(),
    }
}

/// The node proxy under test.
pub(crate) fn node(dir: &Path, address: &str, upstream: &Value) -> Node {
    let binary = Path::new(env!("CARGO_BIN_EXE_apiserver-proxy"));
    Node::start(binary, dir, address, upstream)
}

#[test]
fn envoy_tells_shoots_apart_by_our_proxy_header() {
    let dir = TempDir::new("envoy-gateway").unwrap();
    let (a, b) = (Shoot::new("shoot--foo--a"), Shoot::new("shoot--foo--b"));
    let front = free("127.0.0.1");
    // The third node listens where it must not be routed by, and names the second's address.
    let routes = [("127.0.9.1", &a), ("127.0.9.2", &b)];
    let _envoy = envoy(&dir, &[&a, &b], by_destination(front, &routes));
    for version in [1, 2] {
        let upstream = node::by_proxy_header(front, version);
        let first = node(dir.path(), "127.0.9.1", &upstream);
        a.answers_at(first.addr);
        let record = first.process.wait_record("a connection's end", |_| true);
        assert_eq!(record["reason"], "closed", "{record}");
        assert_eq!(record["destination"], first.addr.to_string(), "{record}");
        assert_eq!(record["endpoint"], front.to_string(), "{record}");
        let second = node(dir.path(), "127.0.9.2", &upstream);
        b.answers_at(second.addr);
        let mut upstream = upstream;
        upstream["destination"] = json!("127.0.9.2:443");
        let third = node(dir.path(), "127.0.9.3", &upstream);
        b.answers_at(third.addr);
    }
}

#[test]
fn unknown_destination_in_envoy_closes_client() {
    let dir = TempDir::new("envoy-gateway").unwrap();
    let shoot = Shoot::new("shoot--foo--a");
    let front = free("127.0.0.1");
    let routes = [("127.0.9.1", &shoot)];
    let _envoy = envoy(&dir, &[&shoot], by_destination(front, &routes));
    let lost = node(dir.path(), "127.0.9.2", &node::by_proxy_header(front, 2));
    assert!(Connection::open(&shoot.target(lost.addr)).is_err());
    let record = lost.process.wait_record("the connection's end", |_| true);
    let reason = record["reason"].as_str().unwrap();
    assert!(["closed", "upstream_reset"].contains(&reason), "{record}");
}

#[test]
fn envoy_reads_sni_after_our_proxy_header() {
    let dir = TempDir::new("envoy-gateway").unwrap();
    let (a, b) = (Shoot::new("shoot--foo--a"), Shoot::new("shoot--foo--b"));
    let front = free("127.0.0.1");
    let name = |shoot: &Shoot| format!("api.{}.example.com", shoot.name);
    let routes = [&a, &b].map(|shoot| (vec![name(shoot)], shoot.cluster.clone()));
    let listener = GatewayListener::Tls {
        listen: front,
        routes: routes.to_vec(),
    };
    let mut resources = resources(&[&a, &b], listener);
    // In front of the TLS inspector, as on a gateway behind a load balancer that adds headers.
    let kind = "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
    let filters = &mut resources["listeners"][0]["listener_filters"];
    filters.as_array_mut().unwrap().insert(
        0,
        json!({
            "name": "envoy.filters.listener.proxy_protocol",
            "typed_config": { "@type": format!("type.googleapis.com/{kind}") },
        }),
    );
    let _envoy = start(&dir, &resources);
    for version in [1, 2] {
        let upstream = node::by_proxy_header(front, version);
        let node = node(dir.path(), "127.0.9.1", &upstream);
        for shoot in [&a, &b] {
            let target = shoot.target(node.addr).server_name(&name(shoot));
            let answer = http::get(&target, "/version").unwrap();
            assert_eq!(answer.json().unwrap()["shoot"], shoot.name);
        }
    }
}

#[test]
fn envoy_is_led_by_our_connect_header() {
    let dir = TempDir::new("envoy-gateway").unwrap();
    let (a, b) = (Shoot::new("shoot--foo--a"), Shoot::new("shoot--foo--b"));
    let front = free("127.0.0.1");
    let _envoy = envoy(&dir, &[&a, &b], by_header(front));
    for (address, shoot) in [("127.0.9.1", &a), ("127.0.9.2", &b)] {
        let node = node(
            dir.path(),
            address,
            &node::by_connect(front, &shoot.cluster),
        );
        shoot.answers_at(node.addr);
        let record = node.process.wait_record("a connection's end", |_| true);
        assert_eq!(record["reason"], "closed", "{record}");
        assert_eq!(record["connect"], shoot.cluster, "{record}");
    }
}

#[test]
fn envoys_connect_refusal_is_not_forwarded() {
    let dir = TempDir::new("envoy-gateway").unwrap();
    let shoot = Shoot::new("shoot--foo--a");
    let front = free("127.0.0.1");
    let _envoy = envoy(&dir, &[&shoot], by_header(front));
    // Of the right form, but unknown: 503. Of another form: a redirect.
    let unknown = shoot.cluster.replace("foo", "other");
    for (address, destination) in [("127.0.9.1", unknown.as_str()), ("127.0.9.2", "nonsense")] {
        let node = node(dir.path(), address, &node::by_connect(front, destination));
        assert!(Connection::open(&shoot.target(node.addr)).is_err());
        let record = node.process.wait_record("the connection's end", |_| true);
        assert_eq!(record["reason"], "connect_failed", "{record}");
        assert_eq!(record["tx_bytes"], 0, "{record}");
    }
}

/// The modes of a node proxy before `front`, with Envoy's listener for each.
fn modes(front: SocketAddr) -> [(GatewayListener, Value); 2] {
    let routes = vec![(NODE.parse().unwrap(), CLUSTER.to_owned())];
    let by_destination = GatewayListener::ProxyProtocol {
        listen: front,
        routes,
    };
    [
        (by_destination, node::by_proxy_header(front, 2)),
        (by_header(front), node::by_connect(front, CLUSTER)),
    ]
}

/// Starts Envoy with `listener` before `server`, a node proxy before it, and connects to that.
fn through(listener: GatewayListener, upstream: &Value, server: &Upstream) -> Through {
    let dir = TempDir::new("envoy-gateway").unwrap();
    let gateway = Gateway {
        listeners: vec![listener],
        clusters: vec![(CLUSTER.to_owned(), vec![server.addr()])],
    };
    let envoy = start(&dir, &gateway.resources());
    let node = node(dir.path(), NODE, upstream);
    let stream = TcpStream::connect(node.addr).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    Through {
        stream,
        node,
        _envoy: envoy,
        _dir: dir,
    }
}

/// A connection to a node proxy, and what it runs through.
struct Through {
    stream: TcpStream,
    node: Node,
    _envoy: Envoy,
    _dir: TempDir,
}

#[test]
fn server_first_protocol_passes_envoy() {
    let server = Upstream::start(Behavior::Source { bytes: 3_000_000 }).unwrap();
    for (listener, upstream) in modes(free("127.0.0.1")) {
        let mut way = through(listener, &upstream, &server);
        let mut said = Vec::new();
        way.stream.read_to_end(&mut said).unwrap();
        assert_eq!(said.len(), 3_000_000);
        drop(way.stream);
        way.node.process.assert_no_connection_left();
    }
}

#[test]
fn half_close_passes_envoy() {
    let server = Upstream::start(Behavior::AnswersAtEof).unwrap();
    // Not by CONNECT: Envoy ends such a tunnel both ways as soon as its client ends one.
    let [(listener, upstream), _] = modes(free("127.0.0.1"));
    let mut way = through(listener, &upstream, &server);
    way.stream.write_all(&[b'x'; 50_000]).unwrap();
    // Envoy has dialed the server before the end comes: on a busy machine the header, all bytes and
    // the end may reach it at once, and then the answer was seen to stay out.
    server.wait_accepted(1, LIMIT).unwrap();
    way.stream.write_all(&[b'x'; 50_000]).unwrap();
    way.stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    way.stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "100000");
    let record = way.node.process.wait_record("its end", |_| true);
    assert_eq!(record["reason"], "closed", "{record}");
}
