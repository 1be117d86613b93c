//! Keeps the last good resources on disk.
//!
//! Not more often than every few seconds, and once more when it is dropped. It holds no copy
//! between writes, and what is older never takes the place of what is newer.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::ClientParams;
use super::held::Stored;
use super::metrics::ClientMetrics;
use crate::cache;

/// Writes the cache of one client.
pub(super) struct CacheWriter {
    path: Option<PathBuf>,
    origin: cache::Origin,
    interval: Duration,
    stored: Stored,
    metrics: ClientMetrics,
    written: Written,
}

/// How many copies were taken up to the one on disk; held while one is written.
type Written = Arc<Mutex<u64>>;

/// What is good and not on disk.
struct Copy {
    number: u64,
    entries: Vec<cache::Entry>,
}

impl CacheWriter {
    pub(super) fn new(params: &ClientParams, stored: Stored, metrics: &ClientMetrics) -> Self {
        Self {
            path: params.cache.clone(),
            origin: params.origin(),
            interval: params.limits.cache,
            stored,
            metrics: metrics.clone(),
            written: Written::default(),
        }
    }

    /// Writes whenever there is something new, for ever.
    pub(super) async fn keep(&self) -> Infallible {
        let Some(path) = &self.path else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(self.interval).await;
            let Some(copy) = self.unsaved() else {
                continue;
            };
            let (path, origin, written) = (path.clone(), self.origin.clone(), self.written.clone());
            let writing =
                tokio::task::spawn_blocking(move || write(&path, &origin, copy, &written));
            self.note(writing.await.unwrap_or(false));
        }
    }

    fn unsaved(&self) -> Option<Copy> {
        let mut raw = self.stored.lock();
        if !raw.good || !raw.unsaved {
            return None;
        }
        raw.unsaved = false;
        raw.copies += 1;
        Some(Copy {
            number: raw.copies,
            entries: raw.entries(),
        })
    }

    fn note(&self, done: bool) {
        self.metrics.cache_write(done);
        if !done {
            self.stored.lock().unsaved = true;
        }
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        // A write in progress holds the lock; one that has not begun may never begin.
        let written = *self.written.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut raw = self.stored.lock();
            raw.unsaved |= raw.copies > written;
        }
        if let Some(path) = &self.path
            && let Some(copy) = self.unsaved()
        {
            self.note(write(path, &self.origin, copy, &self.written));
        }
    }
}

/// Writes a copy, unless a newer one was written already. It blocks.
fn write(path: &Path, origin: &cache::Origin, copy: Copy, written: &Mutex<u64>) -> bool {
    let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
    if *written > copy.number {
        return true;
    }
    match cache::write(path, origin, copy.entries) {
        Ok(()) => {
            *written = copy.number;
            true
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "writing the resource cache failed");
            false
        }
    }
}
