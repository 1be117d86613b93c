//! Prints the result of a run, the same for every subcommand, and decides the exit status.

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::machine::{self, Facts};
use crate::report::{Known, Run};
use crate::samples::{Figure, Samples};

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
    /// Ends a run as [`Output::deliver`] does; fails when nothing was measured.
    pub(crate) fn finish(
        &self,
        samples: &Samples,
        mut facts: Facts,
        failures: &[String],
        compared: &str,
        known: impl Fn(&str, &str, Figure) -> Known,
    ) -> Result<ExitCode> {
        if samples.series().is_empty() {
            bail!("nothing could be measured:\n{}", failures.join("\n"));
        }
        facts.push(("load after", machine::load_average()));
        self.deliver(&Run::new(samples, &facts, compared, known), failures)
    }

    /// Writes `run` to standard output and the failures to standard error, and returns the exit
    /// status.
    fn deliver(&self, run: &Run, failures: &[String]) -> Result<ExitCode> {
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
