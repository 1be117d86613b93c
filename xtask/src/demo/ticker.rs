//! Something to watch at a real API server: a ConfigMap that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use testkit::api_server::WATCH_INTERVAL;
use testkit::http::{Connection, Target};
use testkit::netns::Namespace;
use testkit::wait;

use super::shoot::create_config_map;

/// A thread that writes the next number each 200 ms. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Ticker {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Creates the ConfigMap and starts to count, straight at the API server.
    pub(super) fn start(seed: &Namespace, target: Target) -> Result<Self> {
        seed.run(|| create_config_map(&target, NAME, "sequence", "0"))??;
        let connection = seed.run(|| Connection::open(&target))??;
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("ticker".to_owned())
            .spawn(move || {
                // A ticker that fails stops the watches it feeds, and their steps say so.
                let _ = count(connection, &seen);
            })
            .context("starting a thread")?;
        Ok(Self {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn count(mut connection: Connection, ended: &AtomicBool) -> Result<()> {
    let mut sequence = 0_u64;
    while !ended.load(Ordering::Relaxed) {
        sequence += 1;
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": NAME },
            "data": { "sequence": sequence.to_string() },
        });
        let path = format!("/api/v1/namespaces/default/configmaps/{NAME}");
        let answer = connection.request("PUT", &path, Some(&body.to_string()))?;
        if answer.status != 200 {
            bail!("writing {sequence}: {}", answer.text());
        }
        wait::pause(WATCH_INTERVAL);
    }
    Ok(())
}

const NAME: &str = "ticker";
/// The watch of the ticker alone.
pub(super) const WATCH: &str =
    "/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name=ticker";
