//! Keys, peers and certificates that change under a running server.

use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;
use vpn_server::keygen;

use crate::support::{Call, LIMIT, Rig, peers};

const RELOADS: &str = "rhizome_vpn_keys_reloads_total";
const GOOD: &str = "rhizome_vpn_keys_good";
const CONFIG_GOOD: &str = "rhizome_vpn_config_good";

#[test]
fn changed_peers_apply_and_broken_ones_do_not() {
    let rig = Rig::start(&json!({}));
    let key = keygen(&rig.dir.join("b")).unwrap().to_string();
    rig.dir
        .replace("peers.yaml", peers(&[("b", &key)]))
        .unwrap();
    let Call::Replace(identity) = rig.call() else {
        panic!("another call");
    };
    assert_eq!(identity.peers.len(), 1);
    assert_eq!(identity.peers[0].name, "b");
    rig.wait_value(RELOADS, &[("result", "taken")], 1.0);
    rig.wait_value(GOOD, &[], 1.0);

    rig.dir
        .replace("peers.yaml", "peers: [{ name: c }]")
        .unwrap();
    rig.wait_value(RELOADS, &[("result", "refused")], 1.0);
    rig.wait_value(GOOD, &[], 0.0);
    assert!(rig.is_idle());
    // What is in effect again is no change, and good.
    rig.dir
        .replace("peers.yaml", peers(&[("b", &key)]))
        .unwrap();
    rig.wait_value(GOOD, &[], 1.0);
    assert!(rig.is_idle());

    let other = keygen(&rig.dir.join("c")).unwrap().to_string();
    let both = peers(&[("b", &key), ("c", &other)]);
    rig.dir.replace("peers.yaml", both).unwrap();
    let Call::Replace(identity) = rig.call() else {
        panic!("another call");
    };
    assert_eq!(identity.peers.len(), 2);
}

#[test]
fn changed_own_key_applies() {
    let rig = Rig::start(&json!({}));
    let key = keygen(&rig.dir.join("new")).unwrap();
    let text = std::fs::read(rig.dir.join("new")).unwrap();
    rig.dir.replace("own", text).unwrap();
    let Call::Replace(identity) = rig.call() else {
        panic!("another call");
    };
    assert_eq!(identity.keys[0].public(), key);
}

#[test]
fn changed_configuration_is_reported_as_not_applied() {
    let rig = Rig::start(&json!({}));
    rig.wait_value(CONFIG_GOOD, &[], 1.0);
    let file = rig.dir.join("server.yaml");
    let before = std::fs::read_to_string(&file).unwrap();
    let mut config: Value = serde_json::from_str(&before).unwrap();
    config["networks"]["pods"] = json!(["100.96.0.0/11", "100.128.0.0/16"]);
    for changed in [config.to_string(), "{}".to_owned()] {
        rig.dir.replace("server.yaml", changed).unwrap();
        rig.wait_value(CONFIG_GOOD, &[], 0.0);
        // Keys are taken all the same.
        let key = keygen(&rig.dir.join("new")).unwrap();
        std::fs::rename(rig.dir.join("new"), rig.dir.join("own")).unwrap();
        let Call::Replace(identity) = rig.call() else {
            panic!("another call");
        };
        assert_eq!(identity.keys[0].public(), key);
        rig.dir.replace("server.yaml", &before).unwrap();
        rig.wait_value(CONFIG_GOOD, &[], 1.0);
    }
    assert!(rig.is_idle());
}

#[test]
fn changed_authority_keeps_connections() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let mut before = rig.api_server().connect(&target).unwrap().unwrap();
    before.echo(b"x").unwrap();
    let next = Authority::new("next").unwrap();
    let client = next.client("kube-apiserver", &[], &[]).unwrap();
    let both = format!("{}{}", rig.authority.pem(), next.pem());
    rig.dir.replace("ca.crt", both).unwrap();
    wait::until("the new authority to be trusted", LIMIT, || {
        rig.client(Some(&client))
            .connect(&target)
            .is_ok_and(|answer| answer.is_ok())
    })
    .unwrap();
    assert!(rig.api_server().connect(&target).unwrap().is_ok());
    assert_eq!(before.echo(b"still").unwrap(), b"still");
}
