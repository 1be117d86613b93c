//! The gateway by name: several addresses, changing ones, and a resolver that fails.

use std::io::{Error, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::dns::{FakeDns, Says};
use crate::node::{LIMIT, LISTEN, Node, at, config, ping};

/// Written as Gardener writes it, with its last dot.
fn by_name() -> Value {
    let upstream = json!({ "address": "gateway.example.com.:8443", "mode": "proxy-protocol" });
    config(json!({ "upstream": upstream }))
}

fn addresses(all: &[&str]) -> Says {
    Says::Addresses(all.iter().map(|ip| ip.parse().unwrap()).collect())
}

fn gateway_at(node: &Node, ip: &str) -> Upstream {
    let listener = Place::In(&node.ns).bind(at(&format!("{ip}:8443"))).unwrap();
    Upstream::serve(listener, Behavior::Echo).unwrap()
}

fn start(node: &Node) -> ChildGuard {
    let wrapper = node.resolving_at("127.0.0.1");
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    node.spawn_as(&wrapper, &by_name())
}

#[test]
fn new_answers_move_only_new_connections() {
    let node = Node::new("names");
    let dns = FakeDns::start(&node.ns, "127.0.0.1:53", addresses(&["127.0.0.11"]));
    let (one, two) = (
        gateway_at(&node, "127.0.0.11"),
        gateway_at(&node, "127.0.0.12"),
    );
    let _proxy = start(&node);
    node.wait_ready(200);
    let mut old = node.connect(LISTEN).unwrap();
    ping(&mut old);

    dns.say(addresses(&["127.0.0.12"]));
    wait::until("the new address to be used", LIMIT, || {
        node.converse(LISTEN);
        two.accepted() > 0
    })
    .unwrap();
    let before = one.accepted();
    node.converse(LISTEN);
    assert_eq!(one.accepted(), before);
    ping(&mut old);
}

#[test]
fn answers_stay_in_use_while_the_resolver_fails() {
    let node = Node::new("stale");
    let dns = FakeDns::start(&node.ns, "127.0.0.1:53", addresses(&["127.0.0.11"]));
    let _gateway = gateway_at(&node, "127.0.0.11");
    let _proxy = start(&node);
    node.wait_ready(200);

    for says in [Says::Failure, Says::Addresses(Vec::new())] {
        dns.say(says);
        let (asked, watch) = (dns.asked(), Stopwatch::start());
        wait::until("questions that fail", LIMIT, || dns.asked() >= asked + 4).unwrap();
        println!("four questions after {:?}", watch.elapsed());
        node.converse(LISTEN);
        assert_eq!(node.probe("/ready").unwrap().status, 200);
    }
}

#[test]
fn failing_resolver_makes_it_unready() {
    let node = Node::new("unresolved");
    let dns = FakeDns::start(&node.ns, "127.0.0.1:53", Says::Failure);
    let _gateway = gateway_at(&node, "127.0.0.11");
    let _proxy = start(&node);
    node.wait_ready(503);
    let told = node.probe("/ready").unwrap().text();
    assert!(told.contains("name"), "{told}");
    // A client that connects meanwhile is not kept waiting for a name that may never resolve.
    let mut early = node.connect(LISTEN).unwrap();
    let ended = early.read(&mut [0; 1]);
    let waits =
        |error: &Error| [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind());
    assert!(
        matches!(&ended, Ok(0)) || matches!(&ended, Err(error) if !waits(error)),
        "{ended:?}"
    );
    dns.say(addresses(&["127.0.0.11"]));
    node.wait_ready(200);
    node.converse(LISTEN);
}

#[test]
fn dead_addresses_among_living_ones_cost_little() {
    let node = Node::new("dead");
    // No socket listens at .11, no connection is accepted at .12 and ::1.
    let answers = addresses(&["127.0.0.11", "127.0.0.12", "127.0.0.13", "::1"]);
    let _dns = FakeDns::start(&node.ns, "127.0.0.1:53", answers);
    let _full = ["127.0.0.12:8443", "[::1]:8443"].map(|addr| clogged(&node.ns, at(addr)));
    let gateway = gateway_at(&node, "127.0.0.13");
    let _proxy = start(&node);
    node.wait_ready(200);
    // Each connection starts with another IPv4 address.
    for _ in 0..3 {
        let watch = Stopwatch::start();
        node.converse(LISTEN);
        println!("connected and answered after {:?}", watch.elapsed());
        // At most two attempts of 250 ms each come first (RFC 8305 §5).
        assert!(watch.elapsed() < Duration::from_secs(4));
    }
    assert_eq!(gateway.accepted(), 3);
}

/// A listener that accepts no connection: its queue, for one connection, is full.
fn clogged(ns: &Namespace, addr: SocketAddr) -> (Socket, Vec<Socket>) {
    ns.run(|| {
        let fresh = || Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
        let listener = fresh();
        listener.bind(&addr.into()).unwrap();
        listener.listen(0).unwrap();
        let mut queued = Vec::new();
        let mut full = false;
        while !full {
            let client = fresh();
            full = client
                .connect_timeout(&addr.into(), Duration::from_millis(100))
                .is_err();
            queued.push(client);
        }
        (listener, queued)
    })
    .unwrap()
}

#[test]
fn gateway_with_only_ipv6_is_reached() {
    let node = Node::new("ipv6");
    let ip: IpAddr = "fd00:1::1".parse().unwrap();
    node.ns.add_address("lo", "fd00:1::1/128").unwrap();
    let _dns = FakeDns::start(&node.ns, "127.0.0.1:53", Says::Addresses(vec![ip]));
    let _gateway = gateway_at(&node, "[fd00:1::1]");
    let _proxy = start(&node);
    node.wait_ready(200);
    node.converse(LISTEN);
}
