//! What NetworkPolicies let through: their meaning as Kubernetes documents it, in the small.
//!
//! ```text
//!   from ──▶ egress policies of its namespace ──▶ ingress policies of the other's ──▶ to
//!            none selects the pod: open           none selects the pod: open
//!            else one rule must match             else one rule must match
//! ```
//!
//! Written from the documentation of NetworkPolicy and its API, for comparison with whatever writes
//! policies: a [`Cluster`] refuses objects that an API server would refuse. Knows pods, namespaces
//! and addresses outside; neither Services, nor nodes, nor pods in the host's network, for which
//! the documentation leaves the behavior open.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use self::policy::{Peer, Policy, PolicyType, Port, PortName, Rule};

mod policy;
mod selector;

pub type Labels = BTreeMap<String, String>;

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Sctp,
    #[default]
    Tcp,
    Udp,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    pub ip: IpAddr,
    pub ports: Vec<NamedPort>,
}

#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    Address(IpAddr),
    Pod(&'a Pod),
}

impl End<'_> {
    fn is(self, pod: &Pod) -> bool {
        match self {
            End::Address(_) => false,
            End::Pod(own) => own.namespace == pod.namespace && own.name == pod.name,
        }
    }

    fn ip(self) -> IpAddr {
        match self {
            End::Address(ip) => ip,
            End::Pod(pod) => pod.ip,
        }
    }
}

impl fmt::Display for End<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Address(ip) => ip.fmt(f),
            End::Pod(pod) => write!(f, "pod {}/{}", pod.namespace, pod.name),
        }
    }
}

/// Whether `ipBlock` peers count for pods' addresses: network plugins differ, and the documentation
/// only says that blocks should be of addresses outside the cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Blocks {
    /// Pods are found by selectors alone.
    LeaveOutPods,
    /// A block with a pod's address has that pod too.
    MatchPods,
}

#[derive(Clone, Debug)]
pub struct Cluster {
    namespaces: BTreeMap<String, Labels>,
    policies: Vec<Policy>,
    blocks: Blocks,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Verdict {
    pub egress: Side,
    pub ingress: Side,
}

/// The policies that govern one end of a connection; names are `namespace/name`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Side {
    /// Those that select the pod in this direction; without any it is open.
    pub isolating: Vec<String>,
    /// Those of them that allow this connection.
    pub allowing: Vec<String>,
}

impl Verdict {
    pub fn allowed(&self) -> bool {
        self.egress.open() && self.ingress.open()
    }
}

impl Side {
    fn open(&self) -> bool {
        self.isolating.is_empty() || !self.allowing.is_empty()
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.isolating.is_empty() {
            return f.write_str("not isolated");
        }
        let list = |names: &[String]| names.join(", ");
        if self.allowing.is_empty() {
            return write!(f, "denied by {}", list(&self.isolating));
        }
        write!(f, "allowed by {}", list(&self.allowing))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "egress {}; ingress {}", self.egress, self.ingress)
    }
}

impl Cluster {
    /// Puts a cluster together from its namespaces with their labels and its NetworkPolicies, as an
    /// API server returns them.
    pub fn new<'a>(
        namespaces: BTreeMap<String, Labels>,
        policies: impl IntoIterator<Item = &'a Value>,
        blocks: Blocks,
    ) -> Result<Self> {
        let mut cluster = Self {
            namespaces,
            policies: Vec::new(),
            blocks,
        };
        for object in policies {
            let policy = Policy::parse(object)
                .with_context(|| format!("reading the NetworkPolicy {object}"))?;
            let (title, namespace) = (policy.title(), &policy.metadata.namespace);
            let known = cluster.namespaces.contains_key(namespace);
            ensure!(known, "{title} is in no namespace");
            let twice = cluster.policies.iter().any(|own| own.title() == title);
            ensure!(!twice, "there are two {title}");
            cluster.policies.push(policy);
        }
        Ok(cluster)
    }

    /// Tells whether a connection from one end to a port of the other is let through.
    pub fn allows(&self, from: End<'_>, to: End<'_>, protocol: Protocol, port: u16) -> bool {
        self.connection(from, to, protocol, port).allowed()
    }

    /// As [`Cluster::allows`], with the policies that decide.
    pub fn connection(&self, from: End<'_>, to: End<'_>, protocol: Protocol, port: u16) -> Verdict {
        let mut verdict = Verdict::default();
        // Nothing keeps a pod from itself.
        if matches!(from, End::Pod(pod) if to.is(pod)) {
            return verdict;
        }
        let wanted = Wanted { to, protocol, port };
        if let End::Pod(pod) = from {
            verdict.egress = self.side(pod, to, wanted, PolicyType::Egress);
        }
        if let End::Pod(pod) = to {
            verdict.ingress = self.side(pod, from, wanted, PolicyType::Ingress);
        }
        verdict
    }

    /// What the policies of one direction say about a pod's connection with the other end.
    fn side(&self, pod: &Pod, other: End<'_>, wanted: Wanted<'_>, direction: PolicyType) -> Side {
        let mut side = Side::default();
        for policy in &self.policies {
            let Some(rules) = policy.rules(direction) else {
                continue;
            };
            let namespace = &policy.metadata.namespace;
            if *namespace != pod.namespace || !policy.spec.pod_selector.matches(&pod.labels) {
                continue;
            }
            side.isolating.push(policy.title());
            let allows = |rule: &Rule| {
                self.has_peer(namespace, rule.peers(), other) && wanted.has_port(&rule.ports)
            };
            if rules.iter().any(allows) {
                side.allowing.push(policy.title());
            }
        }
        side
    }

    /// Tells whether one of the peers is `end`; no peers mean everyone.
    fn has_peer(&self, namespace: &str, peers: &[Peer], end: End<'_>) -> bool {
        peers.is_empty() || peers.iter().any(|peer| self.is_peer(namespace, peer, end))
    }

    fn is_peer(&self, namespace: &str, peer: &Peer, end: End<'_>) -> bool {
        match (&peer.ip_block, end) {
            (Some(block), _) => {
                let counts = matches!(end, End::Address(_)) || self.blocks == Blocks::MatchPods;
                let ip = end.ip();
                let excepted = block.except.iter().any(|range| range.0.contains(&ip));
                counts && block.cidr.0.contains(&ip) && !excepted
            }
            (None, End::Address(_)) => false,
            (None, End::Pod(pod)) => {
                let labels = self.namespaces.get(&pod.namespace);
                let in_namespace = match &peer.namespace_selector {
                    None => pod.namespace == namespace,
                    Some(selector) => labels.is_some_and(|own| selector.matches(own)),
                };
                let pods = peer.pod_selector.as_ref();
                in_namespace && pods.is_none_or(|own| own.matches(&pod.labels))
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Wanted<'a> {
    to: End<'a>,
    protocol: Protocol,
    port: u16,
}

impl Wanted<'_> {
    /// Tells whether one of the ports is the wanted one; no ports mean all.
    fn has_port(self, ports: &[Port]) -> bool {
        let is_wanted = |own: &Port| {
            own.protocol == self.protocol
                && match &own.port {
                    None => true,
                    Some(PortName::Name(name)) => self.is_named(name),
                    Some(PortName::Number(first)) => {
                        let last = own.end_port.unwrap_or(*first);
                        (first.get()..=last.get()).contains(&self.port)
                    }
                }
        };
        ports.is_empty() || ports.iter().any(is_wanted)
    }

    /// Names are those of the pod that is connected to, whatever the direction of the policy.
    fn is_named(self, name: &str) -> bool {
        match self.to {
            End::Address(_) => false,
            End::Pod(pod) => pod.ports.iter().any(|own| {
                own.name == name && own.protocol == self.protocol && own.number == self.port
            }),
        }
    }
}
