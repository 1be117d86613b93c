//! `konnectivity-agent`: the process around the library's agent.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::flags::{self, Environment};
use konnectivity::{agent, process};

fn main() -> ExitCode {
    let parsed = flags::agent(std::env::args_os(), &Environment::read());
    process::main(parsed, agent::run)
}
