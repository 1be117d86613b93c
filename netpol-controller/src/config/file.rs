//! The configuration file as it is written: keys, their meaning and their defaults.
//!
//! What these comments say is also what the published schema says. Checks nothing beyond types;
//! validation is in the parent module.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{AdminSettings, ListenAddress, ProbesSettings, RelPath};

use crate::state::{LabelSelector, Labels};

/// The configuration file of `netpol-controller`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct File {
    /// The kubeconfig; empty for that of `KUBECONFIG`, or else the pod's service account.
    pub(super) kubeconfig: RelPath,
    /// How one of several replicas is chosen to write.
    pub(super) leader_election: LeaderElectionFile,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    pub(super) probes: ProbesSettings,
    /// Where operators look in: the probes' paths and `/`, `/config`, `/snapshot`, `/log`.
    pub(super) admin: AdminSettings,
    /// What the controller does.
    pub(super) controllers: ControllersFile,
}

impl Default for File {
    fn default() -> Self {
        Self {
            kubeconfig: RelPath::default(),
            leader_election: LeaderElectionFile::default(),
            probes: ProbesSettings::on_port(8081),
            admin: AdminSettings::on_loopback(9901),
            controllers: ControllersFile::default(),
        }
    }
}

/// How one of several replicas is chosen to write, by a Lease.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct LeaderElectionFile {
    /// Whether there is an election; without one this replica writes.
    pub(super) enabled: bool,
    /// Namespace of the Lease.
    pub(super) namespace: String,
    /// Name of the Lease.
    pub(super) name: String,
}

impl Default for LeaderElectionFile {
    fn default() -> Self {
        Self {
            enabled: true,
            namespace: "garden".to_owned(),
            name: "rhizome-netpol-controller".to_owned(),
        }
    }
}

/// What the controller does.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ControllersFile {
    /// NetworkPolicies from Services.
    pub(super) network_policy: NetworkPolicyFile,
    /// `deny-all` and `allow-to-*` in Gardener's namespaces.
    pub(super) namespace_policies: NamespacePoliciesFile,
    /// Routes to gateways, over xDS.
    pub(super) routing: RoutingFile,
}

/// NetworkPolicies from Services.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct NetworkPolicyFile {
    /// Whether they are written.
    pub(super) enabled: bool,
    /// Which of two behaviors is meant where they differ.
    pub(super) compatibility: CompatibilityFile,
    /// Services that are worked on at a time.
    pub(super) concurrent_syncs: usize,
    /// Namespaces whose Services get policies, any of these; empty for all.
    pub(super) namespace_selectors: Vec<LabelSelector>,
    /// The ingress controller's pods; absent for no policies from Ingresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ingress_controller_selector: Option<IngressControllerFile>,
}

impl Default for NetworkPolicyFile {
    fn default() -> Self {
        Self {
            enabled: true,
            compatibility: CompatibilityFile::Document,
            concurrent_syncs: 5,
            namespace_selectors: Vec::new(),
            ingress_controller_selector: None,
        }
    }
}

/// Which of two behaviors is meant where they differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CompatibilityFile {
    /// Gardener's documentation: policies whether or not a pod is labeled yet.
    #[default]
    Document,
    /// Today's Gardener: policies once a pod carries the label.
    Upstream,
}

/// The ingress controller's pods.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct IngressControllerFile {
    /// Their namespace.
    pub(super) namespace: String,
    /// Their labels.
    pub(super) pod_selector: LabelSelector,
}

/// `deny-all` and `allow-to-*` in Gardener's namespaces.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct NamespacePoliciesFile {
    /// Whether they are written.
    pub(super) enabled: bool,
    /// Ranges that only pods labeled for them may reach.
    #[serde(rename = "blockedCIDRs")]
    pub(super) blocked_cidrs: Vec<String>,
    /// The cluster's own ranges.
    pub(super) cluster: ClusterFile,
    /// Further namespaces that get every policy.
    pub(super) additional_namespace_selectors: Vec<LabelSelector>,
}

/// The cluster's own ranges; IP families follow from them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct ClusterFile {
    /// Of pods.
    pub(super) pods: Vec<String>,
    /// Of Services; at least one when these policies are written.
    pub(super) services: Vec<String>,
    /// Of nodes.
    pub(super) nodes: Vec<String>,
}

/// Routes to gateways, over xDS.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct RoutingFile {
    /// Whether they are served.
    pub(super) enabled: bool,
    /// The gateways.
    pub(super) gateways: Vec<GatewayFile>,
    /// Where gateways ask for them.
    pub(super) xds: XdsFile,
}

/// A gateway: a set of pods that get the same routes.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct GatewayFile {
    /// Name, which its pods give as `node.cluster`.
    pub(super) name: String,
    /// Namespace of its pods.
    pub(super) namespace: String,
    /// Labels of its pods.
    pub(super) selector: Labels,
    /// Ports of its Service, as objects name them.
    #[serde(default)]
    pub(super) ports: PortsFile,
    /// Subject alternative names, any of which a client's certificate must have, with mTLS.
    #[serde(default)]
    pub(super) clients: Vec<String>,
}

/// Ports of a gateway's Service.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct PortsFile {
    /// TLS passthrough by server name.
    pub(super) tls: u16,
    /// Node proxies.
    pub(super) node: u16,
    /// VPN clients.
    pub(super) vpn: u16,
}

impl Default for PortsFile {
    fn default() -> Self {
        Self {
            tls: 443,
            node: 8443,
            vpn: 8132,
        }
    }
}

/// Where gateways ask for routes.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct XdsFile {
    /// Address and port; port 0 picks one, which the log names.
    pub(super) address: ListenAddress,
    /// CA that clients' certificates are signed by. Without it there is no TLS, and the address
    /// must be a loopback one.
    pub(super) ca: RelPath,
    /// Our certificate.
    pub(super) cert: RelPath,
    /// Its key.
    pub(super) key: RelPath,
}

impl Default for XdsFile {
    fn default() -> Self {
        Self {
            address: ListenAddress::any(15010),
            ca: RelPath::default(),
            cert: RelPath::default(),
            key: RelPath::default(),
        }
    }
}
