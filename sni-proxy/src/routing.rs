//! The routing snapshot in force: read, swapped whole, refused with a reason.
//!
//! Connections load it once and keep what they loaded. A file that is missing, empty or wrong
//! changes nothing but a counter and the log.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use route::Snapshot;
use serve::{NameSet, Resolver};
use settings::{ConfigError, TcpSettings};
use telemetry::Registry;
use telemetry::metrics::Counter;
use tokio::time::Instant;

use crate::routes::{self, RoutesError};

/// A snapshot with what its endpoints' names resolve to.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) names: NameSet,
    /// When the source of routes last confirmed it.
    pub(crate) confirmed: Instant,
}

/// The snapshot in force and where its successors come from.
#[derive(Debug)]
pub(crate) struct Routing {
    current: ArcSwap<Published>,
    file: PathBuf,
    tcp: TcpSettings,
    resolver: Resolver,
    refused: Counter,
    /// Looked at by the control thread alone.
    last_refusal: Mutex<Option<Refusal>>,
}

impl Routing {
    /// Reads the first snapshot.
    pub(crate) fn start(
        file: PathBuf,
        tcp: TcpSettings,
        resolver: Resolver,
        registry: &Registry,
    ) -> Result<Self, RoutesError> {
        let snapshot = routes::load(&file, &tcp, None)?;
        let refused = refused(registry);
        let published = publish(snapshot, &resolver);
        Ok(Self {
            current: ArcSwap::from_pointee(published),
            file,
            tcp,
            resolver,
            refused,
            last_refusal: Mutex::default(),
        })
    }

    /// Returns the snapshot in force, without a lock.
    pub(crate) fn current(&self) -> Arc<Published> {
        self.current.load_full()
    }

    /// Reads the file again and swaps the snapshot, or keeps the last good one.
    pub(crate) fn reload(&self) {
        let previous = self.current.load_full();
        match routes::load(&self.file, &self.tcp, Some(&previous.snapshot)) {
            Ok(snapshot) => {
                let published = publish(snapshot, &self.resolver);
                self.current.store(Arc::new(published));
                *self.last_refusal() = None;
            }
            Err(error) => self.refuse(&error, previous.snapshot.generation()),
        }
    }

    /// Tells whether the last reload failed for want of something that may come back by itself,
    /// descriptors for example, so that nothing would announce another try.
    pub(crate) fn unread(&self) -> bool {
        self.last_refusal()
            .as_ref()
            .is_some_and(|refusal| refusal.unread)
    }

    /// Notes a refusal; the same one again, of a repeated try, is neither counted nor told.
    fn refuse(&self, error: &RoutesError, generation: u64) {
        let refusal = Refusal {
            text: telemetry::chain(error).to_string(),
            unread: matches!(error, RoutesError::File(ConfigError::Read { .. })),
        };
        let mut last = self.last_refusal();
        if !refusal.unread || last.as_ref() != Some(&refusal) {
            self.refused.inc();
            let error = &refusal.text;
            tracing::error!(
                error,
                generation,
                "routing update refused, the last good snapshot stays"
            );
        }
        *last = Some(refusal);
    }

    fn last_refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.last_refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the last reload was refused.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    text: String,
    /// The file could not even be read.
    unread: bool,
}

/// Registers the count of refused updates.
pub(crate) fn refused(registry: &Registry) -> Counter {
    let help = "Routing updates refused; the snapshot in force stayed.";
    registry
        .counter("rhizome_snapshot_refused_total", help, &[])
        .with(&[])
}

fn publish(snapshot: Snapshot, resolver: &Resolver) -> Published {
    tracing::info!(
        generation = snapshot.generation(),
        clusters = snapshot.clusters().count(),
        routes = snapshot.routes().count(),
        "routing snapshot in force"
    );
    let names = resolver.names(snapshot.host_names());
    Published {
        snapshot: Arc::new(snapshot),
        names,
        confirmed: Instant::now(),
    }
}
