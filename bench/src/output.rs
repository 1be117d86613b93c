//! What becomes of a result, the same for every subcommand.
//!
//! ```text
//! Report ──▶ table or JSON lines on stdout
//!        └─▶ --report DIR: the same JSON lines as a file, and the page made of them
//! ```

use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::page;
use crate::report::Report;

/// Flags about results.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// Print JSON lines instead of a table.
    #[arg(long, global = true)]
    json: bool,
    /// End with status 1 when a target is missed.
    #[arg(long, global = true)]
    require: bool,
    /// Write a page (index.html), and what it shows (results.jsonl), into this directory.
    #[arg(long, global = true, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl Output {
    /// Writes `report` to where it was asked for and the failures to standard error, and returns how
    /// the program ends.
    ///
    /// # Errors
    /// When something cannot be written.
    pub(crate) fn deliver(&self, report: &Report<'_>, failures: &[String]) -> Result<ExitCode> {
        let mut out = stdout().lock();
        if self.json {
            report.json(&mut out)
        } else {
            report.table(&mut out)
        }
        .context("writing the result")?;
        if let Some(dir) = &self.report {
            let mut lines = Vec::new();
            report.json(&mut lines).context("writing the result")?;
            let lines = String::from_utf8_lossy(&lines).into_owned();
            let run = page::Run::parse(&lines).context("reading our own result")?;
            page::write(dir, &[run])?;
            let file = dir.join("results.jsonl");
            std::fs::write(&file, lines).with_context(|| format!("writing {}", file.display()))?;
            let _ = writeln!(stderr(), "written: {}", dir.join(page::FILE).display());
        }
        for failure in failures {
            let _ = writeln!(stderr(), "failed: {failure}");
        }
        let held = failures.is_empty() && report.missed() == 0;
        Ok(if self.require && !held {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}
