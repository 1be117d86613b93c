//! Flags, environment, configuration file, defaults and validation of the controller.
//!
//! [`Config`] is the file as serde reads it; loaded, it needs no further checking. The only file of this binary that reads
//! the environment.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use kube::config::Kubeconfig;
use route::IpPrefix;
use settings::{ConfigError, ConfigErrors, RelPath, Validate};
use telemetry::LogFormat;

pub use self::file::Config;
pub(crate) use self::file::LeaderElection;
use self::file::{NamespacePoliciesFile, RoutingFile};
use crate::controller::StartError;
use crate::plan::{NamespaceSettings, PolicySettings};
use crate::routes::GatewayEntry;
use crate::state::LabelSelector;

mod file;

/// Most Services that may be worked on at a time.
const MAX_SYNCS: usize = 256;

/// NetworkPolicies from Services, and routes to every gateway, from one model of the cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "netpol-controller", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Flags {
    /// Configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Validate the configuration and all it points to, print what is in effect, and exit.
    #[arg(long)]
    pub check: bool,

    /// Read the cluster once, print what would be written as a diff, write nothing, and exit.
    #[arg(long)]
    pub dry_run: bool,

    /// How logs are written to standard error: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

const EXAMPLES: &str = "\
Examples:
  netpol-controller --config /etc/rhizome/netpol-controller.yaml
  netpol-controller --config netpol-controller.yaml --check
  netpol-controller --config netpol-controller.yaml --dry-run | less

Signals:
  SIGTERM, SIGINT  release the lease, close all streams and exit within a second
  SIGHUP           read certificates again

Environment:
  RUST_LOG    log levels, such as info or info,kube=debug
  KUBECONFIG  the kubeconfig, where the configuration names none
  HOSTNAME    name of this replica in the Lease

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";

/// What this binary takes from its environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `HOSTNAME`, which in a pod is the pod's name.
    pub host_name: Option<String>,
    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`: where pods reach the API server.
    pub api_server: Option<(String, Option<u16>)>,
}

impl Environment {
    /// Reads the variables this binary knows; values that are not UTF-8 count as absent.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "only this module reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok();
        let port = value("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok());
        Self {
            host_name: value("HOSTNAME").filter(|name| !name.is_empty()),
            api_server: value("KUBERNETES_SERVICE_HOST").map(|host| (host, port)),
        }
    }
}

/// The gateways and where they ask.
#[derive(Clone, Debug)]
pub(crate) struct RoutingConfig {
    pub(crate) gateways: Vec<GatewayEntry>,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<tls::ServerTlsParams>,
}

impl Config {
    /// Reads and validates the configuration file at `path`, without what it points to.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        settings::load(path)
    }

    /// Returns how Services are planned; `None` when their policies are not written.
    pub(crate) fn policies(&self) -> Option<&PolicySettings> {
        let settings = &self.controllers.network_policy;
        settings.enabled.then_some(settings)
    }

    pub(crate) fn gateways(&self) -> &[GatewayEntry] {
        let routing = self.routing.as_ref();
        routing.map_or(&[], |own| &own.gateways)
    }

    /// Returns the configuration in effect, defaults included.
    #[must_use]
    pub fn effective(&self) -> serde_json::Value {
        settings::redact(self).unwrap_or_default()
    }

    /// Validates what the configuration points to, and returns all of it as text.
    ///
    /// # Errors
    /// Why the kubeconfig or the certificates are refused.
    pub fn check(&self) -> Result<String, StartError> {
        if let Some(path) = &self.kubeconfig_path {
            Kubeconfig::read_from(path).map_err(|error| StartError::Client(error.into()))?;
        }
        if let Some(params) = self.routing.as_ref().and_then(|own| own.tls.clone()) {
            tls::ServerTls::load(params)?;
        }
        Ok(settings::effective_yaml(&self.effective()).unwrap_or_default())
    }
}

impl Validate for Config {
    fn validate(&mut self, origin: &Path, errors: &mut ConfigErrors) {
        let policy = &self.controllers.network_policy;
        let key = "controllers.networkPolicy";
        if policy.concurrent_syncs == 0 || policy.concurrent_syncs > MAX_SYNCS {
            let why = format!("not between 1 and {MAX_SYNCS}");
            errors.add(format!("{key}.concurrentSyncs"), why);
        }
        let selectors = &policy.namespace_selectors;
        check_selectors(selectors, key, "namespaceSelectors", errors);
        if let Some(ingress) = &policy.ingress_controller_selector {
            let key = format!("{key}.ingressControllerSelector");
            if ingress.namespace.is_empty() {
                errors.add(format!("{key}.namespace"), "a namespace is needed");
            }
            if let Err(wrong) = ingress.pod_selector.check() {
                errors.add(format!("{key}.podSelector"), wrong);
            }
        }
        let election = &self.leader_election;
        for (key, value) in [("namespace", &election.namespace), ("name", &election.name)] {
            if election.enabled && value.is_empty() {
                errors.add(format!("leaderElection.{key}"), "must be given");
            }
        }
        let controllers = &self.controllers;
        let namespaces = namespaces(&controllers.namespace_policies, errors);
        let routing = routing(&controllers.routing, origin, errors);
        origin.clone_into(&mut self.origin);
        self.kubeconfig_path = resolved(&self.kubeconfig, origin);
        self.namespaces = (controllers.namespace_policies.enabled).then_some(namespaces);
        self.routing = controllers.routing.enabled.then_some(routing);
    }
}

fn resolved(path: &RelPath, origin: &Path) -> Option<PathBuf> {
    (!path.is_empty()).then(|| path.resolve(origin))
}

fn check_selectors(selectors: &[LabelSelector], block: &str, key: &str, errors: &mut ConfigErrors) {
    for (index, selector) in selectors.iter().enumerate() {
        if let Err(wrong) = selector.check() {
            errors.add(format!("{block}.{key}[{index}]"), wrong);
        }
    }
}

fn namespaces(file: &NamespacePoliciesFile, errors: &mut ConfigErrors) -> NamespaceSettings {
    let block = "controllers.namespacePolicies";
    let mut prefixes = |key: &str, texts: &[String]| -> Vec<IpPrefix> {
        errors.parse_each(format_args!("{block}.{key}"), texts, str::parse)
    };
    let settings = NamespaceSettings {
        blocked: prefixes("blockedCIDRs", &file.blocked_cidrs),
        pods: prefixes("cluster.pods", &file.cluster.pods),
        services: prefixes("cluster.services", &file.cluster.services),
        nodes: prefixes("cluster.nodes", &file.cluster.nodes),
        additional_selectors: file.additional_namespace_selectors.clone(),
    };
    if file.enabled && file.cluster.services.is_empty() {
        let why = "must be given: cluster DNS is reached at an address of it";
        errors.add(format!("{block}.cluster.services"), why);
    }
    let selectors = &file.additional_namespace_selectors;
    check_selectors(selectors, block, "additionalNamespaceSelectors", errors);
    settings
}

fn routing(file: &RoutingFile, origin: &Path, errors: &mut ConfigErrors) -> RoutingConfig {
    let block = "controllers.routing";
    if file.enabled && file.gateways.is_empty() {
        errors.add(format!("{block}.gateways"), "at least one is needed");
    }
    let xds = &file.xds;
    let address = xds.address.get();
    let files = [&xds.ca, &xds.cert, &xds.key].map(|path| resolved(path, origin));
    let tls = match files {
        [None, None, None] => {
            if file.enabled && !address.ip().is_loopback() {
                let why = "routes are served without TLS on a loopback address only";
                errors.add(format!("{block}.xds.address"), why);
            }
            None
        }
        [Some(ca), Some(cert), Some(key)] => Some(tls::ServerTlsParams {
            cert,
            key,
            client_ca: Some(ca),
            client_auth: tls::ClientAuth::Required,
            alpn: vec![b"h2".to_vec()],
        }),
        _ => {
            errors.add(format!("{block}.xds"), "ca, cert and key go together");
            None
        }
    };
    if file.enabled && file.tls_termination && tls.is_none() {
        let why = "secrets are sent only to gateways that show a certificate: xds.ca, cert and key";
        errors.add(format!("{block}.tlsTermination"), why);
    }
    let mut names = BTreeSet::new();
    for (index, gateway) in file.gateways.iter().enumerate() {
        let key = format!("{block}.gateways[{index}]");
        check_gateway(gateway, &key, errors);
        if !names.insert(&gateway.name) {
            let why = format!("there are two gateways {:?}", gateway.name);
            errors.add(format!("{key}.name"), why);
        }
        if tls.is_some() && gateway.clients.is_empty() {
            let why = "at least one is needed, or no client is admitted";
            errors.add(format!("{key}.clients"), why);
        }
    }
    let gateways = file.gateways.iter().map(|own| GatewayEntry {
        terminates_tls: file.tls_termination,
        ..own.clone()
    });
    RoutingConfig {
        gateways: gateways.collect(),
        address,
        tls,
    }
}

fn check_gateway(gateway: &GatewayEntry, key: &str, errors: &mut ConfigErrors) {
    for (name, value) in [("name", &gateway.name), ("namespace", &gateway.namespace)] {
        if value.is_empty() {
            errors.add(format!("{key}.{name}"), "must be given");
        }
    }
    if gateway.selector.is_empty() {
        errors.add(format!("{key}.selector"), "would select every pod");
    }
    if let Err(why) = LabelSelector::of_labels(gateway.selector.clone()).check() {
        errors.add(format!("{key}.selector"), why);
    }
    let ports = gateway.ports;
    let ports = [("tls", ports.tls), ("node", ports.node), ("vpn", ports.vpn)];
    for (index, (name, port)) in ports.iter().enumerate() {
        if *port == 0 {
            errors.add(format!("{key}.ports.{name}"), "not a port");
        }
        if ports[..index].iter().any(|(_, other)| other == port) {
            let why = format!("{port} is there twice");
            errors.add(format!("{key}.ports.{name}"), why);
        }
    }
}
