//! Envoy on the node, configured as Gardener configures it, dials our node listener: by CONNECT,
//! as today, and by PROXY header, as before.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;

use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::http::{self, Connection, Target, Watch};
use testkit::netns::Place;
use testkit::peers::envoy::{Envoy, NodeProxy, NodeProxyMode};
use testkit::process::listens;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::gateway::{self, CLUSTER, HEADER, NAME};
use crate::ours::{LIMIT, Ours};
use crate::programs::{announce, free};

struct Stage {
    dir: TempDir,
    authority: Authority,
    _api: ApiServer,
    gateway: Ours,
}

impl Stage {
    fn new() -> Self {
        announce("envoy");
        let dir = TempDir::new("envoy").unwrap();
        let authority = Authority::new("shoot").unwrap();
        let identity = authority.server(&[NAME, "127.0.9.1"]).unwrap();
        let api = ApiServer::on_loopback("shoot--foo--bar", &identity).unwrap();
        let gateway = gateway::plain(&dir, &gateway::to_one(api.addr()));
        Self {
            dir,
            authority,
            _api: api,
            gateway,
        }
    }

    fn envoy(&self, listen: SocketAddr, mode: NodeProxyMode) -> Envoy {
        let gateway = self.gateway.listener("node");
        let proxy = NodeProxy {
            listen,
            gateway,
            mode,
        };
        start(self.dir.path(), &proxy)
    }

    fn target(&self, node: SocketAddr) -> Target {
        Target::tls(node, self.authority.pem())
    }
}

fn start(dir: &Path, proxy: &NodeProxy) -> Envoy {
    Envoy::start(Place::Here, dir, "node-proxy", &proxy.resources())
        .unwrap_or_else(|error| panic!("{error:#}"))
}

fn by_connect(value: &str) -> NodeProxyMode {
    NodeProxyMode::Connect {
        header: HEADER.to_owned(),
        value: value.to_owned(),
    }
}

/// Waits for `count` further events, none lost and none twice.
fn follow(watch: &mut Watch, last: &mut u64, count: u64) {
    for _ in 0..count {
        let event = watch.next_event().unwrap().expect("the watch goes on");
        assert_eq!(event["sequence"].as_u64(), Some(*last + 1), "{event}");
        *last += 1;
    }
}

#[test]
fn node_envoy_is_routed_by_connect_header() {
    let stage = Stage::new();
    let node = free("127.0.9.1");
    let _envoy = stage.envoy(node, by_connect(CLUSTER));
    let version = http::get(&stage.target(node), "/version").unwrap();
    assert_eq!(version.json().unwrap()["shoot"], "shoot--foo--bar");
    let big = http::get(&stage.target(node), "/big?bytes=5000000").unwrap();
    assert_eq!(big.body.len(), 5_000_000);
    let record = stage
        .gateway
        .wait_record("a tunnel's end", |record| record["connect"] == CLUSTER);
    assert_eq!(record["listener"], "node", "{record}");
    assert_eq!(record["reason"], "closed", "{record}");
}

#[test]
fn node_envoy_gets_error_for_unknown_destination() {
    let stage = Stage::new();
    let node = free("127.0.9.1");
    let unknown = CLUSTER.replace("foo", "missing");
    let mut envoy = stage.envoy(node, by_connect(&unknown));
    assert!(Connection::open(&stage.target(node)).is_err());
    stage.gateway.wait_record("a refusal", |record| {
        record["reason"] == "unknown_destination"
    });
    assert!(envoy.child().exit_status().unwrap().is_none());
}

#[test]
fn envoy_on_the_node_is_led_by_its_proxy_header() {
    let stage = Stage::new();
    let node = free("127.0.9.1");
    let _envoy = stage.envoy(node, NodeProxyMode::ProxyV2);
    let version = http::get(&stage.target(node), "/version").unwrap();
    assert_eq!(version.json().unwrap()["shoot"], "shoot--foo--bar");
    let big = http::get(&stage.target(node), "/big?bytes=5000000").unwrap();
    assert_eq!(big.body.len(), 5_000_000);
    let record = stage.gateway.wait_record("a connection's end", |record| {
        record["destination"] == node.to_string()
    });
    assert_eq!(record["reason"], "closed", "{record}");
}

/// Starts a gateway before `server`, Envoy before it in each of `modes`, and connects to each.
fn through(modes: &[NodeProxyMode], server: &Upstream, job: impl Fn(TcpStream)) {
    announce("envoy");
    let dir = TempDir::new("envoy").unwrap();
    let gateway = gateway::plain(&dir, &gateway::to_one(server.addr()));
    for mode in modes {
        let listen = free("127.0.9.1");
        let proxy = NodeProxy {
            listen,
            gateway: gateway.listener("node"),
            mode: mode.clone(),
        };
        let _envoy = start(dir.path(), &proxy);
        let stream = TcpStream::connect(listen).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        job(stream);
    }
    gateway.assert_no_connection_left();
}

#[test]
fn server_first_protocol_passes_envoy() {
    let server = Upstream::start(Behavior::Source { bytes: 3_000_000 }).unwrap();
    let modes = [by_connect(CLUSTER), NodeProxyMode::ProxyV2];
    through(&modes, &server, |mut stream| {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert_eq!(said.len(), 3_000_000);
    });
}

#[test]
fn half_close_passes_envoy() {
    let server = Upstream::start(Behavior::AnswersAtEof).unwrap();
    // Not by CONNECT: Envoy ends such a tunnel both ways as soon as its client ends one.
    through(&[NodeProxyMode::ProxyV2], &server, |mut stream| {
        stream.write_all(&[b'x'; 100_000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "100000");
    });
}

#[test]
fn watch_survives_drain_of_node_envoy() {
    let stage = Stage::new();
    for mode in [by_connect(CLUSTER), NodeProxyMode::ProxyV2] {
        let node = free("127.0.9.1");
        let mut envoy = stage.envoy(node, mode);
        let admin = Target::plain(envoy.admin());
        let connection = Connection::open(&stage.target(node)).unwrap();
        let mut watch = connection.watch("/api?watch=1").unwrap();
        let mut last = 0;
        follow(&mut watch, &mut last, 3);

        let mut connection = Connection::open(&admin).unwrap();
        let answer = connection
            .request("POST", "/drain_listeners", None)
            .unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let pid = envoy.child().pid();
        wait::until("Envoy to listen no more", LIMIT, || !listens(pid, node)).unwrap();
        follow(&mut watch, &mut last, 5);

        let before = stage.gateway.records().len();
        envoy.child().kill().unwrap();
        let ended = loop {
            match watch.next_event() {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        };
        assert!(ended.is_err(), "the watch did not break off");
        wait::until("the connection's record", LIMIT, || {
            stage.gateway.records().len() > before
        })
        .unwrap();
        let record = stage.gateway.records().pop().unwrap();
        let reason = record["reason"].as_str().unwrap();
        assert!(["closed", "downstream_reset"].contains(&reason), "{record}");
        assert_eq!(stage.gateway.active(), 0.0);
    }
}
