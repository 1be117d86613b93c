//! The routing snapshot in force: read, swapped whole, refused with a reason.
//!
//! Connections load it once and keep what they loaded. A file that is missing, empty or wrong
//! changes nothing but a counter and the log.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use route::Snapshot;
use serve::{NameSet, Resolver};
use settings::TcpSettings;
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
            }
            Err(error) => {
                self.refused.inc();
                tracing::error!(
                    error = %telemetry::chain(&error),
                    generation = previous.snapshot.generation(),
                    "routing update refused, the last good snapshot stays"
                );
            }
        }
    }
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
