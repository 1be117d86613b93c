//! `rhizome-bench`: load for what is built here, and for its peers beside it.
//!
//! ```text
//! flags ──▶ scenario ──▶ run ──▶ table on stdout, or JSON; a page
//! ```
#![forbid(unsafe_code)]

mod abuse;
mod backend;
mod controller;
mod copy_loop;
mod cpus;
mod handover;
mod held;
mod https;
mod interrupt;
mod konnectivity;
mod latency;
mod limits;
mod machine;
mod output;
mod page;
mod probe;
mod profile;
mod programs;
mod progress;
mod report;
mod routes;
mod tls;
mod tunnel;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measures what is built here, beside its peers.
#[derive(Debug, Parser)]
#[command(name = "rhizome-bench", version)]
struct Arguments {
    #[command(flatten)]
    output: output::Output,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Abuse(Box<abuse::Abuse>),
    Controller(Box<controller::Controller>),
    #[command(hide = true)]
    CopyLoop(copy_loop::CopyLoop),
    Handover(handover::Handover),
    #[command(hide = true)]
    Hold,
    Https(Box<https::Https>),
    Konnectivity(Box<konnectivity::Konnectivity>),
    Profiles(profile::Profiles),
    Report(page::Saved),
    Routes(Box<routes::Routes>),
    Tls(Box<tls::Tls>),
    Tunnel(Box<tunnel::Tunnel>),
}

fn main() -> Result<ExitCode> {
    let Arguments { output, command } = Arguments::parse();
    match command {
        Command::Abuse(asked) => abuse::run(&asked, &output),
        Command::Controller(asked) => controller::run(&asked, &output),
        Command::CopyLoop(asked) => copy_loop::run(&asked),
        Command::Handover(asked) => handover::run(&asked, &output),
        Command::Hold => controller::hold(),
        Command::Https(asked) => https::run(&asked, &output),
        Command::Konnectivity(asked) => konnectivity::run(&asked, &output),
        Command::Profiles(asked) => profile::run(&asked),
        Command::Report(asked) => page::run(&asked),
        Command::Routes(asked) => routes::run(&asked, &output),
        Command::Tls(asked) => tls::run(&asked, &output),
        Command::Tunnel(asked) => tunnel::run(&asked, &output),
    }
}
