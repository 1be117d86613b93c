//! konnectivity-server in the API servers' own pods, over a Unix socket by each protocol, while API servers come
//! and go; as deploy/control-plane/konnectivity-sidecar and docs/deploy.md say.

use std::fs;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use deploy::Objects;
use deploy::gardener::SHOOT;
use serde_json::{Value, json};

use super::control;
use super::steps;
use super::up::{Clusters, ROLLOUT_LIMIT};
use crate::console::Console;

/// How API servers speak to the server in their pod: its `--mode`, and the egress selector's file.
const MODES: [(&str, &str); 2] = [
    ("grpc", "konnectivity-grpc-uds.yaml"),
    ("http-connect", "konnectivity-http-connect-uds.yaml"),
];

/// Deploys what servers in API servers' pods need, in the seed and in the shoot.
pub(crate) fn deploy(console: &mut Console, clusters: &Clusters) -> Result<()> {
    console.check("an operator brings what Gardener would", || bring(clusters))?;
    steps::apply(console, clusters, "control-plane/konnectivity-sidecar")?;
    console.check("a token comes from the shoot", || {
        let token = BASE64_STANDARD.encode(steps::token(clusters, ACCOUNT)?);
        let words = [
            "--namespace",
            SHOOT,
            "secret",
            "shoot-access-konnectivity-server",
        ];
        let data = json!({ "data": { "token": token } });
        clusters.seed.patch(&words, &data)?;
        Ok(String::new())
    })?;
    steps::apply(console, clusters, "shoot/konnectivity-agent-sidecar")
}

/// Moves API servers to the socket by each protocol, and has 2, 4 and 1 of them; then to the VPN, without sidecars.
pub(crate) fn come_and_go(clusters: &Clusters) -> Result<()> {
    let deployment = ["--namespace", SHOOT, "deployment/kube-apiserver"];
    let before = clusters.seed.get(&deployment)?;
    let revision = &before["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
    let revision = revision.as_str().context("no revision")?.to_owned();
    for (mode, file) in MODES {
        steps::write_egress(clusters, file)?;
        add_sidecar(clusters, mode)?;
        rolled(clusters)?;
        if mode == MODES[0].0 {
            let agents = "deployment/konnectivity-agent-sidecar";
            clusters
                .shoot
                .rolled_out("kube-system", agents, ROLLOUT_LIMIT)?;
        }
        for replicas in [2, 4, 1] {
            let replicas = format!("--replicas={replicas}");
            let scale = [&deployment[..2], &["scale", &replicas, deployment[2]]].concat();
            clusters.seed.run(&scale)?;
            rolled(clusters)?;
        }
    }
    steps::write_egress(clusters, steps::VPN_SELECTOR)?;
    let undo = ["rollout", "undo", deployment[2], "--to-revision", &revision];
    clusters.seed.run(&[&deployment[..2], &undo].concat())?;
    rolled(clusters)
}

fn rolled(clusters: &Clusters) -> Result<()> {
    clusters
        .seed
        .rolled_out(SHOOT, "deployment/kube-apiserver", ROLLOUT_LIMIT)
}

/// Applies the shipped patch, with a mode.
fn add_sidecar(clusters: &Clusters, mode: &str) -> Result<()> {
    let patch = Objects::read("control-plane/konnectivity-sidecar/kube-apiserver.yaml")?;
    let patch = patch.into_iter().next().context("an empty patch")?;
    let text = patch.to_string();
    ensure!(text.contains("--mode=grpc"), "the patch has another mode");
    let text = text.replace("--mode=grpc", &format!("--mode={mode}"));
    let patch = [
        "patch",
        "deployment/kube-apiserver",
        "--type=strategic",
        "--patch",
        &text,
    ];
    let words = [&["--namespace", SHOOT], &patch[..]].concat();
    clusters.seed.run(&words).map(|_| ())
}

/// Brings the account in the shoot, and the kubeconfig that control planes share.
fn bring(clusters: &Clusters) -> Result<String> {
    clusters.shoot.apply([json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": ACCOUNT, "namespace": "kube-system" },
    })])?;
    let authority = control::shoot(&clusters.root).directory.join("ca.crt");
    let authority = fs::read(&authority).context("reading the shoot's authority")?;
    let kubeconfig: Value = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "shoot",
        "contexts": [{ "name": "shoot", "context": { "cluster": "shoot", "user": "shoot" } }],
        "clusters": [{ "name": "shoot", "cluster": {
            "server": "https://kube-apiserver",
            "certificate-authority-data": BASE64_STANDARD.encode(authority),
        } }],
        "users": [{ "name": "shoot", "user": {
            "tokenFile": "/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig/token",
        } }],
    });
    clusters.seed.apply([json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "generic-token-kubeconfig", "namespace": SHOOT },
        "stringData": { "kubeconfig": kubeconfig.to_string() },
    })])?;
    Ok("an account, a kubeconfig".to_owned())
}

const ACCOUNT: &str = "konnectivity-server";
