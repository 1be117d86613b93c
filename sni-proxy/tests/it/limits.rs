//! Limits of connections: of the process, of a client, of a cluster.

use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Client, Gateway, LIMIT, routes_of};

const LISTENERS: &str = r#"
workers: 3
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: other, address: "127.0.0.1:0", protocol: tls }
- { name: maybe, address: "127.0.0.1:0", protocol: tls, proxyProtocol: optional }
- { name: behind, address: "127.0.0.1:0", protocol: tls, proxyProtocol: required }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect, proxyProtocol: optional }
trustedProxies: ["127.0.0.2/32"]
"#;

const BALANCER: &str = "127.0.0.2";

fn start(limits: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = format!("{LISTENERS}limits: {{ {limits} }}\n");
    let routes = routes_of(&[("a", upstream.addr())])
        + "- { destinations: [\"10.0.0.9/32\"], cluster: a }\n";
    (Gateway::start(&config, &routes), upstream)
}

fn hello() -> Vec<u8> {
    ClientHello::for_name("a.test").encode()
}

/// Waits until a connection like this one is served again, which it is once another has ended.
fn wait_served(gateway: &Gateway, from: &str, listener: &str) {
    let served = wait::until("a place to be free again", LIMIT, || {
        let mut client = Client::from_ip(from, gateway.addr(listener));
        let sent = client.try_send(&hello());
        let mut buf = [0; 1];
        sent.is_ok() && client.stream().peek(&mut buf).is_ok_and(|read| read == 1)
    });
    served.unwrap();
}

#[test]
fn connections_above_process_limit_are_refused() {
    let (gateway, upstream) = start("connections: 4");
    let held: Vec<Client> = (0..3)
        .map(|_| Client::established(gateway.addr("tls"), "a.test"))
        .collect();
    let silent = Client::open(gateway.addr("other")); // counts from accept
    gateway.wait_value("rhizome_listener_connections_active", &[], 4.0);
    for _ in 0..3 {
        Client::open(gateway.addr("tls")).end();
    }
    gateway.wait_closed("tls", "limit", 3);
    assert_eq!(upstream.accepted(), 3);
    drop(silent);
    gateway.wait_closed("other", "closed", 1);
    Client::established(gateway.addr("tls"), "a.test");
    drop(held);
}

#[test]
fn source_limit_spans_workers_and_listeners() {
    let (gateway, upstream) = start("connectionsPerSource: 3");
    let mut held = vec![
        Client::established(gateway.addr("tls"), "a.test"),
        Client::established(gateway.addr("other"), "a.test"),
        Client::open(gateway.addr("tls")), // says nothing, and counts
    ];
    gateway.wait_value("rhizome_listener_connections_active", &[], 3.0);
    for _ in 0..8 {
        Client::open(gateway.addr("tls")).end();
    }
    gateway.wait_closed("tls", "source_limit", 8);
    let mut neighbour = Client::from_ip("127.0.0.3", gateway.addr("tls"));
    neighbour.expect_echo(&hello());
    held.pop();
    wait_served(&gateway, "127.0.0.1", "tls");
    assert!(upstream.accepted() >= 4);
}

#[test]
fn source_limit_counts_proxied_client() {
    let (gateway, _upstream) = start("connectionsPerSource: 2");
    let open = |listener: &str, source: &str, then: &[u8]| {
        let destination = if source.starts_with('[') {
            "[fd00::9]:443"
        } else {
            "10.0.0.9:443"
        };
        let header = proxy_header::v2(source.parse().unwrap(), destination.parse().unwrap(), &[]);
        let mut client = Client::from_ip(BALANCER, gateway.addr(listener));
        let _ = client.try_send(&[header, then.to_vec()].concat());
        client
    };
    let mut held = Vec::new();
    for source in [
        "192.0.2.1:1",
        "192.0.2.1:2",
        "192.0.2.2:1",
        "[2001:db8::1]:1",
        "[2001:db8::f]:1",
    ] {
        let mut client = open("behind", source, &hello());
        assert_eq!(client.receive(hello().len()), hello(), "{source}");
        held.push(client);
    }
    open("behind", "192.0.2.1:3", &hello()).end();
    open("behind", "[2001:db8::ffff:ffff:ffff:ffff]:1", &hello()).end();
    open("maybe", "192.0.2.1:4", &hello()).end();
    gateway.wait_closed("behind", "source_limit", 2);
    gateway.wait_closed("maybe", "source_limit", 1);
    let mut next_network = open("behind", "[2001:db8:0:1::1]:1", &hello());
    assert_eq!(next_network.receive(hello().len()), hello());

    // A client counts from the header on, not only once it has said where it wants to go.
    let silent = open("behind", "192.0.2.2:2", b"");
    let counted = wait::until("a silent client to count", LIMIT, || {
        gateway
            .connections()
            .iter()
            .any(|open| open["client"] == "192.0.2.2:2")
    });
    counted.unwrap();
    open("behind", "192.0.2.2:3", &hello()).end();
    gateway.wait_closed("behind", "source_limit", 3);
    drop((silent, held));
}

#[test]
fn source_limit_counts_direct_peers_from_accept() {
    let (gateway, _upstream) = start("connectionsPerSource: 2");
    let silent = [
        Client::open(gateway.addr("maybe")),
        Client::open(gateway.addr("node")),
    ];
    gateway.wait_value("rhizome_listener_connections_active", &[], 2.0);
    for listener in ["maybe", "node"] {
        Client::open(gateway.addr(listener)).end();
        gateway.wait_closed(listener, "source_limit", 1);
    }
    drop(silent);

    // A peer that may be one, and turns out to be a node proxy, counts as itself.
    let source = "192.0.2.1:1".parse().unwrap();
    let header = proxy_header::v1(source, "10.0.0.9:443".parse().unwrap());
    let node = || {
        let mut client = Client::from_ip(BALANCER, gateway.addr("node"));
        let _ = client.try_send(&[header.clone(), hello()].concat());
        client
    };
    let mut held = [node(), node()];
    for client in &mut held {
        assert_eq!(client.receive(hello().len()), hello());
    }
    node().end();
    gateway.wait_closed("node", "source_limit", 2);
}

#[test]
fn cluster_connections_are_limited() {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let addr = upstream.addr();
    let routes = format!(
        r#"
clusters:
- {{ name: few, maxConnections: 2, endpoints: [{{ address: "{addr}" }}] }}
- {{ name: many, endpoints: [{{ address: "{addr}" }}] }}
routes:
- {{ serverNames: ["few.test"], cluster: few }}
- {{ serverNames: ["many.test"], cluster: many }}
"#
    );
    let gateway = Gateway::start(LISTENERS, &routes);
    let first = Client::established(gateway.addr("tls"), "few.test");
    let _second = Client::established(gateway.addr("other"), "few.test");
    Client::hello(gateway.addr("tls"), "few.test").end();
    gateway.wait_closed("tls", "limit", 1);
    let active = [("cluster", "few")];
    gateway.wait_value("rhizome_cluster_connections_active", &active, 2.0);
    let _unlimited = Client::established(gateway.addr("tls"), "many.test");
    drop(first);
    gateway.wait_value("rhizome_cluster_connections_active", &active, 1.0);
    let _third = Client::established(gateway.addr("tls"), "few.test");
}
