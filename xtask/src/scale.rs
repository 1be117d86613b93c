//! `cargo xtask scale`: the controller and a gateway with a large cluster, beside their limits.
//!
//! ```text
//!     objects ──▶ kube-apiserver, etcd ◀── netpol-controller ══xDS══▶ sni-proxy
//!                                            └ metrics, /proc          └ log: generation in force
//! ```
//!
//! Prints every figure with its limit and fails when one is above. Delays are those of this machine
//! with all four on it, so the processor time of API server and controller stands beside them: it
//! says who was the slower one. No part of `cargo xtask ci`, for machines differ.

mod cluster;
mod policies;
mod routes;

use std::process::ExitCode;

use anyhow::{Context, Result};
use testkit::tempdir::TempDir;

use crate::console::Console;
use crate::workspace;

use self::cluster::Cluster;

/// Builds the release binaries, measures them and prints what was found.
///
/// # Errors
/// When something could not be built or started.
pub(crate) fn run() -> Result<ExitCode> {
    let mut console = Console::new();
    console.chapter("Scale: the controller with a large cluster");
    let programs = workspace::build(&["netpol-controller", "sni-proxy"])?;
    let program = |name: &str| {
        programs
            .get(name)
            .with_context(|| format!("{name} was not built"))
    };
    let (controller, gateway) = (program("netpol-controller")?, program("sni-proxy")?);
    let dir = TempDir::new("scale")?;
    let mut cluster = Cluster::start(&dir)?;
    policies::measure(&mut console, controller, &mut cluster)?;
    routes::measure(&mut console, controller, gateway, &cluster)?;
    Ok(if console.table() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
