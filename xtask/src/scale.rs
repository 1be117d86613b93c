//! `cargo xtask scale`: the controller and gateways with a large cluster, beside their limits.
//!
//! ```text
//!     dist build, static ─▶ rhizome-bench controller --require
//!                               ├─ 2,000 Services with policies: from none, changes, a restart
//!                               ├─ 10,000 shoots routed: from none, a gateway's start, changes
//!                               └─ two gateways with 9,000 connections each, 600 changes a minute
//! ```
//!
//! Prints every figure with its limit and fails when one is above, or a connection is lost. No part
//! of `cargo xtask ci`, for machines differ: the last is, in small, a test of `rhizome-bench`.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::console::Console;
use crate::test::status;
use crate::workspace;

pub(crate) fn run() -> Result<ExitCode> {
    let console = Console::new();
    console.heading("Scale: the controller and gateways with a large cluster");
    let programs = workspace::build(&["netpol-controller", "sni-proxy", "rhizome-bench"])?;
    // They lie beside each other, which is where it looks for the other two.
    let bench = programs.get("rhizome-bench")?;
    let good = status(Command::new(bench).args(["controller", "--require"]))?;
    Ok(ExitCode::from(u8::from(!good)))
}
