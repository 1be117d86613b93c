//! Keys and servers that change while the client runs.

use serde_json::json;
use testkit::process::Signal;
use testkit::wait;
use tunnel::keys::{generate, write_new};

use crate::seed::Seed;
use crate::shoot::{LIMIT, SERVER, Shoot};

const FAILURES: &str = "rhizome_vpn_client_reload_failures_total";
const RELOADS: &str = "rhizome_vpn_client_reloads_total";
const GOOD: &str = "rhizome_vpn_client_reload_good";
const CONFIG_GOOD: &str = "rhizome_vpn_client_config_good";

#[test]
fn broken_file_keeps_last_good_key() {
    let shoot = Shoot::new("broken");
    let _seed = Seed::start(&shoot, vec![shoot.client]);
    let client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    let good = std::fs::read(shoot.dir.join("client")).unwrap();
    shoot.dir.replace("client", "no key").unwrap();
    shoot.wait_metric(FAILURES, &[], 1.0);
    assert_eq!(shoot.metric(GOOD, &[]), Some(0.0));
    assert!(shoot.is_ready());
    shoot.dir.replace("client", good).unwrap();
    shoot.wait_metric(RELOADS, &[], 1.0);
    assert_eq!(shoot.metric(GOOD, &[]), Some(1.0));
    assert!(shoot.is_ready());
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn second_key_replaces_first_without_loss() {
    let shoot = Shoot::new("rotate");
    let next = generate().unwrap();
    write_new(&shoot.dir.join("next"), &next).unwrap();
    let seed = Seed::start(&shoot, vec![shoot.client]);
    let client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    shoot.write(&shoot.config(json!({ "keys": { "private": ["next", "client"] } })));
    shoot.wait_metric(RELOADS, &[], 1.0);
    assert!(shoot.is_ready());
    // A server that knows the second one alone.
    drop(seed);
    shoot.wait_ready(false);
    let _seed = Seed::start(&shoot, vec![next.public()]);
    shoot.wait_ready(true);
    shoot.write(&shoot.config(json!({ "keys": { "private": "next" } })));
    shoot.wait_metric(RELOADS, &[], 2.0);
    assert!(shoot.is_ready());
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn key_that_comes_after_its_configuration_is_used() {
    let shoot = Shoot::new("late");
    let _seed = Seed::start(&shoot, vec![shoot.client]);
    let client = shoot.start(&shoot.config(json!({})));
    shoot.wait_ready(true);
    shoot.write(&shoot.config(json!({ "keys": { "private": ["next", "client"] } })));
    shoot.wait_metric(FAILURES, &[], 1.0);
    let next = generate().unwrap();
    write_new(&shoot.dir.join("next"), &next).unwrap();
    shoot.wait_metric(RELOADS, &[], 1.0);
    // From now on a file like any other.
    shoot.dir.replace("next", "no key").unwrap();
    shoot.wait_metric(FAILURES, &[], 2.0);
    assert_eq!(client.stop(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn sighup_reloads_everything() {
    let shoot = Shoot::new("hangup");
    let mut client = shoot.start(&shoot.config(json!({})));
    client.signal(Signal::HUP).unwrap();
    shoot.wait_metric(RELOADS, &[], 1.0);
    // What needs a restart is told, and servers are taken all the same.
    let mut config = shoot.config(json!({ "masquerade": false }));
    let mut another = config["servers"][0].clone();
    another["name"] = json!("another");
    another["publicKeys"] = json!([generate().unwrap().public().to_string()]);
    another["routeId"] = json!(18);
    another["value"] = json!("outbound|1194||b");
    another["addresses"] = json!(["192.168.123.2"]);
    config["servers"].as_array_mut().unwrap().push(another);
    assert_eq!(shoot.metric(CONFIG_GOOD, &[]), Some(1.0));
    shoot.write(&config);
    shoot.wait_metric(RELOADS, &[], 2.0);
    assert_eq!(shoot.metric(CONFIG_GOOD, &[]), Some(0.0));
    wait::until("the other server to be shown", LIMIT, || {
        let told = shoot.admin("/tunnels").text();
        told.contains("another") && told.contains(SERVER)
    })
    .unwrap();
    assert!(shoot.nft(&["list", "ruleset"]).contains("masquerade"));
}

#[test]
fn refused_reload_reports_restart_it_needs() {
    let shoot = Shoot::new("dual");
    let _client = shoot.start(&shoot.config(json!({})));
    wait::until("the client to start", LIMIT, || {
        shoot.metric(CONFIG_GOOD, &[]) == Some(1.0)
    })
    .unwrap();
    // Another transfer network, which the addresses of the running process are not on.
    let mut config = shoot.config(json!({ "addresses": ["192.168.124.64/24"] }));
    config["servers"][0]["addresses"] = json!(["192.168.124.1"]);
    shoot.write(&config);
    shoot.wait_metric(FAILURES, &[], 1.0);
    assert_eq!(shoot.metric(CONFIG_GOOD, &[]), Some(0.0));
    shoot.write(&shoot.config(json!({})));
    wait::until("what is in effect to be back", LIMIT, || {
        shoot.metric(CONFIG_GOOD, &[]) == Some(1.0) && shoot.metric(GOOD, &[]) == Some(1.0)
    })
    .unwrap();
}
