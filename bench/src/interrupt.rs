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
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        let mut end = signal(kind).context("watching for signals")?;
        tokio::spawn(async move {
            end.recv().await;
            netns::delete_ours();
            tempdir::delete_ours();
            exit(128 + kind.as_raw_value());
        });
    }
    drop(inside);
    let forever = move || runtime.block_on(std::future::pending::<()>());
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(forever).context("starting a thread")?;
    Ok(())
}
