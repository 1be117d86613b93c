//! `netpol-controller`: flags, logging, the runtime, and exit codes.
//!
//! Everything else is the library's.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use netpol_controller::{Config, Controller, DryRunError, Environment, Flags, StartError};
use serve::Signals;
use telemetry::LogControl;

/// How long what was logged last may take to be written at the end.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What configuration that cannot be used exits with (sysexits.h, EX_USAGE).
const EXIT_CONFIGURATION: u8 = 64;

/// One for the engine and what it decides, one for requests and streams.
const THREADS: usize = 2;

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
    let code = run(&flags, &environment, log.clone());
    log.close(LAST_WORDS);
    code
}

fn run(flags: &Flags, environment: &Environment, log: LogControl) -> ExitCode {
    let config = match Config::load(&flags.config) {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    if flags.check {
        return match config.check() {
            Ok(text) => printed(&text),
            Err(error) => refused(&error),
        };
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let code = runtime.block_on(async {
        if flags.dry_run {
            return match netpol_controller::dry_run(&config, environment).await {
                Ok(text) => printed(&text),
                Err(error @ DryRunError::Start(_)) => refused(&error),
                Err(error) => failed(&error),
            };
        }
        tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.effective(), "starting");
        let signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => return failed(&error),
        };
        match Controller::start(config, environment, log).await {
            Ok(controller) => {
                let ended = controller.run(signals).await;
                ended.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
            }
            Err(error @ (StartError::Client(_) | StartError::Tls(_))) => refused(&error),
            Err(error) => failed(&error),
        }
    });
    // A request or a look-up that still waits is not waited for.
    runtime.shutdown_background();
    code
}

fn printed(text: &str) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "what --check and --dry-run are for")]
    {
        print!("{text}");
    }
    ExitCode::SUCCESS
}

fn refused(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    EXIT_CONFIGURATION.into()
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    ExitCode::FAILURE
}
