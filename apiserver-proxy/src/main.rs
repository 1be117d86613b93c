//! `apiserver-proxy`: what its flags ask for, in the shell that all programs share.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use apiserver_proxy::{
    Command, Config, Flags, Proxy, StartError, clean_up, keep, set_up, take_back,
};
use serve::{Failure, Signal, Signals, Threads, program, started};
use telemetry::LogControl;

fn main() -> ExitCode {
    program::main(|flags: &Flags| flags.log_format, act)
}

fn act(flags: Flags, log: LogControl) -> Result<ExitCode, Failure> {
    let config: Config = settings::load(&flags.config).map_err(Failure::configuration)?;
    if flags.command.is_none() {
        config.check_proxy().map_err(Failure::configuration)?;
    }
    if flags.check {
        if flags.command.is_none() {
            config.check().map_err(Failure::configuration)?;
        }
        let effective = settings::effective_yaml(&config).unwrap_or_default();
        return Ok(program::print(effective));
    }
    let effective = settings::effective(&config);
    match flags.command {
        None => program::serve(effective, Threads::Main, async |signals| {
            run(config, log, signals).await
        }),
        Some(Command::Keep) => program::serve(effective, Threads::Main, async |signals| {
            keep(&config, log, signals).await?;
            Ok(take_back(&config).await?)
        }),
        Some(Command::Cleanup) => once(clean_up(&config)),
        Some(Command::Setup) => once(set_up(&config)),
        Some(Command::Started) => once(started(config.admin())),
    }
}

fn once<E>(act: impl Future<Output = Result<(), E>>) -> Result<ExitCode, Failure>
where
    Failure: From<E>,
{
    program::block_on(Threads::Main, async || {
        act.await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn run(config: Config, log: LogControl, mut signals: Signals) -> Result<(), Failure> {
    let proxy = tokio::select! {
        proxy = Proxy::start(config.clone(), log) => proxy.map_err(|error| {
            Failure::of(error, |error| matches!(error, StartError::Handover(_)))
        })?,
        // It may wait for a name; nothing is served yet that would have to drain.
        () = async { while signals.next().await != Signal::Stop {} } => {
            return Ok(take_back(&config).await?);
        }
    };
    Ok(proxy.run(Some(signals)).await?)
}
