//! The certificates of a terminating route, as they are in files or were delivered now.
//!
//! ```text
//!     files ────────── each 5 s ─▶ Store ─▶ new handshakes, next requests
//!     secrets by xDS ─ at once ──────┘
//!                 missing, bad or expired ──▶ the last good ones; before there were any, passthrough
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use tls::{Reloading, SecretStore, Terminating, TerminatingParams, TlsError};

/// What was read, and a number that no other reading has.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub(crate) tls: Terminating,
    pub(crate) serial: u64,
}

/// The last good secrets.
#[derive(Debug)]
pub(crate) struct Store(Reloading<Option<Arc<Secrets>>>);

impl Store {
    /// Reads them; what is wrong is found out by [`Store::error`].
    pub(crate) fn new(
        params: &TerminatingParams,
        secrets: &SecretStore,
        reloads: Option<&tls::Metrics>,
    ) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let wrap = |tls| Secrets {
            tls,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let store = Self(params.reloading(secrets, wrap));
        store.refresh();
        if let Some(reloads) = reloads {
            store.0.count_in(reloads, "terminate");
        }
        store
    }

    /// Returns the secrets, if there are any and they are valid now.
    pub(crate) fn current(&self) -> Option<Arc<Secrets>> {
        let current = self.last()?;
        current.tls.is_valid(SystemTime::now()).then_some(current)
    }

    /// Returns the last good ones, valid or not.
    pub(crate) fn last(&self) -> Option<Arc<Secrets>> {
        Option::clone(&self.0.config())
    }

    /// Returns what is wrong with what was read last.
    pub(crate) fn error(&self) -> Option<String> {
        self.0.error()
    }

    /// Reads them again, if their bytes have changed.
    pub(crate) fn refresh(&self) {
        let before = self.error();
        match self.0.reload() {
            Ok(true) => tracing::info!(secrets = ?self.0, "TLS ends here"),
            Ok(false) => {}
            Err(error) => {
                let text = telemetry::chain(&error).to_string();
                if before.as_ref() == Some(&text) {
                    return;
                }
                if matches!(error, TlsError::Missing(_)) {
                    // Routes come before their secrets, and go after them.
                    tracing::debug!(error = text, "no secrets of a terminating route");
                } else if self.last().is_some() {
                    let what = "secrets of a terminating route refused: the last good ones stay";
                    tracing::warn!(error = text, "{what}");
                } else {
                    let what = "secrets of a terminating route refused: passed through";
                    tracing::warn!(error = text, "{what}");
                }
            }
        }
    }
}
