//! One control plane: made, made again, put back, refused, rotated.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
use testkit::process::ChildGuard;

use crate::stage::{LIMIT, Stage, said, secret_path};

const PLANE: &str = "shoot--foo--bar";

/// Two of each end.
const TWO: &str = "servers: 2\nclients: 2\n";

fn lines_with<'a>(text: &'a str, end: &str) -> BTreeSet<&'a str> {
    text.lines()
        .filter_map(|line| line.strip_suffix(end))
        .collect()
}

#[test]
fn objects_are_created_once_and_restored() {
    let stage = Stage::new(&[PLANE]);
    stage.parameters(PLANE, TWO);
    let told = stage.must(PLANE, &[]);
    let secrets = [
        "seed Secret shoot--foo--bar/vpn-provision",
        "seed Secret shoot--foo--bar/vpn-seed-server-0-keys",
        "seed Secret shoot--foo--bar/vpn-seed-server-1-keys",
        "seed Secret shoot--foo--bar/vpn-seed-server-client",
        "seed Secret shoot--foo--bar/vpn-seed-server-tls",
        "shoot Secret kube-system/vpn-shoot-0-keys",
        "shoot Secret kube-system/vpn-shoot-1-keys",
    ];
    assert_eq!(
        lines_with(&told, ": created"),
        BTreeSet::from(secrets),
        "{told}"
    );
    let made = stage.versions();
    let claims = stage.claims();
    assert_eq!(claims.len(), 2, "{claims:?}");

    // Again is nothing.
    let told = stage.must(PLANE, &[]);
    assert_eq!(lines_with(&told, ": unchanged").len(), 9, "{told}");
    assert_eq!(stage.versions(), made);

    // What was lost or edited comes back as it was; so does a claim.
    let tls = stage.secret(PLANE, "vpn-seed-server-tls");
    let client = stage.secret("kube-system", "vpn-shoot-1-keys");
    stage.delete(&secret_path(PLANE, "vpn-seed-server-tls"));
    let claim = claims.keys().next().unwrap();
    stage.delete(&format!("/api/v1/namespaces/garden/configmaps/{claim}"));
    let edit = r#"{"data":{"private-0":null,"private-1":"bm9uc2Vuc2U="}}"#;
    stage.kubectl(&[
        "-n",
        "kube-system",
        "patch",
        "secret",
        "vpn-shoot-1-keys",
        "-p",
        edit,
    ]);
    let service = [
        "-n",
        PLANE,
        "annotate",
        "--overwrite",
        "service",
        "vpn-seed-server-0",
    ];
    stage.kubectl(
        &[
            &service[..],
            &["rhizome.gardener.cloud/wireguard-route-id=9"],
        ]
        .concat(),
    );
    let told = stage.must(PLANE, &[]);
    assert_eq!(lines_with(&told, ": created").len(), 1, "{told}");
    assert_eq!(lines_with(&told, ": changed").len(), 2, "{told}");
    assert_eq!(stage.secret(PLANE, "vpn-seed-server-tls"), tls);
    assert_eq!(stage.secret("kube-system", "vpn-shoot-1-keys"), client);
    assert_eq!(stage.claims(), claims);
    let told = stage.must(PLANE, &[]);
    assert_eq!(lines_with(&told, ": unchanged").len(), 9, "{told}");

    // Running pods keep their networks: those to restart are named, once.
    stage.parameters(PLANE, &format!("{TWO}server: {{ flows: 1000 }}\n"));
    let told = stage.must(PLANE, &[]);
    for server in 0..2 {
        let line = format!("seed restart pod {PLANE}/vpn-seed-server-{server}: flows changed");
        assert!(told.lines().any(|one| one == line), "{told}");
    }
    assert!(!told.contains("restart pod kube-system/"), "{told}");
    stage.parameters(PLANE, TWO);
    stage.must(PLANE, &[]);
    assert!(!stage.must(PLANE, &[]).contains("restart pod"));

    rotations(&stage);
    refusals(&stage);
}

/// Both phases, the first of them stopped in the middle.
fn rotations(stage: &Stage) {
    let before = stage.state(PLANE).unwrap();
    let output = stage.run(PLANE, &["rotate", "complete"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_vpn-provision"));
    waiting.current_dir(stage.dir.path());
    waiting.args(["--config", "shoot--foo--bar.yaml"]);
    waiting.args([
        "--kubeconfig",
        "kubeconfig",
        "--shoot-kubeconfig",
        "kubeconfig",
    ]);
    waiting.args(["rotate", "start"]);
    let log = stage.dir.join("waiting.log");
    let mut waiting = ChildGuard::spawn("provision", &waiting, &log).unwrap();
    // It waits two minutes for pods that there are none of here.
    waiting
        .wait_log("pods read what was written", LIMIT)
        .unwrap();
    waiting.kill().unwrap();
    let preparing = stage.state(PLANE).unwrap();
    assert_eq!(preparing["phase"], "Preparing");
    assert_eq!(
        preparing["servers"][0]["keys"]["current"],
        before["servers"][0]["keys"]["current"]
    );
    let peers = stage.secret(PLANE, "vpn-seed-server-0-keys");
    assert_ne!(peers["private-0"], peers["private-1"]);

    let told = stage.must(PLANE, &["--settle", "0s", "rotate", "start"]);
    assert!(told.contains("rotation: Prepared"), "{told}");
    let prepared = stage.state(PLANE).unwrap();
    assert_eq!(prepared["servers"], preparing["servers"]);
    assert_eq!(prepared["clients"], preparing["clients"]);
    let told = stage.must(PLANE, &["--settle", "0s", "rotate", "start"]);
    assert!(told.contains("rotation: Prepared"), "{told}");

    let told = stage.must(PLANE, &["--settle", "0s", "rotate", "complete"]);
    assert!(told.contains("rotation: Completed"), "{told}");
    let completed = stage.state(PLANE).unwrap();
    assert_eq!(
        completed["servers"][1]["keys"]["current"],
        prepared["servers"][1]["keys"]["next"]
    );
    assert_eq!(
        completed["clients"][1]["current"],
        prepared["clients"][1]["next"]
    );
    assert_eq!(
        completed["authorities"]["current"],
        prepared["authorities"]["next"]
    );
    let service = "/api/v1/namespaces/shoot--foo--bar/services/vpn-seed-server-0";
    let service = stage.find(service).unwrap();
    let keys = &service["metadata"]["annotations"]["rhizome.gardener.cloud/wireguard-public-keys"];
    assert_eq!(keys.as_str().map(str::len), Some(44), "{keys}");
    assert!(
        service["spec"]["ports"]
            .as_array()
            .is_some_and(|ports| ports.len() == 2)
    );
    // The same command again, as of a script that was cut off, is no second rotation.
    stage.must(PLANE, &["--settle", "0s", "rotate", "complete"]);
    assert_eq!(stage.state(PLANE).unwrap(), completed);
}

/// Foreign objects stay, and nothing is written when something is missing.
fn refusals(stage: &Stage) {
    let before = stage.versions();
    stage.parameters(PLANE, "servers: 3\nclients: 2\n");
    let output = stage.run(PLANE, &[]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("Service shoot--foo--bar/vpn-seed-server-2 does not exist"),
        "{text}"
    );
    assert_eq!(stage.versions(), before);

    let foreign = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "vpn-shoot-2-keys" },
        "stringData": { "a": "b" },
    });
    stage.create("/api/v1/namespaces/kube-system/secrets", &foreign);
    stage.parameters(PLANE, "servers: 2\nclients: 3\n");
    let output = stage.run(PLANE, &[]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("Secret kube-system/vpn-shoot-2-keys is not ours"),
        "{text}"
    );
    assert_eq!(stage.secret("kube-system", "vpn-shoot-2-keys")["a"], "b");

    stage.parameters(PLANE, "servers: 1\n");
    let told = stage.must(PLANE, &[]);
    for gone in [
        "seed Secret shoot--foo--bar/vpn-seed-server-1-keys",
        "shoot Secret kube-system/vpn-shoot-1-keys",
    ] {
        assert!(
            told.contains(&format!("{gone}: no longer needed")),
            "{told}"
        );
    }

    stage.parameters(PLANE, "servers: 1\nserver: { flows: 0 }\n");
    let output = stage.run(PLANE, &[]);
    assert_eq!(output.status.code(), Some(64), "{}", said(&output));
    assert!(
        said(&output).contains("flows: not between"),
        "{}",
        said(&output)
    );
}

#[test]
fn written_files_equal_applied_objects() {
    let stage = Stage::new(&[PLANE]);
    stage.parameters(PLANE, TWO);
    let files = |words: &[&str]| {
        let words = [&["--out", "manifests", "--kubeconfig", "kubeconfig"], words].concat();
        let output = stage.command(PLANE, &words).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, told) = files(&[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(lines_with(&told, ": created").len(), 9, "{told}");
    assert_eq!(stage.claims().len(), 2);
    assert_eq!(stage.state(PLANE), None);
    assert_eq!(lines_with(&files(&[]).1, ": unchanged").len(), 9);

    let apply = |side: &str| {
        let dir = format!("manifests/{side}");
        stage.kubectl(&["apply", "--server-side", "-f", &dir])
    };
    apply("seed");
    apply("shoot");
    let told = stage.must(PLANE, &[]);
    assert_eq!(lines_with(&told, ": unchanged").len(), 9, "{told}");

    // Files take one step at a time, and not before pods have read the last one.
    let (code, told) = files(&["rotate", "start"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("rotation: Preparing") && told.contains("`rotate start` again"),
        "{told}"
    );
    let (code, told) = files(&["rotate", "start"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("--settle 2m"), "{told}");
    let (code, told) = files(&["--settle", "0s", "rotate", "start"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("rotation: Prepared"), "{told}");
    apply("seed");
    apply("shoot");
    assert_eq!(stage.state(PLANE).unwrap()["phase"], "Prepared");
    let read = stage.dir.join("manifests/seed/secret-vpn-provision.yaml");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(read).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let kinds: Value = serde_json::from_str(&stage.kubectl(&[
        "-n",
        PLANE,
        "get",
        "secrets",
        "-l",
        "app.kubernetes.io/managed-by=vpn-provision",
        "-o",
        "json",
    ]))
    .unwrap();
    assert_eq!(kinds["items"].as_array().map(Vec::len), Some(5));
}
