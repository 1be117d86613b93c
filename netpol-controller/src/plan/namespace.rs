//! The general policies of a namespace: `deny-all` and what pods are allowed by a label of theirs.
//!
//! ```text
//!   labels of the namespace ──▶ which of the six     specs ──▶ what each says
//! ```
//!
//! Neither knows which of them are there already, nor whether one that is unwanted may be deleted.

use std::net::IpAddr;

use route::IpPrefix;

use super::{Policy, Problem, Reason, cidr};
use crate::state::{
    ClusterState, EndpointAddress, EndpointPort, Kind, LabelSelector, Labels, ObjectKey, ObjectRef,
};

mod specs;

/// Names of the general policies, in the order in which they are written: `deny-all` comes last, so
/// that no namespace has it without what it leaves open.
pub const NAMES: [&str; 6] = [
    ALLOW_TO_RUNTIME_APISERVER,
    ALLOW_TO_PUBLIC_NETWORKS,
    ALLOW_TO_PRIVATE_NETWORKS,
    ALLOW_TO_BLOCKED_CIDRS,
    ALLOW_TO_DNS,
    DENY_ALL,
];

const ALLOW_TO_RUNTIME_APISERVER: &str = "allow-to-runtime-apiserver";
const ALLOW_TO_PUBLIC_NETWORKS: &str = "allow-to-public-networks";
const ALLOW_TO_PRIVATE_NETWORKS: &str = "allow-to-private-networks";
const ALLOW_TO_BLOCKED_CIDRS: &str = "allow-to-blocked-cidrs";
const ALLOW_TO_DNS: &str = "allow-to-dns";
/// Name of the policy that forbids everything that no other one allows.
pub const DENY_ALL: &str = "deny-all";

/// What the cluster's operator says about its networks.
#[derive(Clone, Debug, Default)]
pub struct NamespaceSettings {
    /// Ranges that only pods labeled for them may reach.
    pub blocked: Vec<IpPrefix>,
    /// The cluster's ranges of pods.
    pub pods: Vec<IpPrefix>,
    /// The cluster's ranges of Services.
    pub services: Vec<IpPrefix>,
    /// The cluster's ranges of nodes.
    pub nodes: Vec<IpPrefix>,
    /// Further namespaces that get every policy; any of these.
    pub additional_selectors: Vec<LabelSelector>,
}

impl NamespaceSettings {
    fn cluster(&self) -> Vec<IpPrefix> {
        [&self.pods[..], &self.services, &self.nodes].concat()
    }
}

/// Where the API server is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ApiServer {
    /// Its addresses and their ports, subset by subset; empty when they are not known.
    pub subsets: Vec<(Vec<EndpointAddress>, Vec<EndpointPort>)>,
    /// The host name that we reach it by.
    pub host: HostName,
}

/// A host name of the API server.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum HostName {
    /// It is reached by address.
    #[default]
    None,
    /// The name's addresses, sorted, and the port.
    Resolved(Vec<IpAddr>, u16),
    /// The name has not been resolved yet.
    Unresolved,
}

impl ApiServer {
    /// Reads the addresses from the Endpoints `default/kubernetes`.
    pub fn of(state: &ClusterState) -> Self {
        let endpoints = state
            .endpoints
            .get(&ObjectKey::new("default", "kubernetes"));
        Self {
            subsets: endpoints.map(|set| set.subsets.clone()).unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// What there should be of the general policies in a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespacePlan {
    /// The policies, in the order in which they are to be written.
    pub policies: Vec<Policy>,
    /// Names of those that must not exist here.
    pub unwanted: Vec<&'static str>,
    /// Names of those that stay as they are, there or not: what they would say is not known yet.
    pub untouched: Vec<&'static str>,
    /// What an operator should know.
    pub problems: Vec<Problem>,
}

/// Plans the general policies of a namespace; nothing when it is not there or being deleted.
pub fn namespace(
    state: &ClusterState,
    settings: &NamespaceSettings,
    api_server: &ApiServer,
    name: &str,
) -> NamespacePlan {
    let mut plan = NamespacePlan::default();
    let found = state.namespaces.get(name);
    let Some(namespace) = found.filter(|namespace| !namespace.terminating) else {
        return plan;
    };
    let roles = Roles::of(&namespace.labels, settings);
    for policy in NAMES {
        if !roles.want(policy) {
            plan.unwanted.push(policy);
            continue;
        }
        let spec = match policy {
            ALLOW_TO_RUNTIME_APISERVER => specs::to_api_server(api_server),
            ALLOW_TO_PUBLIC_NETWORKS => Some(specs::to_public_networks(settings)),
            ALLOW_TO_PRIVATE_NETWORKS => {
                let shoot = ShootRanges::of(state, name, &mut plan.problems);
                Some(specs::to_private_networks(settings, &shoot))
            }
            ALLOW_TO_BLOCKED_CIDRS => Some(specs::to_blocked_cidrs(settings)),
            ALLOW_TO_DNS => Some(specs::to_dns(settings)),
            _ => Some(specs::deny_all()),
        };
        match spec {
            Some(spec) => plan.policies.push(Policy {
                key: ObjectKey::new(name, policy),
                labels: Labels::new(),
                description: specs::description(policy).to_owned(),
                spec,
            }),
            None => plan.untouched.push(policy),
        }
    }
    plan
}

/// What a namespace is for, as far as it decides about policies.
#[derive(Clone, Copy, Debug, Default)]
struct Roles {
    /// It gets everything: the garden, a shoot, an extension, or one selected by the operator.
    full: bool,
    /// It is a mesh's: its control plane's, or its gateway's.
    mesh: bool,
    /// It holds the gateway of an exposure class.
    exposure_class: bool,
}

impl Roles {
    fn of(labels: &Labels, settings: &NamespaceSettings) -> Self {
        let role = labels.get("gardener.cloud/role").map(String::as_str);
        let garden = labels
            .get("kubernetes.io/metadata.name")
            .is_some_and(|name| name == "garden");
        let mut selectors = settings.additional_selectors.iter();
        Self {
            full: garden
                || matches!(role, Some("shoot" | "extension"))
                || selectors.any(|selector| selector.matches(labels)),
            mesh: matches!(role, Some("istio-system" | "istio-ingress")),
            exposure_class: labels.contains_key("handler.exposureclass.gardener.cloud/name"),
        }
    }

    fn want(self, policy: &str) -> bool {
        match policy {
            DENY_ALL | ALLOW_TO_DNS => self.full || self.mesh || self.exposure_class,
            ALLOW_TO_RUNTIME_APISERVER => self.full || self.mesh,
            _ => self.full,
        }
    }
}

/// The ranges of the shoot whose control plane a namespace holds: nothing its neighbors may reach
/// as a private network.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct ShootRanges {
    /// The shoot has IPv4 only: its ranges are exceptions of IPv4 blocks, else of IPv6 ones.
    v4_only: bool,
    ranges: Vec<IpPrefix>,
}

impl ShootRanges {
    fn of(state: &ClusterState, namespace: &str, problems: &mut Vec<Problem>) -> Self {
        if !namespace.starts_with("shoot-") {
            return Self::default();
        }
        let Some(networks) = state.shoots.get(namespace) else {
            problems.push(Problem {
                object: ObjectRef::new(Kind::Namespace, &ObjectKey::new("", namespace)),
                reason: Reason::MissingCluster,
                message: format!(
                    "there is no Cluster {namespace}: {ALLOW_TO_PRIVATE_NETWORKS} does not except \
                     the shoot's networks"
                ),
            });
            return Self::default();
        };
        let spec = networks.spec.iter();
        let mut ranges: Vec<IpPrefix> = spec.filter_map(|text| cidr::lenient(text)).collect();
        if !networks.status.is_empty() {
            let status = networks.status.iter();
            ranges.extend(status.filter_map(|text| cidr::lenient(text)));
            ranges.sort();
            ranges.dedup();
        }
        let families = &networks.ip_families;
        Self {
            v4_only: families.iter().all(|family| family == "IPv4"),
            ranges,
        }
    }
}

#[cfg(test)]
mod tests;
