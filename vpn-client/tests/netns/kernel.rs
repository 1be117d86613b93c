//! What the client does to the kernel, and takes back.

use serde_json::json;
use testkit::process::{NO_CAPABILITIES, Signal, TWO_CAPABILITIES};
use testkit::wait;

use crate::seed::Seed;
use crate::shoot::{DEVICE, LIMIT, SEED, Shoot, expect};

#[test]
fn two_capabilities_are_enough_and_nothing_stays() {
    let shoot = Shoot::new("two-caps");
    let client = shoot.start_as(&TWO_CAPABILITIES, &shoot.config(json!({ "mtu": 1400 })));
    let device = shoot.ns.ip(&["addr", "show", DEVICE]).unwrap();
    assert!(
        device.contains("mtu 1400") && device.contains("192.168.123.64/24"),
        "{device}"
    );
    assert!(!device.contains("inet6"), "{device}");
    for device in [DEVICE, "eth0"] {
        let name = format!("ipv4/conf/{device}/forwarding");
        assert_eq!(shoot.switch(&name, None), "1");
    }
    let rules = shoot.nft(&["list", "ruleset"]);
    assert!(
        rules.contains("masquerade") && rules.contains(DEVICE),
        "{rules}"
    );
    assert_eq!(
        shoot.metric("rhizome_vpn_client_masquerade_active", &[]),
        Some(1.0)
    );
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
    assert!(!shoot.has_device());
    assert_eq!(shoot.nft(&["list", "tables"]), "");
}

#[test]
fn without_them_it_says_what_is_missing() {
    let shoot = Shoot::new("no-caps");
    let config = shoot.config(json!({}));
    let output = testkit::command::output(
        shoot
            .ns
            .command(NO_CAPABILITIES[0])
            .args(&NO_CAPABILITIES[1..])
            .arg(env!("CARGO_BIN_EXE_vpn-client"))
            .arg("--config")
            .arg(
                shoot
                    .dir
                    .write("vpn-client.yaml", config.to_string())
                    .unwrap(),
            ),
    );
    expect(&output.unwrap(), 1, "NET_ADMIN");
    assert!(!shoot.has_device());
}

#[test]
fn without_masquerade_there_is_no_rule() {
    let shoot = Shoot::new("routed");
    let client = shoot.start(&shoot.config(json!({ "masquerade": false })));
    assert_eq!(shoot.nft(&["list", "tables"]), "");
    assert_eq!(
        shoot.metric("rhizome_vpn_client_network_settled", &[]),
        Some(1.0)
    );
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn flushed_rule_comes_back() {
    let shoot = Shoot::new("flushed");
    let mut client = shoot.start(&shoot.config(json!({})));
    shoot.nft(&["flush", "ruleset"]);
    client.signal(Signal::HUP).unwrap();
    wait::until("the rule to be back", LIMIT, || {
        shoot.nft(&["list", "ruleset"]).contains("masquerade")
    })
    .unwrap();
    assert!(client.exit_status().unwrap().is_none());
}

#[test]
fn client_recovers_soon_from_failure() {
    let shoot = Shoot::new("recovered");
    let seed = Seed::start(&shoot, vec![shoot.client]);
    let mut client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    let reported = |value| {
        wait::until("the server to be told", LIMIT, || {
            seed.client_is_unsettled() == value
        })
        .unwrap();
    };
    let settled = |value| {
        wait::until("the network to be looked at", LIMIT, || {
            shoot.metric("rhizome_vpn_client_network_settled", &[]) == Some(value)
        })
        .unwrap();
    };
    shoot.ns.ip(&["route", "delete", "default"]).unwrap();
    client.signal(Signal::HUP).unwrap();
    settled(0.0);
    reported(true);
    shoot.ns.add_route("default", SEED).unwrap();
    // Long before the next regular look.
    settled(1.0);
    reported(false);
}

#[test]
fn cleanup_removes_rule_of_killed_client() {
    let shoot = Shoot::new("killed");
    let config = shoot.config(json!({}));
    let mut client = shoot.start(&config);
    client.kill().unwrap();
    assert!(
        shoot
            .nft(&["list", "tables"])
            .contains("rhizome-vpn-client")
    );
    // The next one finds it done.
    let client = shoot.start(&config);
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
    assert_eq!(shoot.nft(&["list", "tables"]), "");

    shoot.start(&config).kill().unwrap();
    expect(&shoot.run(&["cleanup"], &config), 0, "");
    assert_eq!(shoot.nft(&["list", "tables"]), "");
    expect(&shoot.run(&["cleanup"], &config), 0, "");
}

#[test]
fn ipv6_network_needs_setup() {
    let shoot = Shoot::new("ipv6");
    let config = shoot.config(json!({
        "addresses": ["192.168.123.64/24", "fd8f:6d53:b97a:1::b:0/96"],
        "servers": [{
            "name": "a", "publicKeys": [shoot.server.public().to_string()], "value": "a",
            "addresses": ["192.168.123.1", "fd8f:6d53:b97a:1::1"],
        }],
        "networks": { "pods": ["100.96.0.0/11", "fd00:96::/64"] },
    }));
    for (switch, value) in [
        ("ipv6/conf/all/forwarding", "0"),
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
    ] {
        shoot.switch(switch, Some(value));
    }
    expect(&shoot.run(&[], &config), 64, "vpn-client setup");
    assert!(!shoot.has_device());
    // Forwarding alone is not enough.
    shoot.switch("ipv6/conf/all/forwarding", Some("1"));
    expect(&shoot.run(&[], &config), 64, "vpn-client setup");
    assert!(!shoot.has_device() && shoot.nft(&["list", "tables"]).is_empty());

    shoot.switch("ipv6/conf/all/forwarding", Some("0"));
    expect(&shoot.run(&["setup"], &config), 0, "setup finished");
    assert_eq!(shoot.switch("ipv6/conf/all/forwarding", None), "1");
    assert_eq!(shoot.switch("ipv6/conf/all/disable_ipv6", None), "0");
    expect(&shoot.run(&["setup"], &config), 0, "setup finished");
    let client = shoot.start(&config);
    let device = shoot.ns.ip(&["addr", "show", DEVICE]).unwrap();
    assert!(device.contains("fd8f:6d53:b97a:1::b:0/96"), "{device}");
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn start_fails_while_device_is_in_use() {
    let shoot = Shoot::new("twice");
    let config = shoot.config(json!({}));
    let _first = shoot.start(&config);
    let other = shoot.config(json!({
        "probes": { "address": "127.0.0.1:0" }, "admin": { "address": "" },
    }));
    expect(&shoot.run(&[], &other), 1, "in use");
    assert!(shoot.has_device());
}
