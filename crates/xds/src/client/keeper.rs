//! Keeps the last good resources on disk.
//!
//! Not more often than every few seconds, and once more when it is dropped. It holds no copy
//! between writes.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ClientParams;
use super::held::Stored;
use super::metrics::ClientMetrics;
use crate::cache;

/// Writes the cache of one client.
pub(super) struct Keeper {
    path: Option<PathBuf>,
    interval: Duration,
    stored: Stored,
    metrics: ClientMetrics,
}

impl Keeper {
    pub(super) fn new(params: &ClientParams, stored: Stored, metrics: &ClientMetrics) -> Self {
        Self {
            path: params.cache.clone(),
            interval: params.limits.cache,
            stored,
            metrics: metrics.clone(),
        }
    }

    /// Writes whenever there is something new, for ever.
    pub(super) async fn keep(&self) -> Infallible {
        let Some(path) = &self.path else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(self.interval).await;
            let Some(entries) = self.unsaved() else {
                continue;
            };
            let path = path.clone();
            let writing = tokio::task::spawn_blocking(move || write(&path, entries));
            self.written(writing.await.unwrap_or(false));
        }
    }

    /// What is good and not on disk.
    fn unsaved(&self) -> Option<Vec<cache::Entry>> {
        let mut raw = self.stored.lock();
        if !raw.good || !raw.unsaved {
            return None;
        }
        raw.unsaved = false;
        Some(raw.entries())
    }

    fn written(&self, done: bool) {
        self.metrics.cache_write(done);
        if !done {
            self.stored.lock().unsaved = true;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && let Some(entries) = self.unsaved()
        {
            self.written(write(path, entries));
        }
    }
}

fn write(path: &Path, entries: Vec<cache::Entry>) -> bool {
    match cache::write(path, entries) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "writing the cache of resources");
            false
        }
    }
}
