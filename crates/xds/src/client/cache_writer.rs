//! Keeps the last good resources on disk.
//!
//! Not more often than every few seconds, and once more when it is dropped. What is older never
//! takes the place of what is newer.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telemetry::lock;

use super::ClientParams;
use super::held::{Unsaved, entries};
use super::metrics::ClientMetrics;
use crate::cache;

/// Writes the cache of one client.
#[derive(Clone)]
pub(super) struct CacheWriter {
    path: Option<PathBuf>,
    origin: cache::Origin,
    interval: Duration,
    unsaved: Unsaved,
    metrics: ClientMetrics,
    /// Held while a copy is taken and written, so that the latest one is on disk in the end.
    writing: Arc<Mutex<()>>,
}

impl CacheWriter {
    pub(super) fn new(params: &ClientParams, unsaved: Unsaved, metrics: &ClientMetrics) -> Self {
        Self {
            path: params.cache.clone(),
            origin: cache::Origin::of(&params.server, &params.cluster),
            interval: params.limits.cache,
            unsaved,
            metrics: metrics.clone(),
            writing: Arc::default(),
        }
    }

    /// Writes whenever there is something new, for ever, and once more when it is dropped.
    pub(super) async fn keep(self) -> Infallible {
        if self.path.is_none() {
            return std::future::pending().await;
        }
        let _last = WriteOnDrop(&self);
        loop {
            tokio::time::sleep(self.interval).await;
            let writer = self.clone();
            // It fails when the runtime ends, and then the drop writes.
            let _ = tokio::task::spawn_blocking(move || writer.write()).await;
        }
    }

    /// Writes what is good and not on disk. It blocks.
    fn write(&self) {
        let Some(path) = &self.path else {
            return;
        };
        let _writing = lock(&self.writing);
        let Some(state) = lock(&self.unsaved).take() else {
            return;
        };
        let written = cache::write(path, &self.origin, entries(&state));
        self.metrics.cache_write(written.is_ok());
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "writing the resource cache failed");
            lock(&self.unsaved).get_or_insert(state);
        }
    }
}

struct WriteOnDrop<'a>(&'a CacheWriter);

impl Drop for WriteOnDrop<'_> {
    fn drop(&mut self) {
        self.0.write();
    }
}
