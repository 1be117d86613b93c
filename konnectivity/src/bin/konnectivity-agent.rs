//! `konnectivity-agent`: the process around the library's agent.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::{agent, process};

fn main() -> ExitCode {
    process::agent(agent::run)
}
