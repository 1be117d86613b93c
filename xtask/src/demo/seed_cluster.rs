//! The seed's own cluster: an API server for its objects, and the controller that follows them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use testkit::command;
use testkit::http::{self, Target};
use testkit::netns::{Namespace, Place};
use testkit::peers::kube::{KubeApiServer, KubeParams};
use testkit::process::ChildGuard;

use super::shoot::Shoot;

/// The running cluster. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct SeedCluster {
    pub(super) controller: Option<ChildGuard>,
    _server: KubeApiServer,
    kubeconfig: PathBuf,
}

impl SeedCluster {
    /// Starts the API server and gives it Istio's definitions and what every shoot shares.
    pub(super) fn start(seed: &Namespace, dir: &Path) -> Result<Self> {
        let params = KubeParams::new(API_SERVER, &[]);
        let server = KubeApiServer::start(Place::In(seed), &dir.join("seed"), &params)?;
        let kubeconfig = dir.join("kubeconfig-seed");
        server.write_kubeconfig(&kubeconfig, API_SERVER, None)?;
        let cluster = Self {
            controller: None,
            _server: server,
            kubeconfig,
        };
        cluster.kubectl(seed, &["apply"], &definitions())?;
        let established = [
            "wait",
            "--for=condition=established",
            "--timeout=20s",
            "customresourcedefinitions",
            "--all",
        ];
        cluster.kubectl(seed, &established, &[])?;
        cluster.kubectl(seed, &["apply"], &shared())?;
        Ok(cluster)
    }

    /// Starts the controller in the seed, and waits until everything is known to it.
    pub(super) fn start_controller(
        &mut self,
        program: &Path,
        seed: &Namespace,
        dir: &Path,
    ) -> Result<()> {
        let config = dir.join("netpol-controller.yaml");
        std::fs::write(&config, CONFIG).with_context(|| format!("writing {}", config.display()))?;
        let mut command = Place::In(seed).command(program);
        command.arg("--config").arg(&config);
        let log = dir.join("netpol-controller.log");
        let mut child = ChildGuard::spawn("netpol-controller", &command, &log)?;
        let target = Target::plain(PROBES).timeout(Duration::from_secs(1));
        child.wait_ready(READY_LIMIT, || {
            matches!(seed.run(|| http::get(&target, "/readyz")), Ok(Ok(answer)) if answer.status == 200)
        })?;
        self.controller = Some(child);
        Ok(())
    }

    /// Runs `kubectl` in the seed, with a file of objects if there are any, and returns what it
    /// prints.
    pub(super) fn kubectl(
        &self,
        seed: &Namespace,
        arguments: &[&str],
        objects: &[Value],
    ) -> Result<String> {
        let mut kubectl = Place::In(seed).command(command::require("kubectl")?);
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig);
        kubectl.args(arguments);
        if !objects.is_empty() {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
            let path = self.kubeconfig.with_extension("objects.json");
            std::fs::write(&path, list.to_string()).context("writing objects")?;
            kubectl.arg("--filename").arg(path);
        }
        command::run(&mut kubectl)
    }

    /// Returns the names of the policies in the cluster, by namespace.
    pub(super) fn policies(&self, seed: &Namespace) -> Result<Vec<String>> {
        let columns = "--output=custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name";
        let arguments = [
            "get",
            "networkpolicies",
            "--all-namespaces",
            "--no-headers",
            columns,
        ];
        let text = self.kubectl(seed, &arguments, &[])?;
        let lines = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{}/{}", words.next()?, words.next()?))
        });
        Ok(lines.collect())
    }
}

/// Returns what Gardener writes for a shoot, and the addresses that a real cluster's controllers
/// would add.
pub(super) fn objects_of(shoot: &Shoot) -> Vec<Value> {
    let (namespace, host) = (shoot.technical_id(), shoot.host());
    let service = format!("kube-apiserver.{namespace}.svc.cluster.local");
    let meta = |name: &str| json!({ "namespace": namespace, "name": name });
    vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": namespace, "labels": {
                "gardener.cloud/role": "shoot", "kubernetes.io/metadata.name": namespace,
            } },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta("kube-apiserver"),
            "spec": {
                "selector": { "app": "kubernetes", "role": "apiserver" },
                "ports": [{ "name": "kube-apiserver", "port": 443, "targetPort": 443 }],
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": meta("kube-apiserver"),
            "subsets": [{
                "addresses": [{ "ip": shoot.endpoint().ip() }],
                "ports": [{ "name": "kube-apiserver", "port": 443 }],
            }],
        }),
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "Gateway",
            "metadata": meta("kube-apiserver"),
            "spec": {
                "selector": { "istio": "ingressgateway" },
                "servers": [{
                    "hosts": [host],
                    "port": { "number": 443, "name": "tls", "protocol": "TLS" },
                    "tls": { "mode": "PASSTHROUGH" },
                }],
            },
        }),
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "VirtualService",
            "metadata": meta("kube-apiserver"),
            "spec": {
                "exportTo": ["istio-ingress"], "hosts": [host], "gateways": ["kube-apiserver"],
                "tls": [{
                    "match": [{ "port": 443, "sniHosts": [host] }],
                    "route": [{ "destination": { "host": service, "port": { "number": 443 } } }],
                }],
            },
        }),
        json!({
            "apiVersion": "networking.istio.io/v1beta1", "kind": "DestinationRule",
            "metadata": meta("kube-apiserver"),
            "spec": {
                "exportTo": ["istio-ingress"], "host": service,
                "trafficPolicy": {
                    "connectionPool": { "tcp": {
                        "maxConnectionDuration": "86400s",
                        "tcpKeepalive": { "time": "7200s", "interval": "75s" },
                    } },
                    "tls": { "mode": "DISABLE" },
                },
            },
        }),
    ]
}

/// Definitions of the kinds that Gardener writes, without their schemas.
fn definitions() -> Vec<Value> {
    let kinds = [
        ("Gateway", "gateways", "v1beta1"),
        ("VirtualService", "virtualservices", "v1beta1"),
        ("DestinationRule", "destinationrules", "v1beta1"),
        ("EnvoyFilter", "envoyfilters", "v1alpha3"),
    ];
    let group = "networking.istio.io";
    let all = kinds.into_iter().map(|(kind, plural, version)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    } },
                }],
            },
        })
    });
    all.collect()
}

/// The gateway's namespace, and the rule by which it answers CONNECT requests.
fn shared() -> Vec<Value> {
    let header = "X-Gardener-Destination";
    let regex = r"^outbound\|443\|\|kube-apiserver\..*\.svc\.cluster\.local$";
    let manager = "envoy.filters.network.http_connection_manager";
    let kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "istio-ingress", "labels": {
                "gardener.cloud/role": "istio-ingress",
                "kubernetes.io/metadata.name": "istio-ingress",
            } },
        }),
        json!({
            "apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter",
            "metadata": { "namespace": "istio-ingress", "name": "http-proxy" },
            "spec": {
                "workloadSelector": { "labels": { "istio": "ingressgateway" } },
                "configPatches": [{
                    "applyTo": "NETWORK_FILTER",
                    "match": { "context": "GATEWAY", "listener": {
                        "portNumber": 8443, "filterChain": { "filter": { "name": manager } },
                    } },
                    "patch": { "operation": "MERGE", "value": { "name": manager, "typed_config": {
                        "@type": kind,
                        "route_config": { "virtual_hosts": [{
                            "name": "http-proxy", "domains": ["*"],
                            "routes": [{
                                "match": { "connect_matcher": {}, "headers": [{
                                    "name": header,
                                    "string_match": { "safe_regex": { "regex": regex } },
                                }] },
                                "route": {
                                    "cluster_header": header,
                                    "upgrade_configs": [{
                                        "upgrade_type": "CONNECT", "connect_config": {},
                                    }],
                                },
                            }],
                        }] },
                    } } },
                }],
            },
        }),
    ]
}

/// Fails unless the policies between gateway and API server are among those listed.
pub(super) fn expect_listed(policies: &[String], shoot: &Shoot) -> Result<()> {
    let namespace = shoot.technical_id();
    let wanted = [
        format!("{namespace}/ingress-to-kube-apiserver-tcp-443-from-istio-ingress"),
        format!("istio-ingress/egress-to-{namespace}-kube-apiserver-tcp-443-from-istio"),
    ];
    for policy in &wanted {
        if !policies.contains(policy) {
            bail!("{policy} is missing among {policies:?}");
        }
    }
    Ok(())
}

/// Where the seed's API server listens; inside the seed, on an address of its own.
const API_SERVER: SocketAddr = SocketAddr::new(super::network::SEED_API_SERVER, 6443);
const PROBES: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
const READY_LIMIT: Duration = Duration::from_secs(30);
const CONFIG: &str = r#"kubeconfig: kubeconfig-seed
leaderElection: { namespace: default }
probes: { address: "127.0.0.1:8081" }
admin: { address: "127.0.0.1:9902" }
controllers:
  routing:
    enabled: true
    gateways:
    - { name: default, namespace: istio-ingress, selector: { istio: ingressgateway } }
    xds: { address: "127.0.0.1:15010" }
"#;
