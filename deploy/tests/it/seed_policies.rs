//! The policies that the controller writes for the manifests' Services, in namespaces where everything is
//! denied: what must be reached is, and nothing else.

use std::collections::BTreeMap;

use deploy::{Objects, Pod as Manifest};
use serde_json::Value;
use testkit::netpol::{Blocks, Cluster, End, Labels, Pod, Protocol};
use testkit::wait;

use crate::api::{Api, LIMIT};
use crate::network::Network;
use crate::objects::SHOOT;

fn labels(value: &Value) -> Labels {
    let all = value.as_object().into_iter().flatten();
    all.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// Returns a manifest's pod at a given address.
fn pod_of(directory: &str, kind: &str, name: &str, place: &str) -> Pod {
    let objects = Objects::build(directory).unwrap();
    let pod = Manifest::of(&objects, kind, name, place).unwrap();
    let mut labels = labels(&pod.metadata["labels"]);
    if kind == "StatefulSet" {
        // As its controller does.
        labels.insert(
            "statefulset.kubernetes.io/pod-name".to_owned(),
            place.to_owned(),
        );
    }
    let ip = Network::ip(place).parse().unwrap();
    Pod {
        namespace: pod.namespace,
        name: pod.name,
        labels,
        ip,
        ports: Vec::new(),
    }
}

/// Returns a pod of the control plane that asks for what its labels name.
fn asking(name: &str, place: &str, own: &[&str]) -> Pod {
    let prefix = "networking.resources.gardener.cloud/to-";
    let allowed = own
        .iter()
        .map(|label| (format!("{prefix}{label}"), "allowed".to_owned()));
    let mut labels: Labels = allowed.collect();
    if name == "kube-apiserver" {
        labels.extend(
            [("app", "kubernetes"), ("role", "apiserver")]
                .map(|(a, b)| (a.to_owned(), b.to_owned())),
        );
    }
    let ip = Network::ip(place).parse().unwrap();
    Pod {
        namespace: SHOOT.to_owned(),
        name: name.to_owned(),
        labels,
        ip,
        ports: Vec::new(),
    }
}

fn list(api: &Api<'_>, path: &str) -> Vec<Value> {
    api.must("GET", path, None)["items"]
        .as_array()
        .unwrap()
        .clone()
}

/// Waits until the policies in the API server let through exactly what they should.
pub(crate) fn hold(api: &Api<'_>) {
    let mut last = Vec::new();
    let held = wait::until("policies of the seed", LIMIT, || {
        last = wrong(api);
        last.is_empty()
    });
    assert!(held.is_ok(), "{held:?}: {last:#?}");
}

/// Returns the connections of which policies say otherwise than they should.
fn wrong(api: &Api<'_>) -> Vec<String> {
    let namespaces = list(api, "/api/v1/namespaces").into_iter().map(|own| {
        let name = own["metadata"]["name"].as_str().unwrap().to_owned();
        (name, labels(&own["metadata"]["labels"]))
    });
    let namespaces: BTreeMap<String, Labels> = namespaces.collect();
    let policies = list(api, "/apis/networking.k8s.io/v1/networkpolicies");
    // The shoot's own: it is another cluster, and here only for want of a second API server.
    let policies: Vec<&Value> = policies
        .iter()
        .filter(|own| own["metadata"]["namespace"] != "kube-system")
        .collect();
    let cluster = Cluster::new(namespaces, policies, Blocks::LeaveOutPods).unwrap();
    let gateway = pod_of("seed/gateway/base", "Deployment", "sni-proxy", "gateway");
    let controller = pod_of(
        "seed/controller",
        "Deployment",
        "rhizome-netpol-controller",
        "controller",
    );
    let vpn = pod_of(
        "control-plane/vpn-server",
        "StatefulSet",
        "vpn-seed-server",
        "vpn-seed-server-0",
    );
    let other = pod_of(
        "control-plane/vpn-server",
        "StatefulSet",
        "vpn-seed-server",
        "vpn-seed-server-1",
    );
    let konnectivity = pod_of(
        "control-plane/konnectivity-server",
        "Deployment",
        "konnectivity-server",
        "konnectivity-server",
    );
    let wants = ["vpn-seed-server-tcp-9443", "konnectivity-server-tcp-8090"];
    let api_server = asking("kube-apiserver", "shoot-api", &wants);
    let prometheus = asking("prometheus", "prometheus", &["all-scrape-targets"]);
    let world = End::Address("198.51.100.7".parse().unwrap());
    let at = |pod| End::Pod(pod);
    let expected = [
        (world, at(&gateway), Protocol::Tcp, 9443, true),
        (world, at(&gateway), Protocol::Tcp, 8443, true),
        (world, at(&gateway), Protocol::Tcp, 8132, true),
        (world, at(&gateway), Protocol::Udp, 9820, true),
        (world, at(&gateway), Protocol::Tcp, 15021, false),
        (world, at(&controller), Protocol::Tcp, 15010, false),
        (world, at(&vpn), Protocol::Udp, 51821, false),
        (at(&gateway), at(&controller), Protocol::Tcp, 15010, true),
        (at(&gateway), at(&api_server), Protocol::Tcp, 443, true),
        (at(&gateway), at(&vpn), Protocol::Tcp, 1194, true),
        (at(&gateway), at(&other), Protocol::Tcp, 1194, true),
        (at(&gateway), at(&vpn), Protocol::Udp, 51821, true),
        (at(&gateway), at(&vpn), Protocol::Tcp, 9443, false),
        (at(&gateway), at(&konnectivity), Protocol::Tcp, 8091, true),
        (at(&gateway), at(&konnectivity), Protocol::Tcp, 8090, false),
        (at(&api_server), at(&vpn), Protocol::Tcp, 9443, true),
        (
            at(&api_server),
            at(&konnectivity),
            Protocol::Tcp,
            8090,
            true,
        ),
        (at(&prometheus), at(&vpn), Protocol::Tcp, 15000, true),
        (
            at(&prometheus),
            at(&konnectivity),
            Protocol::Tcp,
            8092,
            true,
        ),
        (at(&prometheus), at(&vpn), Protocol::Tcp, 9443, false),
    ];
    let told = expected
        .into_iter()
        .filter_map(|(from, to, protocol, port, allowed)| {
            let verdict = cluster.connection(from, to, protocol, port);
            let right = verdict.allowed() == allowed;
            (!right).then(|| format!("{from} to {to}, {protocol:?} {port}: {verdict}"))
        });
    told.collect()
}
