//! The scrape configurations that ship, with targets from a file instead of from Kubernetes.
//!
//! ```text
//!   prometheus/NAME.yaml ─▶ kubernetes_sd_configs ⇒ file_sd_configs ─▶ a Prometheus of a test
//!   targets, with the labels that discovery gives them ─▶ file ──────────▲
//! ```
//!
//! Debian builds Prometheus without Kubernetes discovery, so that alone is not tried: relabelling,
//! TLS, proxies and paths are those that ship.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// A target as discovery finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Role of what it was found by: `node` or `pod`.
    pub role: &'static str,
    pub address: String,
    /// Labels, `__meta_kubernetes_` before each.
    pub labels: BTreeMap<&'static str, String>,
}

impl Target {
    pub fn node(name: &str, address: &str) -> Self {
        Self {
            role: "node",
            address: address.to_owned(),
            labels: BTreeMap::from([("node_name", name.to_owned())]),
        }
    }

    pub fn pod(
        namespace: &str,
        name: &str,
        program: &str,
        port: (&str, u16),
        address: &str,
    ) -> Self {
        let mut target = Self::container(namespace, name, program, false, address);
        target.labels.extend([
            ("pod_container_port_name", port.0.to_owned()),
            ("pod_container_port_number", port.1.to_string()),
        ]);
        target
    }

    /// Returns a container without ports of a pod of this project's, perhaps one that only begins it.
    pub fn container(
        namespace: &str,
        name: &str,
        program: &str,
        begins: bool,
        address: &str,
    ) -> Self {
        let labels = [
            ("namespace", namespace.to_owned()),
            ("pod_name", name.to_owned()),
            ("pod_label_app_kubernetes_io_name", program.to_owned()),
            ("pod_label_app_kubernetes_io_part_of", "rhizome".to_owned()),
            ("pod_container_init", begins.to_string()),
        ];
        Self {
            role: "pod",
            address: address.to_owned(),
            labels: BTreeMap::from(labels),
        }
    }

    /// Makes it a container of an API server's pod, as the patch of `konnectivity-sidecar` does.
    pub fn move_to_api_server(&mut self) {
        let ours = [
            "pod_label_app_kubernetes_io_name",
            "pod_label_app_kubernetes_io_part_of",
        ];
        let [program, _] = ours.map(|label| self.labels.remove(label).unwrap_or_default());
        self.labels.extend([
            (
                "pod_label_rhizome_gardener_cloud_konnectivity_server",
                "sidecar".to_owned(),
            ),
            ("pod_container_name", program),
            ("pod_container_port_name", "health".to_owned()),
        ]);
    }

    fn group(&self) -> Value {
        let labels = self.labels.iter();
        let labels = labels.map(|(name, value)| (format!("__meta_kubernetes_{name}"), value));
        let labels: BTreeMap<String, &String> = labels.collect();
        json!({ "targets": [self.address], "labels": labels })
    }
}

/// Returns the configuration `name`, scraping each second, with `targets` instead of what it would
/// discover; the file of those is written to `dir`. `replaced` texts of it become others.
pub fn scrape_config(
    name: &str,
    targets: &[Target],
    dir: &Path,
    replaced: &[(&str, &str)],
) -> Result<Value> {
    let path = crate::root().join("prometheus").join(name);
    let mut text =
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    for (from, to) in replaced {
        ensure!(text.contains(from), "{name} has no {from}");
        text = text.replace(from, to);
    }
    let mut config: Value = settings::yaml::from_str(&text, &path)?;
    let jobs = config["scrape_configs"].as_array_mut();
    for job in jobs.with_context(|| format!("{name}: jobs"))? {
        let role = job["kubernetes_sd_configs"][0]["role"].as_str();
        let role = role.with_context(|| format!("{name}: a role"))?.to_owned();
        let own = targets.iter().filter(|target| target.role == role);
        let groups: Vec<Value> = own.map(Target::group).collect();
        let file = dir.join(format!("{role}-targets.json"));
        fs::write(&file, Value::from(groups).to_string())?;
        let job = job.as_object_mut().context("a job")?;
        job.remove("kubernetes_sd_configs");
        job.insert("file_sd_configs".to_owned(), json!([{ "files": [file] }]));
    }
    config["global"] = json!({ "scrape_interval": "1s", "evaluation_interval": "1s" });
    Ok(config)
}
