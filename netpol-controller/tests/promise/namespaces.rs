//! Namespaces' policies: pods reach the addresses that their labels stand for, to the address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpol_controller::plan::{ApiServer, NamespaceSettings, namespace};
use netpol_controller::state::{ClusterState, Kind};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::json;
use testkit::netpol::{Blocks, Cluster, End, Labels, Pod, Protocol};

use crate::planned::{apply, object};

const SHOOT: &str = "shoot--a--b";

/// Ranges within and around the private networks, and ends of the address space.
const V4: [&str; 10] = [
    "10.1.0.0/16",
    "10.0.0.0/8",
    "10.0.0.0/7",
    "192.168.5.0/24",
    "169.254.169.254/32",
    "100.64.0.0/13",
    "203.0.113.0/24",
    "172.16.0.0/12",
    "0.0.0.0/0",
    "10.0.0.8/29",
];

const V6: [&str; 6] = [
    "fd01::/48",
    "fc00::/7",
    "2001:db8::/32",
    "fe80::/64",
    "::/0",
    "fd02::/108",
];

const PRIVATE: [&str; 6] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fe80::/10",
    "fc00::/7",
];

/// Networks that no setting mentions, and all there are.
const PUBLIC: [&str; 4] = ["203.0.113.0/24", "2001:db8::/32", "0.0.0.0/0", "::/0"];

const LABELS: [&str; 5] = [
    "to-blocked-cidrs",
    "to-dns",
    "to-private-networks",
    "to-public-networks",
    "to-runtime-apiserver",
];

const NODE_LOCAL_DNS: [&str; 2] = ["169.254.20.10", "fd30:1319:f1e:230b::1"];

const API_SERVER: &str = "198.51.100.7";

const API_SERVER_PORT: u16 = 6443;

/// What the comparison tries at each address.
const TRIED: [(Protocol, u16); 5] = [
    (Protocol::Tcp, 53),
    (Protocol::Udp, 8053),
    (Protocol::Tcp, API_SERVER_PORT),
    (Protocol::Udp, API_SERVER_PORT),
    (Protocol::Sctp, 1),
];

/// A range by its first and last address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Range {
    v4: bool,
    first: u128,
    last: u128,
}

impl Range {
    fn parse(text: &str) -> Self {
        let (network, bits) = text.split_once('/').unwrap();
        let (v4, first) = bits_of(network.parse().unwrap());
        let width = if v4 { 32 } else { 128 };
        let others = width - bits.parse::<u32>().unwrap();
        let size = 1_u128.checked_shl(others).unwrap_or(0).wrapping_sub(1);
        Self {
            v4,
            first,
            last: first + size,
        }
    }

    fn all(texts: &[&str]) -> Vec<Self> {
        texts.iter().map(|text| Self::parse(text)).collect()
    }

    fn has(self, ip: IpAddr) -> bool {
        let (v4, bits) = bits_of(ip);
        self.v4 == v4 && (self.first..=self.last).contains(&bits)
    }

    /// Returns whether the range is a part of the other one, and not all of it.
    fn is_part_of(self, other: Self) -> bool {
        self.v4 == other.v4 && other.first <= self.first && self.last <= other.last && self != other
    }

    /// Returns the addresses where something could begin or end.
    fn edges(self) -> impl Iterator<Item = IpAddr> {
        let middle = self.first + (self.last - self.first) / 2;
        let bits = [
            self.first.saturating_sub(1),
            self.first,
            middle,
            self.last,
            self.last.saturating_add(1),
        ];
        bits.into_iter().map(move |bits| match self.v4 {
            true => u32::try_from(bits).unwrap_or(u32::MAX).to_be_bytes().into(),
            false => bits.to_be_bytes().into(),
        })
    }
}

fn bits_of(ip: IpAddr) -> (bool, u128) {
    match ip {
        IpAddr::V4(ip) => (true, u32::from(ip).into()),
        IpAddr::V6(ip) => (false, ip.into()),
    }
}

/// What an operator says, and a shoot.
#[derive(Clone, Debug)]
struct Networks {
    blocked: Vec<&'static str>,
    pods: Vec<&'static str>,
    services: Vec<&'static str>,
    nodes: Vec<&'static str>,
    shoot: Option<Shoot>,
}

#[derive(Clone, Debug)]
struct Shoot {
    families: Vec<&'static str>,
    pods: Option<&'static str>,
    status: Vec<&'static str>,
}

fn networks() -> impl Strategy<Value = Networks> {
    let any = [&V4[..], &V6[..]].concat();
    let of = prop_oneof![Just(V4.to_vec()), Just(V6.to_vec()), Just(any.clone())];
    let families = select(vec![
        vec![],
        vec!["IPv4"],
        vec!["IPv6"],
        vec!["IPv4", "IPv6"],
    ]);
    let shoot = (
        families,
        option::of(select(any.clone())),
        vec(select(any.clone()), 0..3),
    );
    let shoot = shoot.prop_map(|(families, pods, status)| Shoot {
        families,
        pods,
        status,
    });
    let cluster = of.prop_flat_map(|pool| {
        let ranges = || vec(select(pool.clone()), 0..3);
        (ranges(), ranges(), ranges())
    });
    let blocked = vec(select(any), 0..4);
    let all = (blocked, cluster, option::of(shoot));
    all.prop_map(|(blocked, (pods, services, nodes), shoot)| Networks {
        blocked,
        pods,
        services,
        nodes,
        shoot,
    })
}

impl Networks {
    fn settings(&self) -> NamespaceSettings {
        let parsed = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        NamespaceSettings {
            blocked: parsed(&self.blocked),
            pods: parsed(&self.pods),
            services: parsed(&self.services),
            nodes: parsed(&self.nodes),
            additional_selectors: Vec::new(),
        }
    }

    fn state(&self) -> ClusterState {
        let mut state = ClusterState::default();
        let metadata = json!({ "name": SHOOT, "labels": { "gardener.cloud/role": "shoot" } });
        apply(&mut state, Kind::Namespace, json!({ "metadata": metadata }));
        let subset = json!({
            "addresses": [{ "ip": API_SERVER }],
            "ports": [{ "port": API_SERVER_PORT, "protocol": "TCP" }],
        });
        let metadata = json!({ "namespace": "default", "name": "kubernetes" });
        let object = json!({ "metadata": metadata, "subsets": [subset] });
        apply(&mut state, Kind::Endpoints, object);
        if let Some(shoot) = &self.shoot {
            let mut spec = json!({ "ipFamilies": shoot.families });
            if let Some(pods) = shoot.pods {
                spec["pods"] = pods.into();
            }
            let status = json!({ "networking": { "nodes": shoot.status } });
            let object = json!({
                "metadata": { "name": SHOOT },
                "spec": { "shoot": { "spec": { "networking": spec }, "status": status } },
            });
            apply(&mut state, Kind::Shoot, object);
        }
        state
    }

    fn cluster(&self) -> Vec<Range> {
        Range::all(&[&self.pods[..], &self.services, &self.nodes].concat())
    }

    /// Returns the family of all of the cluster's ranges.
    fn only_v4(&self) -> Option<bool> {
        let families: BTreeSet<_> = self.cluster().iter().map(|range| range.v4).collect();
        Some(*families.first()?).filter(|_| families.len() == 1)
    }

    /// Returns the exceptions of private networks of one family.
    fn not_private(&self, v4: bool) -> Vec<Range> {
        let mut ranges = Range::all(&self.blocked);
        if self.only_v4() == Some(v4) {
            ranges.extend(self.cluster());
        }
        if let Some(shoot) = &self.shoot {
            let shoots_v4 = shoot.families.is_empty() || shoot.families == ["IPv4"];
            if shoots_v4 == v4 {
                ranges.extend(shoot.pods.map(Range::parse));
                ranges.extend(Range::all(&shoot.status));
            }
        }
        ranges
    }

    fn is_private(&self, ip: IpAddr) -> bool {
        Range::all(&PRIVATE).into_iter().any(|network| {
            let exceptions = self.not_private(network.v4);
            let mut exceptions = exceptions.iter().filter(|own| own.is_part_of(network));
            network.has(ip) && !exceptions.any(|own| own.has(ip))
        })
    }

    fn is_public(&self, ip: IpAddr) -> bool {
        let everything = Range::parse(if ip.is_ipv4() { "0.0.0.0/0" } else { "::/0" });
        let mut exceptions = Range::all(&[&PRIVATE[..], &self.blocked].concat());
        if self.only_v4() == Some(false) {
            exceptions.extend(self.cluster());
        }
        let mut exceptions = exceptions.iter().filter(|own| own.is_part_of(everything));
        !exceptions.any(|own| own.has(ip))
    }

    fn is_blocked(&self, ip: IpAddr) -> bool {
        Range::all(&self.blocked).iter().any(|own| own.has(ip))
    }

    /// Cluster DNS has the address ten behind the first one of the Services' range.
    fn is_dns(&self, ip: IpAddr) -> bool {
        let services = Range::all(&self.services);
        let tenth = |range: &Range| range.has(ip) && bits_of(ip).1 == range.first + 10;
        let node_local = NODE_LOCAL_DNS.map(|text| text.parse().unwrap());
        node_local.contains(&ip) || services.iter().any(tenth)
    }

    fn promises(&self, labels: &[&str], ip: IpAddr, (protocol, port): (Protocol, u16)) -> bool {
        let dns = [53, 8053].contains(&port) && protocol != Protocol::Sctp;
        let api_server = (protocol, port) == (Protocol::Tcp, API_SERVER_PORT);
        labels.iter().any(|label| match *label {
            "to-blocked-cidrs" => self.is_blocked(ip),
            "to-dns" => dns && self.is_dns(ip),
            "to-private-networks" => self.is_private(ip),
            "to-public-networks" => self.is_public(ip),
            _ => api_server && ip.to_string() == API_SERVER,
        })
    }

    /// Returns the addresses worth trying.
    fn addresses(&self) -> BTreeSet<IpAddr> {
        let shoot = self.shoot.iter();
        let shoot = shoot.flat_map(|own| own.status.iter().chain(&own.pods));
        let ranges = [&self.blocked[..], &PRIVATE, &PUBLIC].concat();
        let ranges: Vec<_> = ranges
            .iter()
            .chain(shoot)
            .map(|text| Range::parse(text))
            .collect();
        let all = ranges.into_iter().chain(self.cluster());
        let tenth = |range: Range| {
            let tenth = Range {
                first: range.first + 9,
                last: range.first + 10,
                ..range
            };
            range.edges().chain(tenth.edges())
        };
        let fixed = [API_SERVER, NODE_LOCAL_DNS[0], NODE_LOCAL_DNS[1]];
        all.flat_map(tenth)
            .chain(fixed.map(|text| text.parse().unwrap()))
            .collect()
    }
}

fn pod(namespace: &str, labels: Labels) -> Pod {
    Pod {
        namespace: namespace.to_owned(),
        name: "pod".to_owned(),
        labels,
        ip: [10, 1, 2, 3].into(),
        ports: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pods_reach_the_addresses_of_their_labels(
        networks in networks(),
        labels in subsequence(LABELS.to_vec(), 0..=LABELS.len()),
    ) {
        let state = networks.state();
        let api_server = ApiServer::of(&state);
        let plan = namespace(&state, &networks.settings(), &api_server, SHOOT);
        let objects: Vec<_> = plan.policies.iter().map(object).collect();
        let name = "kubernetes.io/metadata.name";
        let namespaces = [SHOOT, "kube-system"]
            .map(|own| (own.to_owned(), [(name.to_owned(), own.to_owned())].into()));
        let cluster = Cluster::new(namespaces.into(), &objects, Blocks::LeaveOutPods).unwrap();
        let keys = labels.iter();
        let keys = keys.map(|label| format!("networking.gardener.cloud/{label}"));
        let client = pod(SHOOT, keys.map(|key| (key, "allowed".to_owned())).collect());
        for ip in networks.addresses() {
            for (protocol, port) in TRIED {
                let address = End::Address(ip);
                let verdict = cluster.connection(End::Pod(&client), address, protocol, port);
                let promised = networks.promises(&labels, ip, (protocol, port));
                prop_assert_eq!(verdict.allowed(), promised, "{}:{} {:?} {}", ip, port, protocol, verdict);
                prop_assert!(!cluster.allows(address, End::Pod(&client), protocol, port));
            }
        }
        for app in ["kube-dns", "node-local-dns", "coredns"] {
            let server = pod("kube-system", [("k8s-app".to_owned(), app.to_owned())].into());
            for (protocol, port) in TRIED {
                let found = cluster.allows(End::Pod(&client), End::Pod(&server), protocol, port);
                let dns = labels.contains(&"to-dns") && [53, 8053].contains(&port);
                prop_assert_eq!(found, dns && app != "coredns", "{} {:?} {}", app, protocol, port);
            }
        }
    }
}
