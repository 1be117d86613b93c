//! How both programs start and end: log, `--check`, exit codes.
//!
//! ```text
//!   Parsed ─▶ log ─┬─▶ --check: verify, print
//!     │ error: 64  └─▶ run(config, log) ─▶ 0, 64 or 1
//! ```
//!
//! Knows no flags, and starts no runtime and no thread but the log's.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use telemetry::{LogControl, LogFormat};

/// Time for the last log lines to be written.
const LOG_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Exit code of configuration that cannot be used (sysexits.h, EX_USAGE).
pub(crate) const EXIT_CONFIGURATION: u8 = 64;

/// What a command line asks for.
#[derive(Clone, Debug)]
pub enum Parsed<C> {
    /// To run, or to check, with this configuration.
    Configured(Box<Setup<C>>),
    /// To print this text, of `--help` or `--version`.
    Print(String),
}

/// The configuration of a process, and of the program it runs.
#[derive(Clone, Debug)]
pub struct Setup<C> {
    /// The program's configuration.
    pub config: C,
    /// That of the process.
    pub process: ProcessConfig,
}

/// Log, warnings and effective configuration of a process.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Whether the configuration is only checked and printed.
    pub check: bool,
    /// Format of the log.
    pub log_format: LogFormat,
    /// What is logged, as `RUST_LOG` has it.
    pub log_directives: String,
    /// Warnings to log once at start.
    pub warnings: Vec<String>,
    /// The effective configuration, defaults included, without secrets; keys are flags.
    pub effective: Value,
}

/// A configuration that names files.
pub trait Verify {
    /// Opens the files that the configuration names, as a start would.
    ///
    /// # Errors
    /// [`Failed::Configuration`]: a file cannot be used.
    fn verify(&self) -> Result<(), Failed>;
}

/// Why a program ended other than requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// What the configuration names cannot be used: exit code 64.
    #[error(transparent)]
    Configuration(Box<dyn Error + Send + Sync>),
    /// Anything else: exit code 1.
    #[error(transparent)]
    Running(Box<dyn Error + Send + Sync>),
}

impl Failed {
    /// What the configuration names cannot be used.
    pub fn configuration(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Configuration(error.into())
    }

    /// The program cannot do its job.
    pub fn running(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Running(error.into())
    }
}

/// Runs a program as this process: `run` gets the configuration once the log has started, and
/// returns the exit code when the program has ended.
pub fn main<C: Verify, E: Error + 'static>(
    parsed: Result<Parsed<C>, E>,
    run: impl FnOnce(C, LogControl) -> ExitCode,
) -> ExitCode {
    let Setup { config, process } = match parsed {
        Ok(Parsed::Print(text)) => return print(&text),
        Ok(Parsed::Configured(setup)) => *setup,
        Err(error) => return reject(&telemetry::chain(&error).to_string()),
    };
    let log = match telemetry::logs::init(process.log_format, Some(&process.log_directives)) {
        Ok(log) => log,
        Err(error) => return reject(&format!("RUST_LOG: {}", telemetry::chain(&error))),
    };
    for warning in &process.warnings {
        tracing::warn!("{warning}");
    }
    let effective = &process.effective;
    let code = if process.check {
        let checked = config.verify().and_then(|()| yaml(effective));
        checked.map_or_else(|error| exit_code(Err(error)), |text| print(&text))
    } else {
        tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %effective, "starting");
        run(config, log.clone())
    };
    log.close(LOG_CLOSE_TIMEOUT);
    code
}

/// Logs why a program failed, and returns its exit code.
#[must_use]
pub fn exit_code(ended: Result<(), Failed>) -> ExitCode {
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    tracing::error!("{}", telemetry::chain(&error));
    match error {
        Failed::Configuration(_) => EXIT_CONFIGURATION.into(),
        Failed::Running(_) => ExitCode::FAILURE,
    }
}

fn yaml(effective: &impl Serialize) -> Result<String, Failed> {
    settings::effective_yaml(effective).map_err(Failed::configuration)
}

fn print(text: &str) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "the output that the flags ask for")]
    {
        print!("{text}");
    }
    ExitCode::SUCCESS
}

fn reject(text: &str) -> ExitCode {
    #[expect(clippy::print_stderr, reason = "the log has not started")]
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

    struct Unserializable;

    impl Serialize for Unserializable {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(S::Error::custom("no words"))
        }
    }

    #[test]
    fn unserializable_configuration_fails_check() {
        let failed = yaml(&Unserializable).unwrap_err();
        assert!(matches!(failed, Failed::Configuration(_)), "{failed}");
        assert!(yaml(&true).is_ok());
    }
}
