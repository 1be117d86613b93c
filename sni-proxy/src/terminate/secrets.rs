//! The certificates of a terminating route, as they are on disk now.
//!
//! ```text
//!     files ── read at the start, and each 5 s ──▶ Secrets ──▶ new handshakes, next requests
//!                 missing, bad or expired ──▶ the last good ones; before there were any, passthrough
//! ```

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use telemetry::lock;
use tls::{Terminating, TerminatingParams, TlsError};
use zeroize::Zeroizing;

/// What was read, and a number that no other reading has.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) tls: Terminating,
    pub(crate) serial: u64,
}

/// The last good secrets.
#[derive(Debug)]
pub(crate) struct Store {
    files: TerminatingParams,
    current: ArcSwapOption<Secrets>,
    seen: Mutex<Seen>,
    hasher: RandomState,
}

/// The files when they were read last.
#[derive(Debug, Default)]
struct Seen {
    /// Of each file's bytes; none of one that could not be read. The keys themselves stay nowhere.
    hashes: Vec<Option<u64>>,
    error: Option<String>,
}

impl Store {
    /// Reads the files; what is wrong with them is found out by [`Store::error`].
    pub(crate) fn new(files: TerminatingParams) -> Self {
        let store = Self {
            files,
            current: ArcSwapOption::empty(),
            seen: Mutex::default(),
            hasher: RandomState::new(),
        };
        store.refresh();
        store
    }

    /// Returns the secrets, if there are any and they are valid now.
    pub(crate) fn current(&self) -> Option<Arc<Secrets>> {
        let current = self.current.load_full()?;
        current.tls.is_valid(SystemTime::now()).then_some(current)
    }

    /// Returns the last good ones, valid or not.
    pub(crate) fn last(&self) -> Option<Arc<Secrets>> {
        self.current.load_full()
    }

    /// Returns what is wrong with the files as they were read last.
    pub(crate) fn error(&self) -> Option<String> {
        lock(&self.seen).error.clone()
    }

    /// Reads the files again, if their bytes have changed.
    pub(crate) fn refresh(&self) {
        let paths: Vec<PathBuf> = self.files.paths();
        let hash = |path: &PathBuf| {
            let bytes = Zeroizing::new(std::fs::read(path).ok()?);
            Some(self.hasher.hash_one(&*bytes))
        };
        let hashes: Vec<_> = paths.iter().map(hash).collect();
        let mut seen = lock(&self.seen);
        if seen.hashes == hashes {
            return;
        }
        let first = self.current.load().is_none();
        match self.load() {
            Ok(secrets) => {
                self.current.store(Some(Arc::new(secrets)));
                seen.error = None;
                tracing::info!(certificate = %paths[0].display(), "TLS ends here");
            }
            Err(error) => {
                let error = telemetry::chain(&error).to_string();
                if seen.error.as_ref() != Some(&error) {
                    let instead = if first {
                        "passed through"
                    } else {
                        "the last good ones stay"
                    };
                    tracing::warn!(error, "secrets of a terminating route refused: {instead}");
                }
                seen.error = Some(error);
            }
        }
        seen.hashes = hashes;
    }

    fn load(&self) -> Result<Secrets, TlsError> {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Ok(Secrets {
            tls: Terminating::load(&self.files)?,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        })
    }
}
