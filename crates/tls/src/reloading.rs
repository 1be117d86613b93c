//! TLS settings built from files or secrets, and built again when their content changes.
//!
//! ```text
//!   files, secrets ──read──▶ bytes ──same as before?──▶ nothing
//!                              └──differ──▶ build ──▶ swap, or an error with the old settings kept
//! ```
//!
//! What was read is wiped; only digests stay. How settings are built is `client`'s, `server`'s and `terminating`'s.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use ring::digest::SHA256_OUTPUT_LEN;
use settings::{FileWatcher, WatchParams};
use telemetry::lock;
use telemetry::metrics::{Counter, CounterFamily, Gauge, GaugeFamily};

use crate::error::TlsError;
use crate::files::{Content, Piece};
use crate::secret::SecretStore;

/// Settings from files or secrets, always the last good ones. Clones are the same.
pub struct Reloading<T>(Arc<Inner<T>>);

struct Inner<T> {
    pieces: Vec<Piece>,
    secrets: SecretStore,
    build: Box<Build<T>>,
    value: ArcSwap<T>,
    /// Held while the files are read, so that what was read earlier never replaces what was read
    /// later.
    files: Mutex<Files>,
    counted: OnceLock<Series>,
}

/// Builds settings from what was read, in the order of the pieces.
type Build<T> = dyn Fn(&[Content]) -> Result<T, TlsError> + Send + Sync;

/// What is known of the files.
struct Files {
    /// What the settings were built from; empty before there are any.
    built_from: Vec<[u8; SHA256_OUTPUT_LEN]>,
    /// Why they were refused when they were read last; the same is counted and logged once.
    refused: Option<String>,
    /// Whether they are among those that the gauge counts.
    counted: bool,
}

/// The families `rhizome_tls_reloads_total{purpose,result}` and `rhizome_tls_files_refused{purpose}`,
/// registered once per process.
#[derive(Clone, Debug)]
pub struct Metrics {
    reloads: CounterFamily,
    refused: GaugeFamily,
}

/// The series of one set of files.
struct Series {
    taken: Counter,
    refused: Counter,
    now_refused: Gauge,
}

impl Metrics {
    /// Registers the families.
    ///
    /// # Panics
    /// When one of them is registered already.
    pub fn new(registry: &telemetry::Registry) -> Self {
        Self {
            reloads: registry.counter(
                "rhizome_tls_reloads_total",
                "Changed TLS files that were taken, or refused with the last good ones kept.",
                &["purpose", "result"],
            ),
            refused: registry.gauge(
                "rhizome_tls_files_refused",
                "Sets of TLS files that are refused as they are now; the last good ones are in effect.",
                &["purpose"],
            ),
        }
    }
}

impl<T> Reloading<T> {
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        build: impl Fn(&[Content]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let pieces: Vec<_> = paths.into_iter().map(Piece::File).collect();
        let secrets = SecretStore::default();
        let files = read(&pieces, &secrets)?;
        let value = build(&files)?;
        Ok(Self::with(pieces, secrets, value, digests(&files), build))
    }

    /// Begins with `value`, and reads nothing yet.
    pub(crate) fn unread(
        pieces: Vec<Piece>,
        secrets: SecretStore,
        value: T,
        build: impl Fn(&[Content]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Self {
        Self::with(pieces, secrets, value, Vec::new(), build)
    }

    fn with(
        pieces: Vec<Piece>,
        secrets: SecretStore,
        value: T,
        built_from: Vec<[u8; SHA256_OUTPUT_LEN]>,
        build: impl Fn(&[Content]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            pieces,
            secrets,
            build: Box::new(build),
            value: ArcSwap::from_pointee(value),
            files: Mutex::new(Files {
                built_from,
                refused: None,
                counted: false,
            }),
            counted: OnceLock::new(),
        }))
    }

    /// Returns the settings for a handshake that begins now: TLS 1.2 and 1.3.
    pub fn config(&self) -> Arc<T> {
        self.0.value.load_full()
    }

    /// Counts what is read again under `purpose`, a short word from a closed set. A second call
    /// changes nothing: one set of files has one purpose.
    pub fn count_in(&self, metrics: &Metrics, purpose: &str) {
        let _ = self.0.counted.set(Series {
            taken: metrics.reloads.with(&[purpose, "taken"]),
            refused: metrics.reloads.with(&[purpose, "refused"]),
            now_refused: metrics.refused.with(&[purpose]),
        });
    }

    /// Reads the files again and returns whether anything in them changed. Sessions that clients
    /// could resume are forgotten with a change, so that no client of a removed authority is
    /// accepted.
    ///
    /// # Errors
    /// What is wrong, and in which file; the last good settings stay.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.0.reload().0
    }

    /// Returns what is wrong with what was read last.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        lock(&self.0.files).refused.clone()
    }

    /// Reads the files again whenever they change, at the latest 10 s afterwards. Refusals are
    /// logged and counted. It never ends; drop it to stop.
    pub async fn watch(&self) {
        let pieces = self.0.pieces.iter();
        let paths: Vec<_> = pieces
            .filter_map(|piece| match piece {
                Piece::File(path) => Some(path.clone()),
                Piece::Secret(..) => None,
            })
            .collect();
        let mut watcher = FileWatcher::new(paths.clone(), WatchParams::default())
            .inspect_err(|error| tracing::warn!(%error, "TLS files are polled"))
            .ok();
        loop {
            match self.0.reload() {
                (Ok(true), _) => tracing::info!(files = ?paths, "TLS files reloaded"),
                (Err(error), true) => {
                    tracing::warn!(error = %telemetry::chain(&error), "keeping the previous TLS files");
                }
                (Ok(false) | Err(_), _) => {}
            }
            match &mut watcher {
                // The poll is for what a watcher cannot see: files that could not be used when
                // they changed and have become readable, say, or a half-written pair.
                Some(watcher) => {
                    let _ = tokio::time::timeout(POLL, watcher.changed()).await;
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    }
}

impl<T> Inner<T> {
    /// Reads the files again; returns whether they changed, and whether this was not seen before.
    fn reload(&self) -> (Result<bool, TlsError>, bool) {
        let mut files = lock(&self.files);
        let changed = self.rebuild(&mut files.built_from);
        let refused = changed.as_ref().err();
        let refused = refused.map(|error| telemetry::chain(error).to_string());
        let new = refused != files.refused;
        if let Some(series) = self.counted.get() {
            match &changed {
                Ok(true) => series.taken.inc(),
                // What is not there yet, or no longer, is no refusal.
                Ok(false) | Err(TlsError::Missing(_)) => {}
                Err(_) if new => series.refused.inc(),
                Err(_) => {}
            }
            let is_refused = !matches!(&changed, Ok(_) | Err(TlsError::Missing(_)));
            match (
                std::mem::replace(&mut files.counted, is_refused),
                is_refused,
            ) {
                (false, true) => series.now_refused.inc(),
                (true, false) => series.now_refused.dec(),
                (false, false) | (true, true) => {}
            }
        }
        files.refused = refused;
        (changed, new)
    }

    fn rebuild(&self, built_from: &mut Vec<[u8; SHA256_OUTPUT_LEN]>) -> Result<bool, TlsError> {
        let files = read(&self.pieces, &self.secrets)?;
        let digests = digests(&files);
        if *built_from == digests {
            return Ok(false);
        }
        self.value.store(Arc::new((self.build)(&files)?));
        *built_from = digests;
        Ok(true)
    }
}

impl<T> Drop for Inner<T> {
    fn drop(&mut self) {
        if lock(&self.files).counted
            && let Some(series) = self.counted.get()
        {
            series.now_refused.dec();
        }
    }
}

impl<T> Clone for Reloading<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = &self.0.pieces;
        f.debug_tuple("Reloading").field(pieces).finish()
    }
}

fn read(pieces: &[Piece], secrets: &SecretStore) -> Result<Vec<Content>, TlsError> {
    pieces.iter().map(|piece| piece.read(secrets)).collect()
}

fn digests(contents: &[Content]) -> Vec<[u8; SHA256_OUTPUT_LEN]> {
    contents.iter().map(Content::digest).collect()
}

/// Certificates are in effect within this, whatever the file system reports.
const POLL: Duration = Duration::from_secs(10);
