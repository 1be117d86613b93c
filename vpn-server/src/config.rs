//! Flags, environment, configuration file, defaults and validation of the tunnel server.
//!
//! ```text
//!   file ──▶ filled from the environment ──▶ checked ──▶ Config
//! ```
//!
//! Produces a [`Config`] that needs no further checking. What its files of keys and peers say is
//! `identity`'s.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use route::TcpOptions;
use settings::{AdminAddress, ByteSize, ConfigError, ConfigErrors, yaml};
use telemetry::{AccessFormat, EndpointAddr, LogFormat};
use tls::{ServerTls, ServerTlsParams};
use tunnel::settings::Offloads;
use tunnel::{Identity, RouteId};

use crate::identity::{self, IdentityError};

mod checks;
mod environment;
mod file;

pub use self::environment::Environment;
use self::file::AccessLogFormat;
pub use self::file::{File, PeersFile};
pub(crate) use self::file::{LimitsFile, ListenFile, PeerFile};

/// Takes connections of a shoot's API server into the shoot, through tunnels that clients there
/// open.
#[derive(Clone, Debug, Parser)]
#[command(name = "vpn-server", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Flags {
    /// Configuration file (YAML).
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/rhizome/vpn-server.yaml"
    )]
    pub config: PathBuf,

    /// Validate the configuration and all it points to, print what is in effect, and exit.
    #[arg(long)]
    pub check: bool,

    /// How logs are written to standard error: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", global = true)]
    pub log_format: LogFormat,

    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of serving.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Make a private key, write it to FILE, which must not exist, and print its public key.
    Keygen {
        /// Where to.
        file: PathBuf,
    },
    /// Make what both ends of a shoot's tunnels need, by the program vpn-provision beside this one;
    /// see `provision --help`.
    #[command(disable_help_flag = true)]
    Provision {
        /// What that program is given.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

const EXAMPLES: &str = "\
Examples:
  vpn-server --config /etc/rhizome/vpn-server.yaml
  vpn-server --config vpn-server.yaml --check
  vpn-server keygen /keys/server-0 > server-0.pub
  vpn-server provision --config shoot.yaml --out manifests
  vpn-server provision --config shoot.yaml --kubeconfig seed --shoot-kubeconfig shoot rotate start

Signals:
  SIGTERM, SIGINT  drain and exit; the second time exit at once
  SIGHUP           read keys, peers and certificates again

Environment, for what the file leaves open:
  SHOOT_POD_NETWORKS, SHOOT_SERVICE_NETWORKS, SHOOT_NODE_NETWORKS
                   the lists of `networks`, with commas between
  VPN_NETWORK      the transfer network that `addresses` is taken from
  POD_NAME, IS_HA  `name`; with IS_HA=true the number at its end is which server this is
  RUST_LOG         log levels, such as info or info,tunnel=debug

Exit codes: 0 ended as asked, 64 configuration refused, 1 anything else.";

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) name: String,
    pub(crate) device: String,
    pub(crate) table: u32,
    pub(crate) mtu: u16,
    pub(crate) route: Option<RouteId>,
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) networks: Vec<IpNet>,
    /// DNS servers of the shoot.
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) keys: KeyFiles,
    pub(crate) listen: ListenFile,
    pub(crate) trusted_gateways: Vec<IpNet>,
    pub(crate) proxy: ProxyConfig,
    pub(crate) limits: LimitsFile,
    pub(crate) flows: usize,
    pub(crate) queue: tunnel::codel::Params,
    pub(crate) offloads: Offloads,
    pub(crate) buffers: udp::BufferSizes,
    /// Of the tunnels' sockets.
    pub(crate) tcp: TcpOptions,
    pub(crate) workers: usize,
    pub(crate) drain: serve::DrainParams,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: EndpointAddr,
    pub(crate) access_log: AccessFormat,
    effective: serde_json::Value,
}

/// Files of keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyFiles {
    pub(crate) private: Vec<PathBuf>,
    pub(crate) peers: PathBuf,
}

/// The proxy that API servers ask for connections.
#[derive(Clone, Debug)]
pub(crate) struct ProxyConfig {
    pub(crate) address: SocketAddr,
    pub(crate) tls: ServerTlsParams,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) connections: u64,
    pub(crate) connections_per_source: u32,
    pub(crate) cluster_domain: String,
    pub(crate) cached_names: u64,
    pub(crate) tcp: TcpOptions,
}

/// Why what the configuration points to is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// Keys or peers.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
}

impl Config {
    /// Reads and validates the configuration file at `path`, without what it points to.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        Self::validated(yaml::load(path)?, path, environment)
    }

    /// As [`Config::load`], from text; `origin` is the file that relative paths start from.
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

    /// Returns the configuration in effect, defaults included and secrets left out.
    #[must_use]
    pub fn effective(&self) -> &serde_json::Value {
        &self.effective
    }

    /// Reads keys and peers.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub fn identity(&self) -> Result<Identity, IdentityError> {
        identity::load(&self.keys, &self.addresses)
    }

    /// Validates what the configuration points to, and returns all of it as text.
    ///
    /// # Errors
    /// Why keys, peers or certificates are refused.
    pub fn check(&self) -> Result<String, CheckError> {
        let identity = self.identity()?;
        ServerTls::load(self.proxy.tls.clone())?;
        let (keys, peers) = (identity.keys.len(), identity.peers.len());
        let text = settings::effective_yaml(&self.effective).unwrap_or_default();
        let file = self.keys.peers.display();
        Ok(format!("{text}# own keys: {keys}; {file}: {peers} peers\n"))
    }

    fn validated(
        mut file: File,
        origin: &Path,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        environment.fill(&mut file, &mut errors);
        file.fill_tcp();
        let checked = file.check(&mut errors);
        errors.into_result(origin)?;
        let effective = settings::redact(&file).unwrap_or_default();
        Ok(Self::from_file(file, checked, origin, effective))
    }

    fn from_file(
        file: File,
        checked: checks::Checked,
        origin: &Path,
        effective: serde_json::Value,
    ) -> Self {
        let proxy = &file.proxy;
        let gateways = !file.trusted_gateways.is_empty();
        Self {
            device: file.device.as_str().to_owned(),
            table: file.table,
            mtu: file.mtu,
            route: checked.route,
            addresses: checked.addresses,
            networks: file.networks.all(),
            resolvers: proxy.resolvers.clone(),
            keys: KeyFiles {
                private: file
                    .keys
                    .private
                    .iter()
                    .map(|path| path.resolve(origin))
                    .collect(),
                peers: file.keys.peers.resolve(origin),
            },
            listen: ListenFile {
                wrapped: file.listen.wrapped.filter(|_| gateways),
                ..file.listen
            },
            trusted_gateways: file.trusted_gateways.iter().map(|cidr| cidr.0).collect(),
            proxy: ProxyConfig {
                address: proxy.address.0,
                tls: ServerTlsParams {
                    cert: proxy.cert.resolve(origin),
                    key: proxy.key.resolve(origin),
                    client_ca: Some(proxy.ca.resolve(origin)),
                    client_auth: tls::ClientAuth::Required,
                    alpn: vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()],
                },
                connect_timeout: proxy.connect_timeout.0,
                idle_timeout: proxy.idle_timeout.non_zero(),
                connections: proxy.connections,
                connections_per_source: proxy.connections_per_source,
                cluster_domain: proxy.cluster_domain.clone(),
                cached_names: proxy.cached_names,
                tcp: checked.proxy_tcp,
            },
            limits: file.limits,
            flows: file.flows,
            queue: file.queue.params(),
            offloads: file.offloads,
            buffers: udp::BufferSizes {
                receive: bytes(file.buffers.receive),
                send: bytes(file.buffers.send),
            },
            tcp: checked.tcp,
            workers: file.workers,
            drain: serve::DrainParams {
                delay: file.drain.delay.0,
                timeout: file.drain.timeout.0,
            },
            probes: file.probes.address(),
            admin: match file.admin.address {
                AdminAddress::Off => EndpointAddr::None,
                AdminAddress::Tcp(address) => EndpointAddr::Tcp(address.get()),
                AdminAddress::Unix(path) => EndpointAddr::Unix(path),
            },
            access_log: match file.access_log.format {
                AccessLogFormat::Json => AccessFormat::Json,
                AccessLogFormat::Off => AccessFormat::Off,
                AccessLogFormat::Text => AccessFormat::Text,
            },
            name: file.name,
            effective,
        }
    }
}

fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
