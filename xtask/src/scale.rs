//! `cargo xtask scale`: the controller and a gateway with a large cluster, beside their limits.
//!
//! Builds them and `rhizome-bench`, which measures. Prints every figure with its limit and fails
//! when one is above. No part of `cargo xtask ci`, for machines differ.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::console::Console;
use crate::test::status;
use crate::workspace;

/// Builds the release binaries and has them measured.
///
/// # Errors
/// When something could not be built or started.
pub(crate) fn run() -> Result<ExitCode> {
    let console = Console::new();
    console.chapter("Scale: the controller with a large cluster");
    let programs = workspace::build(&["netpol-controller", "sni-proxy", "rhizome-bench"])?;
    // They lie beside each other, which is where it looks for the other two.
    let bench = programs
        .get("rhizome-bench")
        .context("rhizome-bench was not built")?;
    let good = status(Command::new(bench).args(["controller", "--require"]))?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
