//! Many runs at once: for one control plane, and for several that want the same few route ids.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use serde_json::json;

use crate::stage::{Stage, decode, said};

/// Control planes, each provisioned by two runs at once.
const PLANES: [&str; 4] = ["shoot--a--a", "shoot--b--b", "shoot--c--c", "shoot--d--d"];

#[test]
fn concurrent_runs_share_keys_not_route_ids() {
    let stage = Stage::new(&PLANES);
    // Made by hand, without a claim.
    stage.service(
        "default",
        "by-hand",
        &json!({ "rhizome.gardener.cloud/wireguard-route-id": "44" }),
    );
    // As many as all runs together may hold for a moment, and that one: they meet all the time.
    for plane in PLANES {
        stage.parameters(plane, "servers: 1\nrouteIdRange: [40, 48]\n");
    }
    let both = ["--kubeconfig", "kubeconfig", "--shoot-out"];
    let runs = PLANES.iter().flat_map(|plane| [(plane, 0), (plane, 1)]);
    let runs: Vec<_> = runs
        .map(|(plane, number)| {
            let mut command = stage.command(plane, &both);
            command.arg(format!("shoot-{plane}-{number}"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (*plane, command.spawn().unwrap())
        })
        .collect();
    let mut told: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (plane, run) in runs {
        let output = run.wait_with_output().unwrap();
        let text = said(&output);
        assert!(output.status.success(), "{plane}: {text}");
        let ids = text.lines().find(|line| line.starts_with("route ids: "));
        told.entry(plane)
            .or_default()
            .insert(ids.unwrap().to_owned());
    }
    let mut used = BTreeSet::new();
    let mut owners = BTreeMap::new();
    for plane in PLANES {
        let state = stage.state(plane).unwrap();
        let id = state["servers"][0]["routeId"].as_u64().unwrap();
        assert!((40..=48).contains(&id) && id != 44, "{plane}: {id}");
        assert!(used.insert(id), "{plane}: {id} is another one's as well");
        assert_eq!(told[plane], BTreeSet::from([format!("route ids: {id}")]));
        let claim = format!("rhizome-route-id-{id}");
        owners.insert(claim, format!("{plane}/vpn-seed-server-0"));
        agree(&stage, plane);
    }
    // The second run has given back its claim.
    assert_eq!(stage.claims(), owners);
}

/// Whichever run wrote what, the parts fit together.
fn agree(stage: &Stage, plane: &str) {
    let server = stage.secret(plane, "vpn-seed-server-0-keys");
    let state = stage.state(plane).unwrap();
    let key = state["servers"][0]["keys"]["current"].as_str().unwrap();
    assert_eq!(server["private-0"].trim(), key);
    let service = format!("/api/v1/namespaces/{plane}/services/vpn-seed-server-0");
    let service = stage.find(&service).unwrap();
    let public =
        &service["metadata"]["annotations"]["rhizome.gardener.cloud/wireguard-public-keys"];
    for number in 0..2 {
        let file = format!("shoot-{plane}-{number}/secret-vpn-shoot-0-keys.yaml");
        let text = std::fs::read_to_string(stage.dir.join(file)).unwrap();
        let secret: serde_json::Value = settings::yaml::from_str(&text, "s".as_ref()).unwrap();
        let config = decode(&secret["data"]["vpn-client.yaml"]);
        assert!(
            config.contains(public.as_str().unwrap()),
            "{plane} {number}: {config}"
        );
    }
}
