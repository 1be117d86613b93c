//! `vpn-provision`: what its flags ask for, in the shell that all programs share. Also started as
//! `vpn-server provision`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use serve::{Failure, Threads, program};
use vpn_provision::{Flags, ProvisionError, check, provision};

/// Exit code of a shoot that does not answer yet (sysexits.h, EX_TEMPFAIL): run it again.
const EXIT_AGAIN: u8 = 75;

fn main() -> ExitCode {
    program::main(
        |flags: &Flags| flags.log_format,
        |flags, _| {
            if flags.check {
                return printed(check(&flags.config));
            }
            program::block_on(Threads::Main, async || printed(provision(&flags).await))
        },
    )
}

fn printed(result: Result<String, ProvisionError>) -> Result<ExitCode, Failure> {
    match result {
        Ok(text) => Ok(program::print(text)),
        Err(error) => {
            let ProvisionError::Shoot { done, .. } = &error else {
                return Err(Failure::of(error, ProvisionError::is_configuration));
            };
            program::print(done);
            Err(Failure::with_code(EXIT_AGAIN, error))
        }
    }
}
