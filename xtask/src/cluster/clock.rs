//! A node's clock that is set back: vpn-client as it is built here, in the place of its image, with libfaketime
//! between it and its C library, since a machine has one clock for all its namespaces.
//!
//! Not what a kubelet does with such a clock: it keeps the machine's.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::peers::faketime;

use super::changes;
use super::up::{Clusters, ROLLOUT_LIMIT};
use crate::workspace;

/// Starts the tunnel's clients again with a clock an hour behind, one after the other as each is ready, and
/// then as they were.
pub(crate) fn set_back(clusters: &Clusters) -> Result<()> {
    // Linked with the C library, as what is shipped is not.
    let program = workspace::build_in("dev", "vpn-client")?;
    let program = program.get("vpn-client")?;
    let directory = program.parent().context("a program in no directory")?;
    let behind = faketime::behind(Duration::from_secs(3600))?;
    let behind = behind.map(|(name, value)| json!({ "name": name, "value": value }));
    let mounts = [
        ("usr", json!("/usr"), "/usr"),
        ("programs", json!(directory), "/programs"),
    ];
    let volumes = mounts
        .iter()
        .map(|(name, path, _)| json!({ "name": name, "hostPath": { "path": path } }));
    let mounts = mounts
        .iter()
        .map(|(name, _, at)| json!({ "name": name, "mountPath": at, "readOnly": true }));
    let pod = json!({
        "containers": [{
            "name": "vpn-client",
            "image": "rhizome-test/pause:1",
            "command": ["/programs/vpn-client"],
            "env": Value::from_iter(behind),
            "volumeMounts": Value::from_iter(mounts),
        }],
        "volumes": Value::from_iter(volumes),
    });
    let patch = json!({ "spec": { "template": { "spec": pod } } }).to_string();
    let patch = ["patch", WORKLOAD, "--type=strategic", "--patch", &patch];
    let before = changes::old_handshakes(clusters)?;
    for words in [&patch[..], &["rollout", "undo", WORKLOAD]] {
        clusters
            .shoot
            .run(&[&["--namespace", NAMESPACE], words].concat())?;
        clusters
            .shoot
            .rolled_out(NAMESPACE, WORKLOAD, FOLLOWED_LIMIT)?;
    }
    let refused = changes::old_handshakes(clusters)? - before;
    ensure!(refused > 0.0, "no handshake was old: the clocks were right");
    Ok(())
}

const NAMESPACE: &str = "kube-system";
const WORKLOAD: &str = "statefulset/vpn-shoot";

/// A server refuses older handshakes for three minutes after the last session of a client that told it nothing.
const FOLLOWED_LIMIT: Duration = ROLLOUT_LIMIT.saturating_mul(3);
