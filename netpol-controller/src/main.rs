//! `netpol-controller`: what its flags ask for, in the shell that all programs share.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use netpol_controller::{Config, Controller, DryRunError, Environment, Flags, StartError, dry_run};
use serve::{Failure, Threads, program};
use telemetry::LogControl;

/// One for the engine and what it decides, one for requests and streams.
const THREADS: Threads = Threads::Pool(2);

fn main() -> ExitCode {
    program::main(|flags: &Flags| flags.log_format, act)
}

fn act(flags: Flags, log: LogControl) -> Result<ExitCode, Failure> {
    let config = Config::load(&flags.config).map_err(Failure::configuration)?;
    if flags.check {
        let effective = config.check().map_err(Failure::configuration)?;
        return Ok(program::print(effective));
    }
    let environment = Environment::read();
    if flags.dry_run {
        let diff = program::block_on(THREADS, async || {
            let diff = dry_run(&config, &environment).await;
            diff.map_err(|error| Failure::of(error, |e| matches!(e, DryRunError::Start(_))))
        })?;
        return Ok(program::print(diff));
    }
    let effective = config.effective();
    program::serve(effective, THREADS, async |signals| {
        let controller = Controller::start(config, &environment, log).await;
        let controller = controller.map_err(|error| {
            Failure::of(error, |error| {
                matches!(error, StartError::Client(_) | StartError::Tls(_))
            })
        })?;
        Ok(controller.run(signals).await?)
    })
}
