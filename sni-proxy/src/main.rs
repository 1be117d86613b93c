//! `sni-proxy`: flags, logging, the control runtime, and exit codes.
//!
//! Everything else is the library's.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serve::Signals;
use sni_proxy::{AskError, Command, Config, Environment, Flags, Gateway, StartError, TraceFlags};
use telemetry::LogControl;

/// How long what was logged last may take to be written at the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What configuration that cannot be used exits with (sysexits.h, EX_USAGE).
const EXIT_CONFIGURATION: u8 = 64;

/// Gives memory of closed connections back to the kernel, which glibc's does not, and takes less of
/// it and of the processor for each (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    let code = match &flags.command {
        Some(Command::Trace(asked)) => trace(asked),
        None => run(flags, &environment, log.clone()),
    };
    log.close(LAST_WORDS);
    code
}

fn run(flags: Flags, environment: &Environment, log: LogControl) -> ExitCode {
    let config = match Config::load(&flags.config.unwrap_or_default()) {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    if flags.check {
        return check(&config);
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.effective(), "starting");
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    runtime.block_on(async {
        let signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => return failed(&error),
        };
        match Gateway::start(config, flags.zone, environment, log) {
            Ok(gateway) => {
                let ended = gateway.run(Some(signals)).await;
                ended.map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
            }
            Err(error @ (StartError::Routes(_) | StartError::Tls(_))) => refused(&error),
            Err(error) => failed(&error),
        }
    })
}

/// Validates what the configuration points to as well, and prints what is in effect.
fn check(config: &Config) -> ExitCode {
    match config.check() {
        Ok(text) => printed(&text, true),
        Err(error) => refused(&error),
    }
}

/// Asks a running gateway where a connection would go.
fn trace(flags: &TraceFlags) -> ExitCode {
    match sni_proxy::run_trace(flags) {
        Ok(traced) => printed(&traced.text, traced.routed),
        Err(error @ AskError::Question(_)) => refused(&error),
        Err(error) => failed(&error),
    }
}

fn printed(text: &str, good: bool) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "what was asked for")]
    {
        print!("{text}");
    }
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn refused(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    EXIT_CONFIGURATION.into()
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    ExitCode::FAILURE
}
