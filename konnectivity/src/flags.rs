//! Command lines, files and environments of the two programs.
//!
//! ```text
//!   command line ──┐
//!   --config FILE ─┼─ read ─▶ ServerFlags, AgentFlags ─ *_config ─▶ ServerConfig, AgentConfig
//!   environment ───┘          (one value each)                      (checked together)
//! ```
//!
//! The only module that reads the environment. It does not exit or print, and opens none of the
//! files that the configuration names: that is `verify`, for `--check`.

mod agent;
mod agent_config;
mod checks;
mod docs;
mod log;
mod read;
mod server;
mod server_config;
mod shared;
#[cfg(test)]
mod tests;
mod tls;
mod verify;

use std::ffi::OsString;

use serde_json::Value;
use settings::{ConfigError, ConfigErrors};
use telemetry::LogFormat;

use self::agent::AgentFlags;
use self::checks::Checks;
use self::read::{Flags, Read};
use self::server::ServerFlags;
pub use self::server_config::ServerConfig;
use self::shared::LogWord;
use crate::agent::AgentConfig;
use crate::process::{Parsed, Setup};

/// What the programs read from their environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `PROXY_AGENT_ID`.
    pub agent_id: Option<String>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set, as in a pod.
    pub in_cluster: bool,
    /// `RUST_LOG`.
    pub log: Option<String>,
    /// `PROXY_SERVER_ID`.
    pub server_id: Option<String>,
}

impl Environment {
    /// Reads the variables; values that are empty or not UTF-8 count as absent.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the module that reads the environment"
    )]
    pub fn read() -> Self {
        let value = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            agent_id: value("PROXY_AGENT_ID"),
            in_cluster: value("KUBERNETES_SERVICE_HOST").is_some(),
            log: value("RUST_LOG"),
            server_id: value("PROXY_SERVER_ID"),
        }
    }
}

/// Why the flags of a program are rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// The effective configuration cannot be serialized.
    #[error("serializing the effective configuration")]
    Effective(#[from] serde_json::Error),
    /// The configuration file cannot be read.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// The command line is malformed; the text is clap's.
    #[error("{0}")]
    Usage(String),
    /// Values are well-formed, but not valid, alone or together.
    #[error("{0}")]
    Values(ConfigErrors),
}

impl FlagError {
    fn usage(error: &clap::Error) -> Self {
        Self::Usage(error.render().to_string())
    }
}

/// Reads the arguments of `konnectivity-server`, its name first, and the file they name.
///
/// # Errors
/// [`FlagError`]: all malformed values, or all invalid ones, at once.
pub fn server(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<Parsed<ServerConfig>, FlagError> {
    parse(args, environment, server_config::configure)
}

/// Reads the arguments of `konnectivity-agent`, its name first, and the file they name.
///
/// # Errors
/// [`FlagError`]: all malformed values, or all invalid ones, at once.
pub fn agent(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<Parsed<AgentConfig>, FlagError> {
    parse(args, environment, agent_config::configure)
}

/// Returns lists of flags in Markdown: of each program alone, and of both.
#[must_use]
pub fn lists() -> [(&'static str, String); 3] {
    let [server, agent, both] = docs::lists::<ServerFlags, AgentFlags>();
    [
        ("konnectivity-server", server),
        ("konnectivity-agent", agent),
        ("both programs", both),
    ]
}

/// Returns the programs with JSON schemas of their files.
#[must_use]
pub fn schemas() -> [(&'static str, String); 2] {
    [
        ("konnectivity-server", docs::schema::<ServerFlags>()),
        ("konnectivity-agent", docs::schema::<AgentFlags>()),
    ]
}

/// Reads flags of the kind `S` and makes the configuration from them.
fn parse<S: Flags, C>(
    args: impl IntoIterator<Item = OsString>,
    environment: &Environment,
    configure: impl FnOnce(&S, &Value, &mut Checks<'_>) -> C,
) -> Result<Parsed<C>, FlagError> {
    let (flags, given) = match read::read::<S>(args)? {
        Read::Print(text) => return Ok(Parsed::Print(text)),
        Read::Values { flags, given } => (flags, given),
    };
    let effective = flags.effective()?;
    let mut checks = Checks::new(&given, environment);
    let config = configure(&flags, &effective, &mut checks);
    let mut warnings = checks.finish()?;
    warnings.extend(given.without_effect(&*flags));
    let log = flags.log();
    let log_directives = log::directives(log, environment.log.as_deref(), &mut warnings);
    Ok(Parsed::Configured(Box::new(Setup {
        config,
        check: flags.run().check,
        log_format: match log.log_format {
            LogWord::Json => LogFormat::Json,
            LogWord::Text => LogFormat::Text,
        },
        log_directives,
        warnings,
        effective,
    })))
}
