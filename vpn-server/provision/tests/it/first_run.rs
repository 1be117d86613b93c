//! The first run for a shoot. Its API server mounts a Secret that this run makes, so it does not answer
//! before the seed's part is there.

use std::process::Command;

use testkit::http;
use testkit::netns::Place;
use testkit::process::ChildGuard;

use crate::stage::{LIMIT, Stage, said, secret_path};

const PLANE: &str = "shoot--foo--bar";

/// What API servers and servers of the tunnel mount.
const SEED: [&str; 5] = [
    "vpn-provision",
    "vpn-seed-server-0-keys",
    "vpn-seed-server-1-keys",
    "vpn-seed-server-client",
    "vpn-seed-server-tls",
];

/// What `sysexits.h` calls EX_TEMPFAIL.
const AGAIN: i32 = 75;

#[test]
fn first_run_writes_seed_before_shoot_answers() {
    let stage = Stage::new(&[PLANE]);
    stage.parameters(PLANE, "servers: 2\nclients: 2\n");
    let mut shoot = stage.shoot();
    shoot.child().kill().unwrap();

    let told = run_again(&stage);
    for name in SEED {
        let created = format!("seed Secret {PLANE}/{name}: created");
        assert!(told.contains(&created), "{created} is not in {told}");
        assert!(!stage.secret(PLANE, name).is_empty(), "{name}");
    }
    for server in 0..2 {
        let path = format!("/api/v1/namespaces/{PLANE}/services/vpn-seed-server-{server}");
        let service = stage.find(&path).unwrap();
        let id = &service["metadata"]["annotations"]["rhizome.gardener.cloud/wireguard-route-id"];
        assert!(id.is_string(), "{service}");
    }
    // Again is nothing, as long as the shoot does not answer.
    let made = stage.versions();
    run_again(&stage);
    assert_eq!(stage.versions(), made);

    let mut waiting = command(&stage);
    waiting.args(["--wait", "50s"]);
    let log = stage.dir.join("waiting.log");
    let mut waiting = ChildGuard::spawn("provision", &waiting, &log).unwrap();
    waiting.wait_log("waiting for the shoot", LIMIT).unwrap();
    shoot.start_again(Place::Here).unwrap();
    let ended = waiting.wait_exit(LIMIT).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", waiting.log());
    for client in 0..2 {
        let path = secret_path("kube-system", &format!("vpn-shoot-{client}-keys"));
        let answer = http::get(&shoot.target(), &path).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(stage.versions(), made);
}

/// Runs the program once, which must ask to be run again; returns what it printed.
fn run_again(stage: &Stage) -> String {
    let output = command(stage).output().unwrap();
    let told = said(&output);
    assert_eq!(output.status.code(), Some(AGAIN), "{told}");
    told
}

fn command(stage: &Stage) -> Command {
    let both = [
        "--kubeconfig",
        "kubeconfig",
        "--shoot-kubeconfig",
        "shoot.kubeconfig",
    ];
    stage.command(PLANE, &both)
}
