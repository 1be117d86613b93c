//! What both programs do with their configuration, in the shell that all programs share.
//!
//! ```text
//!   Parsed ─▶ log ─┬─▶ --check: verify, print
//!     │ error: 64  └─▶ run(config, log) ─▶ 0, 64 or 1
//! ```
//!
//! Knows no flags and starts no runtime.

use std::error::Error;
use std::process::ExitCode;

use serde_json::Value;
use serve::{Failure, program};
use telemetry::{LogControl, LogFormat};

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
    /// A file cannot be used, which is the configuration's fault.
    fn verify(&self) -> Result<(), Failure>;
}

/// Runs a program as this process: `run` gets the configuration once the log has started, and
/// returns when the program has ended.
pub fn main<C: Verify, E: Error + 'static>(
    parsed: Result<Parsed<C>, E>,
    run: impl FnOnce(C, LogControl) -> Result<(), Failure>,
) -> ExitCode {
    let setup = match parsed {
        Ok(Parsed::Print(text)) => return program::print(text),
        Ok(Parsed::Configured(setup)) => *setup,
        Err(error) => return program::reject(telemetry::chain(&error).to_string().trim_end()),
    };
    program::with_log(setup.log_format, Some(&setup.log_directives), |log| {
        for warning in &setup.warnings {
            tracing::warn!("{warning}");
        }
        let effective = &setup.effective;
        if setup.check {
            setup.config.verify()?;
            let yaml = settings::effective_yaml(effective).map_err(Failure::configuration)?;
            return Ok(program::print(yaml));
        }
        tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %effective, "starting");
        run(setup.config, log)?;
        Ok(ExitCode::SUCCESS)
    })
}
