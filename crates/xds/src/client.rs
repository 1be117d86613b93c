//! Subscribes to resources of an xDS server and keeps the table made from them in effect.
//!
//! ```text
//!   connect ─▶ TLS ─▶ gRPC stream ─▶ updates ─▶ held ─▶ table ─▶ Sink ─▶ ACK or NACK
//!      ▲                  │ ended                └─▶ cache on disk, every few seconds
//!      └──── back-off ◀───┘
//! ```
//!
//! Accepted resources stay when the stream ends, and are announced on the next one, so that
//! only differences travel. `held` and `session` decide without sockets and clocks; `connection`
//! and `flow` move bytes. What a table is good for is the [`Sink`]'s business.

mod address;
mod backoff;
mod cache_writer;
mod connection;
mod flow;
mod held;
mod metrics;
mod secrets;
mod session;
mod update;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::cache::{self, CacheError, CacheFault, Origin};
use crate::decode::{OwnListener, State, Table};

pub use address::{ServerAddress, ServerAddressError};
pub use metrics::ClientMetrics;

use self::backoff::Backoff;
use self::connection::End;
use self::held::HeldResources;
use self::session::Variant;

/// What a client is made from.
#[derive(Clone, Debug)]
pub struct ClientParams {
    /// Where the server is.
    pub server: ServerAddress,
    /// Trusted CAs and own certificate; needed for an `https` address.
    pub tls: Option<tls::ClientTls>,
    /// `node.id`: which client this is.
    pub node: String,
    /// `node.cluster`: the gateway whose resources are wanted.
    pub cluster: String,
    /// The listeners that there are.
    pub own: Vec<OwnListener>,
    /// The state without resources that is begun with.
    pub start: State,
    /// Whether secrets are asked for, which needs the certificates of both sides. They are not kept on disk.
    pub secrets: bool,
    /// Where the last good resources are kept.
    pub cache: Option<PathBuf>,
    /// Bounds.
    pub limits: ClientLimits,
}

/// The bounds of a client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientLimits {
    /// The maximum wait after the first failure; it doubles with each further one.
    pub backoff_min: Duration,
    /// The maximum wait.
    pub backoff_max: Duration,
    /// Time to connect, with TLS and HTTP/2.
    pub connect: Duration,
    /// How often a silent server is asked whether it is there.
    pub keepalive: Duration,
    /// How long it may take to answer that.
    pub keepalive_timeout: Duration,
    /// The longest response, bytes.
    pub message_bytes: usize,
    /// How long responses that follow each other are gathered before they are applied.
    pub gather: Duration,
    /// Bytes of responses that are gathered at most.
    pub gather_bytes: usize,
    /// How long something that is referred to may be missing before it is done without.
    pub missing: Duration,
    /// How long what the server says is to follow is waited for before anything is put in effect.
    pub more: Duration,
    /// How long a server that did not know the incremental variant is not asked for it again.
    pub full: Duration,
    /// How long a stream has to live for the next failure to be taken for the first.
    pub settled: Duration,
    /// The shortest time between two writes of the cache.
    pub cache: Duration,
    /// How often [`Sink::confirmed`] is called while nothing changes.
    pub confirm: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            keepalive: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            // One resource of the largest size, with what is around it.
            message_bytes: crate::decode::MAX_RESOURCE_BYTES + MIB,
            gather: Duration::from_millis(10),
            gather_bytes: 16 * MIB,
            missing: Duration::from_secs(15),
            more: Duration::from_secs(30),
            full: Duration::from_secs(3600),
            settled: Duration::from_secs(30),
            cache: Duration::from_secs(5),
            confirm: Duration::from_secs(5),
        }
    }
}

/// Who takes tables.
pub trait Sink: Send {
    /// Puts a table in effect, before the server gets the ACK.
    ///
    /// # Errors
    /// Why not; the server gets a NACK, and the previous table stays.
    fn apply(&mut self, table: Table) -> Result<(), String>;

    /// Puts secrets in place of those before: all that routes refer to and that were ever delivered. One that
    /// the server has no longer stays. `complete` when the server has answered for each that the routes refer to,
    /// if only that it has none.
    fn secrets(&mut self, _all: tls::Secrets, _complete: bool) {}

    /// Records that a response was refused and why: by [`Sink::apply`], or before there was a
    /// table at all. Once for each NACK.
    fn refused(&mut self, _why: &str) {}

    /// Records that what is in effect is what the server has: after each change, and every
    /// [`ClientLimits::confirm`] while the stream is alive.
    fn confirmed(&mut self);
}

/// Keeps `sink` up to date for ever. Drop it to stop; what the cache lacks is then written.
///
/// It begins with what the cache has, of which [`load_cache`] makes the table to begin with, and
/// applies nothing before the server has answered.
pub async fn run(params: ClientParams, sink: impl Sink, metrics: ClientMetrics) -> Infallible {
    if let Some(tls) = &params.tls {
        tls.count_in(&metrics.reloads, "xds");
    }
    let blocking = params.clone();
    // Reading and decoding take long enough to block other tasks of the thread.
    let held = tokio::task::spawn_blocking(move || load_state(&blocking)).await;
    let held =
        held.unwrap_or_else(|_| HeldResources::new(params.start.clone(), params.own.clone()));
    let writer = cache_writer::CacheWriter::new(&params, held.unsaved.clone(), &metrics);
    let watching = async {
        if let Some(tls) = &params.tls {
            tls.watch().await;
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        never = reconnect_loop(&params, held, sink, &metrics) => never,
        never = writer.keep() => never,
        never = watching => never,
    }
}

/// The table of a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    /// The table.
    pub table: Table,
    /// How long ago it was written or confirmed, by the clock of the file system.
    pub age: Duration,
}

/// Reads the table of a cache; `None` when there is no file. `server` and `cluster` are whose it
/// has to be, `start` is the state without resources that is begun with, as in [`ClientParams`].
///
/// # Errors
/// Why the cache cannot be used; callers log it and start without a cache.
pub fn load_cache(
    path: &Path,
    (server, cluster): (&ServerAddress, &str),
    own: &[OwnListener],
    start: State,
) -> Result<Option<Cached>, CacheError> {
    let mut held = HeldResources::new(start, own.to_vec());
    let loaded = prime(&mut held, path, &Origin::of(server, cluster)).and_then(|written| {
        let Some(written) = written else {
            return Ok(None);
        };
        let (table, age) = (held.table()?, written.elapsed().unwrap_or_default());
        Ok(Some(Cached { table, age }))
    });
    loaded.map_err(|fault| CacheError::new(path, fault))
}

/// Loads what is in a cache; returns when it was written or confirmed, or `None` when there is no file.
fn prime(
    held: &mut HeldResources,
    path: &Path,
    origin: &Origin,
) -> Result<Option<SystemTime>, CacheFault> {
    let Some((entries, written)) = cache::read(path, origin)? else {
        return Ok(None);
    };
    held.prime(entries)?;
    Ok(Some(written))
}

fn load_state(params: &ClientParams) -> HeldResources {
    let mut held = HeldResources::new(params.start.clone(), params.own.clone());
    held.secrets.wanted = params.secrets && params.server.is_tls();
    let Some(path) = &params.cache else {
        return held;
    };
    cache::tidy(path);
    let origin = Origin::of(&params.server, &params.cluster);
    if let Err(fault) = prime(&mut held, path, &origin) {
        let error = CacheError::new(path, fault);
        tracing::warn!(error = %telemetry::chain(&error), "ignoring the resource cache");
    }
    held
}

async fn reconnect_loop(
    params: &ClientParams,
    mut held: HeldResources,
    mut sink: impl Sink,
    metrics: &ClientMetrics,
) -> Infallible {
    let limits = &params.limits;
    let mut backoff = Backoff::new(limits.backoff_min, limits.backoff_max);
    let mut full_since: Option<Instant> = None;
    loop {
        let full = full_since.is_some_and(|since| since.elapsed() < limits.full);
        let variant = if full { Variant::Full } else { Variant::Delta };
        let began = Instant::now();
        let end = connection::run(params, variant, &mut held, &mut sink, metrics).await;
        metrics.connected.set(0);
        let incremental_refused = variant == Variant::Delta && end.is_unimplemented();
        if end.had_answers() && began.elapsed() >= limits.settled {
            backoff.reset();
        }
        if full && !end.had_answers() {
            // Neither is known, then: it is no server of ours, or not there yet.
            full_since = None;
        }
        log_end(params, &end);
        if incremental_refused {
            tracing::info!("the xDS server does not support delta, using state of the world");
            full_since = Some(Instant::now());
            continue;
        }
        tokio::time::sleep(backoff.next(backoff::random())).await;
    }
}

fn log_end(params: &ClientParams, end: &End) {
    static LIMIT: telemetry::Throttle = telemetry::Throttle::new(Duration::from_secs(10));
    if let Some(suppressed) = LIMIT.permit(Instant::now().into_std()) {
        tracing::warn!(
            server = %params.server,
            error = %telemetry::chain(end),
            suppressed,
            "no xDS stream, keeping the current routes"
        );
    }
}
