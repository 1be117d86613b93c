//! The addresses: put on a device, kept there, moved there, left alone.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::json;
use testkit::netns::Place;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::node::{ADDRESS, DEVICE, LIMIT, LISTEN, Node, at, config, converse, expect, ping};

/// What is promised for an address that another process removes.
const REPAIR_LIMIT: Duration = Duration::from_secs(1);

const CHANGES: &str = "rhizome_apiserver_proxy_address_changes_total";
const SETTLED: &str = "rhizome_apiserver_proxy_addresses_settled";

#[test]
fn addresses_on_named_device_serve() {
    let node = Node::new("addresses");
    let gateway = node.gateway();
    // Gardener's mapped addresses: 240.b.c.d, and an IPv4 Service behind 64:ff9b:1::/48.
    let listen = [
        LISTEN,
        "240.4.5.6:443",
        "[64:ff9b:1::a01:203]:443",
        "[fd00:10::3]:443",
    ];
    let _proxy = node.start(&config(json!({ "listen": listen })));

    let link = node.ns.ip(&["-d", "-o", "link", "show", DEVICE]).unwrap();
    println!("{link}");
    assert!(link.contains(",UP"), "{link}");
    assert!(
        ["dummy", "ifb", "bridge"]
            .iter()
            .any(|kind| link.contains(kind)),
        "{link}"
    );
    let mut held = node.addresses_of(DEVICE);
    held.sort();
    let mut wanted = [ADDRESS, "240.4.5.6"].map(|v4| format!("{v4}/32")).to_vec();
    wanted.extend(["64:ff9b:1::a01:203/128", "fd00:10::3/128"].map(str::to_owned));
    wanted.sort();
    assert_eq!(
        held.iter().map(|a| with_prefix(a)).collect::<Vec<_>>(),
        wanted
    );
    for address in listen {
        let client = node.connect(address).unwrap();
        let from = client.local_addr().unwrap();
        let header = proxy_header::v2(from, at(address), &[]);
        assert_eq!(converse(client), header, "{address}");
    }
    assert_eq!(gateway.accepted(), listen.len());
    assert_eq!(node.metric(SETTLED, &[]), Some(1.0));
    assert_eq!(
        node.metric(CHANGES, &[("change", "create_device")]),
        Some(1.0)
    );
    assert_eq!(
        node.metric(CHANGES, &[("change", "add_address")]),
        Some(4.0)
    );
}

/// `ip` leaves the prefix away where it is the whole address.
fn with_prefix(address: &str) -> String {
    if address.contains('/') {
        return address.to_owned();
    }
    format!("{address}/{}", if address.contains(':') { 128 } else { 32 })
}

#[test]
fn removed_address_returns_within_a_second() {
    let node = Node::new("removed");
    let _gateway = node.gateway();
    let listen = json!({ "listen": [LISTEN, "[fd00:10::3]:443"] });
    let _proxy = node.start(&config(listen));
    let mut open = node.connect(LISTEN).unwrap();
    ping(&mut open);

    for (address, socket) in [
        ("10.1.2.3/32", LISTEN),
        ("fd00:10::3/128", "[fd00:10::3]:443"),
    ] {
        node.ns
            .ip(&["addr", "del", address, "dev", DEVICE])
            .unwrap();
        back(&node, address, &format!("{address} removed"));
        // The kernel shows an address a moment before it has the route to it.
        wait::until_ok(
            "the route to it",
            REPAIR_LIMIT,
            || Ok(node.connect(socket)?),
        )
        .unwrap();
        node.converse(socket);
    }
    ping(&mut open);

    node.ns.ip(&["link", "del", DEVICE]).unwrap();
    for address in ["10.1.2.3/32", "fd00:10::3/128"] {
        back(&node, address, &format!("device deleted, {address}"));
    }
    node.ns.ip(&["link", "set", DEVICE, "down"]).unwrap();
    let up = || {
        node.ns
            .ip(&["link", "show", "up", "dev", DEVICE])
            .is_ok_and(|up| !up.is_empty())
    };
    wait::until("the device to be up again", REPAIR_LIMIT, up).unwrap();
    back(&node, "fd00:10::3/128", "device set down, fd00:10::3/128");
    wait::until_ok("the route", REPAIR_LIMIT, || Ok(node.connect(LISTEN)?)).unwrap();
    node.converse(LISTEN);
    ping(&mut open);
}

/// Waits until `address` is on the device again, and prints how long that took.
fn back(node: &Node, address: &str, what: &str) {
    let watch = Stopwatch::start();
    wait::until(&format!("{what}, to be put back"), REPAIR_LIMIT, || {
        node.has(DEVICE)
            && node
                .addresses_of(DEVICE)
                .iter()
                .any(|held| with_prefix(held) == address)
    })
    .unwrap();
    println!("{what}: back after {:?} (polled)", watch.elapsed());
}

#[test]
fn address_moves_from_lo_under_connections() {
    let node = Node::new("migrate");
    node.ns.add_address("lo", "10.1.2.3/32").unwrap();
    node.ns.add_address("lo", "10.9.9.9/32").unwrap();
    // Whatever served there before goes on with what it has.
    let before = Place::In(&node.ns).bind(at("10.1.2.3:6443")).unwrap();
    let _before = Upstream::serve(before, Behavior::Echo).unwrap();
    let mut old = node.connect("10.1.2.3:6443").unwrap();
    ping(&mut old);

    let _gateway = node.gateway();
    let _proxy = node.start(&config(json!({})));
    assert_eq!(node.addresses_of("lo"), ["10.9.9.9/32"]);
    assert_eq!(node.addresses_of(DEVICE), ["10.1.2.3/32"]);
    ping(&mut old);
    let mut new = node.connect(LISTEN).unwrap();
    ping(&mut new);

    // A process of the old setup puts it back on lo: it is removed there.
    node.ns.add_address("lo", "10.1.2.3/32").unwrap();
    wait::until("the address to leave lo", REPAIR_LIMIT, || {
        node.addresses_of("lo") == ["10.9.9.9/32"]
    })
    .unwrap();
    ping(&mut old);
    ping(&mut new);
}

#[test]
fn kind_lo_serves_old_set_ups() {
    let node = Node::new("lo");
    let _gateway = node.gateway();
    let text = config(json!({ "interface": { "kind": "lo" } }));
    let proxy = node.start(&text);
    assert_eq!(node.addresses_of("lo"), ["10.1.2.3/32"]);
    assert!(!node.has(DEVICE));
    node.converse(LISTEN);
    node.ns
        .ip(&["addr", "del", "10.1.2.3/32", "dev", "lo"])
        .unwrap();
    wait::until("the address to be back", REPAIR_LIMIT, || {
        node.addresses_of("lo") == ["10.1.2.3/32"]
    })
    .unwrap();
    proxy.stop(LIMIT).unwrap();
    expect(&node.run(&["cleanup"], &text), None);
    assert!(node.addresses_of("lo").is_empty());
    assert!(node.has("lo"));
}

#[test]
fn unmanaged_address_stays_on_any_device() {
    let node = Node::new("unmanaged");
    let _gateway = node.gateway();
    let text = config(json!({ "interface": { "manage": false, "cleanup": true } }));
    for arguments in [[].as_slice(), &["setup"]] {
        expect(&node.run(arguments, &text), Some(ADDRESS));
    }
    node.ns.add_address("lo", "10.1.2.3/32").unwrap();
    expect(&node.run(&["setup"], &text), None);

    let proxy = node.start(&text);
    node.converse(LISTEN);
    assert_eq!(node.metric(CHANGES, &[]), None);
    node.ns
        .ip(&["addr", "del", "10.1.2.3/32", "dev", "lo"])
        .unwrap();
    node.wait_ready(503);
    node.ns.add_address("lo", "10.1.2.3/24").unwrap();
    node.wait_ready(200);
    node.converse(LISTEN);
    assert_eq!(proxy.stop(LIMIT).unwrap().code(), Some(0));
    expect(&node.run(&["setup"], &text), None);
    expect(&node.run(&["cleanup"], &text), None);
    assert_eq!(node.addresses_of("lo"), ["10.1.2.3/24"]);
    assert!(!node.has(DEVICE));
}

#[test]
fn missing_device_kind_is_named() {
    let node = Node::new("kind");
    let lacks = node
        .ns
        .ip(&["link", "add", "probe0", "type", "dummy"])
        .is_err();
    if !lacks {
        node.ns.ip(&["link", "del", "probe0"]).unwrap();
    }
    let text = config(json!({ "interface": { "kind": "dummy" } }));
    expect(&node.run(&["setup"], &text), lacks.then_some("dummy"));
    assert_eq!(node.has(DEVICE), !lacks);
}

#[test]
fn ipv6_address_fails_without_ipv6() {
    let node = Node::new("no-ipv6");
    let switch = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    node.ns
        .run(|| std::fs::write(switch, "1"))
        .unwrap()
        .unwrap();
    let text = config(json!({ "listen": [LISTEN, "[fd00:10::3]:443"] }));
    expect(&node.run(&["setup"], &text), Some("fd00:10::3"));
    // What could be done is done.
    assert_eq!(node.addresses_of(DEVICE), ["10.1.2.3/32"]);
    expect(&node.run(&[], &text), Some("fd00:10::3"));
}

#[test]
fn address_refuses_connections_only_after_setup() {
    let node = Node::new("refuses");
    let text = config(json!({}));
    let unreachable = node.connect(LISTEN).unwrap_err();
    assert_eq!(unreachable.kind(), ErrorKind::NetworkUnreachable);
    expect(&node.run(&["setup"], &text), None);
    let refused = node.connect(LISTEN).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
