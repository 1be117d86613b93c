//! What `vpn-provision` is asked for: its flags and the file of its parameters, validated.
//!
//! ```text
//!   file ─▶ ProvisionFile ─ check ─▶ Wanted ─▶ the planner
//!   flags ─ place ─▶ Destination: a directory, or clusters
//! ```
//!
//! What the file says of the two programs' configurations beside keys is passed on as it is; the
//! server's is validated with everything in it once it is whole, which is the renderer's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use settings::text::is_label;
use settings::{ConfigError, ConfigErrors, HumanDuration, yaml};
use telemetry::LogFormat;
use tunnel::RouteId;
use tunnel::settings::{Cidr, End, Networks, TunnelAddress, transfer_addresses};

use crate::render::Side;

/// Makes what both ends of a shoot's tunnels need, as Secrets and annotations of Services: keys,
/// configurations, route ids, the proxy's certificates. What is there already stays.
#[derive(Clone, Debug, Parser)]
#[command(name = "vpn-provision", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Flags {
    /// File of the parameters (YAML).
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        default_value = "/etc/rhizome/vpn-provision.yaml"
    )]
    pub config: PathBuf,

    /// Validate the parameters, print what they are for, and exit.
    #[arg(long)]
    pub check: bool,

    /// How logs are written to standard error: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub log_format: LogFormat,

    /// Write manifests below this directory and apply nothing. What is there already is taken for
    /// what was made before. With --kubeconfig free route ids are claimed in that cluster.
    #[arg(long, value_name = "DIR", global = true)]
    pub out: Option<PathBuf>,

    /// Kubeconfig of the seed: apply what belongs there.
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,

    /// Kubeconfig of the shoot: apply what belongs there.
    #[arg(long, value_name = "FILE", global = true)]
    pub shoot_kubeconfig: Option<PathBuf>,

    /// Write the shoot's manifests below this directory instead of applying them, such as for a
    /// ManagedResource.
    #[arg(long, value_name = "DIR", global = true)]
    pub shoot_out: Option<PathBuf>,

    /// How long pods may take to read a changed Secret: what a rotation waits between two steps.
    #[arg(long, value_name = "TIME", default_value = "2m", global = true)]
    pub settle: HumanDuration,

    /// How long to wait for the shoot's API server, which starts only once the seed's part is
    /// written; 0s ends with 75 if it does not answer.
    #[arg(long, value_name = "TIME", default_value = "0s", global = true)]
    pub wait: HumanDuration,

    /// What to do beside bringing everything up to date.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  vpn-provision --config shoot.yaml --kubeconfig seed --shoot-kubeconfig shoot --wait 15m
  vpn-provision --config shoot.yaml --kubeconfig seed --shoot-kubeconfig shoot rotate start
  vpn-provision --config shoot.yaml --out manifests

Environment:
  RUST_LOG         log levels, such as info

Exit codes: 0 done, 64 flags or parameters refused, 75 the seed's part is written and the shoot does
not answer yet: run it again, 1 anything else.";

/// What to do beside bringing everything up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Replace WireGuard's keys and the proxy's certificate authority, in two phases.
    #[command(subcommand)]
    Rotate(Rotate),
}

/// The phases of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Rotate {
    /// Make new keys and a new authority, trust old and new everywhere, then use the new ones.
    Start,
    /// Forget the old ones.
    Complete,
}

/// Where what is made goes.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) seed: Target,
    pub(crate) shoot: Target,
    /// Kubeconfig of the cluster in which route ids are claimed.
    pub(crate) claims: Option<PathBuf>,
}

/// Where one side's part goes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Into the cluster of this kubeconfig.
    Cluster(PathBuf),
    /// Into files.
    Directory(PathBuf),
}

impl Flags {
    /// Returns where to, or what is wrong with the flags.
    pub(crate) fn destination(&self) -> Result<Destination, &'static str> {
        let claims = self.kubeconfig.clone();
        let shoot = match (&self.shoot_kubeconfig, &self.shoot_out) {
            (Some(_), Some(_)) => {
                return Err("of --shoot-kubeconfig and --shoot-out one is enough");
            }
            (Some(file), None) => Some(Target::Cluster(file.clone())),
            (None, Some(dir)) => Some(Target::Directory(dir.clone())),
            (None, None) => None,
        };
        let (seed, shoot) = match (&self.out, &self.kubeconfig, shoot) {
            (Some(_), _, Some(_)) => {
                return Err(
                    "--out writes the shoot's part as well: no --shoot-kubeconfig, no --shoot-out",
                );
            }
            (Some(dir), _, None) => {
                let side = |side: Side| Target::Directory(dir.join(side.as_str()));
                (side(Side::Seed), side(Side::Shoot))
            }
            (None, Some(seed), Some(shoot)) => (Target::Cluster(seed.clone()), shoot),
            (None, Some(_), None) => {
                return Err(
                    "--kubeconfig needs --shoot-kubeconfig or --shoot-out for the shoot's part",
                );
            }
            (None, None, _) => return Err("say where to: --out, or --kubeconfig"),
        };
        Ok(Destination {
            seed,
            shoot,
            claims,
        })
    }
}

/// The file of the parameters of `vpn-provision`.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProvisionFile {
    /// Namespace of the shoot's control plane in the seed.
    pub(crate) namespace: String,
    /// Tunnel servers, 1 to 4: `vpn-seed-server-0` and so on.
    #[serde(default = "one")]
    servers: u16,
    /// Tunnel clients, 1 to 4: `vpn-shoot-0` and so on.
    #[serde(default = "one")]
    clients: u16,
    /// The shoot's networks, for both ends' configurations.
    pub(crate) networks: Networks,
    /// Transfer networks, at most one of each family; without one of a family that `networks` has,
    /// the customary one.
    #[serde(default)]
    transfer_networks: Vec<Cidr>,
    /// The gateway: `endpoint` of the clients' configuration.
    pub(crate) endpoint: Map<String, Value>,
    /// Whether each pair of a server and a client shares a key beside their own.
    #[serde(default = "settings::yes")]
    pub(crate) preshared_keys: bool,
    /// The servers' route ids, in order. Without any they are chosen in the seed and claimed there,
    /// which needs its kubeconfig.
    #[serde(default)]
    route_ids: Vec<u32>,
    /// What route ids are chosen from: first and last.
    #[serde(default = "every_route_id")]
    pub(crate) route_id_range: [u32; 2],
    /// Further names and addresses that the proxy's certificate is for.
    #[serde(default)]
    pub(crate) proxy_names: Vec<String>,
    /// Days for which authorities and certificates are valid; certificates are renewed after four
    /// fifths of that.
    #[serde(default = "ten_years")]
    pub(crate) certificate_days: u32,
    /// Namespace in the seed in which route ids are claimed: the same for all shoots.
    #[serde(default = "garden")]
    pub(crate) claims_namespace: String,
    /// Namespace of the clients in the shoot.
    #[serde(default = "kube_system")]
    pub(crate) shoot_namespace: String,
    /// What else the servers' configurations say, such as `trustedGateways` and `proxy.resolvers`.
    #[serde(default)]
    pub(crate) server: Map<String, Value>,
    /// What else the clients' configurations say.
    #[serde(default)]
    pub(crate) client: Map<String, Value>,
}

fn one() -> u16 {
    1
}

fn every_route_id() -> [u32; 2] {
    [1, RouteId::MAX]
}

fn ten_years() -> u32 {
    3650
}

fn garden() -> String {
    "garden".to_owned()
}

fn kube_system() -> String {
    "kube-system".to_owned()
}

/// Validated parameters.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) file: ProvisionFile,
    /// Each server's addresses on the transfer networks.
    pub(crate) servers: Vec<Vec<TunnelAddress>>,
    /// Each client's.
    pub(crate) clients: Vec<Vec<TunnelAddress>>,
    /// The servers' route ids; none to have them chosen.
    pub(crate) route_ids: Vec<RouteId>,
}

impl Wanted {
    /// Reads and validates the file at `path`.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::validated(yaml::load(path)?, path)
    }

    /// As [`Wanted::load`], from text; `origin` is the file's name in errors.
    #[cfg(test)]
    pub(crate) fn from_text(text: &str, origin: &Path) -> Result<Self, ConfigError> {
        Self::validated(yaml::from_str(text, origin)?, origin)
    }

    fn validated(file: ProvisionFile, origin: &Path) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        file.check_names(&mut errors);
        file.networks.validate("networks", &mut errors);
        let route_ids = file.route_ids(&mut errors);
        for (key, section, ours) in [
            ("server", &file.server, SERVER_KEYS.as_slice()),
            ("client", &file.client, CLIENT_KEYS.as_slice()),
        ] {
            for name in ours.iter().filter(|name| section.contains_key(**name)) {
                errors.add(format!("{key}.{name}"), "is written by provision itself");
            }
        }
        if !(CERTIFICATE_DAYS.0..=CERTIFICATE_DAYS.1).contains(&file.certificate_days) {
            let (least, most) = CERTIFICATE_DAYS;
            let why = format!("not between {least} and {most}");
            errors.add("certificateDays", why);
        }
        let servers = file.addresses("servers", file.servers, End::Server, &mut errors);
        let clients = file.addresses("clients", file.clients, End::Client, &mut errors);
        errors.into_result(origin)?;
        Ok(Self {
            file,
            servers,
            clients,
            route_ids,
        })
    }
}

impl ProvisionFile {
    fn check_names(&self, errors: &mut ConfigErrors) {
        for (key, name) in [
            ("namespace", &self.namespace),
            ("claimsNamespace", &self.claims_namespace),
            ("shootNamespace", &self.shoot_namespace),
        ] {
            if !is_label(name) {
                let name = name.escape_debug();
                errors.add(key, format!("`{name}` is not a namespace"));
            }
        }
        for (at, name) in self.proxy_names.iter().enumerate() {
            let address = name.parse::<std::net::IpAddr>().is_ok();
            if !(address || name.split('.').all(is_label)) {
                let name = name.escape_debug();
                let why = format!("`{name}` is neither a host name nor an address");
                errors.add(format!("proxyNames[{at}]"), why);
            }
        }
        let address = self.endpoint.get("address").and_then(Value::as_str);
        if address.is_none_or(str::is_empty) {
            errors.add("endpoint.address", "the gateway's name is needed");
        }
        if self.networks.all().is_empty() {
            errors.add("networks", "at least one network is needed");
        }
    }

    fn route_ids(&self, errors: &mut ConfigErrors) -> Vec<RouteId> {
        let [first, last] = self.route_id_range;
        if RouteId::new(first).is_none() || RouteId::new(last).is_none() || first > last {
            let most = RouteId::MAX;
            let why = format!("[{first}, {last}] are no two numbers between 1 and {most}");
            errors.add("routeIdRange", why);
        }
        let ids = &self.route_ids;
        if !ids.is_empty() && ids.len() != usize::from(self.servers) {
            let (ids, servers) = (ids.len(), self.servers);
            let why = format!("{ids} for {servers} servers; each needs one, or none is given");
            errors.add("routeIds", why);
        }
        let mut seen = BTreeSet::new();
        let mut read = |(at, number): (usize, &u32)| {
            let id = RouteId::new(*number);
            if id.is_none() {
                let why = format!("{number} is not between 1 and {}", RouteId::MAX);
                errors.add(format!("routeIds[{at}]"), why);
            } else if !seen.insert(*number) {
                let why = format!("{number} is there twice");
                errors.add(format!("routeIds[{at}]"), why);
            }
            id
        };
        ids.iter().enumerate().filter_map(&mut read).collect()
    }

    fn addresses(
        &self,
        key: &str,
        count: u16,
        end: impl Fn(u16) -> End,
        errors: &mut ConfigErrors,
    ) -> Vec<Vec<TunnelAddress>> {
        if !(1..=MAX_ENDS).contains(&count) {
            let why = format!(
                "not between 1 and {MAX_ENDS}: while keys are rotated each end has two, and a \
                 program has numbers for 16 pairs"
            );
            errors.add(key, why);
            return Vec::new();
        }
        let given: Vec<IpNet> = self.transfer_networks.iter().map(|cidr| cidr.0).collect();
        let networks = self.networks.all();
        let addresses = (0..count).map(|number| transfer_addresses(&given, &networks, end(number)));
        let addresses: Result<Vec<_>, _> = addresses.collect();
        addresses.unwrap_or_else(|error| {
            errors.add("transferNetworks", error);
            Vec::new()
        })
    }
}

/// Most servers, and most clients: with two keys at each end, 8 by 2 pairs.
const MAX_ENDS: u16 = 4;

/// Bounds of `certificateDays`: what leaves time to renew, and ten times the customary.
const CERTIFICATE_DAYS: (u32, u32) = (2, 36_500);

/// What of the servers' configurations is ours.
const SERVER_KEYS: [&str; 5] = ["name", "routeId", "addresses", "networks", "keys"];

/// What of the clients' configurations is ours.
const CLIENT_KEYS: [&str; 6] = [
    "name",
    "addresses",
    "endpoint",
    "servers",
    "keys",
    "networks",
];

#[cfg(test)]
mod tests;
