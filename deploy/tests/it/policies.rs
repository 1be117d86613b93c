//! The NetworkPolicies of the shoot's `kube-system`, by what NetworkPolicies are documented to mean.

use std::net::IpAddr;

use deploy::{Objects, Pod as Manifest};
use testkit::netpol::{Blocks, Cluster, End, Labels, Pod, Protocol};

const GATEWAY: &str = "203.0.113.1";

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

/// Returns the pod of a manifest.
pub(crate) fn pod_of(directory: &str, kind: &str, name: &str, ip: &str) -> Pod {
    let objects = Objects::build(directory).unwrap();
    let pod = Manifest::of(&objects, kind, name, name).unwrap();
    let labels = pod.metadata["labels"].as_object().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    Pod {
        namespace: pod.namespace,
        name: pod.name,
        labels: labels
            .iter()
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
        ip: ip.parse().unwrap(),
        ports: Vec::new(),
    }
}

pub(crate) fn pod(namespace: &str, name: &str, own: &[(&str, &str)], ip: &str) -> Pod {
    Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: labels(own),
        ip: ip.parse().unwrap(),
        ports: Vec::new(),
    }
}

struct Shoot {
    cluster: Cluster,
    client: Pod,
    agent: Pod,
    target: Pod,
    customer: Pod,
}

/// Agents of either kind of server.
const AGENTS: [&str; 2] = ["konnectivity-agent", "konnectivity-agent-sidecar"];

fn shoot(blocks: Blocks, agent: &str) -> Shoot {
    let policies = Objects::build("shoot/network-policies").unwrap();
    let namespaces = ["kube-system", "default"].map(|name| {
        let own = labels(&[("kubernetes.io/metadata.name", name)]);
        (name.to_owned(), own)
    });
    Shoot {
        cluster: Cluster::new(namespaces.into(), policies.of_kind("NetworkPolicy"), blocks)
            .unwrap(),
        client: pod_of(
            "shoot/vpn-client/base",
            "StatefulSet",
            "vpn-shoot",
            "100.96.1.10",
        ),
        agent: pod_of(
            &format!("shoot/{agent}"),
            "Deployment",
            agent,
            "100.96.1.30",
        ),
        target: pod(
            "kube-system",
            "metrics-server",
            &[("networking.gardener.cloud/from-seed", "allowed")],
            "100.96.0.11",
        ),
        customer: pod("default", "customer", &[], "100.96.0.12"),
    }
}

#[test]
fn tunnel_policies_allow_only_needed_peers() {
    for (blocks, agent) in [Blocks::LeaveOutPods, Blocks::MatchPods]
        .into_iter()
        .zip(AGENTS)
    {
        let shoot = shoot(blocks, agent);
        let address = |text: &str| End::Address(text.parse::<IpAddr>().unwrap());
        let (client, agent) = (End::Pod(&shoot.client), End::Pod(&shoot.agent));
        for (from, to, protocol, port, allowed) in [
            (client, address(GATEWAY), Protocol::Tcp, 8132, true),
            (client, address(GATEWAY), Protocol::Tcp, 8443, true),
            (client, address(GATEWAY), Protocol::Udp, 51820, true),
            (client, address(GATEWAY), Protocol::Tcp, 22, false),
            (client, address("192.0.2.53"), Protocol::Udp, 53, true),
            (client, address("10.250.0.11"), Protocol::Tcp, 10250, true),
            (client, address("100.64.0.1"), Protocol::Tcp, 443, true),
            (client, End::Pod(&shoot.target), Protocol::Tcp, 8443, true),
            (client, End::Pod(&shoot.customer), Protocol::Udp, 9, true),
            (agent, address(GATEWAY), Protocol::Tcp, 443, true),
            (agent, address(GATEWAY), Protocol::Tcp, 8132, false),
            (agent, address("192.0.2.53"), Protocol::Tcp, 53, true),
            (agent, address("10.250.0.11"), Protocol::Tcp, 10250, true),
            (agent, End::Pod(&shoot.target), Protocol::Tcp, 8443, true),
        ] {
            let verdict = shoot.cluster.connection(from, to, protocol, port);
            let what = format!("{from} to {to}, {protocol:?} {port}: {verdict}");
            assert_eq!(verdict.allowed(), allowed, "{what}");
        }
    }
}

#[test]
fn shoot_reaches_neither_tunnels_nor_seed() {
    let shoot = shoot(Blocks::MatchPods, AGENTS[1]);
    let customer = End::Pod(&shoot.customer);
    for (to, port) in [
        (&shoot.client, 8080),
        (&shoot.agent, 8093),
        (&shoot.target, 8443),
    ] {
        let verdict = shoot
            .cluster
            .connection(customer, End::Pod(to), Protocol::Tcp, port);
        assert!(!verdict.allowed(), "{}: {verdict}", to.name);
    }
    // Metrics of one client are asked for through the other.
    let other = Pod {
        name: "vpn-shoot-1".to_owned(),
        ..shoot.client.clone()
    };
    let (one, other) = (End::Pod(&shoot.client), End::Pod(&other));
    assert!(shoot.cluster.allows(one, other, Protocol::Tcp, 8080));
}
