//! `konnectivity-server`: the process around the library's server.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use konnectivity::flags::{self, Environment};
use konnectivity::{process, server};

fn main() -> ExitCode {
    let parsed = flags::server(std::env::args_os(), &Environment::read());
    process::main(parsed, server::run)
}
