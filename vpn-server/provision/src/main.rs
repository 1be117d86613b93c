//! `vpn-provision`: flags, logging, a runtime, and exit codes.
//!
//! Everything else is the library's. Also started as `vpn-server provision`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use vpn_provision::{Flags, ProvisionError, check, provision};
use vpn_server::Environment;

/// How long what was logged last may take to be written at the end.
const LOG_FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// What flags or parameters that cannot be used exit with (sysexits.h, EX_USAGE).
const EXIT_CONFIGURATION: u8 = 64;

/// What a shoot that does not answer yet exits with (sysexits.h, EX_TEMPFAIL): run it again.
const EXIT_AGAIN: u8 = 75;

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
    let code = if flags.check {
        finish(check(&flags.config))
    } else {
        act(&flags)
    };
    log.close(LOG_FLUSH_LIMIT);
    code
}

fn act(flags: &Flags) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => finish(runtime.block_on(provision(flags))),
        Err(error) => ended(&error, 1),
    }
}

fn finish(result: Result<String, ProvisionError>) -> ExitCode {
    match result {
        Ok(text) => {
            show(&text);
            ExitCode::SUCCESS
        }
        Err(error) if error.is_configuration() => ended(&error, EXIT_CONFIGURATION),
        Err(error) => {
            let ProvisionError::Shoot { done, .. } = &error else {
                return ended(&error, 1);
            };
            show(done);
            ended(&error, EXIT_AGAIN)
        }
    }
}

#[expect(clippy::print_stdout, reason = "what was done, or what --check is for")]
fn show(text: &str) {
    print!("{text}");
}

fn ended(error: &(dyn Error + 'static), code: u8) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    code.into()
}
