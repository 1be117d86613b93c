//! `konnectivity-server`: the process around the library's server.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::process;

fn main() -> ExitCode {
    process::server(konnectivity::server::run)
}
