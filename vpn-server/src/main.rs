//! `vpn-server`: flags, logging, the control runtime, and exit codes.
//!
//! Everything else is the library's.
#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serve::Signals;
use telemetry::LogControl;
use vpn_server::{Command, Config, Environment, Flags, keygen};

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
    let code = match &flags.command {
        Some(Command::Keygen { file }) => make_key(file),
        Some(Command::Provision { arguments }) => provision(arguments),
        None => act(&flags, &environment, log.clone()),
    };
    log.close(LAST_WORDS);
    code
}

fn make_key(file: &Path) -> ExitCode {
    match keygen(file) {
        Ok(public) => printed(&format!("{public}\n")),
        Err(error) => ended(&error, 1),
    }
}

/// Becomes the program that provisions. It is another one so that a server holds none of it in
/// memory.
fn provision(arguments: &[OsString]) -> ExitCode {
    let error = match std::env::current_exe() {
        Ok(own) => {
            let program = own.with_file_name("vpn-provision");
            std::process::Command::new(program).args(arguments).exec()
        }
        Err(error) => error,
    };
    tracing::error!(%error, "starting vpn-provision, which is to be beside this program");
    ExitCode::FAILURE
}

fn act(flags: &Flags, environment: &Environment, log: LogControl) -> ExitCode {
    let config = match Config::load(&flags.config, environment) {
        Ok(config) => config,
        Err(error) => return ended(&error, EXIT_CONFIGURATION),
    };
    if flags.check {
        return match config.check() {
            Ok(text) => printed(&text),
            Err(error) => ended(&error, EXIT_CONFIGURATION),
        };
    }
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.effective(), "starting");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return ended(&error, 1),
    };
    runtime.block_on(async {
        let signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => return ended(&error, 1),
        };
        match vpn_server::run(config, log, signals).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_configuration() => ended(&error, EXIT_CONFIGURATION),
            Err(error) => ended(&error, 1),
        }
    })
}

fn printed(text: &str) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "what was asked for")]
    {
        print!("{text}");
    }
    ExitCode::SUCCESS
}

fn ended(error: &(dyn Error + 'static), code: u8) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    code.into()
}
