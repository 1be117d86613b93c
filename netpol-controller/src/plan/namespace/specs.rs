//! What each of the general policies says, as the API server returns it.

use std::net::IpAddr;

use route::IpPrefix;
use serde_json::{Value, json};

use super::super::cidr::{self, Family};
use super::super::with_lists;
use super::{ApiServer, HostName, NamespaceSettings, ShootRanges};
use crate::state::{EndpointAddress, EndpointPort, Protocol};

/// Private IPv4 networks: RFC 1918, and the shared address space of RFC 6598.
const PRIVATE_V4: [&str; 4] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
];

/// Private IPv6 networks: link-local (RFC 4291), and unique local ones (RFC 4193).
const PRIVATE_V6: [&str; 2] = ["fe80::/10", "fc00::/7"];

/// Where Gardener's node-local DNS caches listen on every node.
const NODE_LOCAL_DNS: [&str; 2] = ["169.254.20.10/32", "fd30:1319:f1e:230b::1/128"];

/// Cluster DNS has this address of the range of Services, counted from its network address.
const DNS_ADDRESS: u32 = 10;

/// Ports of DNS: of the Service, and of CoreDNS's pods in shoots.
const DNS_PORTS: [u16; 2] = [53, 8053];

pub(super) fn description(policy: &str) -> &'static str {
    match policy {
        super::ALLOW_TO_RUNTIME_APISERVER => {
            "Allows egress from pods labeled with \
             'networking.gardener.cloud/to-runtime-apiserver=allowed' to the API server of the \
             cluster they run in."
        }
        super::ALLOW_TO_PUBLIC_NETWORKS => {
            "Allows egress from pods labeled with \
             'networking.gardener.cloud/to-public-networks=allowed' to all public addresses, \
             except those that the operator has blocked."
        }
        super::ALLOW_TO_PRIVATE_NETWORKS => {
            "Allows egress from pods labeled with \
             'networking.gardener.cloud/to-private-networks=allowed' to private, shared and \
             link-local addresses, except the networks of this cluster, those of the shoot, and \
             those that the operator has blocked."
        }
        super::ALLOW_TO_BLOCKED_CIDRS => {
            "Allows egress from pods labeled with \
             'networking.gardener.cloud/to-blocked-cidrs=allowed' to the ranges that the operator \
             has blocked for all others."
        }
        super::ALLOW_TO_DNS => {
            "Allows egress from pods labeled with 'networking.gardener.cloud/to-dns=allowed' to \
             the DNS servers of the cluster."
        }
        _ => {
            "Denies all traffic from and to all pods of this namespace that no other policy allows."
        }
    }
}

pub(super) fn deny_all() -> Value {
    json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})
}

/// The addresses of the API server; `None` when they are not all known.
pub(super) fn to_api_server(api_server: &ApiServer) -> Option<Value> {
    let host = match &api_server.host {
        HostName::None => None,
        HostName::Resolved(addresses, number) => {
            let addresses = addresses.iter().copied();
            hosts_rule(addresses, vec![port(Protocol::Tcp, *number)])
        }
        HostName::Unresolved => return None,
    };
    let subsets = api_server.subsets.iter();
    let mut rules: Vec<_> = subsets.filter_map(subset_rule).collect();
    if rules.is_empty() {
        return None;
    }
    rules.extend(host);
    Some(egress("to-runtime-apiserver", rules))
}

fn subset_rule((addresses, ports): &(Vec<EndpointAddress>, Vec<EndpointPort>)) -> Option<Value> {
    let ready = addresses.iter().filter(|address| address.ready);
    let reported = ports.iter().filter(|own| own.port != 0);
    let ports = reported.map(|own| port(own.protocol, own.port)).collect();
    hosts_rule(ready.map(|address| address.ip), ports)
}

/// A rule that names some hosts and ports; `None` without hosts or without ports, for the rule
/// would then allow all of them.
fn hosts_rule(addresses: impl Iterator<Item = IpAddr>, ports: Vec<Value>) -> Option<Value> {
    let mut hosts: Vec<IpPrefix> = Vec::new();
    for host in addresses.map(IpPrefix::host) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    if hosts.is_empty() || ports.is_empty() {
        return None;
    }
    let to = hosts.into_iter().map(|host| block(host, Vec::new()));
    Some(rule(to.collect(), ports))
}

/// Everything but private networks and what is blocked.
pub(super) fn to_public_networks(settings: &NamespaceSettings) -> Value {
    let blocked = &settings.blocked;
    let exceptions = |private: &[&str], further: &[IpPrefix]| {
        let private = fixed(private);
        [&private[..], blocked, further].concat()
    };
    let cluster = settings.cluster();
    let cluster = match Family::only(&cluster) {
        Some(Family::V6) => cluster,
        Some(Family::V4) | None => Vec::new(),
    };
    let to = [
        ("0.0.0.0/0", exceptions(&PRIVATE_V4, &[])),
        ("::/0", exceptions(&PRIVATE_V6, &cluster)),
    ];
    let to = to.into_iter().flat_map(|(everything, exceptions)| {
        let everything = fixed(&[everything]).into_iter();
        everything.map(move |range| block(range, cidr::except(range, exceptions.clone())))
    });
    egress("to-public-networks", vec![rule(to.collect(), Vec::new())])
}

/// Private networks, but not the cluster's, the shoot's, or what is blocked.
pub(super) fn to_private_networks(settings: &NamespaceSettings, shoot: &ShootRanges) -> Value {
    let cluster = settings.cluster();
    let family = Family::only(&cluster);
    let shoot_family = if shoot.v4_only {
        Family::V4
    } else {
        Family::V6
    };
    let blocks = |ranges: &[&str], own: Family| {
        let mut exceptions = settings.blocked.clone();
        if family == Some(own) {
            exceptions.extend(&cluster);
        }
        if shoot_family == own {
            exceptions.extend(&shoot.ranges);
        }
        let ranges = fixed(ranges).into_iter();
        let to = ranges.map(|range| block(range, cidr::except(range, exceptions.iter().copied())));
        rule(to.collect(), Vec::new())
    };
    let rules = vec![
        blocks(&PRIVATE_V4, Family::V4),
        blocks(&PRIVATE_V6, Family::V6),
    ];
    egress("to-private-networks", rules)
}

pub(super) fn to_blocked_cidrs(settings: &NamespaceSettings) -> Value {
    let blocked = settings.blocked.iter();
    let rules = blocked.map(|range| rule(vec![block(*range, Vec::new())], Vec::new()));
    egress("to-blocked-cidrs", rules.collect())
}

/// The DNS servers: by their pods, at node-local addresses, and at the Service's address.
pub(super) fn to_dns(settings: &NamespaceSettings) -> Value {
    let mut to = vec![dns_pods("kube-dns"), dns_pods("node-local-dns")];
    let services = settings.services.iter();
    let addresses = services.filter_map(|range| cidr::address_at(*range, DNS_ADDRESS));
    let hosts = fixed(&NODE_LOCAL_DNS)
        .into_iter()
        .chain(addresses.map(IpPrefix::host));
    to.extend(hosts.map(|host| block(host, Vec::new())));
    let ports = DNS_PORTS
        .iter()
        .flat_map(|number| [Protocol::Udp, Protocol::Tcp].map(|own| port(own, *number)));
    egress("to-dns", vec![rule(to, ports.collect())])
}

fn dns_pods(app: &str) -> Value {
    let one = json!({"key": "k8s-app", "operator": "In", "values": [app]});
    json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchExpressions": [one]},
    })
}

/// A policy of the pods that carry a label, for egress; an empty list of rules is left out.
fn egress(label: &str, rules: Vec<Value>) -> Value {
    let label = format!("networking.gardener.cloud/{label}");
    let spec = json!({
        "podSelector": {"matchLabels": {label: "allowed"}},
        "policyTypes": ["Egress"],
    });
    with_lists(spec, [("egress", rules)])
}

fn rule(to: Vec<Value>, ports: Vec<Value>) -> Value {
    with_lists(json!({}), [("to", to), ("ports", ports)])
}

fn block(range: IpPrefix, except: Vec<IpPrefix>) -> Value {
    let except = except.iter().map(|range| json!(range.to_string()));
    let block = json!({"cidr": range.to_string()});
    json!({"ipBlock": with_lists(block, [("except", except.collect())])})
}

fn port(protocol: Protocol, number: u16) -> Value {
    json!({"port": number, "protocol": protocol.as_str()})
}

/// Reads the ranges written in this file.
fn fixed(texts: &[&str]) -> Vec<IpPrefix> {
    let ranges = texts.iter().filter_map(|text| text.parse().ok());
    ranges.collect()
}
