//! All that the two programs take from their command lines, files and environments.
//!
//! ```text
//!   command line ──┐
//!   --config FILE ─┼─ read ─▶ ServerFlags, AgentFlags ─ *_config ─▶ ServerConfig, AgentSetup
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
pub use self::agent_config::AgentSetup;
pub use self::checks::{Keepalive, KeyPair};
pub use self::process::ProcessConfig;
use self::read::{Given, Read, Settings};
pub use self::server::ServerFlags;
pub use self::server_config::{
    AgentIdentity, ClusterSource, LeasePlace, ServerConfig, SingleCluster, TlsPort, TokenSettings,
};
pub use self::tls::TlsSettings;
pub use self::value::FrontendMode;
pub use self::verify::VerifyError;

/// What the programs take from their environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `PROXY_AGENT_ID`.
    pub agent_id: Option<String>,
    /// `GRPC_ENFORCE_ALPN_ENABLED`, which grpc-go knows: true unless it says `false`.
    pub enforce_alpn: bool,
    /// Whether there is `KUBERNETES_SERVICE_HOST`, as in a pod.
    pub in_cluster: bool,
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
            enforce_alpn: true,
            in_cluster: false,
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
        let enforce_alpn = value("GRPC_ENFORCE_ALPN_ENABLED");
        Self {
            agent_id: value("PROXY_AGENT_ID"),
            enforce_alpn: enforce_alpn.is_none_or(|text| !text.eq_ignore_ascii_case("false")),
            in_cluster: value("KUBERNETES_SERVICE_HOST").is_some(),
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
    /// What is in effect cannot be written down.
    #[error("writing down what is in effect")]
    Effective(#[from] serde_json::Error),
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
        parse(args, environment, ServerConfig::new)
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
    ) -> Result<Parsed<AgentSetup>, FlagError> {
        parse(args, environment, AgentSetup::new)
    }

    /// Returns the table of all flags, in Markdown.
    #[must_use]
    pub fn table() -> String {
        describe::table::<Self>()
    }
}

/// Reads flags and makes of them what runs.
fn parse<S: Settings, C>(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
    configure: impl FnOnce(&S, &Given, bool, &Environment) -> Result<C, FlagError>,
) -> Result<Parsed<C>, FlagError> {
    match read::read::<S>(args)? {
        Read::Print(text) => Ok(Parsed::Print(text)),
        Read::Values {
            flags,
            given,
            check,
        } => {
            let config = configure(&flags, &given, check, environment)?;
            Ok(Parsed::Configured(Box::new(config)))
        }
    }
}
