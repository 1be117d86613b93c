//! How both programs begin and end: flags, log, `--check`, exit codes.
//!
//! ```text
//!   arguments ─▶ parse ─▶ log ─┬─▶ --check: verify, print
//!       │ refused: 64          └─▶ run(config, log) ─▶ 0, 64 or 1
//! ```
//!
//! Starts no runtime and no thread but the log's: that is for `run`.

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use telemetry::LogControl;

use crate::agent::AgentConfig;
use crate::flags::{
    AgentFlags, AgentSetup, Environment, FlagError, Parsed, ProcessConfig, ServerConfig,
    ServerFlags, VerifyError,
};

/// How long what was logged last may take to be written at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What configuration that cannot be used exits with (sysexits.h, EX_USAGE).
pub(crate) const EXIT_CONFIGURATION: u8 = 64;

/// Why a program ended other than it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// What the configuration points to cannot be used: exit code 64.
    #[error(transparent)]
    Configuration(Box<dyn Error + Send + Sync>),
    /// Anything else: exit code 1.
    #[error(transparent)]
    Running(Box<dyn Error + Send + Sync>),
}

impl Failed {
    /// What the configuration points to cannot be used.
    pub fn configuration(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Configuration(error.into())
    }

    /// The program cannot do its job.
    pub fn running(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Running(error.into())
    }
}

/// Runs `konnectivity-server` as this process: `run` is given the configuration once it is known to
/// be good and the log is there, and returns when the server has ended.
pub fn server(run: impl FnOnce(ServerConfig, LogControl) -> Result<(), Failed>) -> ExitCode {
    start(ServerFlags::parse_from, |config, log| {
        outcome(run(config, log))
    })
}

/// Runs `konnectivity-agent` as this process: as [`server`] does, but `run` says itself what the
/// process exits with, and why.
pub fn agent(run: impl FnOnce(AgentConfig, LogControl) -> ExitCode) -> ExitCode {
    start(AgentFlags::parse_from, |setup: AgentSetup, log| {
        run(setup.agent, log)
    })
}

/// What both configurations have.
trait Config {
    fn process(&self) -> &ProcessConfig;
    fn verify(&self) -> Result<(), VerifyError>;
}

impl Config for ServerConfig {
    fn process(&self) -> &ProcessConfig {
        &self.process
    }

    fn verify(&self) -> Result<(), VerifyError> {
        self.verify()
    }
}

impl Config for AgentSetup {
    fn process(&self) -> &ProcessConfig {
        &self.process
    }

    fn verify(&self) -> Result<(), VerifyError> {
        self.verify()
    }
}

fn start<C: Config>(
    parse: impl FnOnce(Vec<OsString>, &Environment) -> Result<Parsed<C>, FlagError>,
    run: impl FnOnce(C, LogControl) -> ExitCode,
) -> ExitCode {
    let config = match parse(std::env::args_os().collect(), &Environment::read()) {
        Ok(Parsed::Print(text)) => return printed(&text),
        Ok(Parsed::Configured(config)) => *config,
        Err(error) => return complained(&telemetry::chain(&error).to_string()),
    };
    let process = config.process();
    let log = match telemetry::logs::init(process.log_format, Some(&process.log_directives)) {
        Ok(log) => log,
        Err(error) => return complained(&format!("RUST_LOG: {}", telemetry::chain(&error))),
    };
    for warning in &process.warnings {
        tracing::warn!("{warning}");
    }
    let code = if process.check {
        check(&config)
    } else {
        let effective = process.effective();
        tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %effective, "starting");
        run(config, log.clone())
    };
    log.close(LAST_WORDS);
    code
}

/// Validates what the configuration points to as well, and prints what is in effect.
fn check(config: &impl Config) -> ExitCode {
    let verified = config.verify().map_err(Failed::configuration);
    match verified.and_then(|()| written(config.process().effective())) {
        Ok(text) => printed(&text),
        Err(error) => outcome(Err(error)),
    }
}

fn written(effective: &impl Serialize) -> Result<String, Failed> {
    settings::effective_yaml(effective).map_err(Failed::configuration)
}

fn outcome(ended: Result<(), Failed>) -> ExitCode {
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    tracing::error!("{}", telemetry::chain(&error));
    match error {
        Failed::Configuration(_) => EXIT_CONFIGURATION.into(),
        Failed::Running(_) => ExitCode::FAILURE,
    }
}

fn printed(text: &str) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "what was asked for")]
    {
        print!("{text}");
    }
    ExitCode::SUCCESS
}

fn complained(text: &str) -> ExitCode {
    #[expect(clippy::print_stderr, reason = "there is no log yet")]
    {
        eprintln!("{}", text.trim_end());
    }
    EXIT_CONFIGURATION.into()
}

#[cfg(test)]
mod tests {
    use serde::Serializer;
    use serde::ser::Error as _;

    use super::*;

    struct Unspeakable;

    impl Serialize for Unspeakable {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(S::Error::custom("no words"))
        }
    }

    #[test]
    fn what_cannot_be_written_down_fails_the_check() {
        let failed = written(&Unspeakable).unwrap_err();
        assert!(matches!(failed, Failed::Configuration(_)), "{failed}");
        assert!(written(&true).is_ok());
    }
}
