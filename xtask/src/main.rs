//! The project's automation: `cargo xtask COMMAND`.
//!
//! `demo` shows the data plane at work in network namespaces; `test` runs every test, other
//! people's programs included; `tidy` holds the house rules; `ci` is all checks in one.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod cluster;
mod console;
mod counts;
mod demo;
mod images;
mod scale;
mod soak;
mod test;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use self::console::Console;

/// Automation of the Rhizome workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs the standard suite of measurements and writes bench/results/suite.json. Takes a quarter of
    /// an hour besides the build, and refuses a busy machine.
    Bench(bench::Options),
    /// Runs everything that must hold before a change is merged: format, lints, documentation,
    /// house rules, dependencies, tests.
    Ci,
    /// Runs a seed and a shoot of real Kubernetes on this machine. As root.
    #[command(subcommand)]
    Cluster(cluster::Options),
    /// Counts the instructions of what is done per connection, packet and change of routes, against
    /// what is committed in bench/counts.json.
    Counts(counts::Options),
    /// Builds the proxies, lays out a seed and two shoots as network namespaces, and walks every
    /// path through them.
    Demo(demo::Options),
    /// Builds an image of each program, tries it out, and lists what is in it.
    Images(images::Options),
    /// Measures the controller and its gateways with a large cluster on a real API server: writes,
    /// delays and memory, against their limits. Takes some minutes, and wants a quiet machine.
    Scale,
    /// Measures memory and descriptors of the programs as shipped against their limits.
    Soak,
    /// Runs every test: unit, property, corpora, integration, namespaces, real peers. Installs
    /// what that needs, as root on Debian.
    Test(test::Options),
    /// Checks the house rules that no lint knows.
    Tidy,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            Console::new().failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Task::Bench(options) => bench::run(options),
        Task::Ci => ci::run(),
        Task::Cluster(options) => cluster::run(options),
        Task::Counts(options) => counts::run(options),
        Task::Demo(options) => demo::run(options),
        Task::Images(options) => images::run(options),
        Task::Scale => scale::run(),
        Task::Soak => soak::run(),
        Task::Test(options) => test::run(options),
        Task::Tidy => tidy::run(),
    }
}
