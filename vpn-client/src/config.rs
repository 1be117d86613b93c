//! Flags, environment and configuration of the tunnel's client, validated.
//!
//! ```text
//!   file ─▶ File ─ fill (environment) ─▶ check ─▶ Config ─ identity ─▶ keys and peers
//! ```
//!
//! Produces a [`Config`] that needs no further checking; the files of keys it names are read by
//! [`Config::identity`], when they are needed and again when they change.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use route::{EndpointAddress, TcpOptions};
use serve::Family;
use settings::{ConfigError, ConfigErrors, yaml};
use telemetry::LogFormat;
use tunnel::keys::{KeyError, PresharedKey, PrivateKey};
pub use tunnel::settings::Environment;
use tunnel::stream::StreamParams;
use tunnel::{Identity, PeerSpec, Role, RouteId, path};
use udp::BufferSizes;

mod checks;
mod environment;
mod file;
#[cfg(test)]
mod tests;

pub use self::environment::environment;
pub use self::file::File;

/// Holds the tunnels of a shoot: connects to its servers in the seed, and carries what API servers
/// send to the shoot's networks.
#[derive(Clone, Debug, Parser)]
#[command(name = "vpn-client", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Flags {
    /// Configuration file (YAML).
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        default_value = "/etc/rhizome/vpn-client.yaml"
    )]
    pub config: PathBuf,

    /// Validate the configuration and the keys it names, print what is in effect, and exit.
    #[arg(long)]
    pub check: bool,

    /// How logs are written to standard error: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub log_format: LogFormat,

    /// What to do instead.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of holding tunnels.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Remove what a client that was killed left in the kernel: the masquerade rule.
    Cleanup,
    /// Write a new private key to a file that is not there yet, and print its public key.
    Keygen {
        /// The file, which only its owner may read.
        file: PathBuf,
    },
    /// Switch IPv6 and its forwarding on, as a privileged init container does, where the
    /// configuration has an IPv6 network.
    Setup,
}

const EXAMPLES: &str = "\
Examples:
  vpn-client --config vpn-client.yaml
  vpn-client --config vpn-client.yaml --check
  vpn-client setup --config vpn-client.yaml
  vpn-client keygen /keys/client

Signals:
  SIGTERM, SIGINT  have servers choose other clients, wait for connections, exit; the second time
                   exit at once
  SIGHUP           read keys and servers again, and look after the kernel's settings

Environment:
  RUST_LOG         log levels, such as info or info,tunnel=debug
  ENDPOINT, OPENVPN_PORT, REVERSED_VPN_HEADER_KEY, REVERSED_VPN_HEADER, VPN_NETWORK, POD_NAME,
  IS_HA, SHOOT_POD_NETWORKS, SHOOT_SERVICE_NETWORKS, SHOOT_NODE_NETWORKS
                   stand in for keys that the file leaves out

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";

/// A validated configuration: the file, filled from the environment, and what follows from it.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) file: File,
    pub(crate) endpoint: Endpoint,
    /// How each server is reached, by its name.
    pub(crate) gateways: BTreeMap<String, Gateway>,
    pub(crate) path: path::Params,
    /// The file itself, which relative paths start from.
    origin: PathBuf,
}

/// How every gateway is connected and asked.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) header: String,
    pub(crate) family: Family,
    pub(crate) connect_timeout: Duration,
    pub(crate) options: TcpOptions,
    pub(crate) buffers: BufferSizes,
}

/// The gateway in front of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gateway {
    pub(crate) tcp: EndpointAddress,
    pub(crate) udp: EndpointAddress,
    /// What the header says that leads to the server.
    pub(crate) value: String,
}

impl Config {
    /// Reads and validates the configuration file at `path`; what it leaves open is taken from
    /// `environment`. No file it names is read.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        Self::validated(yaml::load(path)?, path, environment)
    }

    /// As [`Config::load`], from text.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn from_text(
        text: &str,
        origin: &Path,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        Self::validated(yaml::from_str(text, origin)?, origin, environment)
    }

    /// Returns the configuration in effect, defaults included.
    #[must_use]
    pub fn effective(&self) -> serde_json::Value {
        settings::redact(&self.file).unwrap_or_default()
    }

    /// Reads the keys that the configuration names. Blocks: the files are small and local.
    ///
    /// # Errors
    /// The first file that holds no key.
    pub fn identity(&self) -> Result<Identity, KeyError> {
        let keys = self.private_keys();
        let peers = self.file.servers.iter().map(|server| {
            let preshared = server.preshared_key.as_ref();
            let preshared = preshared.map(|file| PresharedKey::read(&file.resolve(&self.origin)));
            Ok(PeerSpec {
                name: server.name.clone(),
                public_keys: server.public_keys.clone(),
                preshared_key: preshared.transpose()?,
                addresses: server.addresses.clone(),
                route: server.route_id.and_then(RouteId::new),
            })
        });
        Ok(Identity {
            keys: keys
                .map(|file| PrivateKey::read(&file))
                .collect::<Result<_, _>>()?,
            peers: peers.collect::<Result<_, KeyError>>()?,
        })
    }

    fn private_keys(&self) -> impl Iterator<Item = PathBuf> {
        let files = self.file.keys.private.list().into_iter();
        files.map(|file| file.resolve(&self.origin))
    }

    /// Returns the files of keys, each once.
    pub(crate) fn key_files(&self) -> Vec<PathBuf> {
        let servers = self.file.servers.iter();
        let preshared = servers.filter_map(|own| own.preshared_key.as_ref());
        let preshared = preshared.map(|file| file.resolve(&self.origin));
        let mut files: Vec<_> = self.private_keys().chain(preshared).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns what the tunnel is started with.
    pub(crate) fn tunnel_params(&self) -> tunnel::Params {
        let file = &self.file;
        tunnel::Params {
            role: Role::Client {
                networks: file.networks.all(),
                path: self.path,
            },
            name: file.name.clone(),
            addresses: file.addresses.iter().map(|own| own.address()).collect(),
            mtu: file.mtu,
            stream: StreamParams {
                queue: file.queue.params(),
                notsent_lowat: self.endpoint.options.notsent_lowat,
                ..StreamParams::default()
            },
            offloads: file.offloads.of_udp(),
        }
    }

    /// Returns whether packets for an IPv6 network come out of the tunnel.
    pub(crate) fn forwards_ipv6(&self) -> bool {
        let networks = self.file.networks.all();
        networks.iter().any(|network| network.addr().is_ipv6())
    }

    /// Returns whether there is IPv6 in the tunnel at all.
    pub(crate) fn uses_ipv6(&self) -> bool {
        let mut addresses = self.file.addresses.iter();
        self.forwards_ipv6() || addresses.any(|own| own.address().is_ipv6())
    }

    /// Returns the configuration with the servers and keys of `fresh`, which is what changes without
    /// a restart.
    ///
    /// # Errors
    /// Why they do not go with what is in effect.
    pub(crate) fn reloaded(&self, fresh: &Self) -> Result<Self, ConfigError> {
        let mut file = self.file.clone();
        file.servers.clone_from(&fresh.file.servers);
        file.keys.clone_from(&fresh.file.keys);
        file.check(&self.origin, ConfigErrors::new())
    }

    /// Returns the keys of the file by which `fresh` differs and that a running client does not
    /// apply.
    #[must_use]
    pub fn restart_keys(&self, fresh: &Self) -> Vec<String> {
        let mut keys = settings::changed_keys(&self.effective(), &fresh.effective());
        keys.retain(|key| key != "servers" && key != "keys");
        keys
    }

    fn validated(
        mut file: File,
        origin: &Path,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        file.fill(environment, &mut errors);
        file.fill_tcp();
        file.check(origin, errors)
    }
}
