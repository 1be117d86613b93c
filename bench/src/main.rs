//! `rhizome-bench`: load for what is built here, and for its peers beside it.
//!
//! ```text
//! flags ──▶ scenario ──▶ samples ──▶ table on stdout, or JSON lines
//! ```
#![forbid(unsafe_code)]

mod cpus;
mod destination;
mod interrupt;
mod konnectivity;
mod latency;
mod limits;
mod machine;
mod pacer;
mod poller;
mod profile;
mod programs;
mod progress;
mod report;
mod samples;
mod tls;
mod tunnel;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measures what is built here, beside its peers.
#[derive(Debug, Parser)]
#[command(name = "rhizome-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Konnectivity(Box<konnectivity::Konnectivity>),
    Profiles(profile::Profiles),
    Tls(Box<tls::Tls>),
    Tunnel(Box<tunnel::Tunnel>),
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Command::Konnectivity(asked) => konnectivity::run(&asked),
        Command::Profiles(asked) => profile::run(&asked),
        Command::Tls(asked) => tls::run(&asked),
        Command::Tunnel(asked) => tunnel::run(&asked),
    }
}
