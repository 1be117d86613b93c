//! Rules that keep connection tracking away, judged by the kernel's table of connections.

use std::fs;

use serde_json::json;
use testkit::process::Signal;
use testkit::wait;

use crate::node::{LIMIT, LISTEN, Node, config, converse, ping};

pub(crate) const ACTIVE: &str = "rhizome_apiserver_proxy_notrack_active";
pub(crate) const FAILURES: &str = "rhizome_apiserver_proxy_notrack_failures_total";
const TABLE: &str = "rhizome-apiserver-proxy";

/// A rule on connection state makes the kernel track what passes.
pub(crate) fn track_connections(node: &Node) {
    let chain = "{ type filter hook input priority 0; }";
    node.nft(&["add", "table", "inet", "firewall"]);
    node.nft(&["add", "chain", "inet", "firewall", "in", chain]);
    node.nft(&[
        "add", "rule", "inet", "firewall", "in", "ct", "state", "new", "counter",
    ]);
}

/// The kernel's entries for TCP connections to `port`.
fn tracked(node: &Node, port: u16) -> Vec<String> {
    let table = || fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    let needle = format!(" dport={port} ");
    node.ns
        .run(table)
        .unwrap()
        .lines()
        .filter(|line| line.contains(" tcp ") && line.contains(&needle))
        .map(str::to_owned)
        .collect()
}

pub(crate) fn has_table(node: &Node) -> bool {
    node.nft(&["list", "tables"]).contains(TABLE)
}

#[test]
fn tracked_node_skips_address() {
    let node = Node::new("notrack");
    let _gateway = node.gateway();
    track_connections(&node);
    let listen = json!({ "noTrack": "auto", "listen": [LISTEN, "[fd00:10::3]:443"] });
    let proxy = node.start(&config(listen));
    node.wait_metric(ACTIVE, &[], 1.0);
    println!("{}", node.nft(&["list", "table", "inet", TABLE]));

    node.converse(LISTEN);
    node.converse("[fd00:10::3]:443");
    assert_eq!(tracked(&node, 443), Vec::<String>::new());
    // The proof that others are: the proxy's own to its gateway.
    assert_eq!(tracked(&node, 8443).len(), 2);
    assert_eq!(proxy.stop(LIMIT).unwrap().code(), Some(0));
    assert!(
        has_table(&node),
        "without cleanup it stays, as the address does"
    );

    // The same node with the rules switched off.
    let _proxy = node.start(&config(json!({ "noTrack": "off" })));
    wait::until("the table to be gone", LIMIT, || !has_table(&node)).unwrap();
    node.wait_metric(ACTIVE, &[], 0.0);
    node.converse(LISTEN);
    assert_eq!(tracked(&node, 443).len(), 1);
}

#[test]
fn rules_appear_once_node_tracks() {
    let node = Node::new("untracked");
    let _gateway = node.gateway();
    let mut proxy = node.start(&config(json!({ "noTrack": "auto" })));
    node.wait_metric(ACTIVE, &[], 0.0);
    assert!(!has_table(&node));

    track_connections(&node);
    proxy.signal(Signal::HUP).unwrap();
    node.wait_metric(ACTIVE, &[], 1.0);
    assert!(has_table(&node));
    let client = node.connect(LISTEN).unwrap();
    converse(client);
    assert_eq!(tracked(&node, 443), Vec::<String>::new());
    assert_eq!(node.metric(FAILURES, &[]), None);
}

#[test]
fn proxy_restores_rules_after_flush() {
    let node = Node::new("flushed");
    let _gateway = node.gateway();
    track_connections(&node);
    let mut proxy = node.start(&config(json!({ "noTrack": "auto" })));
    node.wait_metric(ACTIVE, &[], 1.0);
    let mut open = node.connect(LISTEN).unwrap();
    ping(&mut open);
    let rules = node.nft(&["list", "table", "inet", TABLE]);

    node.nft(&["flush", "ruleset"]);
    track_connections(&node);
    proxy.signal(Signal::HUP).unwrap();
    wait::until("the table to be back", LIMIT, || has_table(&node)).unwrap();
    assert_eq!(node.nft(&["list", "table", "inet", TABLE]), rules);

    // A single rule more or less is noticed too.
    node.nft(&["add", "rule", "inet", TABLE, "output", "counter"]);
    proxy.signal(Signal::HUP).unwrap();
    wait::until("the table to be as it was", LIMIT, || {
        node.nft(&["list", "table", "inet", TABLE]) == rules
    })
    .unwrap();
    ping(&mut open);
}
