//! `konnectivity-server`: the process around the library's server.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::process::{self, Failed};

fn main() -> ExitCode {
    process::server(|_config, _log| Err(Failed::running("nothing is served yet")))
}
