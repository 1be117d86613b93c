//! `konnectivity-agent`: the process around the library's agent.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::process;

fn main() -> ExitCode {
    process::agent(|_config, _log| ExitCode::FAILURE)
}
