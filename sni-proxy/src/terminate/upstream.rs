//! Connections to the servers behind a terminating route, of one worker: two pools for each route.
//!
//! ```text
//!     without a certificate ─▶ plain ───┐
//!     [`Verified`] ──────────▶ mutual ──┴─▶ endpoint by least requests ─▶ a stream of a kept HTTP/2 connection
//!                                                                         upgrades, HTTP/1.1: one of its own
//! ```
//!
//! A request takes another endpoint only while nothing of it was processed. Each stream may hold one window's
//! bytes, and a connection's window is more than that of all its streams: a stalled one takes from no other.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use route::{Cluster, ConnectFailure, Endpoint, EndpointAddress, PickContext};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Termination;
use super::exchange::Exchange;
use super::identity::Verified;
use super::local::LocalExecutor;
use super::metrics::{PoolKind, WorkerStats};
use super::request::{Again, RequestBody};
use super::secrets::Secrets;
use crate::worker::Worker;

/// Streams of one connection: what API servers permit at least.
const MAX_STREAMS: u32 = 100;
/// Bytes that a stream may hold.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Bytes of an answer's head.
const HEAD_BYTES: u32 = 64 * 1024;
/// More than all streams may hold, so that none can take another one's. h2 ends a connection whose small frames
/// cost more memory beside their bytes than half of this: 44 MiB for as many stalled streams of lines of 32 bytes.
const CONNECTION_WINDOW: u32 = 128 * 1024 * 1024;
/// Connections of one request that may end before it was processed.
const MAX_ENDED: u32 = 4;
/// A connection without requests is closed after this.
const IDLE: Duration = Duration::from_secs(90);
/// A silent connection is asked whether it lives.
const PING: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(15);

/// Whom a request is sent for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller<'a> {
    /// A client that showed no certificate.
    Anonymous,
    /// One whose certificate was verified for this request.
    Verified(&'a Verified),
}

/// What a request needs on its way.
pub(crate) struct Way<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) server_name: &'a ServerName<'static>,
    pub(crate) secrets: &'a Secrets,
    pub(crate) client: IpAddr,
    pub(crate) exchange: &'a Exchange,
    pub(crate) worker: &'a Worker,
}

/// The pools of a worker, by where their route's state is.
#[derive(Debug, Default)]
pub(crate) struct Pools(RefCell<HashMap<usize, OfRoute>>);

type OfRoute = (std::sync::Weak<Termination>, Rc<Upstreams>);

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
    plain: Pool,
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
            stats: Rc::clone(&pool.stats),
            kind: pool.kind,
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.endpoint.end();
        self.stats.pool(self.kind).streams.dec();
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
    count: Cell<u32>,
    used: Cell<Instant>,
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
            plain: pool(PoolKind::Anonymous),
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
        way: &Way<'_>,
        caller: Caller<'_>,
        mut request: Request<RequestBody>,
        upgrades: bool,
    ) -> Result<(Response<Incoming>, Active), StatusCode> {
        match caller {
            Caller::Anonymous => {
                let tls = &way.secrets.tls.plain;
                self.plain.send(way, tls, request, upgrades).await
            }
            Caller::Verified(verified) => {
                let tls = way.secrets.tls.mutual.as_ref();
                let tls = tls.ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
                let headers = request.headers_mut();
                headers.insert(USER, verified.user().clone());
                for group in verified.groups() {
                    headers.append(GROUP, group.clone());
                }
                self.mutual.send(way, tls, request, upgrades).await
            }
        }
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
struct Connections {
    /// Those that are dialed or open, also those of one stream.
    count: Cell<u32>,
    open: RefCell<Vec<Connection>>,
    /// One dials at a time; the others use what it has dialed, or give up with it.
    dialing: Mutex<()>,
    failed: Cell<Option<(Instant, StatusCode)>>,
}

#[derive(Debug)]
struct Connection {
    sender: http2::SendRequest<RequestBody>,
    streams: Rc<Streams>,
    serial: u64,
}

/// A connection that takes one request more.
enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

impl Pool {
    async fn send(
        &self,
        way: &Way<'_>,
        tls: &tls::UpstreamTls,
        mut request: Request<RequestBody>,
        upgrades: bool,
    ) -> Result<(Response<Incoming>, Active), StatusCode> {
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut status = StatusCode::SERVICE_UNAVAILABLE;
        let mut attempts = 1 + way.cluster.settings().connect_retries;
        // A kept connection that ends just now is no failure of an endpoint.
        let mut ended = MAX_ENDED;
        while attempts > 0 {
            let routing = way.worker.shared.routing.current();
            let picked = way.cluster.pick(&PickContext {
                source: way.client,
                zone: routing.zone.as_deref(),
                now: Instant::now().into_std(),
                random: way.worker.random(),
                tried: &tried,
            });
            let Some(endpoint) = picked else { break };
            // Counted while it connects as well, so that others choose other endpoints.
            let mut active = Active::new(endpoint, self);
            way.exchange.set_endpoint(endpoint);
            let sender = match self.sender(way, tls, endpoint, upgrades, &mut active).await {
                Ok(sender) => sender,
                Err(failed) => {
                    status = failed;
                    attempts -= 1;
                    tried.push(Arc::clone(endpoint));
                    continue;
                }
            };
            let again = Again::of(&request);
            match exchange(sender, request).await {
                Ok(response) => {
                    again.forget();
                    return Ok((response, active));
                }
                Err(Failed::Unsent(unsent)) => request = *unsent,
                Err(Failed::Sent(error)) => {
                    let again = was_not_processed(&error).then(|| again.request());
                    let Some(again) = again.flatten() else {
                        tracing::debug!(error = %telemetry::chain(&error), "a request failed");
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
        way: &Way<'_>,
        tls: &tls::UpstreamTls,
        endpoint: &Arc<Endpoint>,
        upgrades: bool,
        active: &mut Active,
    ) -> Result<Sender, StatusCode> {
        let connections = self.connections(endpoint);
        if upgrades {
            active.connection = Some(self.open(&connections)?);
            let stream = dial(way, &tls.http1, endpoint).await?;
            return http1_sender(stream).await.map(Sender::Http1);
        }
        if let Some(sender) = connections.take(way.secrets.serial, active) {
            return Ok(Sender::Http2(sender));
        }
        let asked = Instant::now();
        let _dialing = connections.dialing.lock().await;
        if let Some(sender) = connections.take(way.secrets.serial, active) {
            return Ok(Sender::Http2(sender));
        }
        if let Some((at, status)) = connections.failed.get()
            && at >= asked
        {
            return Err(status);
        }
        let opened = self.open(&connections)?;
        let stream = match dial(way, &tls.any, endpoint).await {
            Ok(stream) => stream,
            Err(status) => {
                connections.failed.set(Some((Instant::now(), status)));
                return Err(status);
            }
        };
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            active.connection = Some(opened);
            return http1_sender(stream).await.map(Sender::Http1);
        }
        let (sender, connection) = http2::Builder::new(LocalExecutor::default())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING_LIMIT)
            .keep_alive_while_idle(true)
            .max_send_buf_size(STREAM_WINDOW as usize)
            .max_header_list_size(HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
        tokio::task::spawn_local(async move {
            // Its streams report why it ended.
            drop(connection.await);
            drop(opened);
        });
        tokio::task::spawn_local(sweep(Rc::downgrade(&connections)));
        connections.open.borrow_mut().push(Connection {
            sender,
            streams: Rc::new(Streams {
                count: Cell::new(0),
                used: Cell::new(Instant::now()),
            }),
            serial: way.secrets.serial,
        });
        let sender = connections.take(way.secrets.serial, active);
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
    fn take(&self, serial: u64, active: &mut Active) -> Option<http2::SendRequest<RequestBody>> {
        let open = self.open.borrow();
        let usable = open.iter().find(|own| {
            own.serial == serial && !own.sender.is_closed() && own.streams.count.get() < MAX_STREAMS
        })?;
        usable.streams.count.set(usable.streams.count.get() + 1);
        active.streams = Some(Rc::clone(&usable.streams));
        Some(usable.sender.clone())
    }

    /// Forgets connections that have ended or were idle for long; returns whether any is left.
    fn sweep(&self) -> bool {
        let mut open = self.open.borrow_mut();
        open.retain(|own| {
            let idle = own.streams.count.get() == 0 && own.streams.used.get().elapsed() > IDLE;
            !own.sender.is_closed() && !idle
        });
        !open.is_empty()
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
            return;
        }
    }
}

async fn dial(
    way: &Way<'_>,
    tls: &Arc<rustls::ClientConfig>,
    endpoint: &Endpoint,
) -> Result<TlsStream<TcpStream>, StatusCode> {
    let (cluster, worker) = (way.cluster, way.worker);
    let options = cluster.settings().tcp.as_ref();
    let options = options.map_or(&worker.shared.config.tcp_options, AsRef::as_ref);
    let deadline = Instant::now() + cluster.settings().connect_timeout;
    let names = &worker.shared.routing.current().names;
    let turn = worker.random() as usize;
    let now = || Instant::now().into_std();
    let dialer = &worker.shared.dialer;
    let stream = match dialer
        .connect(endpoint.address(), names, options, deadline, turn)
        .await
    {
        Ok((stream, _)) => stream,
        Err(error) => {
            if !error.is_local() {
                cluster.connect_failed(endpoint, error.failure(), now());
            }
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
    };
    let connector = TlsConnector::from(Arc::clone(tls));
    let connecting = connector.connect(way.server_name.clone(), stream);
    match timeout_at(deadline, connecting).await {
        Ok(Ok(stream)) => {
            cluster.connect_succeeded(endpoint);
            Ok(stream)
        }
        Ok(Err(error)) => {
            let address = endpoint.address();
            tracing::debug!(%error, endpoint = %address, "TLS with an endpoint failed");
            cluster.connect_failed(endpoint, ConnectFailure::Failed, now());
            Err(StatusCode::BAD_GATEWAY)
        }
        Err(_) => {
            cluster.connect_failed(endpoint, ConnectFailure::Timeout, now());
            Err(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

async fn http1_sender(
    stream: TlsStream<TcpStream>,
) -> Result<http1::SendRequest<RequestBody>, StatusCode> {
    let shaken = http1::Builder::new().handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    tokio::task::spawn_local(connection.with_upgrades());
    Ok(sender)
}

/// Why there is no answer.
enum Failed {
    /// Nothing was sent.
    Unsent(Box<Request<RequestBody>>),
    Sent(hyper::Error),
}

async fn exchange(
    sender: Sender,
    mut request: Request<RequestBody>,
) -> Result<Response<Incoming>, Failed> {
    let sent = match sender {
        Sender::Http1(mut sender) => {
            *request.version_mut() = Version::HTTP_11;
            to_origin_form(&mut request);
            sender.try_send_request(request).await
        }
        Sender::Http2(mut sender) => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(http::header::HOST);
            sender.try_send_request(request).await
        }
    };
    sent.map_err(|mut error| match error.take_message() {
        Some(unsent) => Failed::Unsent(Box::new(unsent)),
        None => Failed::Sent(error.into_error()),
    })
}

/// The target as HTTP/1.1 has it, with the host in its header.
fn to_origin_form(request: &mut Request<RequestBody>) {
    let authority = request.uri().authority();
    let host = authority.and_then(|own| http::HeaderValue::from_str(own.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
}

/// Returns whether the server said that it has not begun with a request (RFC 9113 sections 6.8 and 8.7).
fn was_not_processed(error: &hyper::Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return refused
                || (error.is_go_away()
                    && error.is_remote()
                    && error.reason() == Some(h2::Reason::NO_ERROR));
        }
        source = error.source();
    }
    false
}

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
