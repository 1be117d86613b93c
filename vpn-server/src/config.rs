//! Flags, environment, configuration file, defaults and validation of the tunnel server.
//!
//! ```text
//!   file ──serde──▶ Config ──▶ filled from the environment ──▶ checked
//! ```
//!
//! A [`Config`] that was loaded needs no further checking. What its files of keys and peers say is
//! `identity`'s.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use settings::{ConfigError, ConfigErrors, ListenAddress, yaml};
use telemetry::LogFormat;
use tls::{ServerTls, ServerTlsParams};
use tunnel::Identity;
use tunnel::settings::End;
pub use tunnel::settings::Environment;

use crate::error::ServerError;
use crate::identity;

mod checks;
mod file;

pub use self::file::{Config, PeersFile};
pub(crate) use self::file::{KeyFiles, Limits, PeerFile, ProxyConfig};

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

impl Config {
    /// Reads and validates the configuration file at `path`, without what it points to.
    ///
    /// # Errors
    /// What is wrong, with file, line or key.
    pub fn load(path: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        yaml::load::<Self>(path)?.validated(path, environment)
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
        yaml::from_str::<Self>(text, origin)?.validated(origin, environment)
    }

    /// Reads the file again, as it was read before.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub(crate) fn read_again(&self) -> Result<Self, ConfigError> {
        Self::load(&self.origin, &self.environment)
    }

    /// Returns the keys of the file by which `fresh` differs: a running server applies none of them.
    #[must_use]
    pub fn restart_keys(&self, fresh: &Self) -> Vec<String> {
        settings::changed_keys(&self.effective(), &fresh.effective())
    }

    /// Returns the configuration in effect, defaults included and secrets left out.
    #[must_use]
    pub fn effective(&self) -> serde_json::Value {
        settings::redact(self).unwrap_or_default()
    }

    /// Reads keys and peers.
    ///
    /// # Errors
    /// What is wrong, and in which file.
    pub fn identity(&self) -> Result<Identity, ServerError> {
        identity::load(&self.key_files, &self.inner)
    }

    /// Validates what the configuration points to, and returns all of it as text.
    ///
    /// # Errors
    /// Why keys, peers or certificates are refused.
    pub fn check(&self) -> Result<String, ServerError> {
        let identity = self.identity()?;
        ServerTls::load(self.tls())?;
        let (keys, peers) = (identity.keys.len(), identity.peers.len());
        let text = settings::effective_yaml(&self.effective()).unwrap_or_default();
        let file = self.key_files.peers.display();
        Ok(format!("{text}# own keys: {keys}; {file}: {peers} peers\n"))
    }

    /// Returns how the proxy speaks TLS.
    pub(crate) fn tls(&self) -> ServerTlsParams {
        let proxy = &self.proxy;
        ServerTlsParams {
            cert: proxy.cert.resolve(&self.origin),
            key: proxy.key.resolve(&self.origin),
            client_ca: Some(proxy.ca.resolve(&self.origin)),
            client_auth: tls::ClientAuth::Required,
            alpn: vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()],
        }
    }

    /// Returns where datagrams that a gateway wrapped come in.
    pub(crate) fn wrapped(&self) -> Option<ListenAddress> {
        let wrapped = self.listen.wrapped;
        wrapped.filter(|_| !self.trusted_gateways.is_empty())
    }

    /// Fills what the file leaves open, checks all of it, and works out what the file has in another
    /// form.
    fn validated(mut self, origin: &Path, environment: &Environment) -> Result<Self, ConfigError> {
        let mut errors = ConfigErrors::new();
        self.fill(environment, &mut errors);
        self.fill_tcp();
        self.validate(origin, &mut errors);
        errors.into_result(origin)?;
        self.environment = environment.clone();
        Ok(self)
    }

    /// Fills what the file leaves open, key by key.
    fn fill(&mut self, environment: &Environment, errors: &mut ConfigErrors) {
        environment.fill_networks(&mut self.networks, errors);
        if self.name.is_empty() {
            let name = environment.get("POD_NAME").unwrap_or("vpn-seed-server");
            name.clone_into(&mut self.name);
        }
        if self.addresses.is_empty()
            && let Some(number) = environment.pod_number(errors)
        {
            match environment.addresses(&self.networks.all(), End::Server(number)) {
                Ok(addresses) => self.addresses = addresses,
                Err(error) => errors.add("VPN_NETWORK", error),
            }
        }
    }
}

/// Reads the variables this program knows.
#[must_use]
pub fn environment() -> Environment {
    Environment::read(&VARIABLES)
}

const VARIABLES: [&str; 6] = [
    "IS_HA",
    "POD_NAME",
    "SHOOT_NODE_NETWORKS",
    "SHOOT_POD_NETWORKS",
    "SHOOT_SERVICE_NETWORKS",
    "VPN_NETWORK",
];

#[cfg(test)]
mod tests;
