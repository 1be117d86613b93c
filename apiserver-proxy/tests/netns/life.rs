//! A proxy's coming and going on a node: `setup`, runs, restarts, `cleanup`.

use std::io::ErrorKind;

use serde_json::json;
use testkit::process::Signal;

use crate::node::{DEVICE, LIMIT, LISTEN, Node, config, expect};

const CHANGES: &str = "rhizome_apiserver_proxy_address_changes_total";
const TABLE: &str = "rhizome-apiserver-proxy";

#[test]
fn cleanup_removes_addresses_of_setup_and_run() {
    let node = Node::new("setup");
    let _gateway = node.gateway();
    let text = config(json!({ "noTrack": "on" }));
    for _ in 0..2 {
        expect(&node.run(&["setup"], &text), None);
        assert_eq!(node.addresses_of(DEVICE), ["10.1.2.3/32"]);
    }
    let proxy = node.start(&text);
    node.converse(LISTEN);
    assert_eq!(node.metric(CHANGES, &[]), None, "nothing was left to do");
    assert_eq!(proxy.stop(LIMIT).unwrap().code(), Some(0));
    assert!(node.nft(&["list", "tables"]).contains(TABLE));

    for _ in 0..2 {
        expect(&node.run(&["cleanup"], &text), None);
        assert!(!node.has(DEVICE));
        assert_eq!(node.nft(&["list", "tables"]), "");
    }
}

#[test]
fn restart_keeps_node_and_refuses_meanwhile() {
    let node = Node::new("restart");
    let _gateway = node.gateway();
    let text = config(json!({}));
    let proxy = node.start(&text);
    let index = node.ns.ip(&["-o", "link", "show", DEVICE]).unwrap();
    assert_eq!(proxy.stop(LIMIT).unwrap().code(), Some(0));

    assert_eq!(node.addresses_of(DEVICE), ["10.1.2.3/32"]);
    let refused = node.connect(LISTEN).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    let mut again = node.start(&text);
    assert_eq!(node.ns.ip(&["-o", "link", "show", DEVICE]).unwrap(), index);
    assert_eq!(node.metric(CHANGES, &[]), None);
    node.converse(LISTEN);

    // Killed outright it leaves the same behind.
    again.kill().unwrap();
    let refused = node.connect(LISTEN).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let _third = node.start(&text);
    node.converse(LISTEN);
}

#[test]
fn with_cleanup_an_exit_leaves_nothing_behind() {
    let node = Node::new("cleanup");
    let _gateway = node.gateway();
    node.nft(&["add", "table", "inet", "foreign"]);
    let keys = json!({ "noTrack": "on", "interface": { "cleanup": true } });
    let mut proxy = node.start(&config(keys));
    node.converse(LISTEN);
    let tables = node.nft(&["list", "tables"]);
    assert!(tables.contains(TABLE), "{tables}");

    proxy.signal(Signal::TERM).unwrap();
    assert_eq!(proxy.wait_exit(LIMIT).unwrap().code(), Some(0));
    assert!(!node.has(DEVICE));
    assert_eq!(node.nft(&["list", "tables"]).trim(), "table inet foreign");
}

#[test]
fn a_new_proxy_starts_beside_one_that_drains() {
    let node = Node::new("overlap");
    let _gateway = node.gateway();
    let drain = |probes: &str| {
        config(json!({
            "drain": { "delay": "0s", "timeout": "60s" }, "probes": { "address": probes },
        }))
    };
    let mut old = node.start(&drain("127.0.0.1:16910"));
    let mut open = node.connect(LISTEN).unwrap();
    crate::node::ping(&mut open);
    old.signal(Signal::TERM).unwrap();
    node.wait_ready(503);

    let mut new = node.spawn_as(&[], &drain("127.0.0.1:16911"));
    new.wait_log("serving probes", LIMIT).unwrap();
    crate::node::ping(&mut open);
    drop(open);
    assert_eq!(old.wait_exit(LIMIT).unwrap().code(), Some(0));
    node.converse(LISTEN);
}
