//! `vpn-client`: flags, logging, the control runtime, and exit codes.
//!
//! Everything else is the library's.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serve::Signals;
use telemetry::LogControl;
use vpn_client::{Client, Command, Config, Environment, Flags, NetworkError, Source, StartError};

/// How long what was logged last may take to be written at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What configuration that cannot be used exits with (sysexits.h, EX_USAGE).
const EXIT_CONFIGURATION: u8 = 64;

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                EXIT_CONFIGURATION.into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let environment = Environment::read();
    let log = match telemetry::logs::init(flags.log_format, environment.log.as_deref()) {
        Ok(log) => log,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "there is no log yet")]
            {
                eprintln!("RUST_LOG: {}", telemetry::chain(&error));
            }
            return EXIT_CONFIGURATION.into();
        }
    };
    let code = act(flags, environment, log.clone());
    log.close(LAST_WORDS);
    code
}

fn act(flags: Flags, environment: Environment, log: LogControl) -> ExitCode {
    if let Some(Command::Keygen { file }) = &flags.command {
        return keygen(file);
    }
    let config = match Config::load(&flags.config, &environment) {
        Ok(config) => config,
        Err(error) => return ended(&error, EXIT_CONFIGURATION),
    };
    if flags.check {
        return check(&config);
    }
    let source = Source {
        path: flags.config,
        environment,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return ended(&error, 1),
    };
    let code = runtime.block_on(async {
        match flags.command {
            Some(Command::Cleanup) => finished(vpn_client::clean_up(&config).await),
            Some(Command::Setup) => finished(vpn_client::set_up(&config).await),
            Some(Command::Keygen { .. }) | None => run(source, config, log).await,
        }
    });
    // A look-up that still waits is not waited for.
    runtime.shutdown_background();
    code
}

async fn run(source: Source, config: Config, log: LogControl) -> ExitCode {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.effective(), "starting");
    let signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return ended(&error, 1),
    };
    match Client::start(source, config, log).await {
        Ok(client) => finished(client.run(signals).await),
        Err(error) if StartError::is_configuration(&error) => ended(&error, EXIT_CONFIGURATION),
        Err(error) => ended(&error, 1),
    }
}

fn check(config: &Config) -> ExitCode {
    if let Err(error) = config.identity() {
        return ended(&error, EXIT_CONFIGURATION);
    }
    let text = settings::effective_yaml(config.effective()).unwrap_or_default();
    printed(&text)
}

fn keygen(file: &Path) -> ExitCode {
    let key = tunnel::keys::generate();
    let written = key.and_then(|key| {
        tunnel::keys::write_new(file, &key)?;
        Ok(key.public())
    });
    match written {
        Ok(public) => printed(&format!("{public}\n")),
        Err(error) => ended(&error, 1),
    }
}

fn printed(text: &str) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "what --check and keygen are for")]
    {
        print!("{text}");
    }
    ExitCode::SUCCESS
}

fn finished<E: Error + 'static>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error: &(dyn Error + 'static) = &error;
            let refused = error.downcast_ref::<NetworkError>();
            let refused = refused.is_some_and(NetworkError::is_configuration);
            ended(error, if refused { EXIT_CONFIGURATION } else { 1 })
        }
    }
}

fn ended(error: &(dyn Error + 'static), code: u8) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    code.into()
}
