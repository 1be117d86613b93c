//! The routing snapshot in effect: read or received, swapped whole, refused with a reason.
//!
//! ```text
//!     file ──changed──▶ load ────────┐
//!     cache ──at start─▶ table ──────┼──▶ Snapshot ─▶ current ─▶ connections
//!     server ──update──▶ table ──────┘
//! ```
//!
//! Connections load it once and keep what they loaded. What is missing, empty or wrong changes
//! nothing but a counter and the log. With a server there may be no routes at first: connections
//! then wait for them, as long as a preamble may take.

use std::collections::BTreeSet;
use std::io;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use route::{EndpointAddress, Handler, OWN_PODS, Snapshot, TableSpec};
use serve::{NameSet, Resolver, check_handover};
use settings::{ConfigError, TcpSettings};
use telemetry::metrics::Counter;
use telemetry::{Registry, lock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Config, RouteSource, XdsConfig};
use crate::gateway::StartError;
use crate::routes::{self, RoutesError};
use crate::terminate::{Params, Terminations};

/// Upper bound of log lines about one table.
const MAX_REPORTS: usize = 50;

/// A snapshot with what its endpoints' names resolve to.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) names: NameSet,
    /// The gateway's own zone, if it is known.
    pub(crate) zone: Option<Arc<str>>,
}

/// How long secrets of terminating routes are waited for before they are done without.
const SECRETS_LIMIT: Duration = Duration::from_secs(15);

/// How far a process has come that starts.
#[derive(Debug, Default)]
struct Progress {
    /// When it had routes first.
    routed: Option<Instant>,
    /// When the first of its server were in effect.
    answered: Option<Instant>,
    /// The server has answered for all secrets that its routes refer to.
    has_secrets: bool,
    /// It has had what it needs to follow another one.
    prepared: bool,
}

/// The snapshot in effect and where its successors come from.
#[derive(Debug)]
pub(crate) struct Routing {
    current: ArcSwap<Published>,
    source: RouteSource,
    /// The zone that was given.
    zone: Option<Arc<str>>,
    /// Socket options of the process.
    tcp: TcpSettings,
    resolver: Resolver,
    terminations: Terminations,
    /// Certificates and keys that are read again, of any purpose.
    reloads: tls::Metrics,
    refused: Counter,
    /// Whether there are routes yet.
    first: watch::Sender<bool>,
    progress: Mutex<Progress>,
    /// When the source of routes last confirmed the snapshot; written by the control thread.
    confirmed: Mutex<Instant>,
    /// What was logged of the table in effect; looked at by the control thread alone.
    reported: Mutex<BTreeSet<(Arc<str>, String)>>,
    /// Why the last reload was refused; looked at by the control thread alone.
    last_refusal: Mutex<Option<Refusal>>,
}

impl Config {
    /// Validates what the configuration points to, and returns all of it as text.
    ///
    /// # Errors
    /// Why the routing file, a certificate or the directory of `handover` is refused.
    pub fn check(&self) -> Result<String, StartError> {
        if let Some(handover) = &self.handover {
            check_handover(&handover.socket)?;
        }
        let source = match &self.source {
            RouteSource::File(file) => {
                let snapshot = routes::load(file, &self.tcp, &Terminations::default(), None)?;
                routes::check_secrets(file, &snapshot)?;
                let (clusters, routes) = (snapshot.clusters().count(), snapshot.routes().count());
                let file = file.display();
                format!("# {file}: {clusters} clusters, {routes} routes\n")
            }
            RouteSource::Xds(xds) => {
                if let Some(params) = xds.tls.clone() {
                    tls::ClientTls::load(params)?;
                }
                if let Some(cache) = &xds.cache {
                    let path = cache.display();
                    let attempt = format!("routing.xds.cache: {path} cannot be written");
                    check_writable(cache).map_err(StartError::system(attempt))?;
                }
                format!("# routes of {:?} from {}\n", xds.gateway, xds.server)
            }
        };
        Ok(settings::effective_yaml(self).unwrap_or_default() + &source)
    }
}

/// Checks that a file can be written beside this one, which leaves no trace.
fn check_writable(path: &Path) -> io::Result<()> {
    let mut probe = path.as_os_str().to_owned();
    probe.push(format!(".{}.check", std::process::id()));
    std::fs::File::create_new(&probe)?;
    std::fs::remove_file(&probe)
}

impl Routing {
    /// Reads the first snapshot: from the file, or from the cache where there is one.
    pub(crate) fn start(
        config: &Config,
        zone: Option<String>,
        resolver: Resolver,
        registry: &Registry,
    ) -> Result<Self, RoutesError> {
        let reloads = tls::Metrics::new(registry);
        let terminations = Terminations::counting(reloads.clone());
        let tcp = config.tcp.clone();
        let first = match &config.source {
            RouteSource::File(file) => {
                let snapshot = routes::load(file, &tcp, &terminations, None)?;
                Some((snapshot, None, Duration::ZERO))
            }
            RouteSource::Xds(xds) => cached(xds, config, &terminations),
        };
        let (now, ready) = (Instant::now(), first.is_some());
        let (snapshot, found, age) =
            first.unwrap_or_else(|| (Snapshot::empty(), None, Duration::ZERO));
        let zone: Option<Arc<str>> = zone.map(Into::into);
        let published = publish(snapshot, zone.clone().or(found), &resolver);
        Ok(Self {
            current: ArcSwap::from_pointee(published),
            source: config.source.clone(),
            zone,
            tcp,
            resolver,
            terminations,
            reloads,
            refused: refused(registry),
            first: watch::channel(ready).0,
            progress: Mutex::new(Progress {
                routed: ready.then_some(now),
                ..Progress::default()
            }),
            confirmed: Mutex::new(now.checked_sub(age).unwrap_or(now)),
            reported: Mutex::default(),
            last_refusal: Mutex::default(),
        })
    }

    pub(crate) fn reloads(&self) -> tls::Metrics {
        self.reloads.clone()
    }

    /// Says whether there is what connections need: routes, and the secrets of those that terminate, if they
    /// come soon. Without, TLS is passed through.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let routed = lock(&self.progress).routed;
        match routed.is_some_and(|since| since.elapsed() >= SECRETS_LIMIT) {
            true => Ok(()),
            false => self.prepared(),
        }
    }

    /// Says whether connections of another process would find here what they had there: the secrets too. What a
    /// server has not sent that has answered for a while, it does not have.
    pub(crate) fn prepared(&self) -> Result<(), String> {
        self.has_routes()?;
        let mut progress = lock(&self.progress);
        let asks = match &self.source {
            RouteSource::File(_) => false,
            RouteSource::Xds(xds) => xds.asks_for_secrets(),
        };
        let enough = |since: Instant| progress.has_secrets || since.elapsed() >= SECRETS_LIMIT;
        progress.prepared = progress.prepared
            || !asks
            || progress.answered.is_some_and(enough)
            || self.terminations.have_secrets();
        match progress.prepared {
            true => Ok(()),
            false => Err("secrets of terminating routes have not come yet".to_owned()),
        }
    }

    /// Says whether there are routes yet.
    pub(crate) fn has_routes(&self) -> Result<(), String> {
        match *self.first.borrow() {
            true => Ok(()),
            false => Err("the server of routes has not answered yet".to_owned()),
        }
    }

    /// Waits until there are routes; mostly there are. Cancel-safe.
    pub(crate) async fn first(&self) {
        if self.has_routes().is_err() {
            // The sender is `self`'s, so it does not go away.
            let _ = self.first.subscribe().wait_for(|ready| *ready).await;
        }
    }

    /// Returns when the source of routes last confirmed the snapshot.
    pub(crate) fn confirmed(&self) -> Instant {
        *lock(&self.confirmed)
    }

    /// Records that the source of routes confirmed the snapshot.
    pub(crate) fn confirm(&self) {
        *lock(&self.confirmed) = Instant::now();
    }

    /// Counts an update of a server that was refused, by us or before it was a table.
    pub(crate) fn count_refused(&self) {
        self.refused.inc();
    }

    /// Applies a table that a server sent, or returns why not; the last good one stays then.
    pub(crate) fn apply(&self, mut table: xds::Table) -> Result<(), String> {
        let previous = self.current.load_full();
        let generation = previous.snapshot.generation() + 1;
        let zone = take_zone(&mut table.spec);
        terminated(&mut table.spec, &self.terminations);
        match Snapshot::build(table.spec, generation, Some(&previous.snapshot)) {
            Ok(snapshot) => {
                self.report(table.reports);
                let known = self.zone.clone().or(zone);
                self.put(snapshot, known.or_else(|| previous.zone.clone()));
                Ok(())
            }
            Err(error) => Err(telemetry::chain(&error).to_string()),
        }
    }

    /// Logs what has no effect here, unless the table before had it as well.
    fn report(&self, reports: Vec<(Arc<str>, String)>) {
        let now = BTreeSet::from_iter(reports);
        let mut before = lock(&self.reported);
        let fresh = now.difference(&before);
        for (resource, what) in fresh.clone().take(MAX_REPORTS) {
            tracing::warn!(%resource, "{what}");
        }
        let more = fresh.count().saturating_sub(MAX_REPORTS);
        if more > 0 {
            tracing::warn!(
                more,
                "further resources or parts of them have no effect here"
            );
        }
        *before = now;
    }

    fn put(&self, snapshot: Snapshot, zone: Option<Arc<str>>) {
        let published = publish(snapshot, zone, &self.resolver);
        self.current.store(Arc::new(published));
        *lock(&self.last_refusal) = None;
        self.confirm();
        let now = Instant::now();
        let mut progress = lock(&self.progress);
        progress.routed.get_or_insert(now);
        progress.answered.get_or_insert(now);
        drop(progress);
        self.first.send_replace(true);
    }

    /// Returns the snapshot in effect, without a lock.
    pub(crate) fn current(&self) -> Arc<Published> {
        self.current.load_full()
    }

    /// Reads the file again and swaps the snapshot, or keeps the last good one; one that says what it
    /// said confirms it. A server's routes come by themselves.
    pub(crate) fn reload(&self) {
        let RouteSource::File(file) = &self.source else {
            return;
        };
        let previous = self.current.load_full();
        let terminations = &self.terminations;
        match routes::load(file, &self.tcp, terminations, Some(&previous.snapshot)) {
            Ok(snapshot) if snapshot.is_unchanged_from(&previous.snapshot) => {
                *lock(&self.last_refusal) = None;
                self.confirm();
            }
            Ok(snapshot) => self.put(snapshot, self.zone.clone()),
            Err(error) => self.refuse(&error, previous.snapshot.generation()),
        }
    }

    /// Puts the secrets that a server delivered in place of those before.
    pub(crate) fn deliver(&self, secrets: tls::Secrets, complete: bool) {
        self.terminations.deliver(secrets);
        lock(&self.progress).has_secrets = complete;
    }

    /// Reads certificates and keys of terminating routes again.
    pub(crate) fn refresh_secrets(&self) {
        self.terminations.refresh();
    }

    /// Tells whether the last reload failed for want of something that may come back by itself,
    /// descriptors for example, so that nothing would announce another try.
    pub(crate) fn unread(&self) -> bool {
        let last = lock(&self.last_refusal);
        last.as_ref().is_some_and(|refusal| refusal.unread)
    }

    /// Records a refusal; the same one again, of a repeated try, is neither counted nor logged.
    fn refuse(&self, error: &RoutesError, generation: u64) {
        let refusal = Refusal {
            text: telemetry::chain(error).to_string(),
            unread: matches!(error, RoutesError::File(ConfigError::Read(..))),
        };
        let mut last = lock(&self.last_refusal);
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

    /// Returns why the routing file as it is now is not in effect, if it is not.
    pub(crate) fn refusal(&self) -> Option<String> {
        let last = lock(&self.last_refusal);
        last.as_ref().map(|refusal| refusal.text.clone())
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
    let help = "Routing updates refused; the snapshot in effect stayed.";
    registry
        .counter("rhizome_snapshot_refused_total", help, &[])
        .with(&[])
}

fn publish(snapshot: Snapshot, zone: Option<Arc<str>>, resolver: &Resolver) -> Published {
    tracing::info!(
        generation = snapshot.generation(),
        clusters = snapshot.clusters().count(),
        routes = snapshot.routes().count(),
        zone = zone.as_deref(),
        "routing snapshot in effect"
    );
    let names = resolver.names(snapshot.host_names());
    Published {
        snapshot: Arc::new(snapshot),
        names,
        zone,
    }
}

/// Puts the state of this process in place of what a server says of routes whose TLS ends here.
fn terminated(spec: &mut TableSpec, terminations: &Terminations) {
    let clusters = spec.clusters.iter();
    let sending = clusters.filter(|own| own.send_proxy_protocol.is_some());
    let sending: BTreeSet<&str> = sending.map(|own| &*own.name).collect();
    for route in &mut spec.routes {
        let Some(own) = route
            .handler
            .as_ref()
            .and_then(Handler::get::<xds::Terminate>)
        else {
            continue;
        };
        if sending.contains(&*route.cluster) {
            // A header in front of TLS is no header in front of a request: TLS is passed through.
            tracing::warn!(
                cluster = route.cluster,
                "TLS does not end here: a PROXY header goes to the servers"
            );
            route.handler = None;
            continue;
        }
        let own = terminations.of(Params::new(&route.cluster, &own));
        route.handler = Some(Handler::new(own));
    }
}

/// Takes the pods in the gateway's namespace out of a table, and returns the zone of those that have an
/// address of this host: no other can be bound, unless the kernel allows all
/// (`net.ipv4.ip_nonlocal_bind`).
fn take_zone(spec: &mut TableSpec) -> Option<Arc<str>> {
    let place = spec.clusters.iter().position(|own| own.name == OWN_PODS)?;
    let pods = spec.clusters.remove(place).endpoints.into_iter();
    let mut own = pods.filter(|pod| match pod.address {
        EndpointAddress::Host { .. } => false,
        EndpointAddress::Ip(address) => UdpSocket::bind((address.ip(), 0)).is_ok(),
    });
    let zone = own.next()?.zone;
    own.all(|pod| pod.zone == zone).then_some(zone)?
}

/// Reads the last good routes of an earlier process, with their age. None, or unreadable ones, are
/// waited for.
fn cached(
    xds: &XdsConfig,
    config: &Config,
    terminations: &Terminations,
) -> Option<(Snapshot, Option<Arc<str>>, Duration)> {
    let path = xds.cache.as_deref()?;
    let origin = (&xds.server, xds.gateway.as_str());
    let own = config.own_listeners();
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        let error = telemetry::chain(error);
        tracing::warn!(%error, "the cached routes cannot be used");
    };
    let cached = xds::load_cache(path, origin, &own, config.empty_state());
    let xds::Cached { mut table, age } = cached.map_err(|error| unusable(&error)).ok()??;
    let zone = take_zone(&mut table.spec);
    terminated(&mut table.spec, terminations);
    let snapshot = Snapshot::build(table.spec, 1, None);
    let snapshot = snapshot.map_err(|error| unusable(&error)).ok()?;
    tracing::info!(path = %path.display(), "routes of the cache are used until the server answers");
    Some((snapshot, zone, age))
}
