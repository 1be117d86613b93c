//! Prints the result of a run, the same for every subcommand, and decides the exit status.

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::machine::{self, Facts};
use crate::report::{Figure, Known, Run};

/// The fact that a case failed, of which there are no figures then.
const FAILED: &str = "failed";

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
    /// Finishes `run` and writes it to standard output, the failures to standard error; returns the
    /// exit status. Fails when nothing was measured.
    pub(crate) fn finish(
        &self,
        run: &mut Run,
        mut facts: Facts,
        failures: &[String],
        compared: &str,
        known: impl Fn(&Run, &str, &str, Figure) -> Known,
    ) -> Result<ExitCode> {
        if run.rows.is_empty() {
            bail!("nothing could be measured:\n{}", failures.join("\n"));
        }
        facts.push(("load after", machine::load_average()));
        facts.extend(failures.iter().map(|failure| (FAILED, failure.clone())));
        run.finish(facts, compared, known);
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
