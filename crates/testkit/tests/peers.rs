//! The real peers among themselves, without anything of ours between: whatever fails here is not
//! our proxies' fault.
#![cfg(feature = "peer-tests")]
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails where its step fails"
)]

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::command;
use testkit::http::{self, Connection, Proxy, RefusedByProxy, Target};
use testkit::netns::Place;
use testkit::peers::envoy::{Envoy, Gateway, GatewayListener, NodeProxy, NodeProxyMode};
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::ports;
use testkit::tempdir::TempDir;
use testkit::wait;

const CLUSTER: &str = "outbound|443||kube-apiserver.shoot--foo--bar.svc.cluster.local";
const HEADER: &str = "X-Gardener-Destination";
const LIMIT: Duration = Duration::from_secs(20);

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], ports::free(1).unwrap()[0]))
}

fn shoot() -> (ApiServer, Authority) {
    let authority = Authority::new("shoot").unwrap();
    let identity = authority
        .server(&["api.foo.example.com", "127.0.0.1"])
        .unwrap();
    (
        ApiServer::on_loopback("shoot--foo--bar", &identity).unwrap(),
        authority,
    )
}

fn gateway(dir: &TempDir, api: &ApiServer, listener: GatewayListener) -> Envoy {
    let gateway = Gateway {
        listeners: vec![listener],
        clusters: vec![(CLUSTER.to_owned(), vec![api.addr()])],
    };
    Envoy::start(Place::Here, dir.path(), "gateway", &gateway.resources()).unwrap()
}

fn asks_its_own(target: &Target) {
    let version = http::get(target, "/version").unwrap().json().unwrap();
    assert_eq!(version["shoot"], "shoot--foo--bar");
}

#[test]
fn envoy_connects_node_to_api_server_by_connect() {
    let dir = TempDir::new("peers").unwrap();
    let (api, authority) = shoot();
    let (front, node) = (loopback(), loopback());
    let listener = GatewayListener::Connect {
        listen: front,
        header: HEADER.to_owned(),
    };
    let _gateway = gateway(&dir, &api, listener);
    let mode = NodeProxyMode::Connect {
        header: HEADER.to_owned(),
        value: CLUSTER.to_owned(),
    };
    let resources = NodeProxy {
        listen: node,
        gateway: front,
        mode,
    }
    .resources();
    let _proxy = Envoy::start(Place::Here, dir.path(), "node-proxy", &resources).unwrap();

    asks_its_own(&Target::tls(node, authority.pem()));
    let direct = Target::tls(front, authority.pem()).server_name("api.foo.example.com");
    asks_its_own(&direct.clone().proxy(Proxy::connect(HEADER, CLUSTER)));
    let unknown = CLUSTER.replace("foo", "unknown");
    let error = Connection::open(&direct.proxy(Proxy::connect(HEADER, &unknown))).unwrap_err();
    let refused = error.downcast_ref::<RefusedByProxy>().unwrap();
    assert_eq!(refused.status, 503);
}

#[test]
fn envoy_connects_node_to_api_server_by_proxy() {
    let dir = TempDir::new("peers").unwrap();
    let (api, authority) = shoot();
    let (front, node) = (loopback(), loopback());
    let routes = vec![(node.ip(), CLUSTER.to_owned())];
    let _gateway = gateway(
        &dir,
        &api,
        GatewayListener::ProxyProtocol {
            listen: front,
            routes,
        },
    );
    let resources = NodeProxy {
        listen: node,
        gateway: front,
        mode: NodeProxyMode::ProxyV2,
    }
    .resources();
    let _proxy = Envoy::start(Place::Here, dir.path(), "node-proxy", &resources).unwrap();

    asks_its_own(&Target::tls(node, authority.pem()));
    let src = "10.0.0.9:4000".parse().unwrap();
    let direct = Target::tls(front, authority.pem());
    asks_its_own(&direct.clone().proxy(Proxy::V1 { src, dst: node }));
    asks_its_own(&direct.proxy(Proxy::V2 { src, dst: node }));
}

#[test]
fn envoy_passes_tls_through_by_server_name() {
    let dir = TempDir::new("peers").unwrap();
    let (api, authority) = shoot();
    let front = loopback();
    let routes = vec![(vec!["api.foo.example.com".to_owned()], CLUSTER.to_owned())];
    let mut gateway = gateway(
        &dir,
        &api,
        GatewayListener::Tls {
            listen: front,
            routes,
        },
    );

    let target = Target::tls(front, authority.pem());
    asks_its_own(&target.clone().server_name("api.foo.example.com"));
    assert!(http::get(&target.server_name("api.other.example.com"), "/version").is_err());
    assert_eq!(
        http::get(&Target::plain(gateway.admin()), "/ready")
            .unwrap()
            .status,
        200
    );
    assert!(gateway.child().usage().unwrap().rss_kib > 1000);
}

#[test]
fn the_real_api_server_answers_kubectl() {
    let dir = TempDir::new("peers").unwrap();
    let params = KubeParams::new(
        SocketAddr::from(([127, 0, 0, 1], 0)),
        &["api.foo.example.com"],
    );
    let mut server = KubeApiServer::start(Place::Here, dir.path(), &params).unwrap();
    let version = http::get(&server.target(), "/version")
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(version["gitVersion"], "v1.20.2");

    let config = dir.join("kubeconfig");
    server
        .write_kubeconfig(&config, server.addr(), Some("api.foo.example.com"))
        .unwrap();
    let kubectl = command::require("kubectl").unwrap();
    let mut kubectl = Command::new(kubectl);
    kubectl
        .arg("--kubeconfig")
        .arg(&config)
        .args(["get", "namespaces", "-o", "name"]);
    // A fresh server makes its namespaces one by one, and is ready before the last.
    wait::until("the namespace default", LIMIT, || {
        command::run(&mut kubectl)
            .unwrap()
            .contains("namespace/default")
    })
    .unwrap();
    assert!(server.child().exit_status().unwrap().is_none());
}
