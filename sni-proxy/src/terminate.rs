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
mod exchange;
mod headers;
mod http1_stream;
mod http2_stream;
mod identity;
mod local;
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

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use relay::Timers;
use route::Route;
use rustls::HandshakeKind;
use serve::{ConnRecord, Phase, Reason};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use self::body::{Answer, ResponseBody, Upstream};
use self::exchange::{Ending, Exchanges, Limits, Open};
use self::http1_stream::{Http1Params, Http1Stream, HttpState};
use self::http2_stream::preface;
use self::identity::{ClientIdentity, Refused};
use self::local::LocalExecutor;
use self::metrics::{Handshake, Protocol, RouteStats};
use self::outcome::{reason_of, why_failed};
use self::request::{RequestBody, head_size};
use self::secrets::{Secrets, Store};
use self::tls_stream::{ServerStream, accept};
use self::upgraded::{Upgraded, relayed};
use self::upstream::{Active, Caller, RequestContext};
use self::wire::{Driver, Wire};
use crate::preamble::RouteKey;
use crate::worker::{Listener, Worker};

pub(crate) use self::metrics::{Handshakes, Metrics, PoolKind};
pub(crate) use self::params::{MAX_CONNECTIONS, Params, hsts};
pub(crate) use self::subject::header_text;
pub(crate) use self::upstream::Pools;

/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 * 1024;
/// Bytes of a client's stream, and of its connection, that wait for an API server.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// A silent client is asked whether it lives, and has as long to answer.
const PING: Duration = Duration::from_secs(55);
const PING_LIMIT: Duration = Duration::from_secs(20);

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
    pub(crate) downstream: TcpStream,
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
    let mut served = pin!(requests(tls, &client));
    let served = driver.drive(served.as_mut(), record.info()).await;
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
    let (wire, driver) = Wire::new(conn.downstream, conn.early.len());
    let handshakes = &conn.listener.handshakes;
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
    let verified = (!resumed).then(SystemTime::now);
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
        upgraded: RefCell::default(),
    });
    Ok((tls, driver, client))
}

/// Serves requests until the client or the gateway ends the connection, or one of HTTP/1.1 is upgraded.
async fn requests(tls: Tls, client: &Rc<Client>) -> Reason {
    let (shared, params) = (&client.worker.shared, &client.termination.params);
    // Pinned here: moved into the `select!` it would be stored twice.
    let mut ending = pin!(client.ending());
    let state = HttpState::new(shared.config.limits.preamble_timeout.0);
    let service = service_fn(|request| {
        // Before hyper reads on: what it reads then belongs to no head.
        let open = client.exchanges.begin(&request);
        let client = Rc::clone(client);
        // On the heap: its memory is given back before a watch goes on for hours.
        Box::pin(
            async move { Ok::<_, std::convert::Infallible>(client.answer(request, open).await) },
        )
    });
    // Both ends are the same but for hyper's types.
    macro_rules! drive {
        ($connection:expr) => {{
            let mut connection = Box::pin($connection);
            let served = tokio::select! {
                served = connection.as_mut() => Ok(served),
                ending = ending.as_mut() => Err(ending),
            };
            match served {
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
            }
        }};
    }
    match client.protocol {
        Protocol::Http2 => {
            let preface = preface(tls, client.begins_by, Arc::clone(&state));
            let tls = match Box::pin(preface).await {
                Ok(tls) => tls,
                Err(reason) => return reason,
            };
            drive!(
                http2::Builder::new(LocalExecutor::within(params.stream_timeout))
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(params.max_streams)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    // What is larger than it may be is answered by a Status, unless it is much larger.
                    .max_header_list_size(2 * HEAD_BYTES as u32)
                    .max_send_buf_size(STREAM_WINDOW as usize)
                    .keep_alive_interval(PING)
                    .keep_alive_timeout(PING_LIMIT)
                    .serve_connection(TokioIo::new(tls), service)
            )
        }
        Protocol::Http1 => {
            let http1 = Http1Params {
                count: Arc::clone(&client.exchanges.count),
                state: Arc::clone(&state),
                hsts: params.hsts.clone(),
                reset_on_close: |tls: &Tls| tls.wire().reset(),
            };
            let reason = drive!(
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(None)
                    .max_buf_size(HEAD_BYTES)
                    .serve_connection(TokioIo::new(Http1Stream::new(tls, http1)), service)
                    .with_upgrades()
            );
            if let Some(status) = state.refused() {
                client.exchanges.stats.answered(client.protocol, status);
            }
            reason
        }
    }
}

/// A client's connection, as its requests see it.
struct Client {
    /// The certificate that it showed.
    identity: Option<ClientIdentity>,
    protocol: Protocol,
    exchanges: Rc<Exchanges>,
    listener: usize,
    route_key: RouteKey,
    termination: Arc<Termination>,
    worker: Rc<Worker>,
    address: std::net::IpAddr,
    /// When the first bytes of HTTP must have come.
    begins_by: Instant,
    /// When the connection must end.
    deadline: Option<Instant>,
    /// How long it may be without a request, or, upgraded, without a byte.
    idle: Option<Duration>,
    /// Its route has changed: the connection is to end.
    stale: Notify,
    upgraded: RefCell<Option<Upgraded>>,
}

/// What a server answered.
enum Forwarded {
    Response(Response<Answer>, Active),
    Upgraded(Response<Answer>, [OnUpgrade; 2], Active),
}

impl Client {
    /// Waits until the gateway has a reason to end the connection, and returns it. Cancel-safe.
    async fn ending(&self) -> (Reason, Option<Ending>) {
        let limits = self.limits(self.idle, self.deadline);
        let drain = &self.worker.shared.accepting.drain;
        tokio::select! {
            () = drain.reached(Phase::Closing) => (Reason::Drained, None),
            () = self.stale.notified() => (Reason::Closed, None),
            ending = self.exchanges.ending(limits) => match ending {
                Ending::Aged => (Reason::MaxAge, None),
                Ending::Idle => (Reason::IdleTimeout, Some(ending)),
                Ending::Overdue => (Reason::MaxAge, Some(ending)),
            },
        }
    }

    /// Waits until the requests of a connection that ends for `reason` have ended; returns whether they did in time.
    async fn finished<F: Future>(&self, reason: Reason, connection: Pin<&mut F>) -> bool {
        let rest = self.worker.shared.config.drain.timeout.0;
        let cut = if reason == Reason::Drained {
            None // the process says when it cuts
        } else if reason == Reason::MaxAge {
            Some(Instant::now() + rest)
        } else {
            self.deadline.map(|deadline| deadline + rest) // each request has its own limit
        };
        tokio::select! {
            _ = connection => true,
            _ = self.exchanges.ending(self.limits(None, cut)) => false,
        }
    }

    fn limits(&self, idle: Option<Duration>, deadline: Option<Instant>) -> Limits {
        Limits {
            idle,
            request: self.termination.params.stream_timeout,
            deadline,
        }
    }

    async fn answer(&self, request: Request<Incoming>, open: Open) -> Response<ResponseBody> {
        let limit = open.started() + self.termination.params.stream_timeout;
        let forwarded = timeout_at(limit, self.forward(request, &open)).await;
        let late = |_| Err(status::of_upstream(StatusCode::GATEWAY_TIMEOUT));
        let mut response = match forwarded.unwrap_or_else(late) {
            Ok(Forwarded::Response(response, active)) => {
                open.answered(response.status());
                response
                    .map(|body| ResponseBody::Upstream(Box::new(Upstream::new(body, active, open))))
            }
            Ok(Forwarded::Upgraded(response, [down, up], active)) => {
                open.answered(response.status());
                open.set_upgraded();
                *self.upgraded.borrow_mut() = Some(Upgraded {
                    down,
                    up,
                    _active: active,
                    open,
                });
                response.map(|_| ResponseBody::Own(None))
            }
            Err(refusal) => {
                open.answered(refusal.status);
                refusal.response(open)
            }
        };
        if let Some(value) = &self.termination.params.hsts {
            let headers = response.headers_mut();
            headers.insert(header::STRICT_TRANSPORT_SECURITY, value.clone());
        }
        response
    }

    /// Finds today's route again, and what it terminates with: both change while a connection lives. After that
    /// requests are served as today's route says, and the client is asked to connect anew; a route that is passed
    /// through by now ends its old connections with what they began with.
    fn route(
        &self,
        authority: &Authority,
    ) -> Result<(Arc<Route>, Arc<Termination>), status::Refusal> {
        let routing = self.worker.shared.routing.current();
        let table = routing.snapshot.on(self.listener);
        let route = match &self.route_key {
            RouteKey::Connect(value) => table.by_connect(value),
            RouteKey::ServerName(name) => table.by_server_name(name.as_deref()),
        };
        let gone = || {
            self.stale.notify_one();
            let text = "the route of this connection is gone";
            status::refuse(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        let route = route.filter(|route| route.allows(self.address));
        let route = route.ok_or_else(gone)?;
        let today = route.handler().and_then(route::Handler::get);
        let today = today.filter(|own: &Arc<Termination>| own.secrets.last().is_some());
        let own = today.as_ref().unwrap_or(&self.termination);
        // No route that terminates has such a cluster.
        if route.cluster().settings().send_proxy_protocol.is_some() {
            return Err(gone());
        }
        if today.is_none() || !Arc::ptr_eq(own, &self.termination) {
            self.stale.notify_one();
        }
        let is_of = |host: &str| {
            let of_host = table.by_server_name(Some(host));
            of_host.is_some_and(|of_host| Arc::ptr_eq(of_host, route))
        };
        if matches!(self.route_key, RouteKey::ServerName(_)) && !is_of(authority.host()) {
            let text = "the host is not the one of this connection";
            return Err(status::refuse(StatusCode::MISDIRECTED_REQUEST, text));
        }
        Ok((Arc::clone(route), Arc::clone(own)))
    }

    /// Sends a request on; an upgrade that the server agrees to has no body.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
        open: &Open,
    ) -> Result<Forwarded, status::Refusal> {
        if head_size(&request) > HEAD_BYTES {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(status::of_head(status));
        }
        let authority = headers::authority(&request)
            .map_err(|status| status::refuse(status, "the host is not one name"))?;
        let bad = |text| status::refuse(StatusCode::BAD_REQUEST, text);
        let authority = authority.ok_or_else(|| bad("no host"))?;
        let (route, own) = self.route(&authority)?;
        if request.method() == Method::CONNECT {
            return Err(bad("CONNECT is not served"));
        }
        if headers::is_coded(request.headers()) {
            return Err(bad("a body with a transfer coding is not served"));
        }
        let secrets = own.secrets.last();
        let secrets = secrets.ok_or_else(status::unavailable)?;
        let caller = match &self.identity {
            None => Caller::Anonymous,
            Some(identity) => {
                let verified = identity.verify(&secrets, SystemTime::now());
                Caller::Verified(verified.map_err(|refused| match refused {
                    Refused::Subject => {
                        let text = "the certificate's subject names no user that can be passed on";
                        status::refuse(StatusCode::BAD_REQUEST, text)
                    }
                    Refused::Untrusted => {
                        let text = "the certificate has ended, or is no longer trusted";
                        status::refuse(StatusCode::UNAUTHORIZED, text)
                    }
                })?)
            }
        };
        let upgrade = (request.version() == Version::HTTP_11)
            .then(|| headers::upgrade(request.headers()))
            .flatten();
        headers::clean(request.headers_mut(), self.address);
        let path = request.uri().path_and_query().cloned();
        // What is for the server as a whole has none (RFC 9110 section 7.1).
        if path
            .as_ref()
            .is_some_and(|path| !path.as_str().starts_with('/'))
        {
            return Err(bad("no path"));
        }
        let uri = Uri::builder().scheme("https").authority(authority);
        let uri = uri.path_and_query(path.as_ref().map_or("/", |path| path.as_str()));
        let uri = uri.build().map_err(|_| bad("no target"))?;
        *request.uri_mut() = uri;
        if let Some(protocol) = &upgrade {
            let headers = request.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, protocol.clone());
        }
        let down = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let context = RequestContext {
            cluster: route.cluster(),
            server_name: &own.params.server_name,
            secrets: &secrets,
            client: self.address,
            exchange: open.exchange(),
            worker: &self.worker,
        };
        let request = request.map(|body| RequestBody::new(body, open.exchange()));
        let pools = self.worker.terminations.of(&own);
        let sent = pools
            .send(&context, caller, request, upgrade.is_some())
            .await;
        let (mut response, active) = sent.map_err(|status| match open.is_stalled() {
            true => status::refuse(StatusCode::REQUEST_TIMEOUT, "the client stopped sending"),
            false => status::of_upstream(status),
        })?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let agreed = response.headers().get(header::UPGRADE);
            let same = |(agreed, asked): (&HeaderValue, &HeaderValue)| {
                agreed.as_bytes().eq_ignore_ascii_case(asked.as_bytes())
            };
            let Some(down) = down.filter(|_| agreed.zip(upgrade.as_ref()).is_some_and(same)) else {
                return Err(status::of_upstream(StatusCode::BAD_GATEWAY));
            };
            let up = hyper::upgrade::on(&mut response);
            return Ok(Forwarded::Upgraded(response, [down, up], active));
        }
        headers::remove_hop_by_hop(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        Ok(Forwarded::Response(response, active))
    }
}
