//! `cargo xtask demo`: a seed and two shoots on this machine, and every path through them.
//!
//! ```text
//!  user ─────────── TLS, server name ────────────▶ :443 ┐
//!  shoot a: pod ──▶ node: apiserver-proxy ──PROXY or──▶ :8443 ├─ seed: sni-proxy ──▶ API server a
//!  shoot b: pod ──▶ node: apiserver-proxy ──CONNECT──▶ :8443 ┘                  └─▶ API server b
//!
//!  API server a ──▶ konnectivity-server ◀── sni-proxy :443 ◀── konnectivity-agent ──▶ kubelet
//!  API server a ──▶ vpn-server ◀═══ sni-proxy :8132, :51820/udp ◀═══ vpn-client ──▶ pod, kubelet
//! ```
//!
//! Every box is a network namespace; both shoots use the same addresses for their pods. Whatever
//! happens, a panic and Ctrl-C included, nothing stays behind.

mod gateway;
mod invitation;
mod konnectivity;
mod network;
mod node;
mod process;
mod shoot;
mod tunnel;
mod walk;
mod watcher;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result};
use clap::Args;
use testkit::netns::{self, privileges};
use testkit::peers::packages;
use testkit::tempdir::{self, TempDir};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::console::Console;
use crate::workspace::{self, Programs};

/// What the demo shall do.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Options {
    /// Leave everything running at the end, and say how to look around; Ctrl-C ends it.
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let console = Console::new();
    let say = |text: &str| console.say(&format!("  {text}"));
    console.heading("Building the programs (dev profile; from nothing about 6 minutes on 2 CPUs)");
    let programs = workspace::build_as_tested()?;
    packages::install(packages::NAMESPACES, &say)?;
    packages::install(packages::DEMO, &say)?;
    if let privileges::Privileges::Elsewhere(status) = privileges::acquire()? {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Ok(ExitCode::from(code.unwrap_or(1)));
    }
    let outcome = show_until_signal(*options, programs, TempDir::new("demo")?);
    netns::delete_ours();
    tempdir::delete_ours();
    outcome
}

/// Runs the show on a thread of its own, so that a signal can end it at any point: the caller then
/// removes what was made, and the kernel kills the children when we are gone.
fn show_until_signal(options: Options, programs: Programs, dir: TempDir) -> Result<ExitCode> {
    let runtime = Runtime::new().context("building a runtime")?;
    let show = runtime.spawn_blocking(move || show(options, programs, dir));
    let outcome = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).context("watching for Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("watching for SIGTERM")?;
        tokio::select! {
            outcome = show => return outcome.context("the demo panicked")?,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Console::new().say("\ncleaning up");
        Ok(ExitCode::from(INTERRUPTED))
    });
    runtime.shutdown_background();
    outcome
}

fn show(options: Options, programs: Programs, dir: TempDir) -> Result<ExitCode> {
    let mut console = Console::new();
    let walked = walk::all(&mut console, programs, dir);
    let good = console.result();
    let stage = walked?;
    if options.keep {
        invitation::print(&console, &stage);
        loop {
            thread::park();
        }
    }
    Ok(ExitCode::from(u8::from(!good)))
}

/// What shells report for a program that SIGINT ended.
const INTERRUPTED: u8 = 130;
