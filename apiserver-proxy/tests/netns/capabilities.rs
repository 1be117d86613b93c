//! The least privileges under which the program does what it promises.

use std::fs;

use serde_json::json;
use testkit::process::{ChildGuard, NO_CAPABILITIES, TWO_CAPABILITIES};

use crate::node::{DEVICE, LISTEN, Node, config, expect};

fn status(child: &ChildGuard, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
}

#[test]
fn two_capabilities_are_enough_for_everything() {
    let node = Node::new("two-caps");
    let _gateway = node.gateway();
    let keys = json!({
        "noTrack": "on",
        "interface": { "cleanup": true },
        "dns": { "address": "10.0.0.2:53", "zone": "a.example", "answer": ["10.0.0.2"] },
    });
    let text = config(keys);
    expect(&node.run_as(&TWO_CAPABILITIES, &["setup"], &text), None);
    let proxy = node.start_as(&TWO_CAPABILITIES, &text);
    // CAP_NET_BIND_SERVICE is 10, CAP_NET_ADMIN is 12.
    assert_eq!(status(&proxy, "CapEff"), 1 << 10 | 1 << 12);
    assert_eq!(status(&proxy, "CapBnd"), 1 << 10 | 1 << 12);
    assert_eq!(status(&proxy, "NoNewPrivs"), 1);
    node.converse(LISTEN);
    node.ns.ip(&["link", "del", DEVICE]).unwrap();
    testkit::wait::until("the device to be back", crate::node::LIMIT, || {
        node.has(DEVICE) && node.addresses_of(DEVICE).len() == 2
    })
    .unwrap();
    node.converse(LISTEN);
    assert_eq!(proxy.stop(crate::node::LIMIT).unwrap().code(), Some(0));
    assert!(!node.has(DEVICE));
    assert_eq!(node.nft(&["list", "tables"]), "");
}

#[test]
fn present_address_needs_no_capabilities() {
    let node = Node::new("no-caps");
    let _gateway = node.gateway();
    node.ns.add_address("lo", "10.1.2.3/32").unwrap();
    for no_track in ["auto", "off"] {
        let text = config(json!({
            "listen": ["10.1.2.3:6443"], "noTrack": no_track,
            "interface": { "manage": false, "cleanup": true },
        }));
        let proxy = node.start_as(&NO_CAPABILITIES, &text);
        assert_eq!(status(&proxy, "CapEff"), 0);
        node.converse("10.1.2.3:6443");
        let failures = node.metric("rhizome_apiserver_proxy_notrack_failures_total", &[]);
        assert_eq!(failures, None, "there is nothing to keep away: {no_track}");
        assert_eq!(proxy.stop(crate::node::LIMIT).unwrap().code(), Some(0));
    }
}

#[test]
fn proxy_counts_denied_rules_and_still_serves() {
    let node = Node::new("no-rules");
    let _gateway = node.gateway();
    node.ns.add_address("lo", "10.1.2.3/32").unwrap();
    crate::notrack::track_connections(&node);
    let text = config(json!({
        "listen": ["10.1.2.3:6443"], "noTrack": "auto", "interface": { "manage": false },
    }));
    let _proxy = node.start_as(&NO_CAPABILITIES, &text);
    let failures = "rhizome_apiserver_proxy_notrack_failures_total";
    node.wait_metric(failures, &[("reason", "permission")], 1.0);
    node.converse("10.1.2.3:6443");
}

#[test]
fn missing_capability_is_named() {
    let node = Node::new("refused");
    for arguments in [[].as_slice(), &["setup"], &["keep"]] {
        let output = node.run_as(&NO_CAPABILITIES, arguments, &config(json!({})));
        expect(&output, Some("CAP_NET_ADMIN"));
    }
    assert!(!node.has(DEVICE));
    // An address that is already there needs no capability; the rules of `noTrack: on` need one.
    expect(&node.run(&["setup"], &config(json!({}))), None);
    let output = node.run_as(&NO_CAPABILITIES, &[], &config(json!({ "noTrack": "on" })));
    expect(&output, Some("CAP_NET_ADMIN"));
}
