//! An end by signal, which drops no values: namespaces and directories are removed here.
//!
//! Processes need nothing: the kernel kills them when we are gone.

use std::process::exit;

use anyhow::{Context, Result};
use testkit::{netns, tempdir};
use tokio::signal::unix::{SignalKind, signal};

/// From now on SIGINT, SIGTERM and SIGHUP end the process in good order.
pub(crate) fn watch() -> Result<()> {
    let runtime = crate::tls::runtime()?;
    let inside = runtime.enter();
    let watched = |kind| signal(kind).context("watching for signals");
    let mut interrupt = watched(SignalKind::interrupt())?;
    let mut terminate = watched(SignalKind::terminate())?;
    let mut hangup = watched(SignalKind::hangup())?;
    drop(inside);
    let wait = move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
            }
        });
        netns::delete_ours();
        tempdir::delete_ours();
        exit(128 + number.as_raw_value());
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .context("starting a thread")?;
    Ok(())
}
