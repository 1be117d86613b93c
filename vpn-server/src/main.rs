//! `vpn-server`: what its flags ask for, in the shell that all programs share.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use serve::{Failure, Threads, program};
use telemetry::LogControl;
use vpn_server::{Command, Config, Flags, ServerError, environment, keygen};

fn main() -> ExitCode {
    program::main(|flags: &Flags| flags.log_format, act)
}

fn act(flags: Flags, log: LogControl) -> Result<ExitCode, Failure> {
    match &flags.command {
        Some(Command::Keygen { file }) => {
            return Ok(program::print(format_args!("{}\n", keygen(file)?)));
        }
        Some(Command::Provision { arguments }) => return provision(arguments),
        None => {}
    }
    let config = Config::load(&flags.config, &environment());
    let config = config.map_err(Failure::configuration)?;
    if flags.check {
        let effective = config.check().map_err(Failure::configuration)?;
        return Ok(program::print(effective));
    }
    let effective = config.effective();
    program::serve(effective, Threads::Main, async |signals| {
        let ended = vpn_server::run(config, log, signals).await;
        ended.map_err(|error| Failure::of(error, ServerError::is_configuration))
    })
}

/// Becomes the program that provisions, which is another one to keep its code out of a server's memory.
fn provision(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe()?.with_file_name("vpn-provision");
    let error = std::process::Command::new(&program).args(arguments).exec();
    let error = format!("starting {}: {error}", program.display());
    Err(Failure::with_code(1, error))
}
