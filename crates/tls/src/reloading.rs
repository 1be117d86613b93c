//! A value built from files, and built again when their content changes.
//!
//! ```text
//!   files ──read──▶ bytes ──same as before?──▶ nothing
//!                      └──differ──▶ build ──▶ swap, or an error with the old value kept
//! ```
//!
//! Does not know what the value is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use settings::{FileWatcher, WatchParams};

use crate::error::TlsError;
use crate::files::Octets;
use crate::metrics::Counted;

/// How a value comes from files.
pub(crate) trait Recipe: Send + Sync + 'static {
    type Value: Send + Sync;

    /// The files, in an order of the recipe's own.
    fn paths(&self) -> Vec<PathBuf>;

    /// Builds the value from the files' content, in the order of [`Self::paths`].
    fn build(&self, files: &[Octets]) -> Result<Self::Value, TlsError>;
}

/// The last good value.
pub(crate) struct Reloading<R: Recipe> {
    recipe: R,
    value: ArcSwap<R::Value>,
    /// What is known of the files; whoever reads them holds it, so that what was read earlier
    /// never takes the place of what was read later.
    files: Mutex<Files>,
    pub(crate) counted: Counted,
}

/// What is known of the files.
struct Files {
    /// What the value was built from.
    built_from: Vec<Octets>,
    /// Why they were refused when they were read last; the same is counted once.
    refused: Option<String>,
}

impl<R: Recipe> Reloading<R> {
    pub(crate) fn load(recipe: R) -> Result<Self, TlsError> {
        let files = read(&recipe)?;
        let value = recipe.build(&files)?;
        Ok(Self {
            recipe,
            value: ArcSwap::from_pointee(value),
            files: Mutex::new(Files {
                built_from: files,
                refused: None,
            }),
            counted: Counted::default(),
        })
    }

    pub(crate) fn value(&self) -> Arc<R::Value> {
        self.value.load_full()
    }

    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.build_anew(&mut files.built_from);
        let refused = changed.as_ref().err();
        let refused = refused.map(|error| telemetry::chain(error).to_string());
        if matches!(changed, Ok(true)) {
            self.counted.taken();
        } else if refused.is_some() && refused != files.refused {
            self.counted.refused();
        }
        files.refused = refused;
        changed
    }

    fn build_anew(&self, built_from: &mut Vec<Octets>) -> Result<bool, TlsError> {
        let files = read(&self.recipe)?;
        if *built_from == files {
            return Ok(false);
        }
        self.value.store(Arc::new(self.recipe.build(&files)?));
        *built_from = files;
        Ok(true)
    }

    /// Reloads whenever the files may have changed, for ever.
    pub(crate) async fn watch(&self) {
        let paths = self.recipe.paths();
        let mut watcher = FileWatcher::new(paths.clone(), WatchParams::default())
            .inspect_err(|error| tracing::warn!(%error, "TLS files are polled"))
            .ok();
        let mut refused = None;
        loop {
            self.look(&paths, &mut refused);
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

    /// Reloads once; the same refusal is told once.
    fn look(&self, paths: &[PathBuf], refused: &mut Option<String>) {
        match self.reload() {
            Ok(changed) => {
                *refused = None;
                if changed {
                    tracing::info!(files = ?paths, "TLS files changed and are in effect");
                }
            }
            Err(error) => {
                let error = telemetry::chain(&error).to_string();
                if refused.as_ref() != Some(&error) {
                    tracing::warn!(%error, "TLS files are refused, the last good ones stay");
                    *refused = Some(error);
                }
            }
        }
    }
}

/// Certificates are in effect within this, whatever the file system tells.
const POLL: Duration = Duration::from_secs(10);

fn read(recipe: &impl Recipe) -> Result<Vec<Octets>, TlsError> {
    recipe
        .paths()
        .iter()
        .map(|path| Octets::read(path))
        .collect()
}
