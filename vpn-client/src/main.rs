//! `vpn-client`: what its flags ask for, in the shell that all programs share.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use serve::{Failure, Threads, program};
use telemetry::LogControl;
use vpn_client::{Client, ClientError, Command, Config, Flags, NetworkError, Source, environment};

fn main() -> ExitCode {
    program::main(|flags: &Flags| flags.log_format, act)
}

fn act(flags: Flags, log: LogControl) -> Result<ExitCode, Failure> {
    if let Some(Command::Keygen { file }) = &flags.command {
        let public = tunnel::keys::keygen(file)?;
        return Ok(program::print(format_args!("{public}\n")));
    }
    let environment = environment();
    let config = Config::load(&flags.config, &environment).map_err(Failure::configuration)?;
    if flags.check {
        config.identity().map_err(Failure::configuration)?;
        let effective = settings::effective_yaml(&config.effective()).unwrap_or_default();
        return Ok(program::print(effective));
    }
    let refused = |error| Failure::of(error, NetworkError::is_configuration);
    if let Some(command) = flags.command {
        return program::block_on(Threads::Main, async || {
            match command {
                Command::Cleanup => vpn_client::clean_up(&config).await.map_err(refused)?,
                Command::Setup => vpn_client::set_up(&config).await.map_err(refused)?,
                Command::Keygen { .. } => {}
            }
            Ok(ExitCode::SUCCESS)
        });
    }
    let effective = config.effective();
    let path = flags.config;
    program::serve(effective, Threads::Main, async |signals| {
        let client = Client::start(Source { path, environment }, config, log).await;
        let client = client.map_err(|error| Failure::of(error, ClientError::is_configuration))?;
        Ok(client.run(signals).await?)
    })
}
