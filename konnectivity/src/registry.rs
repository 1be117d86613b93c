//! Which tenants this server serves, and whose peer a connection is.
//!
//! ```text
//!   DIR/*.yaml, or flags ──load──▶ last good TenantSpecs ──▶ Tenants (a snapshot) ──▶ tls, identify
//!            ▲                          │
//!            └── watch, reload          └─▶ changes(): a generation
//! ```
//!
//! A server of a single tenant is a registry of one, made from upstream's flags. What cannot be
//! used leaves its tenant as it was and touches no other. Streams, sockets and tokens are
//! elsewhere.

mod authorities;
mod file;
mod identity;
mod load;
mod spec;
mod tenants;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod values;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ::tls::TlsError;
use arc_swap::ArcSwap;
use futures_util::future::join_all;
use knp_proto::TenantId;
use telemetry::lock;
use tokio::sync::watch;

use self::load::{Known, Survey};
use self::tls::TlsPorts;

pub(crate) use self::identity::Peer;
pub(crate) use self::spec::{FrontendMode, Port, TenantSpec, TokenSpec, UdsSpec};
pub(crate) use self::tenants::Tenants;
pub(crate) use self::tls::{PairPaths, TlsParams};

/// The tenants, always as they were last in order.
pub(crate) struct Registry {
    ports: Arc<TlsPorts>,
    current: ArcSwap<Tenants>,
    generation: watch::Sender<u64>,
    /// Held while files are read, so that what was read earlier never takes the place of what was
    /// read later.
    known: Mutex<Known>,
    observer: OnceLock<Observer>,
}

/// Told of every reading of files.
type Observer = Box<dyn Fn(&Loaded) + Send + Sync>;

/// Where tenants are defined.
#[derive(Clone, Debug)]
pub(crate) enum TenantSource {
    /// In the files of a directory.
    Registry(PathBuf),
    /// By upstream's flags, which know one.
    Single(Box<SingleParams>),
}

/// The one tenant of a server with upstream's flags.
#[derive(Clone, Debug)]
pub(crate) struct SingleParams {
    /// The tenant, without certificates.
    pub(crate) spec: TenantSpec,
    /// Authorities of agents (`--cluster-ca-cert`); every certificate of theirs is good.
    pub(crate) agents_ca: Option<PathBuf>,
    /// Authorities of frontends (`--server-ca-cert`); every certificate of theirs is good.
    pub(crate) frontends_ca: Option<PathBuf>,
}

/// Why there is no registry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RegistryError {
    #[error("using a bundle of authorities")]
    Authorities(#[source] TlsError),
    #[error("reading the registry {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("using a port's certificate")]
    Pair(#[source] TlsError),
    #[error("choosing TLS versions and cipher suites")]
    Suites(#[source] rustls::Error),
}

/// What one reading of the files came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Tenants that were added, changed or removed.
    pub(crate) changed: usize,
    /// Tenants that are served.
    pub(crate) tenants: usize,
    /// Files that are newly refused, or for another reason than before.
    pub(crate) refused: usize,
    /// Files, or the directory, that are refused at present; their tenants are as they were.
    pub(crate) broken: usize,
}

impl Registry {
    /// Reads the registry in `dir` once, for a check, and returns what cannot be used of it.
    ///
    /// # Errors
    /// [`RegistryError::Directory`].
    pub(crate) fn faults(dir: &Path) -> Result<Vec<(TenantId, String)>, RegistryError> {
        let source = TenantSource::Registry(dir.to_owned());
        Known::first(source).map(|known| known.broken())
    }

    /// Reads the tenants. Files of a directory that cannot be used are logged and do not stop
    /// others.
    ///
    /// # Errors
    /// [`RegistryError`]: the directory, or what a flag names, cannot be used.
    pub(crate) fn new(source: TenantSource, tls: &TlsParams) -> Result<Arc<Self>, RegistryError> {
        let ports = Arc::new(TlsPorts::new(tls)?);
        let known = Known::first(source)?;
        let current = known.snapshot(&ports, None);
        Ok(Arc::new(Self {
            ports,
            current: ArcSwap::from_pointee(current),
            generation: watch::Sender::new(1),
            known: Mutex::new(known),
            observer: OnceLock::new(),
        }))
    }

    /// Returns the tenants as they are now. Keep it for one decision, not for longer.
    pub(crate) fn current(&self) -> Arc<Tenants> {
        self.current.load_full()
    }

    /// Returns the number of the current snapshot, from 1, and tells when there is another.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Returns the files that are refused at present with the reason, ordered by tenant.
    pub(crate) fn broken(&self) -> Vec<(TenantId, String)> {
        lock(&self.known).broken()
    }

    /// Calls `observer` after every reading of files, and once at once. Only the first one counts.
    pub(crate) fn observe(&self, observer: impl Fn(&Loaded) + Send + Sync + 'static) {
        let known = lock(&self.known);
        observer(&known.totals());
        let _ = self.observer.set(Box::new(observer));
    }

    /// Counts the readings of the ports' certificates.
    pub(crate) fn count_pairs_in(&self, metrics: &::tls::Metrics) {
        for (port, pair) in self.ports.pairs() {
            pair.count_in(metrics, port.as_str());
        }
    }

    /// Reads everything again now, whether it seems changed or not. Blocks while it reads, for less
    /// than a millisecond a tenant: with thousands of them, call it from a thread of its own.
    pub(crate) fn reload(&self) {
        for (_, pair) in self.ports.pairs() {
            if let Err(error) = pair.reload() {
                let error = telemetry::chain(&error);
                tracing::warn!(%error, "certificate refused, keeping the previous one");
            }
        }
        let mut known = lock(&self.known);
        known.forget_stamps();
        let survey = known.survey();
        self.apply(&mut known, survey);
    }

    /// Reads files again when they change: a registry's within 5 s, certificates within 10 s. It
    /// never ends; drop it to stop.
    pub(crate) async fn watch(self: &Arc<Self>) {
        let pairs = join_all(self.ports.pairs().map(|(_, pair)| pair.watch()));
        tokio::join!(self.watch_tenants(), pairs);
    }

    async fn watch_tenants(self: &Arc<Self>) {
        let mut unsettled = None;
        loop {
            tokio::time::sleep(unsettled.as_ref().map_or(POLL, |_| SETTLE)).await;
            let registry = Arc::clone(self);
            // Away from this thread: there may be thousands of files.
            let looked = tokio::task::spawn_blocking(move || registry.look(unsettled));
            unsettled = looked.await.unwrap_or_default();
        }
    }

    /// A file that is still being written is not read, unless that never ends.
    fn look(&self, unsettled: Option<Unsettled>) -> Option<Unsettled> {
        let mut known = lock(&self.known);
        let survey = known.survey();
        match unsettled {
            None => known.differs(&survey).then_some((survey, SETTLE_ROUNDS)),
            Some((before, left)) if left > 1 && before != survey => Some((survey, left - 1)),
            Some(_) => {
                self.apply(&mut known, survey);
                None
            }
        }
    }

    fn apply(&self, known: &mut Known, survey: Survey) {
        let loaded = known.take(survey);
        if loaded.changed > 0 {
            let before = self.current();
            let tenants = known.snapshot(&self.ports, Some(&before));
            self.current.store(Arc::new(tenants));
            self.generation.send_modify(|number| *number += 1);
        }
        if let Some(observer) = self.observer.get() {
            observer(&loaded);
        }
    }
}

/// What was seen of files that have changed, and how many looks they have left to become quiet.
type Unsettled = (Survey, usize);

/// How often files are looked at. With settling and reading a change takes effect within 5 s. Not
/// inotify(7): its watches are few and belong to the user, and one is needed for every file.
const POLL: Duration = Duration::from_secs(2);
/// How long files must have been quiet before they are read.
const SETTLE: Duration = Duration::from_millis(200);
/// At this look they are read in any case.
const SETTLE_ROUNDS: usize = 5;
