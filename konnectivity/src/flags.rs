//! All that the two programs take from their command lines, files and environments.
//!
//! ```text
//!   command line ──┐
//!   --config FILE ─┼─ read ─▶ ServerFlags, AgentFlags ─ *_config ─▶ ServerConfig, AgentConfig
//!   environment ───┘          (texts and numbers)                   (what runs, checked)
//! ```
//!
//! The only room that reads the environment. Nothing here exits or prints, and what the
//! configuration points to is opened by `verify` alone, which is what `--check` asks for.

mod agent;
mod agent_config;
mod checks;
mod common;
mod describe;
mod destinations;
mod process;
mod read;
mod server;
mod server_config;
#[cfg(test)]
mod tests;
mod tls;
mod value;
mod verify;

use std::ffi::OsString;

use settings::{ConfigError, ConfigErrors};

pub use self::agent::AgentFlags;
pub use self::agent_config::{
    AgentConfig, AgentKeepalive, AgentLimits, AgentTls, Servers, SyncSettings,
};
pub use self::checks::{ApiServer, Keepalive, KeyPair, LeasePlace};
pub use self::destinations::{AllowList, Destination, DestinationError};
pub use self::process::ProcessConfig;
use self::read::Read;
pub use self::server::ServerFlags;
pub use self::server_config::{
    AgentIdentity, ClusterSource, ServerConfig, SingleCluster, TlsPort, TokenSettings,
};
pub use self::tls::TlsSettings;
pub use self::value::{FrontendMode, ServerCountSource};
pub use self::verify::VerifyError;

/// What the programs take from their environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `PROXY_AGENT_ID`.
    pub agent_id: Option<String>,
    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`: where pods reach the API server.
    pub api_server: Option<(String, u16)>,
    /// `GRPC_ENFORCE_ALPN_ENABLED`, which grpc-go knows: true unless it says `false`.
    pub enforce_alpn: bool,
    /// `RUST_LOG`.
    pub log: Option<String>,
    /// `PROXY_SERVER_ID`.
    pub server_id: Option<String>,
}

/// An environment that says nothing.
impl Default for Environment {
    fn default() -> Self {
        Self {
            agent_id: None,
            api_server: None,
            enforce_alpn: true,
            log: None,
            server_id: None,
        }
    }
}

impl Environment {
    /// Reads the variables the programs know; values that are empty or not UTF-8 count as absent.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the room that reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let port = value("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok());
        let enforce_alpn = value("GRPC_ENFORCE_ALPN_ENABLED");
        Self {
            agent_id: value("PROXY_AGENT_ID"),
            api_server: value("KUBERNETES_SERVICE_HOST").map(|host| (host, port.unwrap_or(443))),
            enforce_alpn: enforce_alpn.is_none_or(|text| !text.eq_ignore_ascii_case("false")),
            log: value("RUST_LOG"),
            server_id: value("PROXY_SERVER_ID"),
        }
    }
}

/// What a command line asks for.
#[derive(Clone, Debug)]
pub enum Parsed<C> {
    /// To run, or to check, with this configuration.
    Configured(Box<C>),
    /// To print this text, of `--help` or `--version`.
    Print(String),
}

/// Why the flags of a program are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// The configuration file cannot be read.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// The command line is not understood.
    #[error("{message}")]
    Usage {
        /// What is wrong, and how it is meant to be.
        message: String,
    },
    /// Flags were understood, but what they ask for cannot be.
    #[error("{0}")]
    Values(ConfigErrors),
}

impl ServerFlags {
    /// Reads `args`, the program's name first, and the file they name.
    ///
    /// # Errors
    /// [`FlagError`], with all that is wrong with values at once.
    pub fn parse_from(
        args: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Parsed<ServerConfig>, FlagError> {
        match read::read::<Self>(args)? {
            Read::Print(text) => Ok(Parsed::Print(text)),
            Read::Values {
                flags,
                given,
                check,
            } => {
                let config = ServerConfig::new(&flags, &given, check, environment)?;
                Ok(Parsed::Configured(Box::new(config)))
            }
        }
    }

    /// Returns the table of all flags, in Markdown.
    #[must_use]
    pub fn table() -> String {
        describe::table::<Self>()
    }
}

impl AgentFlags {
    /// Reads `args`, the program's name first, and the file they name.
    ///
    /// # Errors
    /// [`FlagError`], with all that is wrong with values at once.
    pub fn parse_from(
        args: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Parsed<AgentConfig>, FlagError> {
        match read::read::<Self>(args)? {
            Read::Print(text) => Ok(Parsed::Print(text)),
            Read::Values {
                flags,
                given,
                check,
            } => {
                let config = AgentConfig::new(&flags, &given, check, environment)?;
                Ok(Parsed::Configured(Box::new(config)))
            }
        }
    }

    /// Returns the table of all flags, in Markdown.
    #[must_use]
    pub fn table() -> String {
        describe::table::<Self>()
    }
}
