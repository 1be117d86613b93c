//! Routes where TLS ends in the gateway: each request finds an API server of its own.
//!
//! ```text
//!     handshake ─▶ client's certificate, or none
//!       │              │ for each request: verified now, or refused
//!     request ─▶ host ─▶ head made clean ─▶ endpoint, by the pool of its kind ─▶ answer
//!                             └─ an upgrade: a connection of its own, then bytes both ways
//! ```
//!
//! Without usable secrets a route is passed through, as if it did not terminate.

mod body;
mod client;
mod client_body;
mod dial;
mod exchange;
mod headers;
mod http1_stream;
mod http2;
mod identity;
mod lost;
mod metrics;
mod outcome;
mod params;
mod received;
mod request;
mod secrets;
mod sending;
mod status;
mod subject;
mod tls_stream;
mod upgraded;
mod upstream;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use relay::{Socket, Timers};
use route::Route;
use rustls::HandshakeKind;
use serve::{ConnRecord, Reason};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use self::client::Client;
use self::client_body::ClientBody;
use self::exchange::{Ending, Exchanges};
use self::http1_stream::{Http1Params, Http1Stream, HttpState};
use self::identity::ClientIdentity;
use self::metrics::{Handshake, Protocol, RouteStats};
use self::outcome::{reason_of, why_failed};
use self::secrets::{Secrets, Store};
use self::tls_stream::{ServerStream, accept};
use self::upgraded::relayed;
use self::wire::{Driver, Wire};
use crate::preamble::RouteKey;
use crate::worker::{Listener, Worker};

pub(crate) use self::metrics::{Handshakes, Metrics, PoolKind};
pub(crate) use self::params::{MAX_CONNECTIONS, Params, hsts};
pub(crate) use self::subject::header_text;
pub(crate) use self::upstream::Pools;

/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 * 1024;
/// Lines of a head by HTTP/1.1, of which hyper permits 100: a user is impersonated with a line for each group.
/// hyper allocates 64 bytes for each, for a moment.
const MAX_HEADERS: usize = 512;

/// A terminating route's state, which outlives snapshots in which it does not change.
#[derive(Debug)]
pub(crate) struct Termination {
    params: Params,
    pub(crate) secrets: Store,
    stats: Arc<RouteStats>,
}

/// All of a process, so that one that is asked for again is the same.
#[derive(Debug, Default)]
pub(crate) struct Terminations {
    /// By their clusters: each update of the routes asks for every one of them.
    all: std::sync::Mutex<HashMap<String, Vec<Weak<Termination>>>>,
    /// What was delivered.
    secrets: tls::SecretStore,
    reloads: Option<tls::Metrics>,
}

impl Terminations {
    /// Counts in `reloads` what is read again.
    pub(crate) fn counting(reloads: tls::Metrics) -> Self {
        Self {
            reloads: Some(reloads),
            ..Self::default()
        }
    }

    /// Returns the one with these parameters.
    pub(crate) fn of(&self, params: Params) -> Arc<Termination> {
        let mut all = telemetry::lock(&self.all);
        let all = all.entry(params.cluster.clone()).or_default();
        let known = all.iter().filter_map(Weak::upgrade);
        if let Some(known) = { known }.find(|own| own.params == params) {
            return known;
        }
        let fresh = Arc::new(Termination {
            secrets: Store::new(&params.tls, &self.secrets, self.reloads.as_ref()),
            params,
            stats: Arc::default(),
        });
        all.push(Arc::downgrade(&fresh));
        fresh
    }

    /// Puts delivered secrets in place of those before.
    pub(crate) fn deliver(&self, secrets: tls::Secrets) {
        self.secrets.replace(secrets);
        self.refresh();
    }

    /// Returns whether each has secrets.
    pub(crate) fn have_secrets(&self) -> bool {
        let all = telemetry::lock(&self.all);
        let mut all = all.values().flatten().filter_map(Weak::upgrade);
        all.all(|own| own.secrets.last().is_some())
    }

    /// Reads the secrets of all of them again.
    pub(crate) fn refresh(&self) {
        let all: Vec<_> = {
            let mut all = telemetry::lock(&self.all);
            all.retain(|_, own| {
                own.retain(|own| own.strong_count() > 0);
                !own.is_empty()
            });
            all.values().flatten().filter_map(Weak::upgrade).collect()
        };
        for own in all {
            own.secrets.refresh();
        }
    }
}

/// A connection whose TLS ends here.
#[derive(Debug)]
pub(crate) struct Terminated {
    pub(crate) downstream: Socket,
    /// Bytes of it that were read already.
    pub(crate) early: Vec<u8>,
    pub(crate) listener: Rc<Listener>,
    pub(crate) route_key: RouteKey,
    pub(crate) termination: Arc<Termination>,
    pub(crate) secrets: Arc<Secrets>,
    /// When the connection must end.
    pub(crate) deadline: Option<Instant>,
    /// How long an upgraded one may be without a byte.
    pub(crate) idle: Option<Duration>,
}

/// Returns the termination of a route that has secrets, with them.
pub(crate) fn of(route: &Route) -> Option<(Arc<Termination>, Arc<Secrets>)> {
    let termination: Arc<Termination> = route.handler()?.get()?;
    let secrets = termination.secrets.current()?;
    Some((termination, secrets))
}

/// On the heap, where a future that passes it on holds it once.
type Tls = Box<ServerStream>;

/// Serves a connection until it ends, and returns why. What an idle client costs is what this future holds: each
/// phase is in a box of its own, which is given back when it is over.
pub(crate) async fn serve(
    conn: Box<Terminated>,
    worker: &Rc<Worker>,
    record: &ConnRecord,
) -> Reason {
    let (tls, driver, client) = match Box::pin(begin(conn, worker, record)).await {
        Ok(begun) => begun,
        Err(reason) => return reason,
    };
    let served = match client.protocol {
        Protocol::Http2 => {
            driver
                .drive(pin!(http2::serve(tls, &client)), record.info())
                .await
        }
        Protocol::Http1 => {
            driver
                .drive(pin!(serve_http1(tls, &client)), record.info())
                .await
        }
    };
    let Some(upgraded) = client.upgraded.take() else {
        return served;
    };
    let until = Instant::now() + client.termination.params.stream_timeout;
    let timers = Timers {
        idle: client.idle,
        deadline: Some(client.deadline.map_or(until, |own| own.min(until))),
    };
    let relayed = Box::pin(relayed(upgraded, &worker.handle.pool, timers));
    driver.drive(pin!(relayed), record.info()).await
}

/// Finishes the handshake, after which it is known who the client is.
async fn begin(
    conn: Box<Terminated>,
    worker: &Rc<Worker>,
    record: &ConnRecord,
) -> Result<(Tls, Driver, Rc<Client>), Reason> {
    let shared = &worker.shared;
    let within = Instant::now() + shared.config.limits.preamble_timeout.0;
    let downstream = conn.downstream.into_tokio();
    let downstream = downstream.map_err(|_| Reason::Internal)?;
    let (wire, driver) = Wire::new(downstream, conn.early.len());
    let handshakes = &conn.listener.handshakes;
    // Before the client's certificate is verified: the client may take its time after that.
    let began = SystemTime::now();
    let config = Arc::clone(&conn.secrets.tls.server);
    let tls = match timeout_at(within, accept(config, wire, conn.early)).await {
        Ok(Ok(tls)) => Box::new(tls),
        Ok(Err(error)) => {
            let (outcome, reason) = why_failed(&error);
            handshakes.count(outcome);
            return Err(reason);
        }
        Err(_) => {
            handshakes.count(Handshake::Timeout);
            return Err(Reason::PreambleTimeout);
        }
    };
    let session = tls.session();
    let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    let outcome = if resumed {
        Handshake::Resumed
    } else {
        Handshake::Full
    };
    handshakes.count(outcome);
    let chain = session.peer_certificates().map(<[_]>::to_vec);
    let verified = (!resumed).then_some(began);
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let pools = worker.terminations.of(&conn.termination);
    let logs = shared.config.access_log.requests && conn.listener.context.access_log.is_on();
    let log = logs.then(|| Rc::clone(record.info()));
    let exchanges = Exchanges::new(protocol, &pools.stats, log);
    let detail: Rc<dyn serve::Detail> = Rc::<Exchanges>::clone(&exchanges);
    record.set_detail(Rc::downgrade(&detail));
    let client = Rc::new(Client {
        identity: chain.map(|chain| ClientIdentity::new(chain, &conn.secrets, verified)),
        protocol,
        exchanges,
        listener: conn.listener.index,
        route_key: conn.route_key,
        termination: conn.termination,
        worker: Rc::clone(worker),
        address: record.info().client().ip(),
        begins_by: within,
        deadline: conn.deadline,
        idle: conn.idle,
        stale: Notify::new(),
        proven: Cell::new(false),
        upgraded: RefCell::default(),
    });
    Ok((tls, driver, client))
}

/// Serves requests of HTTP/1.1 until the client or the gateway ends the connection, or it is upgraded.
async fn serve_http1(tls: Tls, client: &Rc<Client>) -> Reason {
    let (shared, params) = (&client.worker.shared, &client.termination.params);
    // Pinned here: moved into the `select!` it would be stored twice.
    let mut ending = pin!(client.ending());
    let state = HttpState::new(shared.config.limits.preamble_timeout.0);
    let service = service_fn(|request| {
        // Before hyper reads on: what it reads then belongs to no head.
        let open = client.exchanges.begin(&request);
        let client = Rc::clone(client);
        // On the heap: its memory is given back before a watch goes on for hours.
        Box::pin(async move {
            let request = request.map(ClientBody::Http1);
            Ok::<_, std::convert::Infallible>(client.answer(request, open).await)
        })
    });
    let stream = Http1Params {
        count: Arc::clone(&client.exchanges.count),
        state: Arc::clone(&state),
        hsts: params.hsts.clone(),
        begins_by: client.begins_by,
        reset_on_close: |tls: &Tls| tls.wire().reset(),
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(Http1Stream::new(tls, stream)), service)
        .with_upgrades();
    let mut connection = Box::pin(connection);
    let served = tokio::select! {
        served = connection.as_mut() => Ok(served),
        ending = ending.as_mut() => Err(ending),
    };
    let reason = match served {
        Ok(served) => reason_of(served, &state),
        Err((reason, Some(Ending::Overdue))) => {
            state.reset();
            reason
        }
        Err((reason, _)) => {
            connection.as_mut().graceful_shutdown();
            if !Box::pin(client.finished(reason, connection.as_mut())).await {
                state.reset();
            }
            reason
        }
    };
    if let Some(status) = state.refused() {
        client.exchanges.stats.answered(client.protocol, status);
    }
    reason
}
