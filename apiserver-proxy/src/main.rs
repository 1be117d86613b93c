//! `apiserver-proxy`: flags, logging, the control runtime, and exit codes.
//!
//! Everything else is the library's.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use apiserver_proxy::{
    Command, Config, Flags, Proxy, clean_up, log_directives, set_up, started, take_back,
};
use clap::Parser;
use serve::{Signal, Signals};
use telemetry::LogControl;

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
    let log = match telemetry::logs::init(flags.log_format, log_directives().as_deref()) {
        Ok(log) => log,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "there is no log yet")]
            {
                eprintln!("RUST_LOG: {}", telemetry::chain(&error));
            }
            return EXIT_CONFIGURATION.into();
        }
    };
    let code = act(&flags, log.clone());
    log.close(LAST_WORDS);
    code
}

fn act(flags: &Flags, log: LogControl) -> ExitCode {
    let config = match Config::load(&flags.config) {
        Ok(config) => config,
        Err(error) => return ended(&error, EXIT_CONFIGURATION),
    };
    if flags.check {
        #[expect(clippy::print_stdout, reason = "what --check is for")]
        {
            print!("{}", settings::effective_yaml(&config).unwrap_or_default());
        }
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = runtime.map_err(Into::into).and_then(|runtime| {
        runtime.block_on(async {
            match flags.command {
                Some(Command::Cleanup) => clean_up(&config).await.map_err(Into::into),
                Some(Command::Setup) => set_up(&config).await.map_err(Into::into),
                Some(Command::Started) => started(&config).await.map_err(Into::into),
                None => run(config, log).await,
            }
        })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ended(error.as_ref(), 1),
    }
}

async fn run(config: Config, log: LogControl) -> Result<(), Box<dyn Error>> {
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.effective(), "starting");
    let mut signals = Signals::new()?;
    let proxy = tokio::select! {
        proxy = Proxy::start(config.clone(), log) => proxy?,
        // It may wait for a name; nothing is served yet that would have to drain.
        () = stopped(&mut signals) => return Ok(take_back(&config).await?),
    };
    proxy.run(Some(signals)).await?;
    Ok(())
}

async fn stopped(signals: &mut Signals) {
    while signals.next().await != Signal::Stop {}
}

fn ended(error: &(dyn Error + 'static), code: u8) -> ExitCode {
    tracing::error!("{}", telemetry::chain(error));
    code.into()
}
