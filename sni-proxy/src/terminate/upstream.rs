//! Connections to the servers behind a terminating route, of one worker: four pools for each route.
//!
//! ```text
//!     neither ──────────────▶ anonymous ─┐
//!     with a token, unknown ▶ unproven ──┤
//!     with one, accepted ───▶ token ─────┤
//!     [`Verified`] ─────────▶ mutual ────┴─▶ endpoint by least requests ─▶ a stream of a kept HTTP/2 connection
//!                                                                   upgrades, HTTP/1.1: one of its own
//! ```
//!
//! Since Kubernetes 1.29 an API server ends the connection of each request that has no user, which is why such
//! requests share none with others (`UnauthenticatedHTTP2DOSMitigation`).
//!
//! A request takes another endpoint only while nothing of it was processed. Each stream may hold one window's
//! bytes, and a connection's window is more than that of all its streams: a stalled one takes from no other.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderName, Request, Response, StatusCode};
use route::{Cluster, Endpoint, EndpointAddress, PickContext};
use rustls::pki_types::ServerName;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Termination;
use super::body::Answer;
use super::dial::{dial, http1_sender, probe};
use super::exchange::Exchange;
use super::identity::Verified;
use super::lost::lost;
use super::metrics::{PoolKind, WorkerStats};
use super::received::Answers;
use super::request::{Again, RequestBody};
use super::secrets::Secrets;
use super::sending::{Failed, Sender, exchange};
use super::tls_stream::ClientStream;
use super::wire::Driver;
use crate::worker::Worker;

/// Streams of one connection, where its server does not permit fewer.
const MAX_STREAMS: usize = 100;
/// Bytes that a stream may hold.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes of an answer's head.
const HEAD_BYTES: u32 = 64 * 1024;
/// More than all streams may hold, so that none can take another one's. h2 ends a connection whose small frames
/// cost more memory beside their bytes than half of this; see [`Answers`].
const CONNECTION_WINDOW: u32 = 128 * 1024 * 1024;
/// Streams that clients gave up, of which the frames under way are known for a second.
const MAX_RESET_STREAMS: usize = 1024;
/// Connections of one request that may end before it was processed.
const MAX_ENDED: u32 = 4;
/// A connection without requests is closed after this.
const IDLE: Duration = Duration::from_secs(90);

/// Whom a request is sent for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller<'a> {
    /// A client without a certificate, a request without a token.
    Anonymous,
    /// The same with a token, of a client of which none was accepted yet, or the last one was refused.
    Unproven,
    /// The same, of a client of which one was accepted.
    Token,
    /// One whose certificate was verified for this request.
    Verified(&'a Verified),
}

/// What a request needs on its context.
pub(crate) struct RequestContext<'a> {
    pub(crate) cluster: &'a Arc<Cluster>,
    pub(crate) server_name: &'a ServerName<'static>,
    pub(crate) secrets: &'a Secrets,
    pub(crate) client: IpAddr,
    pub(crate) exchange: &'a Exchange,
    pub(crate) worker: &'a Rc<Worker>,
}

impl RequestContext<'_> {
    async fn dial(
        &self,
        tls: &Arc<rustls::ClientConfig>,
        endpoint: &Endpoint,
    ) -> Result<(ClientStream, Driver), StatusCode> {
        dial(self.cluster, self.worker, self.server_name, tls, endpoint).await
    }
}

/// The pools of a worker, by where their route's state is.
#[derive(Debug, Default)]
pub(crate) struct Pools(RefCell<HashMap<usize, RoutePools>>);

type RoutePools = (std::sync::Weak<Termination>, Rc<Upstreams>);

impl Pools {
    pub(crate) fn of(&self, own: &Arc<Termination>) -> Rc<Upstreams> {
        let mut all = self.0.borrow_mut();
        let key = Arc::as_ptr(own) as usize;
        if let Some((known, pools)) = all.get(&key)
            && known.strong_count() > 0
        {
            return Rc::clone(pools);
        }
        all.retain(|_, (own, _)| own.strong_count() > 0);
        let stats = WorkerStats::new(&own.stats);
        let fresh = Rc::new(Upstreams::new(stats, own.params.max_connections));
        all.insert(key, (Arc::downgrade(own), Rc::clone(&fresh)));
        fresh
    }
}

/// The pools of one route, of one worker.
#[derive(Debug)]
pub(crate) struct Upstreams {
    pub(crate) stats: Rc<WorkerStats>,
    anonymous: Pool,
    unproven: Pool,
    token: Pool,
    /// Opened by [`Verified`] alone: see [`Upstreams::send`].
    mutual: Pool,
}

/// A stream of an upstream connection, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Active {
    endpoint: Arc<Endpoint>,
    streams: Option<Rc<Streams>>,
    /// Its connection, where that has this stream alone.
    connection: Option<OpenConnection>,
    /// What sends the request's body: it ends with the stream.
    sending: RefCell<Option<AbortHandle>>,
    stats: Rc<WorkerStats>,
    kind: PoolKind,
}

impl Active {
    fn new(endpoint: &Arc<Endpoint>, pool: &Pool) -> Self {
        endpoint.begin();
        pool.stats.pool(pool.kind).streams.inc();
        Self {
            endpoint: Arc::clone(endpoint),
            streams: None,
            connection: None,
            sending: RefCell::default(),
            stats: Rc::clone(&pool.stats),
            kind: pool.kind,
        }
    }
}

impl Active {
    pub(super) fn set_sending(&self, task: AbortHandle) {
        *self.sending.borrow_mut() = Some(task);
    }

    /// Takes the body of its answer.
    pub(super) fn receive(&self, stream: RecvStream) -> Answer {
        let answers = self.streams.as_ref().map(|own| Rc::clone(&own.answers));
        Answer::Http2(answers.unwrap_or_default().add(stream))
    }

    /// No further stream of its connection is possible.
    pub(super) fn connection_ended(&self) {
        if let Some(streams) = &self.streams {
            streams.ended.set(true);
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.endpoint.end();
        self.stats.pool(self.kind).streams.dec();
        if let Some(sending) = self.sending.take() {
            sending.abort();
        }
        if let Some(streams) = &self.streams {
            streams.count.set(streams.count.get() - 1);
            streams.used.set(Instant::now());
        }
    }
}

/// A connection, counted until it is dropped.
#[derive(Debug)]
struct OpenConnection {
    of: Rc<Connections>,
    stats: Rc<WorkerStats>,
    kind: PoolKind,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.of.count.set(self.of.count.get() - 1);
        self.stats.pool(self.kind).connections.dec();
    }
}

#[derive(Debug)]
struct Streams {
    count: Cell<usize>,
    used: Cell<Instant>,
    /// No further one is possible.
    ended: Cell<bool>,
    answers: Rc<Answers>,
}

impl Upstreams {
    /// Makes pools without connections, of at most so many to one endpoint each.
    pub(crate) fn new(stats: Rc<WorkerStats>, max_connections: u32) -> Self {
        let pool = |kind| Pool {
            kind,
            stats: Rc::clone(&stats),
            max_connections,
            endpoints: RefCell::default(),
        };
        Self {
            anonymous: pool(PoolKind::Anonymous),
            unproven: pool(PoolKind::Unproven),
            token: pool(PoolKind::Token),
            mutual: pool(PoolKind::Identity),
            stats,
        }
    }

    /// Sends a request whose head is clean, and returns the head of the answer.
    ///
    /// # Errors
    /// The status to answer with.
    pub(crate) async fn send(
        &self,
        context: &RequestContext<'_>,
        caller: Caller<'_>,
        mut request: Request<RequestBody>,
        upgrades: bool,
    ) -> Result<(Response<Answer>, Active), StatusCode> {
        let secrets = &context.secrets.tls;
        let (pool, tls) = match caller {
            Caller::Anonymous => (&self.anonymous, &secrets.plain),
            Caller::Unproven => (&self.unproven, &secrets.plain),
            Caller::Token => (&self.token, &secrets.plain),
            Caller::Verified(verified) => {
                let tls = secrets.mutual.as_ref();
                let tls = tls.ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
                let headers = request.headers_mut();
                headers.insert(USER, verified.user().clone());
                for group in verified.groups() {
                    headers.append(GROUP, group.clone());
                }
                (&self.mutual, tls)
            }
        };
        pool.send(context, tls, request, upgrades).await
    }
}

#[derive(Debug)]
struct Pool {
    kind: PoolKind,
    stats: Rc<WorkerStats>,
    max_connections: u32,
    endpoints: RefCell<HashMap<EndpointAddress, Rc<Connections>>>,
}

/// Connections to one endpoint.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Those that are dialed or open, also those of one stream.
    count: Cell<u32>,
    open: RefCell<Vec<Connection>>,
    /// One dials at a time; the others use what it has dialed, or give up with it.
    dialing: Mutex<()>,
    failed: Cell<Option<(Instant, StatusCode)>>,
    /// It is left out, and dialed now and then.
    pub(super) probed: Cell<bool>,
    /// A task looks for idle connections.
    swept: Cell<bool>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Bytes>,
    streams: Rc<Streams>,
    serial: u64,
}

impl Pool {
    async fn send(
        &self,
        context: &RequestContext<'_>,
        tls: &tls::UpstreamTls,
        mut request: Request<RequestBody>,
        upgrades: bool,
    ) -> Result<(Response<Answer>, Active), StatusCode> {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut status = StatusCode::SERVICE_UNAVAILABLE;
        let mut attempts = 1 + context.cluster.settings().connect_retries;
        // A kept connection that ends just now is no failure of an endpoint.
        let mut ended = MAX_ENDED;
        while attempts > 0 {
            let routing = context.worker.shared.routing.current();
            let picked = context.cluster.pick(&PickContext {
                source: context.client,
                zone: routing.zone.as_deref(),
                now: Instant::now().into_std(),
                random: context.worker.random(),
                tried: &tried,
            });
            let Some(endpoint) = picked else { break };
            // Counted while it connects as well, so that others choose other endpoints.
            let mut active = Active::new(endpoint, self);
            context.exchange.set_endpoint(endpoint);
            let sender = match self
                .sender(context, tls, endpoint, upgrades, &mut active)
                .await
            {
                Ok(sender) => sender,
                Err(failed) => {
                    status = failed;
                    attempts -= 1;
                    tried.push(Arc::clone(endpoint));
                    continue;
                }
            };
            let again = Again::of(&request);
            match exchange(sender, request, &active).await {
                Ok(response) => {
                    again.forget();
                    return Ok((response, active));
                }
                Err(Failed::Unsent(unsent)) => request = *unsent,
                Err(Failed::Sent(begun, error)) => {
                    let again = (!begun).then(|| again.request());
                    let Some(again) = again.flatten() else {
                        tracing::debug!(error = %telemetry::chain(&*error), "a request failed");
                        return Err(StatusCode::BAD_GATEWAY);
                    };
                    request = again;
                }
            }
            status = StatusCode::SERVICE_UNAVAILABLE;
            ended -= 1;
            if ended == 0 {
                break;
            }
        }
        Err(status)
    }

    async fn sender(
        &self,
        context: &RequestContext<'_>,
        tls: &tls::UpstreamTls,
        endpoint: &Arc<Endpoint>,
        upgrades: bool,
        active: &mut Active,
    ) -> Result<Sender, StatusCode> {
        let connections = self.connections(endpoint);
        if upgrades {
            active.connection = Some(self.open(&connections)?);
            let (stream, driver) = context.dial(&tls.http1, endpoint).await?;
            return http1_sender(stream, driver).await.map(Sender::Http1);
        }
        if let Some(sender) = connections.take(context.secrets.serial, active) {
            return Ok(Sender::Http2(sender));
        }
        let asked = Instant::now();
        let _dialing = connections.dialing.lock().await;
        if let Some(sender) = connections.take(context.secrets.serial, active) {
            return Ok(Sender::Http2(sender));
        }
        if let Some((at, status)) = connections.failed.get()
            && at >= asked
        {
            return Err(status);
        }
        let opened = self.open(&connections)?;
        let (stream, driver) = match context.dial(&tls.any, endpoint).await {
            Ok(dialed) => dialed,
            Err(status) => {
                connections.failed.set(Some((Instant::now(), status)));
                probe(context, &tls.any, endpoint, &connections);
                return Err(status);
            }
        };
        if stream.session().alpn_protocol() != Some(b"h2") {
            active.connection = Some(opened);
            return http1_sender(stream, driver).await.map(Sender::Http1);
        }
        let (sender, mut connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(MAX_STREAMS)
            .max_send_buffer_size(STREAM_WINDOW as usize)
            .max_header_list_size(HEAD_BYTES)
            .enable_push(false)
            // What clients give up they may give up for ever: frames under way to it are no fault of this server.
            .max_concurrent_reset_streams(MAX_RESET_STREAMS)
            .max_local_error_reset_streams(None)
            .handshake(stream)
            .await
            .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
        let streams = Rc::new(Streams {
            count: Cell::new(0),
            used: Cell::new(Instant::now()),
            ended: Cell::new(false),
            answers: Rc::default(),
        });
        let (own, pings) = (Rc::clone(&streams), connection.ping_pong());
        tokio::task::spawn_local(async move {
            let lost = lost(pings, &driver);
            let served = async {
                tokio::select! {
                    biased;
                    _ = connection => {}
                    () = lost => {}
                }
            };
            let gather = || own.answers.gather(driver.received());
            driver.run(served, gather).await;
            own.ended.set(true);
            drop(opened);
        });
        if !connections.swept.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(&connections)));
        }
        connections.open.borrow_mut().push(Connection {
            sender,
            streams,
            serial: context.secrets.serial,
        });
        let sender = connections.take(context.secrets.serial, active);
        sender
            .map(Sender::Http2)
            .ok_or(StatusCode::SERVICE_UNAVAILABLE)
    }

    fn connections(&self, endpoint: &Endpoint) -> Rc<Connections> {
        let mut all = self.endpoints.borrow_mut();
        if let Some(known) = all.get(endpoint.address()) {
            return Rc::clone(known);
        }
        // Without those of endpoints that are gone.
        all.retain(|_, own| own.sweep() || Rc::strong_count(own) > 1);
        Rc::clone(all.entry(endpoint.address().clone()).or_default())
    }

    /// Counts a connection that is to be dialed, unless there are as many as there may be.
    fn open(&self, connections: &Rc<Connections>) -> Result<OpenConnection, StatusCode> {
        let count = connections.count.get();
        if count >= self.max_connections {
            tracing::debug!(count, "maxConnections of a pool's endpoint reached");
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        connections.count.set(count + 1);
        self.stats.pool(self.kind).connections.inc();
        Ok(OpenConnection {
            of: Rc::clone(connections),
            stats: Rc::clone(&self.stats),
            kind: self.kind,
        })
    }
}

impl Connections {
    /// Takes a stream of a connection that has one left.
    fn take(&self, serial: u64, active: &mut Active) -> Option<SendRequest<Bytes>> {
        let mut open = self.open.borrow_mut();
        let mut usable = { open.iter_mut() }.filter(|own| own.serial == serial);
        usable.find_map(|own| own.take(active))
    }

    /// Forgets connections that have ended or were idle for long; returns whether any is left.
    fn sweep(&self) -> bool {
        let mut open = self.open.borrow_mut();
        open.retain(|own| {
            let idle = own.streams.count.get() == 0 && own.streams.used.get().elapsed() > IDLE;
            !own.streams.ended.get() && !idle
        });
        !open.is_empty()
    }
}

impl Connection {
    fn take(&mut self, active: &mut Active) -> Option<SendRequest<Bytes>> {
        let count = self.streams.count.get();
        if self.streams.ended.get() || count >= MAX_STREAMS {
            return None;
        }
        // Whether it has ended; it waits for no stream, as the handle that is kept sends nothing.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(Err(_)) = self.sender.poll_ready(&mut cx) {
            self.streams.ended.set(true);
            return None;
        }
        if count >= self.sender.current_max_send_streams() {
            return None;
        }
        self.streams.count.set(count + 1);
        active.streams = Some(Rc::clone(&self.streams));
        Some(self.sender.clone())
    }
}

/// Closes what is idle, until nothing is open.
async fn sweep(connections: Weak<Connections>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(connections) = connections.upgrade() else {
            return;
        };
        if !connections.sweep() {
            return connections.swept.set(false);
        }
    }
}

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
