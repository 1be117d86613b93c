//! Keeps the last good resources on disk.
//!
//! Not more often than every few seconds, and once more when it is dropped. What is older never
//! takes the place of what is newer. The file's time is when its server last confirmed it, about.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telemetry::lock;
use tokio::time::Instant;

use super::ClientParams;
use super::held::{Unsaved, entries};
use super::metrics::ClientMetrics;
use crate::cache;

/// When the file, or its time alone, was last written.
type Written = Option<Instant>;

/// Intervals between two writes of the time alone, which matters to nothing but a restart: a minute.
const CONFIRMATION: u32 = 12;

/// Writes the cache of one client.
#[derive(Clone)]
pub(super) struct CacheWriter {
    path: Option<PathBuf>,
    origin: cache::Origin,
    interval: Duration,
    unsaved: Unsaved,
    metrics: ClientMetrics,
    /// Held while a copy is taken and written, so that the latest one is on disk in the end.
    writing: Arc<Mutex<Written>>,
}

impl CacheWriter {
    pub(super) fn new(params: &ClientParams, unsaved: Unsaved, metrics: &ClientMetrics) -> Self {
        Self {
            path: params.cache.clone(),
            origin: cache::Origin::of(&params.server, &params.cluster),
            interval: params.limits.cache,
            unsaved,
            metrics: metrics.clone(),
            writing: Arc::new(Mutex::new(None)),
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

    /// Writes what is good and not on disk, or that what is there still is. It blocks.
    fn write(&self) {
        let Some(path) = &self.path else {
            return;
        };
        let mut last = lock(&self.writing);
        let unsaved = std::mem::take(&mut *lock(&self.unsaved));
        let due = last.is_some_and(|last| last.elapsed() >= self.interval * CONFIRMATION);
        let written = match &unsaved.state {
            Some(state) => cache::write(path, &self.origin, entries(state)),
            None if unsaved.confirmed && due => cache::touch(path),
            None => return,
        };
        self.metrics.cache_write(written.is_ok());
        match written {
            Ok(()) => *last = Some(Instant::now()),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "writing the resource cache failed");
                if let Some(state) = unsaved.state {
                    lock(&self.unsaved).state.get_or_insert(state);
                }
            }
        }
    }
}

struct WriteOnDrop<'a>(&'a CacheWriter);

impl Drop for WriteOnDrop<'_> {
    fn drop(&mut self) {
        self.0.write();
    }
}
