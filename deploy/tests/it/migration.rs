//! The steps of docs/migration.md over objects of Gardener's shape: its commands, as they stand there, in a real
//! API server.
//!
//! No controller runs: what a DaemonSet's, an autoscaler's and the garbage collector's would do is not tried.

use std::fs;
use std::net::SocketAddr;

use deploy::Objects;
use serde_json::{Value, json};
use testkit::tempdir::TempDir;

use crate::api::Api;
use crate::manifests::{items, selects, text};
use crate::network::Network;
use crate::objects::{self, Authorities};
use crate::{documented, path};

const SEED: &str = "istio-ingress";
const SHOOT: &str = "kube-system";

/// Who wrote Gardener's objects.
const MANAGER: &str = "--field-manager=gardener-resource-manager";

#[test]
fn node_proxy_steps_replace_gardeners_pod_whole() {
    let (network, dir) = (network(), TempDir::new("migration").unwrap());
    let api = start(&network, &dir);
    let labels = json!({ "app": "kubernetes", "role": "apiserver-proxy" });
    let name = "apiserver-proxy";
    let sidecar = |name: &str| json!({ "name": name, "image": "sidecar", "args": ["--ip-address=240.0.0.1"] });
    let pod = json!({
        "hostNetwork": true,
        "initContainers": [sidecar("setup")],
        "containers": [sidecar("sidecar"), {
            "name": "proxy", "image": "envoy", "command": ["envoy", "--concurrency", "2"],
            "ports": [{ "name": "metrics", "containerPort": 16910 }],
        }],
    });
    let mut own = labels.clone();
    own["pod-template-generation"] = json!("1");
    api.must_kubectl(
        &["create", MANAGER],
        &[
            json!({
                "apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": { "name": name, "namespace": SHOOT },
                "spec": {
                    "selector": { "matchLabels": labels },
                    "updateStrategy": { "rollingUpdate": { "maxUnavailable": "10%" } },
                    "template": { "metadata": { "labels": labels }, "spec": pod },
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": SHOOT, "labels": own },
                "spec": pod,
            }),
        ],
    );
    follow(&api, "### 3.");
    let built = Objects::build("shoot/apiserver-proxy").unwrap();
    let wanted = &built.get("DaemonSet", name).unwrap()["spec"];
    let path = format!("/apis/apps/v1/namespaces/{SHOOT}/daemonsets/{name}");
    let there = &api.must("GET", &path, None)["spec"];
    // Or no pod of Gardener's would be adopted.
    assert_eq!(there["selector"], wanted["selector"]);
    let containers = |spec: &Value| -> Vec<Value> {
        let spec = &spec["template"]["spec"];
        let all = items(&spec["initContainers"]).chain(items(&spec["containers"]));
        let keys = ["name", "image", "command", "args", "ports"];
        all.map(|own| keys.map(|key| own[key].clone()).into())
            .collect()
    };
    assert_eq!(containers(there), containers(wanted));
    let path = format!("/api/v1/namespaces/{SHOOT}/pods/{name}");
    assert_eq!(api.must("GET", &path, None)["metadata"]["labels"], labels);
}

#[test]
fn gateway_steps_leave_our_pods_one_budget() {
    let (network, dir) = (network(), TempDir::new("migration").unwrap());
    let api = start(&network, &dir);
    api.must_kubectl(&["create", MANAGER], &gardeners_gateway());
    let raised = follow(&api, "### 2.");
    // This server has no autoscaler of that version.
    let built = Objects::build("seed/gateway/base").unwrap();
    let shipped = &built.get("HorizontalPodAutoscaler", "sni-proxy").unwrap()["spec"];
    for key in ["minReplicas", "maxReplicas"] {
        let number = |spec: &Value| spec[key].as_u64();
        assert!(number(&raised["spec"]) > number(shipped), "{key}: {raised}");
    }
    let section = section("### 2.");
    let at = |words: &str| {
        section
            .find(words)
            .unwrap_or_else(|| panic!("no {words:?}"))
    };
    assert!(at("patch hpa sni-proxy") < at("scale Envoy down one at a time"));
    assert!(at("scale Envoy down one at a time") < at("--force-conflicts"));

    let ours = built.get("Deployment", "sni-proxy").unwrap();
    let labels = &ours["spec"]["template"]["metadata"]["labels"];
    let list = |group: &str| api.must("GET", &format!("/apis/{group}"), None)["items"].clone();
    // What counts our pods, beside our own autoscaler.
    let scalers = list(&format!(
        "autoscaling/v1/namespaces/{SEED}/horizontalpodautoscalers"
    ));
    let counted = items(&scalers).filter(|scaler| {
        let target = text(&scaler["spec"]["scaleTargetRef"]["name"]);
        let path = format!("/apis/apps/v1/namespaces/{SEED}/deployments/{target}");
        let target = api.must("GET", &path, None);
        selects(&target["spec"]["selector"]["matchLabels"], labels)
    });
    assert_eq!(counted.count(), 0, "{scalers}");
    // The budget, in the version that this server has; no controller counts what it allows.
    let mut budget = built
        .get("PodDisruptionBudget", "sni-proxy")
        .unwrap()
        .clone();
    budget["apiVersion"] = json!("policy/v1beta1");
    budget["spec"]
        .as_object_mut()
        .unwrap()
        .remove("unhealthyPodEvictionPolicy");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "sni-proxy", "namespace": SEED, "labels": labels },
        "spec": { "containers": [{ "name": "sni-proxy", "image": "sni-proxy" }] },
    });
    api.apply(&[budget, pod]);
    let path = format!("/api/v1/namespaces/{SEED}/pods/sni-proxy");
    let mut running = api.must("GET", &path, None);
    running["status"]["phase"] = json!("Running");
    api.must("PUT", &format!("{path}/status"), Some(&running));
    let eviction = json!({
        "apiVersion": "policy/v1beta1", "kind": "Eviction",
        "metadata": { "name": "sni-proxy", "namespace": SEED },
    });
    let answer = api.request("POST", &format!("{path}/eviction"), Some(&eviction));
    // 500: more than one budget, which stays so whatever they allow.
    assert_eq!(answer.status, 429, "{}", answer.text());

    let path = format!("/api/v1/namespaces/{SEED}/services/istio-ingressgateway");
    let service = api.must("GET", &path, None);
    let wanted = built.get("Service", "istio-ingressgateway").unwrap();
    for (key, value) in wanted["metadata"]["annotations"].as_object().unwrap() {
        assert_eq!(&service["metadata"]["annotations"][key], value, "{key}");
    }
    let ports = |service: &Value| -> Vec<Value> {
        let keys = ["name", "port", "targetPort", "protocol"];
        let all = items(&service["spec"]["ports"]);
        all.map(|port| keys.map(|key| port[key].clone()).into())
            .collect()
    };
    assert_eq!(ports(&service), ports(wanted));
    assert_eq!(service["spec"]["loadBalancerIP"], "192.0.2.1");
}

/// What Gardener has in a gateway's namespace, as far as names, labels or fields are those of ours.
fn gardeners_gateway() -> Vec<Value> {
    let labels = json!({ "app": "istio-ingressgateway", "istio": "ingressgateway" });
    let metadata = json!({ "name": "istio-ingressgateway", "namespace": SEED, "labels": labels });
    let port = |name: &str, port: u16, target: u16| json!({ "name": name, "port": port, "targetPort": target });
    let world = json!([{ "port": 9443, "protocol": "TCP" }, { "port": 8443, "protocol": "TCP" }]);
    let mut of_service = metadata.clone();
    of_service["annotations"] = json!({
        "networking.resources.gardener.cloud/from-world-to-ports": world.to_string(),
    });
    vec![
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
            "spec": {
                "replicas": 2, "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [{ "name": "istio-proxy", "image": "envoy" }] },
                },
            },
        }),
        json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": metadata,
            "spec": {
                "minReplicas": 2, "maxReplicas": 16,
                "scaleTargetRef": {
                    "apiVersion": "apps/v1", "kind": "Deployment", "name": "istio-ingressgateway",
                },
            },
        }),
        json!({
            "apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": metadata,
            "spec": { "minAvailable": 1, "selector": { "matchLabels": labels } },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": of_service,
            "spec": {
                "type": "LoadBalancer", "loadBalancerIP": "192.0.2.1", "selector": labels,
                "ports": [
                    port("tcp", 443, 9443), port("http-proxy", 8443, 8443), port("tls-tunnel", 8132, 8132),
                ],
            },
        }),
    ]
}

fn network() -> Network {
    let mut network = Network::with_bridges(&["seed"]);
    network.add_to_seed("api");
    network
}

fn start<'n>(network: &'n Network, dir: &TempDir) -> Api<'n> {
    let authorities = Authorities::new().unwrap();
    let selector = path::selector(dir, &objects::provision(dir, |_| {}), &authorities);
    let address = SocketAddr::new(Network::ip("api").parse().unwrap(), 6443);
    let (selector, account) = ((&*selector.0, &*selector.1), "unaudited");
    let api = Api::start(network.at("api"), dir, address, selector, &[], account, &[]);
    api.apply(&objects::namespaces());
    api
}

/// Returns what is below a heading of the document.
fn section(heading: &str) -> String {
    let document = deploy::root().parent().unwrap().join("docs/migration.md");
    let document = fs::read_to_string(document).unwrap();
    let (_, section) = document.split_once(&format!("\n{heading}")).unwrap();
    section.split("\n### ").next().unwrap().to_owned()
}

/// Runs the commands below a heading of the document, in their order. Returns what they patch, of objects that
/// this server does not have.
fn follow(api: &Api<'_>, heading: &str) -> Value {
    let mut patched = Value::Null;
    let section = section(heading);
    let commands = section
        .lines()
        .filter_map(|line| line.strip_prefix("kubectl "));
    let commands: Vec<_> = commands.collect();
    assert!(!commands.is_empty(), "{heading}");
    let mut kept = Vec::new();
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["kustomize", directory, ">", _, ..] => {
                kept = known(api, directory);
                assert!(command.contains("# remove the Services"), "{command}");
                kept.retain(|object| object["kind"] != "Service");
            }
            ["apply", ref flags @ .., "-f", _] => {
                api.must_kubectl(&[&["apply", "--validate=false"], flags].concat(), &kept);
            }
            ["apply", ref flags @ .., "-k", directory] => {
                let flags = [&["apply", "--validate=false"], flags].concat();
                api.must_kubectl(&flags, &known(api, directory));
            }
            ["-n", namespace, "delete", kind, name, "--cascade=orphan"] => {
                api.must_kubectl(&[&words[..], &["--wait=false"]].concat(), &[]);
                // As the garbage collector does once it has let go of the pods.
                let flags = [
                    "--type=merge",
                    r#"--patch={"metadata":{"finalizers":null}}"#,
                ];
                let patch = ["patch", "-n", namespace, kind, name];
                api.must_kubectl(&[&patch[..], &flags].concat(), &[]);
            }
            ["-n", _, "patch", "hpa", "sni-proxy", "-p", patch] => {
                patched = serde_json::from_str(patch.trim_matches('\'')).unwrap();
            }
            _ => api.must_kubectl(&words, &[]),
        }
    }
    patched
}

/// What a kustomization builds, as far as the server knows it.
fn known(api: &Api<'_>, directory: &str) -> Vec<Value> {
    let objects = Objects::build(directory.strip_prefix("deploy/").unwrap()).unwrap();
    let known = objects.into_iter().filter_map(|object| {
        documented::check(object, |version, kind| api.serves(version, kind)).object
    });
    known.collect()
}
