//! The policies that Gardener's controller writes for the Services of the seed: it goes by labels of clients' pods
//! alone, and knows no routes.
//!
//! Our planner stands for it, with `compatibility: upstream` and nothing routed.

use std::collections::BTreeMap;

use deploy::Objects;
use netpol_controller::plan::{Compatibility, PolicySettings, service};
use netpol_controller::state::{ClusterState, Kind};
use serde_json::{Value, json};
use testkit::netpol::{Blocks, Cluster, End, Labels, Pod, Protocol};

use crate::objects::SHOOT;
use crate::policies::{labels, pod, pod_of};

const PREFIX: &str = "networking.resources.gardener.cloud/";

/// A shoot with Gardener's own VPN.
const OTHER: &str = "shoot--foo--baz";

/// Namespaces and their roles.
const NAMESPACES: [(&str, &str); 5] = [
    ("garden", "garden"),
    ("istio-ingress", "istio-ingress"),
    ("istio-ingress--zone-a", "istio-ingress"),
    (SHOOT, "shoot"),
    (OTHER, "shoot"),
];

const MANIFESTS: [&str; 7] = [
    "control-plane/konnectivity-server",
    "control-plane/konnectivity-sidecar",
    "control-plane/vpn-server",
    "seed/controller",
    "seed/gateway/base",
    "seed/gateway/overlays/zone",
    "seed/konnectivity-server",
];

fn of_role(role: &str) -> Labels {
    labels(&[("gardener.cloud/role", role)])
}

/// A Service of Gardener's that its gateways reach, `app` being its name.
fn gardeners(name: &str, port: u16) -> Value {
    let selectors = json!([{ "matchLabels": of_role("istio-ingress") }]).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": OTHER,
            "annotations": {
                format!("{PREFIX}namespace-selectors"): selectors,
                format!("{PREFIX}pod-label-selector-namespace-alias"): "all-shoots",
            },
        },
        "spec": {
            "selector": { "app": name },
            "ports": [{ "name": "a", "port": port, "targetPort": port, "protocol": "TCP" }],
        },
    })
}

fn namespace_labels(name: &str, role: &str) -> Labels {
    let mut own = of_role(role);
    own.extend(labels(&[("kubernetes.io/metadata.name", name)]));
    own
}

/// The seed with everything denied but what Gardener's controller opens for these pods.
fn seed(pods: &[&Pod]) -> Cluster {
    let mut objects: Vec<Value> = MANIFESTS
        .iter()
        .flat_map(|directory| Objects::build(directory).unwrap())
        .filter(|object| object["kind"] == "Service")
        .chain([
            gardeners("kube-apiserver", 443),
            gardeners("vpn-seed-server", 1194),
        ])
        .collect();
    let mut policies = Vec::new();
    for (name, role) in NAMESPACES {
        let own = namespace_labels(name, role);
        objects.push(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": own },
        }));
        policies.push(json!({
            "metadata": { "name": "deny-all", "namespace": name },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
        }));
    }
    objects.extend(pods.iter().map(|pod| {
        let (name, namespace) = (&pod.name, &pod.namespace);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": pod.labels },
        })
    }));
    let mut state = ClusterState::default();
    for object in objects {
        let mut kinds = Kind::ALL.into_iter();
        let kind = kinds.find(|kind| object["kind"] == kind.name()).unwrap();
        let object = serde_json::from_value(object).unwrap();
        state.apply(kind, object, |_| ()).unwrap();
    }
    let settings = PolicySettings {
        compatibility: Compatibility::Upstream,
        ..PolicySettings::default()
    };
    for key in state.services.keys() {
        let plan = service(&state, &settings, &[], key);
        assert!(plan.problems.is_empty(), "{:?}", plan.problems);
        policies.extend(plan.policies.into_iter().map(|policy| {
            let (name, namespace) = (&*policy.key.name, &*policy.key.namespace);
            json!({ "metadata": { "name": name, "namespace": namespace }, "spec": policy.spec })
        }));
    }
    let namespaces = NAMESPACES.map(|(name, role)| (name.to_owned(), namespace_labels(name, role)));
    let namespaces = BTreeMap::from(namespaces);
    Cluster::new(namespaces, &policies, Blocks::LeaveOutPods).unwrap()
}

/// The pod of this number of the tunnel servers.
fn vpn_server(number: usize, ip: &str) -> Pod {
    let directory = "control-plane/vpn-server";
    let mut pod = pod_of(directory, "StatefulSet", "vpn-seed-server", ip);
    pod.name = format!("vpn-seed-server-{number}");
    let name = [("statefulset.kubernetes.io/pod-name", &*pod.name)];
    pod.labels.extend(labels(&name));
    pod
}

fn deployment(directory: &str, name: &str, ip: &str) -> Pod {
    pod_of(directory, "Deployment", name, ip)
}

#[test]
fn gardener_policies_admit_gateway() {
    let konnectivity = "konnectivity-server";
    let gateways = [("base", "10.0.0.1"), ("overlays/zone", "10.0.0.2")]
        .map(|(own, ip)| deployment(&format!("seed/gateway/{own}"), "sni-proxy", ip));
    let controller = deployment("seed/controller", "rhizome-netpol-controller", "10.0.0.3");
    let servers = [vpn_server(0, "10.0.0.4"), vpn_server(1, "10.0.0.5")];
    let own = deployment(
        "control-plane/konnectivity-server",
        konnectivity,
        "10.0.0.6",
    );
    let of_seed = deployment("seed/konnectivity-server", konnectivity, "10.0.0.7");
    let sidecar = [("rhizome.gardener.cloud/konnectivity-server", "sidecar")];
    let sidecar = pod(SHOOT, "kube-apiserver", &sidecar, "10.0.0.8");
    let [api_server, openvpn] = [
        ("kube-apiserver", "10.0.0.9"),
        ("vpn-seed-server", "10.0.0.10"),
    ]
    .map(|(name, ip)| pod(OTHER, name, &[("app", name)], ip));
    let mut expected = vec![
        (&controller, Protocol::Tcp, 15010, true),
        (&controller, Protocol::Tcp, 8081, false),
        (&api_server, Protocol::Tcp, 443, true),
        (&openvpn, Protocol::Tcp, 1194, true),
        (&openvpn, Protocol::Tcp, 9443, false),
    ];
    for server in &servers {
        expected.push((server, Protocol::Tcp, 1194, true));
        expected.push((server, Protocol::Udp, 51821, true));
        expected.push((server, Protocol::Tcp, 9443, false));
    }
    for server in [&own, &of_seed, &sidecar] {
        expected.push((server, Protocol::Tcp, 8091, true));
        expected.push((server, Protocol::Tcp, 8090, false));
    }
    let pods = expected.iter().map(|(pod, ..)| *pod).chain(&gateways);
    let cluster = seed(&pods.collect::<Vec<_>>());
    for gateway in &gateways {
        for (to, protocol, port, allowed) in &expected {
            let verdict = cluster.connection(End::Pod(gateway), End::Pod(to), *protocol, *port);
            let what = format!("{} to {}: {port}: {verdict}", gateway.namespace, to.name);
            assert_eq!(verdict.allowed(), *allowed, "{what}");
        }
    }
}

#[test]
fn seed_prometheus_reaches_its_targets() {
    // One label for its own namespace, one for those of gateways.
    let keys = [
        "to-all-seed-scrape-targets",
        "to-all-istio-ingresses-all-seed-scrape-targets",
    ];
    let keys = keys.map(|key| format!("{PREFIX}{key}"));
    let own = [0, 1].map(|place: usize| (&*keys[place], "allowed"));
    let prometheus = pod("garden", "prometheus-seed", &own, "10.0.0.1");
    let gateway = deployment("seed/gateway/base", "sni-proxy", "10.0.0.2");
    let controller = deployment("seed/controller", "rhizome-netpol-controller", "10.0.0.3");
    let server = deployment(
        "seed/konnectivity-server",
        "konnectivity-server",
        "10.0.0.4",
    );
    let cluster = seed(&[&prometheus, &gateway, &controller, &server]);
    for (to, port, allowed) in [
        (&gateway, 15021, true),
        (&controller, 8081, true),
        (&server, 8092, true),
        (&server, 8090, false),
    ] {
        let (from, target) = (End::Pod(&prometheus), End::Pod(to));
        let verdict = cluster.connection(from, target, Protocol::Tcp, port);
        assert_eq!(verdict.allowed(), allowed, "{} {port}: {verdict}", to.name);
    }
}
