//! The addresses alone, kept for a proxy that is not ours.

use std::io::ErrorKind;

use serde_json::{Value, json};
use testkit::netns::Place;
use testkit::process::Signal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::node::{DEVICE, LIMIT, LISTEN, Node, at, config};

const TABLE: &str = "rhizome-apiserver-proxy";

/// A configuration without a gateway, which leaves nothing behind.
fn addresses_alone(more: Value) -> Value {
    let mut config = config(more);
    config.as_object_mut().unwrap().remove("upstream");
    config["interface"] = json!({ "cleanup": true });
    config
}

#[test]
fn keeper_holds_address_and_rules_for_another_proxy() {
    let node = Node::new("keep");
    let text = addresses_alone(json!({ "noTrack": "on" }));
    let output = node.run(&[], &text);
    assert_eq!(output.status.code(), Some(64), "a proxy needs a gateway");

    let mut keeper = node.keep(&text);
    assert_eq!(node.addresses_of(DEVICE), ["10.1.2.3/32"]);
    let settled = node.metric("rhizome_apiserver_proxy_addresses_settled", &[]);
    assert_eq!(settled, Some(1.0));
    assert_eq!(node.probe("/healthz").unwrap().status, 200);
    let refused = node.connect(LISTEN).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    let listener = Place::In(&node.ns).bind(at(LISTEN)).unwrap();
    let proxy = Upstream::serve(listener, Behavior::Echo).unwrap();
    node.converse(LISTEN);
    node.ns.ip(&["link", "del", DEVICE]).unwrap();
    wait::until("the address to be back", LIMIT, || {
        node.connect(LISTEN).is_ok()
    })
    .unwrap();
    node.nft(&["delete", "table", "inet", TABLE]);
    keeper.signal(Signal::HUP).unwrap();
    wait::until("the rules to be back", LIMIT, || {
        node.nft(&["list", "tables"]).contains(TABLE)
    })
    .unwrap();

    // What serves there still needs the address.
    assert_eq!(keeper.stop(LIMIT).unwrap().code(), Some(0));
    node.converse(LISTEN);
    keeper = node.keep(&text);
    drop(proxy);
    assert_eq!(keeper.stop(LIMIT).unwrap().code(), Some(0));
    assert!(!node.has(DEVICE));
    assert_eq!(node.nft(&["list", "tables"]), "");
}

/// GEP-8's node, with nginx as its proxy.
#[cfg(feature = "peer-tests")]
#[test]
fn nginx_serves_at_kept_address() {
    use std::io::{Read, Write};

    let node = Node::new("keep-nginx");
    let _gateway = node.gateway();
    let keeper = node.keep(&addresses_alone(json!({})));
    let (place, dir) = (Place::In(&node.ns), node.dir.path());
    let started = testkit::peers::nginx::start(place, dir, at(LISTEN), at(crate::node::GATEWAY));
    let _nginx = started.unwrap();
    let mut client = node.connect(LISTEN).unwrap();
    client.write_all(b"hello").unwrap();
    let mut wanted = testkit::proxy_header::v1(client.local_addr().unwrap(), at(LISTEN));
    wanted.extend(b"hello");
    let mut back = vec![0; wanted.len()];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back, wanted);
    assert_eq!(keeper.stop(LIMIT).unwrap().code(), Some(0));
}
