//! `cargo xtask cluster`: a seed and a shoot of real Kubernetes on this machine, and the shipped manifests in
//! them.
//!
//! ```text
//!   up    router ── seed-0: control plane, kubelet, containerd, kube-proxy ── the shoot's control plane, in pods
//!             └──── shoot-0, shoot-1: kubelets that ask for their API server by name
//!   demo  up, then docs/deploy.md: only now does the shoot's name lead anywhere
//!   down  ends it all
//! ```
//!
//! Everything below `target/cluster`. Machines are namespaces and control groups ([`machine`]); kubelets,
//! containerd, runc, CNI plugins and kube-proxy are the real ones. What a cloud would do is done by
//! [`cloud`].

mod changes;
mod clock;
mod cloud;
mod control;
mod demo;
mod groups;
mod kubectl;
mod load;
mod machine;
mod needs;
mod network;
mod policies;
mod sandbox;
mod scrape;
mod service;
mod sidecars;
mod steps;
mod test;
mod up;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

use self::machine::Machine;
use crate::console::Console;
use crate::workspace;

/// What to do with the clusters.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Options {
    /// Starts both clusters, without anything of ours in them, and leaves them running.
    Up,
    /// Starts them, deploys everything as docs/deploy.md says, and shows it at work.
    Demo(demo::Options),
    /// Rolls every workload under requests, and does worse to the clusters.
    Test(test::Options),
    /// Ends both and removes what they left.
    Down,
    /// The first process of a machine.
    #[command(hide = true)]
    Machine {
        /// Its directory.
        directory: PathBuf,
    },
    /// What a cloud does.
    #[command(hide = true)]
    Cloud {
        /// The directory of both clusters.
        directory: PathBuf,
    },
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match options {
        Options::Up => up::run().map(|()| ExitCode::SUCCESS),
        Options::Demo(options) => demo::run(*options),
        Options::Test(options) => test::run(options),
        Options::Down => {
            stop(&root()?)?;
            Console::new().say("  both clusters are down");
            Ok(ExitCode::SUCCESS)
        }
        Options::Machine { directory } => machine::init(directory),
        Options::Cloud { directory } => cloud::run(directory),
    }
}

/// Returns where everything of the clusters is.
fn root() -> Result<PathBuf> {
    Ok(workspace::target()?.join("cluster"))
}

/// Ends every machine and removes what the clusters wrote, but for the image of pods. What cannot be ended
/// does not keep the others.
fn stop(root: &Path) -> Result<()> {
    let mut failed = Vec::new();
    for name in machines() {
        if let Err(error) = Machine::at(root, name).stop() {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("reading {}", root.display()))?,
    };
    for entry in entries {
        let path = entry.context("reading a directory")?.path();
        if path.ends_with("images") {
            continue;
        }
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// Returns every machine, the last one to be started first.
fn machines() -> impl Iterator<Item = &'static str> {
    let nodes = network::SHOOT.iter().chain(&network::SEED);
    nodes.map(|node| node.name).chain([network::ROUTER])
}
