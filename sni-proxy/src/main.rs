//! `sni-proxy`: what its flags ask for, in the shell that all programs share.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use serve::{Failure, Signal, Signals, Threads, program, started};
use sni_proxy::{
    AskError, Command, Config, Environment, Flags, Gateway, StartError, TraceFlags, run_trace,
};
use telemetry::LogControl;

/// Returns memory of closed connections to the kernel, which glibc's does not, and needs less memory
/// and CPU time for each (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    program::main(|flags: &Flags| flags.log_format, act)
}

fn act(flags: Flags, log: LogControl) -> Result<ExitCode, Failure> {
    match &flags.command {
        Some(Command::Started { config }) => {
            let config: Config = settings::load(config).map_err(Failure::configuration)?;
            return program::block_on(Threads::Main, async || {
                started(config.admin()).await?;
                Ok(ExitCode::SUCCESS)
            });
        }
        Some(Command::Trace(trace)) => {
            return program::block_on(Threads::Main, async || ask(trace).await);
        }
        None => {}
    }
    let path = flags.config.unwrap_or_default();
    let config: Config = settings::load(&path).map_err(Failure::configuration)?;
    if flags.check {
        let effective = config.check().map_err(Failure::configuration)?;
        return Ok(program::print(effective));
    }
    let effective = settings::effective(&config);
    program::serve(effective, Threads::Main, async |signals| {
        run(config, flags.zone, log, signals).await
    })
}

async fn run(
    config: Config,
    zone: Option<String>,
    log: LogControl,
    mut signals: Signals,
) -> Result<(), Failure> {
    let environment = Environment::read();
    let gateway = tokio::select! {
        gateway = Gateway::start(config, zone, &environment, log) => gateway.map_err(|error| {
            Failure::of(error, StartError::is_configuration)
        })?,
        // It may wait for another process; nothing is served yet that would have to drain.
        () = async { while signals.next().await != Signal::Stop {} } => return Ok(()),
    };
    Ok(gateway.run(Some(signals)).await?)
}

async fn ask(flags: &TraceFlags) -> Result<ExitCode, Failure> {
    let is_question = |error: &AskError| matches!(error, AskError::Question(_));
    let traced = run_trace(flags)
        .await
        .map_err(|error| Failure::of(error, is_question))?;
    let printed = program::print(traced.text);
    Ok(if traced.routed {
        printed
    } else {
        ExitCode::FAILURE
    })
}
