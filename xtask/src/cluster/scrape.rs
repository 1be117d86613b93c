//! Prometheus in the seed, with the file that is shipped, and what it sees of the shoot.
//!
//! Debian's Prometheus cannot discover what Kubernetes has: the addresses of kubelets are written in the place
//! of their discovery, and nothing is relabelled. How it reaches them is the file's.

use std::fs;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use deploy::gardener::SHOOT;
use serde_json::{Value, json};
use testkit::wait;

use super::steps::{self, objects};
use super::up::{Clusters, ROLLOUT_LIMIT};
use super::{control, network};

/// A way from Prometheus to its targets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// The Secret with the authority of a tunnel's proxy, and what a client shows it.
    secret: &'static str,
    /// The file below `deploy/monitoring/prometheus`.
    file: &'static str,
    /// What another tunnel's proxy is called in the file.
    proxy: [&'static str; 2],
}

pub(crate) const BY_VPN: Way = Way {
    name: "prometheus-vpn",
    secret: "vpn-seed-server-client",
    file: "shoot-by-tunnel.yaml",
    proxy: ["", ""],
};

/// As the file says of it in its first lines.
pub(crate) const BY_KONNECTIVITY: Way = Way {
    name: "prometheus-konnectivity",
    secret: "konnectivity-frontend",
    file: "shoot-by-tunnel.yaml",
    proxy: ["vpn-seed-server:9443", "konnectivity-server:8090"],
};

/// Starts one, and waits until it sees the kubelets of both nodes.
pub(crate) fn through(clusters: &Clusters, way: Way) -> Result<String> {
    let shoot = control::shoot(&clusters.root);
    clusters.shoot.apply(account())?;
    let token = steps::token(clusters, "prometheus")?;
    let words = ["--namespace", SHOOT, "secret", way.secret];
    let tunnel = clusters.seed.get(&words)?;
    let text = |name: &str| {
        let encoded = tunnel["data"][name]
            .as_str()
            .with_context(|| format!("no {name}"))?;
        let bytes = BASE64_STANDARD
            .decode(encoded)
            .map_err(anyhow::Error::msg)?;
        anyhow::Ok(String::from_utf8(bytes)?)
    };
    let authority = fs::read_to_string(shoot.directory.join("ca.crt")).context("reading ca.crt")?;
    let file = deploy::root().join("monitoring/prometheus").join(way.file);
    let file = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut file = with_addresses(&file)?;
    if !way.proxy[0].is_empty() {
        ensure!(
            file.contains(way.proxy[0]),
            "{} names no {}",
            way.file,
            way.proxy[0]
        );
        file = file.replace(way.proxy[0], way.proxy[1]);
    }
    let secret = |name: &str, data: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": data,
            "metadata": { "name": format!("{}-{name}", way.name), "namespace": SHOOT },
        })
    };
    clusters.seed.apply([
        secret(
            "tunnel",
            json!({
                "ca.crt": text("ca.crt")? + &authority,
                "tls.crt": text("tls.crt")?,
                "tls.key": text("tls.key")?,
            }),
        ),
        secret(
            "shoot",
            json!({ "ca.crt": authority, "token": token, "prometheus.yaml": file }),
        ),
    ])?;
    let pod = include_str!("prometheus.yaml").replace("NAME", way.name);
    clusters.seed.apply(objects(&pod, "prometheus.yaml")?)?;
    let seen = wait::until_ok("both kubelets", ROLLOUT_LIMIT, || {
        let query = "http://127.0.0.1:9090/api/v1/query?query=up%7Bjob=%22kubelet%22%7D==1";
        let exec = [
            "--namespace",
            SHOOT,
            "exec",
            way.name,
            "--",
            "/usr/bin/curl",
            "-s",
            query,
        ];
        let answer: Value = serde_json::from_str(&clusters.seed.run(&exec)?)?;
        let up = answer["data"]["result"].as_array().map_or(0, Vec::len);
        wait::pause(std::time::Duration::from_millis(500));
        ensure!(up == 2, "{up} of 2 kubelets are seen");
        Ok(up)
    })?;
    clusters
        .seed
        .run(&["--namespace", SHOOT, "delete", "pod", way.name])?;
    Ok(format!("{seen} kubelets, by {}", way.file))
}

/// Returns the file's job of kubelets, with their addresses.
fn with_addresses(file: &str) -> Result<String> {
    let file = objects(file, "shoot-by-tunnel.yaml")?;
    let file = file.into_iter().next().context("an empty file")?;
    let mut jobs = file["scrape_configs"].as_array().into_iter().flatten();
    let job = jobs.find(|job| job["job_name"] == "kubelet").cloned();
    let mut job = job.context("no job of kubelets")?;
    let fields = job.as_object_mut().context("no job")?;
    for field in ["kubernetes_sd_configs", "relabel_configs"] {
        fields
            .remove(field)
            .with_context(|| format!("no {field}"))?;
    }
    let targets = network::SHOOT.map(|node| format!("{}:10250", node.address));
    job["static_configs"] = json!([{ "targets": targets }]);
    let whole = json!({ "global": { "scrape_interval": "2s" }, "scrape_configs": [job] });
    Ok(whole.to_string())
}

/// The account of Prometheus in the shoot, and its rights.
fn account() -> Vec<Value> {
    let role = "rbac.authorization.k8s.io";
    let (name, of_role) = (json!({ "name": "prometheus" }), format!("{role}/v1"));
    vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "prometheus", "namespace": "kube-system" },
        }),
        json!({
            "apiVersion": of_role, "kind": "ClusterRole", "metadata": name,
            "rules": [
                { "apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"] },
                { "apiGroups": [""], "resources": ["nodes/metrics", "nodes/proxy", "pods/proxy"], "verbs": ["get"] },
            ],
        }),
        json!({
            "apiVersion": of_role, "kind": "ClusterRoleBinding", "metadata": name,
            "roleRef": { "apiGroup": role, "kind": "ClusterRole", "name": "prometheus" },
            "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": "kube-system" }],
        }),
    ]
}
