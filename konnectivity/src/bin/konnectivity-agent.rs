//! `konnectivity-agent`: the process around the library's agent.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::process::{self, Failed};

fn main() -> ExitCode {
    process::agent(|_config, _log| Err(Failed::running("nothing is served yet")))
}
