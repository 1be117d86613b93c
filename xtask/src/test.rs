//! `cargo xtask test`: every test there is, in one run of nextest.

use std::ffi::OsString;
use std::num::NonZero;
use std::process::{Command, ExitCode};
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use clap::Args;
use testkit::command;
use testkit::netns::privileges;
use testkit::peers;

use crate::console::Console;
use crate::tools;

/// What is passed on.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Options {
    /// Arguments for nextest, such as a filter.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    nextest: Vec<OsString>,
}

/// Installs what is missing, builds, and runs.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let console = Console::new();
    console.heading("What the tests need");
    peers::install(&|text| console.say(&format!("  {text}")))?;
    console.say("  complete");
    console.heading("Building the tests (dev profile; from nothing 4 to 10 minutes on 2 CPUs)");
    // Built first and apart: inside a user namespace there is no network to fetch crates by.
    if !status(tools::NEXTEST.command(&console)?.args(RUN).arg("--no-run"))? {
        return Ok(ExitCode::FAILURE);
    }
    console.heading("Tests (about 15 minutes on 2 CPUs)");
    let mut nextest = as_root(tools::NEXTEST.command(&console)?)?;
    nextest.env("NEXTEST_TEST_THREADS", at_once().to_string());
    if std::env::var_os(BACKTRACE).is_none() {
        // An error that a test prints says what failed and of what; its backtrace, of this process
        // and of each program that it ran, only pushes that off a short log.
        nextest.env(BACKTRACE, "0");
    }
    let good = status(nextest.args(RUN).args(&options.nextest))?;
    Ok(ExitCode::from(u8::from(!good)))
}

/// How many tests run at once: one more than there are processors, since most wait more than they
/// work. An argument `--test-threads` wins.
fn at_once() -> usize {
    available_parallelism().map_or(1, NonZero::get) + 1
}

/// Returns the command as it is for root, and otherwise inside a user namespace.
fn as_root(command: Command) -> Result<Command> {
    if privileges::is_root() {
        return Ok(command);
    }
    let mut inside = privileges::in_user_namespace(command.get_program().as_ref())?;
    inside.args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        inside.current_dir(dir);
    }
    Ok(inside)
}

pub(crate) fn status(command: &mut Command) -> Result<bool> {
    let status = command.status();
    let status = status.with_context(|| format!("starting `{}`", command::line(command)))?;
    Ok(status.success())
}

/// Backtraces of errors, apart from those of panics (`std::backtrace`).
const BACKTRACE: &str = "RUST_LIB_BACKTRACE";
const RUN: &[&str] = &["run", "--workspace", "--all-features"];
