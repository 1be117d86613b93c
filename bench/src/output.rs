//! Prints the result of a run, the same for every subcommand, and decides the exit status.

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::report::Run;

/// Flags about results.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// Print JSON instead of a table.
    #[arg(long, global = true)]
    json: bool,
    /// End with status 1 when a target is missed.
    #[arg(long, global = true)]
    require: bool,
}

impl Output {
    /// Writes `run` to standard output and the failures to standard error, and returns the exit
    /// status.
    pub(crate) fn deliver(&self, run: &Run, failures: &[String]) -> Result<ExitCode> {
        let mut out = stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string(run)?).context("writing the result")?;
        } else {
            run.table(&mut out).context("writing the result")?;
        }
        for failure in failures {
            let _ = writeln!(stderr(), "failed: {failure}");
        }
        let held = failures.is_empty() && run.judged().1 == 0;
        Ok(ExitCode::from(u8::from(self.require && !held)))
    }
}
