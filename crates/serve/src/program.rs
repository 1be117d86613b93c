//! The shell around every program: flags, log, runtime, signals, exit code.
//!
//! ```text
//!     arguments ─▶ flags ─▶ log ─▶ act ─┬─▶ --check, sub-commands: print ─┬─▶ 0, 1, 64
//!         └ refused: 64                 └─▶ serve: runtime, signals ──────┘   log flushed
//! ```
//!
//! Knows no program's configuration: what to do with the flags is the program's `act`.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use telemetry::{LogControl, LogFormat};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, SignalKind, signal};

/// Exit code of flags and configuration that cannot be used (sysexits.h, EX_USAGE).
const EXIT_CONFIGURATION: u8 = 64;

/// How long the last log lines may take to be written.
const LOG_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a program ends with an exit code other than 0. Any error converts into one with code 1.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    error: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// Returns exit code 64: the configuration, or what it points to, cannot be used.
    pub fn configuration(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::with_code(EXIT_CONFIGURATION, error)
    }

    /// Returns exit code 64 if `is_configuration` holds, else 1.
    pub fn of<E: Error + Send + Sync + 'static>(
        error: E,
        is_configuration: impl FnOnce(&E) -> bool,
    ) -> Self {
        match is_configuration(&error) {
            true => Self::configuration(error),
            false => error.into(),
        }
    }

    /// Returns a failure with an exit code of the program's own.
    pub fn with_code(code: u8, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        Self { code, error }
    }

    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Returns why the program ends.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::with_code(1, error)
    }
}

/// Runs a program: parses `F` from the arguments, starts the log by `RUST_LOG` and the format that the
/// flags name, calls `act`, logs its failure, and flushes the log.
pub fn main<F: Parser>(
    log_format: impl FnOnce(&F) -> LogFormat,
    act: impl FnOnce(F, LogControl) -> Result<ExitCode, Failure>,
) -> ExitCode {
    #[expect(
        clippy::disallowed_methods,
        reason = "the log must start before configuration is read"
    )]
    let directives = std::env::var("RUST_LOG").ok();
    match F::try_parse() {
        Ok(flags) => {
            let format = log_format(&flags);
            with_log(format, directives.as_deref(), |log| act(flags, log))
        }
        Err(error) => {
            let _ = error.print();
            match error.use_stderr() {
                true => EXIT_CONFIGURATION.into(),
                false => ExitCode::SUCCESS, // --help, --version
            }
        }
    }
}

/// As [`main`], for a program that has its flags already and decides itself what is logged.
pub fn with_log(
    format: LogFormat,
    directives: Option<&str>,
    act: impl FnOnce(LogControl) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let log = match telemetry::logs::init(format, directives) {
        Ok(log) => log,
        Err(error) => return reject(format_args!("RUST_LOG: {}", telemetry::chain(&error))),
    };
    let code = act(log.clone()).unwrap_or_else(|Failure { code, error }| {
        tracing::error!("{}", telemetry::chain(error.as_ref()));
        code.into()
    });
    log.close(LOG_CLOSE_TIMEOUT);
    code
}

/// Writes what makes the arguments unusable to stderr, and returns exit code 64.
pub fn reject(error: impl Display) -> ExitCode {
    #[expect(clippy::print_stderr, reason = "the log has not started")]
    {
        eprintln!("{error}");
    }
    EXIT_CONFIGURATION.into()
}

/// Writes the result of `--check` or of a sub-command to stdout, and returns exit code 0.
pub fn print(text: impl Display) -> ExitCode {
    #[expect(clippy::print_stdout, reason = "the output that the flags ask for")]
    {
        print!("{text}");
    }
    ExitCode::SUCCESS
}

/// Logs the start with the effective configuration, and runs the program on its runtime with the
/// process's signals.
///
/// # Errors
/// That of `run`, or what the kernel returns for threads and signals.
pub fn serve(
    effective: impl Display,
    threads: Threads,
    run: impl AsyncFnOnce(Signals) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %effective, "starting");
    block_on(threads, async || run(Signals::new()?).await)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `act` on a runtime. Blocking calls that are still under way at its end, such as a name look-up,
/// are abandoned.
///
/// # Errors
/// That of `act`, or what the kernel returns for threads.
pub fn block_on<T>(
    threads: Threads,
    act: impl AsyncFnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = threads.runtime()?;
    let result = runtime.block_on(act());
    runtime.shutdown_background();
    result
}

/// Threads of a program's own runtime; those of workers and tunnels come on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The main thread alone.
    Main,
    /// So many.
    Pool(usize),
}

impl Threads {
    fn runtime(self) -> io::Result<Runtime> {
        let mut builder = match self {
            Self::Main => Builder::new_current_thread(),
            Self::Pool(threads) => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(threads);
                builder
            }
        };
        builder.enable_all().build()
    }
}

/// A signal the process was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: reload configuration files.
    Reload,
    /// SIGTERM or SIGINT: drain; the second time, cut.
    Stop,
}

/// Receives the signals of this process.
#[derive(Debug)]
pub struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// Starts receiving; from here on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// What the kernel returns for the registration.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
        }
    }
}
