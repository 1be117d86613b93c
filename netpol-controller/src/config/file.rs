//! The configuration file: keys, their meaning and their defaults.
//!
//! What these comments say is also what the published schema says. Checks nothing beyond types;
//! validation is in the parent module.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{AdminSettings, ListenAddress, ProbesSettings, RelPath};

use super::RoutingConfig;
use crate::plan::{NamespaceSettings, PolicySettings};
use crate::routes::GatewayEntry;
use crate::state::LabelSelector;

/// The configuration file of `netpol-controller`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "File")]
pub struct Config {
    /// The kubeconfig; empty for that of `KUBECONFIG`, or else the pod's service account.
    pub(crate) kubeconfig: RelPath,
    /// How one of several replicas is chosen to write.
    pub(crate) leader_election: LeaderElection,
    /// Where `/healthz`, `/readyz` and `/metrics` answer.
    pub(crate) probes: ProbesSettings,
    /// Where operators look in: the probes' paths and `/`, `/config`, `/snapshot`, `/connections`, `/log`.
    pub(crate) admin: AdminSettings,
    /// What the controller does.
    pub(crate) controllers: ControllersFile,
    /// The file, which is read again.
    #[serde(skip)]
    pub(crate) origin: PathBuf,
    /// `kubeconfig`, from the working directory.
    #[serde(skip)]
    pub(crate) kubeconfig_path: Option<PathBuf>,
    /// How namespaces are planned; `None` when their policies are not written.
    #[serde(skip)]
    pub(crate) namespaces: Option<NamespaceSettings>,
    /// Which routes are served, and how; `None` when they are not.
    #[serde(skip)]
    pub(crate) routing: Option<RoutingConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kubeconfig: RelPath::default(),
            leader_election: LeaderElection::default(),
            probes: ProbesSettings::on_port(8081),
            admin: AdminSettings::on_loopback(9901),
            controllers: ControllersFile::default(),
            origin: PathBuf::new(),
            kubeconfig_path: None,
            namespaces: None,
            routing: None,
        }
    }
}

/// How one of several replicas is chosen to write, by a Lease.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "LeaderElectionFile")]
pub(crate) struct LeaderElection {
    /// Whether there is an election; without one this replica writes.
    pub(crate) enabled: bool,
    /// Namespace of the Lease.
    pub(crate) namespace: String,
    /// Name of the Lease.
    pub(crate) name: String,
}

impl Default for LeaderElection {
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
pub(crate) struct ControllersFile {
    /// NetworkPolicies from Services.
    pub(crate) network_policy: PolicySettings,
    /// `deny-all` and `allow-to-*` in Gardener's namespaces.
    pub(crate) namespace_policies: NamespacePoliciesFile,
    /// Routes to gateways, over xDS.
    pub(crate) routing: RoutingFile,
}

/// `deny-all` and `allow-to-*` in Gardener's namespaces.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct NamespacePoliciesFile {
    /// Whether they are written.
    pub(crate) enabled: bool,
    /// Ranges that only pods labeled for them may reach.
    #[serde(rename = "blockedCIDRs")]
    pub(crate) blocked_cidrs: Vec<String>,
    /// The cluster's own ranges.
    pub(crate) cluster: ClusterFile,
    /// Further namespaces that get every policy.
    pub(crate) additional_namespace_selectors: Vec<LabelSelector>,
}

/// The cluster's own ranges; IP families follow from them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ClusterFile {
    /// Of pods.
    pub(crate) pods: Vec<String>,
    /// Of Services; at least one when these policies are written.
    pub(crate) services: Vec<String>,
    /// Of nodes.
    pub(crate) nodes: Vec<String>,
}

/// Routes to gateways, over xDS.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct RoutingFile {
    /// Whether they are served.
    pub(crate) enabled: bool,
    /// Whether TLS ends in gateways where Gardener's objects say so, instead of being passed through. Needs
    /// `xds.ca`, `cert` and `key`, and the right to list and watch Secrets in the gateways' namespaces.
    pub(crate) tls_termination: bool,
    /// The gateways; the only key that is read again when the file changes.
    pub(crate) gateways: Vec<GatewayEntry>,
    /// Where gateways ask for them.
    pub(crate) xds: XdsFile,
}

/// Where gateways ask for routes.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct XdsFile {
    /// Address and port; port 0 picks one, which the log names.
    pub(crate) address: ListenAddress,
    /// CA that clients' certificates are signed by. Without it there is no TLS, and the address must
    /// be a loopback one.
    pub(crate) ca: RelPath,
    /// Our certificate.
    pub(crate) cert: RelPath,
    /// Its key.
    pub(crate) key: RelPath,
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
