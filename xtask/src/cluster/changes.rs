//! What an operator does to a seed and a shoot while they run: a ConfigMap and Secrets that change, pods that
//! are evicted.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use deploy::gardener::{self, Authorities, SHOOT};
use serde_json::{Value, json};
use testkit::wait;

use super::kubectl::Kubectl;
use super::steps;
use super::up::Clusters;

/// Gives the controller one gateway more, then one less, by its ConfigMap, and waits until every replica has
/// read it.
pub(crate) fn change_gateways(clusters: &Clusters) -> Result<()> {
    let map = ["configmap", "rhizome-netpol-controller-config"];
    let words = [&["--namespace", "garden"], &map[..]].concat();
    let map = clusters.seed.get(&words)?;
    let before = map["data"][FILE].as_str();
    let before = before.with_context(|| format!("no {FILE}"))?;
    let list = "    gateways:\n";
    ensure!(before.contains(list), "{FILE} has no gateways");
    let after = before.replace(list, &format!("{list}{MORE}"));
    let series = "rhizome_netpol_routes{gateway=\"more\"}";
    for (text, listed) in [(&*after, true), (before, false)] {
        clusters
            .seed
            .patch(&words, &json!({ "data": { FILE: text } }))?;
        wait::until_ok("controllers to read it", CHANGE_LIMIT, || {
            for own in metrics(&clusters.seed, "garden", CONTROLLERS, 8081)? {
                ensure!(own.text.contains(series) == listed, "{} has not", own.pod);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Has the shoot's API server reach the shoot by a file of deploy/control-plane/egress-selector; where that is
/// konnectivity, a request has to pass its servers.
pub(crate) fn select_egress(clusters: &Clusters, file: &str) -> Result<String> {
    if !file.starts_with("konnectivity") {
        return steps::select_egress(clusters, file).map(|()| String::new());
    }
    let came = || {
        let servers = metrics(&clusters.seed, SHOOT, "k8s-app=konnectivity-server", 8092)?;
        let frontends = "rhizome_konnectivity_accepted_peers_total{port=\"frontends\"}";
        anyhow::Ok(
            servers
                .iter()
                .map(|own| own.sum(&[frontends], ""))
                .sum::<f64>(),
        )
    };
    let before = came()?;
    steps::select_egress(clusters, file)?;
    clusters
        .shoot
        .run(&["get", "--raw", "/api/v1/nodes/shoot-0/proxy/healthz"])?;
    let after = came()?;
    ensure!(after > before, "no API server came to konnectivity");
    Ok(format!("{} came to konnectivity", after - before))
}

/// Returns how often the tunnel's servers refused a handshake that was older than one before.
pub(crate) fn old_handshakes(clusters: &Clusters) -> Result<f64> {
    let servers = metrics(&clusters.seed, SHOOT, "app=vpn-seed-server", 15000)?;
    let old = "rhizome_tunnel_dropped_total{reason=\"old_handshake\"}";
    Ok(servers.iter().map(|own| own.sum(&[old], "")).sum())
}

/// Renews the authority of konnectivity in two phases, as docs/operations.md says, with the API server's
/// requests to the shoot going through it.
pub(crate) fn renew_authority(clusters: &Clusters) -> Result<()> {
    steps::select_egress(clusters, steps::KONNECTIVITY_SELECTOR)?;
    let fresh = Authorities::new()?;
    let frontend = fresh.frontend()?;
    let frontend = gardener::tls(
        SHOOT,
        "konnectivity-frontend",
        &fresh.konnectivity,
        &frontend,
    );
    let mut secrets = fresh.of_konnectivity(SHOOT)?;
    secrets.push(frontend);
    let mut bundle = old_authority(clusters)?;
    bundle.push_str(fresh.konnectivity.pem());
    let only_new = fresh.konnectivity.pem();
    for (authority, certificates) in [(&*bundle, false), (&bundle, true), (only_new, true)] {
        taken_everywhere(clusters, || {
            for secret in &secrets {
                let mut data = json!({ "ca.crt": authority });
                if certificates {
                    data["tls.crt"] = secret["stringData"]["tls.crt"].clone();
                    data["tls.key"] = secret["stringData"]["tls.key"].clone();
                }
                let text = |key: &str| secret["metadata"][key].as_str().unwrap_or_default();
                let (namespace, name) = (text("namespace"), text("name"));
                let kubectl = match namespace {
                    SHOOT => &clusters.seed,
                    _ => &clusters.shoot,
                };
                let words = ["--namespace", namespace, "secret", name];
                kubectl.patch(&words, &json!({ "stringData": data }))?;
            }
            Ok(())
        })?;
        // An API server of this version reads these files at its start.
        steps::roll_api_server(clusters)?;
    }
    steps::select_egress(clusters, steps::VPN_SELECTOR)
}

fn old_authority(clusters: &Clusters) -> Result<String> {
    let words = ["--namespace", SHOOT, "secret", "konnectivity-server-tls"];
    let secret = clusters.seed.get(&words)?;
    let encoded = secret["data"]["ca.crt"].as_str().context("no ca.crt")?;
    let bytes = BASE64_STANDARD
        .decode(encoded)
        .map_err(anyhow::Error::msg)?;
    Ok(String::from_utf8(bytes)?)
}

/// Changes something, and waits until every server and agent of konnectivity has taken new files.
fn taken_everywhere(clusters: &Clusters, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let counts = || {
        let servers = metrics(&clusters.seed, SHOOT, "k8s-app=konnectivity-server", 8092)?;
        let agents = "k8s-app=konnectivity-agent";
        let agents = metrics(&clusters.shoot, "kube-system", agents, 8093)?;
        let all = servers.iter().chain(&agents);
        anyhow::Ok(Vec::from_iter(
            all.map(|own| (own.pod.clone(), own.taken())),
        ))
    };
    let before = counts()?;
    change()?;
    wait::until_ok("files to be taken", CHANGE_LIMIT, || {
        for ((pod, count), (_, before)) in counts()?.into_iter().zip(&before) {
            ensure!(count > *before, "{pod} has not");
        }
        Ok(())
    })
}

/// What a pod says of itself.
struct Metrics {
    pod: String,
    text: String,
}

impl Metrics {
    /// Returns how often changed files were taken: certificates, or the authorities that a registry names.
    fn taken(&self) -> f64 {
        let families = [
            "rhizome_tls_reloads_total{",
            "rhizome_konnectivity_registry_reloads_total{",
        ];
        self.sum(&families, "result=\"taken\"")
    }

    /// Returns the sum of all lines that begin with one of `families` and have `label`.
    fn sum(&self, families: &[&str], label: &str) -> f64 {
        let of_families = |line: &&str| families.iter().any(|family| line.starts_with(family));
        let lines = self.text.lines().filter(of_families);
        let lines = lines.filter(|line| line.contains(label));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }
}

fn metrics(kubectl: &Kubectl, namespace: &str, selector: &str, port: u16) -> Result<Vec<Metrics>> {
    let pods = kubectl.get(&["--namespace", namespace, "pods", "--selector", selector])?;
    let pods = pods["items"].as_array().context("no list of pods")?;
    // Not those that end, which may be gone when they are asked.
    let stay = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
    let pods: Vec<&Value> = pods.iter().filter(stay).collect();
    ensure!(!pods.is_empty(), "no pod has {selector}");
    let read = |pod: &Value| {
        let pod = pod["metadata"]["name"].as_str().unwrap_or("?").to_owned();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics");
        let text = kubectl.run(&["get", "--raw", &path])?;
        Ok(Metrics { pod, text })
    };
    pods.into_iter().map(read).collect()
}

/// Evicts a pod of each of those budgets; the next one may only go when that one is replaced.
pub(crate) fn evict(clusters: &Clusters, budgets: &[Budget]) -> Result<()> {
    for &(in_shoot, namespace, name) in budgets {
        let kubectl = if in_shoot {
            &clusters.shoot
        } else {
            &clusters.seed
        };
        let words = ["--namespace", namespace, "poddisruptionbudget", name];
        let allowed = || {
            let budget = kubectl.get(&words)?;
            ensure!(
                budget["status"]["disruptionsAllowed"] == 1,
                "{name} allows none"
            );
            Ok(budget)
        };
        let budget = wait::until_ok(name, CHANGE_LIMIT, allowed)?;
        let labels = budget["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels.into_iter().flatten();
        let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("?")));
        let selector = Vec::from_iter(labels).join(",");
        let pods = ["--namespace", namespace, "pods", "--selector", &selector];
        let pods = kubectl.get(&pods)?;
        let items = pods["items"].as_array().context("no list of pods")?;
        // Not those of earlier rolls that still drain.
        let stay = items
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let names = stay.filter_map(|pod| pod["metadata"]["name"].as_str());
        let [first, second] = names.collect::<Vec<_>>()[..] else {
            bail!("{name} has not two pods");
        };
        evict_one(clusters, kubectl, namespace, first)?;
        let refused = evict_one(clusters, kubectl, namespace, second).err();
        let refused = refused.with_context(|| format!("{second} was evicted as well"))?;
        ensure!(
            format!("{refused:#}").contains("disruption budget"),
            "{refused:#}"
        );
        wait::until_ok(name, CHANGE_LIMIT, allowed)?;
    }
    Ok(())
}

fn evict_one(clusters: &Clusters, kubectl: &Kubectl, namespace: &str, pod: &str) -> Result<()> {
    let version = match clusters.kubernetes.minor {
        ..22 => "policy/v1beta1",
        _ => "policy/v1",
    };
    let eviction = json!({
        "apiVersion": version, "kind": "Eviction",
        "metadata": { "name": pod, "namespace": namespace },
    });
    let file = clusters.root.join("eviction.json");
    fs::write(&file, eviction.to_string()).context("writing an eviction")?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let file = file.display().to_string();
    kubectl
        .run(&["create", "--raw", &path, "--filename", &file])
        .map(|_| ())
}

const FILE: &str = "netpol-controller.yaml";
const MORE: &str = "    - name: more
      namespace: istio-ingress
      selector: { app: none }
      clients: [\"spiffe://example.com/gateway/more\"]
";
const CONTROLLERS: &str = "app.kubernetes.io/name=netpol-controller";

/// Whether it is in the shoot, its namespace and name.
type Budget = (bool, &'static str, &'static str);

pub(crate) const BUDGETS: [Budget; 4] = [
    (false, "garden", "rhizome-netpol-controller"),
    (false, "istio-ingress", "sni-proxy"),
    (false, SHOOT, "vpn-seed-server"),
    (true, "kube-system", "vpn-shoot"),
];

pub(crate) const KONNECTIVITY_BUDGETS: [Budget; 2] = [
    (false, SHOOT, "konnectivity-server"),
    (true, "kube-system", "konnectivity-agent"),
];

/// A kubelet looks at what it mounts each minute and a half at most.
const CHANGE_LIMIT: Duration = Duration::from_secs(240);
