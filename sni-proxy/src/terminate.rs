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
mod headers;
mod identity;
mod local;
mod metrics;
mod request;
mod secrets;
mod status;
mod stream;
mod subject;
mod upstream;

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use relay::{Direction, Meter, Peer, Timers, relay_streams};
use route::Route;
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use serve::{ConnRecord, Phase, Reason};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::body::{ResponseBody, Upstream};
use self::identity::{Presented, Refused};
use self::local::LocalExecutor;
use self::metrics::{Counted, Handshake, Requests};
use self::request::RequestBody;
use self::secrets::{Secrets, Store};
use self::stream::{Early, Passed};
use self::upstream::{Active, Caller, Upstreams, Way};
use crate::preamble::Target;
use crate::worker::{Listener, Worker};

pub(crate) use self::metrics::Metrics;

const PREFACE_BYTES: usize = 24;
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 * 1024;
/// Time for a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a client's stream, and of its connection, that wait for an API server.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// A silent client is asked whether it lives, and has as long to answer.
const PING: Duration = Duration::from_secs(55);
const PING_LIMIT: Duration = Duration::from_secs(20);

/// What a route says of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Params {
    /// What is counted belongs to one cluster.
    pub(crate) cluster: String,
    pub(crate) files: tls::TerminatingParams,
    /// Name in the certificate of API servers.
    pub(crate) server_name: ServerName<'static>,
    /// The header Strict-Transport-Security of answers.
    pub(crate) hsts: Option<HeaderValue>,
    /// Streams of one client's connection.
    pub(crate) max_streams: u32,
    /// Time that one request may take.
    pub(crate) stream_timeout: Duration,
}

/// A terminating route's state, which outlives snapshots in which it does not change.
#[derive(Debug)]
pub(crate) struct Termination {
    params: Params,
    pub(crate) secrets: Store,
    requests: Requests,
}

/// All of a process, so that one that is asked for again is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terminations(Arc<std::sync::Mutex<Vec<Weak<Termination>>>>);

impl Terminations {
    /// Returns the one with these parameters.
    pub(crate) fn of(&self, params: Params) -> Arc<Termination> {
        let mut all = telemetry::lock(&self.0);
        all.retain(|own| own.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade);
        if let Some(known) = { known }.find(|own| own.params == params) {
            return known;
        }
        let fresh = Arc::new(Termination {
            secrets: Store::new(params.files.clone()),
            params,
            requests: Requests::default(),
        });
        all.push(Arc::downgrade(&fresh));
        fresh
    }

    /// Reads the files of all of them again.
    pub(crate) fn refresh(&self) {
        let all: Vec<_> = telemetry::lock(&self.0)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for own in all {
            own.secrets.refresh();
        }
    }
}

/// The pools of a worker, by where their route's state is.
#[derive(Debug, Default)]
pub(crate) struct Pools(RefCell<HashMap<usize, OfRoute>>);

type OfRoute = (Weak<Termination>, Rc<Upstreams>);

impl Pools {
    fn of(&self, own: &Arc<Termination>) -> Rc<Upstreams> {
        let mut all = self.0.borrow_mut();
        let key = Arc::as_ptr(own) as usize;
        if let Some((known, pools)) = all.get(&key)
            && known.strong_count() > 0
        {
            return Rc::clone(pools);
        }
        all.retain(|_, (own, _)| own.strong_count() > 0);
        let fresh = Rc::<Upstreams>::default();
        all.insert(key, (Arc::downgrade(own), Rc::clone(&fresh)));
        fresh
    }
}

/// A connection whose TLS ends here.
#[derive(Debug)]
pub(crate) struct Terminated {
    pub(crate) downstream: TcpStream,
    /// Bytes of it that were read already.
    pub(crate) early: Vec<u8>,
    pub(crate) listener: Rc<Listener>,
    pub(crate) asked: Asked,
    pub(crate) own: Arc<Termination>,
    pub(crate) secrets: Arc<Secrets>,
    /// When the connection must end.
    pub(crate) deadline: Option<Instant>,
    /// How long an upgraded one may be without a byte.
    pub(crate) idle: Option<Duration>,
}

/// By what a connection found its route, and each of its requests finds it again.
#[derive(Debug)]
pub(crate) enum Asked {
    /// By the value of a CONNECT request's header.
    Connect(String),
    /// By a server name, or none.
    ServerName(Option<String>),
}

impl From<Target> for Asked {
    fn from(target: Target) -> Self {
        match target {
            Target::Connect { value, .. } => Self::Connect(value),
            Target::ServerName { name, .. } => Self::ServerName(name),
            // Such a route has no `terminate`.
            Target::Destination(_) => Self::ServerName(None),
        }
    }
}

/// Returns the termination of a route that has secrets, with them.
pub(crate) fn of(route: &Route) -> Option<(Arc<Termination>, Arc<Secrets>)> {
    let own: Arc<Termination> = route.handler()?.get()?;
    let secrets = own.secrets.current()?;
    Some((own, secrets))
}

/// Serves a connection until it ends, and returns why.
pub(crate) async fn serve(conn: Terminated, worker: &Rc<Worker>, record: &ConnRecord) -> Reason {
    let shared = &worker.shared;
    let within = Instant::now() + shared.config.limits.preamble_timeout.0;
    let acceptor = TlsAcceptor::from(Arc::clone(&conn.secrets.tls.server));
    let passed = Arc::<Passed>::default();
    let io = Early::new(conn.downstream, conn.early, Arc::clone(&passed));
    let (metrics, listener) = (&shared.terminating, &conn.listener.config.name);
    let tls = match timeout_at(within, acceptor.accept(io)).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => {
            let (outcome, reason) = why_failed(&error);
            metrics.handshake(listener, outcome);
            return reason;
        }
        Err(_) => {
            metrics.handshake(listener, Handshake::Timeout);
            return Reason::PreambleTimeout;
        }
    };
    let session = tls.get_ref().1;
    let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    let outcome = if resumed {
        Handshake::Resumed
    } else {
        Handshake::Full
    };
    metrics.handshake(listener, outcome);
    let chain = session.peer_certificates().map(<[_]>::to_vec);
    let http2 = session.alpn_protocol() == Some(b"h2");
    let client = Rc::new(Client {
        presented: chain.map(|chain| Presented::new(chain, &conn.secrets)),
        listener: conn.listener.index,
        asked: conn.asked,
        own: conn.own,
        worker: Rc::clone(worker),
        address: record.info().client().ip(),
        stale: Notify::new(),
        upgraded: RefCell::default(),
    });
    let Some(tls) = preface(tls, http2, within).await else {
        return Reason::PreambleTimeout;
    };
    let served = pin!(requests(tls, http2, &client, conn.deadline));
    let served = reporting(served, || passed.report(record.info())).await;
    let Some((down, up, _active)) = client.upgraded.take() else {
        return served;
    };
    let (Ok(down), Ok(up)) = tokio::join!(down, up) else {
        return Reason::UpstreamReset;
    };
    let (mut down, mut up) = (TokioIo::new(down), TokioIo::new(up));
    let until = Instant::now() + client.own.params.stream_timeout;
    let timers = Timers {
        idle: conn.idle,
        deadline: Some(conn.deadline.map_or(until, |own| own.min(until))),
    };
    let (down, up) = (peer(&mut down), peer(&mut up));
    let pool = &worker.handle.pool;
    let relayed = relay_streams(down, up, Bytes::new(), pool, &Unmetered, timers);
    let outcome = reporting(pin!(relayed), || passed.report(record.info())).await;
    Reason::from(&outcome)
}

/// hyper hides the socket under an upgraded stream: neither peer is reset, both are closed.
fn peer<S>(stream: &mut S) -> Peer<'_, S> {
    let socket = |_: &S| None;
    Peer { stream, socket }
}

/// [`Passed`] counts what is on the wire.
struct Unmetered;

impl Meter for Unmetered {
    fn relayed(&self, _: Direction, _: u64, _: bool) {}
}

/// Waits for the preface of HTTP/2 (RFC 9113 section 3.4), for which hyper has no limit.
async fn preface(
    mut tls: TlsStream<Early<TcpStream>>,
    http2: bool,
    by: Instant,
) -> Option<Early<TlsStream<Early<TcpStream>>>> {
    let mut read = Vec::new();
    if http2 {
        read.resize(PREFACE_BYTES, 0);
        timeout_at(by, tls.read_exact(&mut read)).await.ok()?.ok()?;
    }
    Some(Early::new(tls, read, Arc::default()))
}

/// Polls a future, and reports after each time.
async fn reporting<F: Future>(mut future: Pin<&mut F>, report: impl Fn()) -> F::Output {
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        report();
        polled
    })
    .await
}

/// Serves requests until the client or the gateway ends the connection, or one of HTTP/1.1 is upgraded.
async fn requests(
    tls: Early<TlsStream<Early<TcpStream>>>,
    http2: bool,
    client: &Rc<Client>,
    deadline: Option<Instant>,
) -> Reason {
    let drain = client.worker.shared.accepting.drain.clone();
    let ending = async {
        let aged = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = drain.reached(Phase::Closing) => Reason::Drained,
            () = client.stale.notified() => Reason::Closed,
            () = aged => Reason::MaxAge,
        }
    };
    let io = TokioIo::new(tls);
    let service = service_fn(|request| {
        let client = Rc::clone(client);
        async move { Ok::<_, std::convert::Infallible>(client.answer(request).await) }
    });
    // Both ends are the same but for hyper's types.
    macro_rules! drive {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            let served = tokio::select! {
                served = connection.as_mut() => Ok(served),
                reason = ending => Err(reason),
            };
            match served {
                Ok(served) => reason_of(served),
                Err(reason) => {
                    connection.as_mut().graceful_shutdown();
                    let rest = client.worker.shared.config.drain.timeout.0;
                    let cut = match reason {
                        // The process says when it cuts.
                        Reason::Drained => None,
                        Reason::MaxAge => Some(Instant::now() + rest),
                        // Each request has its own limit.
                        _ => deadline.map(|deadline| deadline + rest),
                    };
                    match cut {
                        Some(cut) => drop(timeout_at(cut, connection).await),
                        None => drop(connection.await),
                    }
                    reason
                }
            }
        }};
    }
    if http2 {
        drive!(
            http2::Builder::new(LocalExecutor::within(client.own.params.stream_timeout))
                .timer(TokioTimer::new())
                .max_concurrent_streams(client.own.params.max_streams)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_header_list_size(HEAD_BYTES as u32)
                .max_send_buf_size(STREAM_WINDOW as usize)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING_LIMIT)
                .serve_connection(io, service)
        )
    } else {
        drive!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(io, service)
                .with_upgrades()
        )
    }
}

fn reason_of(served: Result<(), hyper::Error>) -> Reason {
    match served {
        Ok(()) => Reason::Closed,
        Err(error) if error.is_timeout() => Reason::PreambleTimeout,
        Err(error) if error.is_parse() => Reason::Malformed,
        Err(_) => Reason::DownstreamReset,
    }
}

fn why_failed(error: &std::io::Error) -> (Handshake, Reason) {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => (Handshake::Certificate, Reason::Malformed),
        Some(_) => (Handshake::Failed, Reason::Malformed),
        None => (Handshake::Failed, Reason::DownstreamReset),
    }
}

/// A client's connection, as its requests see it.
struct Client {
    /// The certificate that it showed.
    presented: Option<Presented>,
    listener: usize,
    asked: Asked,
    own: Arc<Termination>,
    worker: Rc<Worker>,
    address: std::net::IpAddr,
    /// Its route has changed: the connection is to end.
    stale: Notify,
    /// Both sides of an upgrade that was agreed on.
    upgraded: RefCell<Option<(OnUpgrade, OnUpgrade, Active)>>,
}

impl Client {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let counted = Counted::new(&self.own);
        let protocol = match request.version() {
            Version::HTTP_2 => "h2",
            _ => "http/1.1",
        };
        let limit = Instant::now() + self.own.params.stream_timeout;
        let forwarded = timeout_at(limit, self.forward(request)).await;
        let late = |_| Err(status::of_upstream(StatusCode::GATEWAY_TIMEOUT));
        let mut response = match forwarded.unwrap_or_else(late) {
            Ok((response, active)) => {
                counted.answered(protocol, response.status());
                response.map(|body| match active {
                    Some(active) => {
                        // hyper's task of an HTTP/2 request has the same limit.
                        let limit = (protocol != "h2").then_some(limit);
                        ResponseBody::Upstream(Box::new(Upstream::new(
                            body, limit, active, counted,
                        )))
                    }
                    None => ResponseBody::Own(None, counted),
                })
            }
            Err(refusal) => {
                counted.answered(protocol, refusal.status);
                refusal.response(counted)
            }
        };
        if let Some(value) = &self.own.params.hsts {
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
        let route = match &self.asked {
            Asked::Connect(value) => table.by_connect(value),
            Asked::ServerName(name) => table.by_server_name(name.as_deref()),
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
        let own = today.as_ref().unwrap_or(&self.own);
        // No route that terminates has such a cluster.
        if route.cluster().settings().send_proxy_protocol.is_some() {
            return Err(gone());
        }
        if today.is_none() || !Arc::ptr_eq(own, &self.own) {
            self.stale.notify_one();
        }
        let is_of = |host: &str| {
            let of_host = table.by_server_name(Some(host));
            of_host.is_some_and(|of_host| Arc::ptr_eq(of_host, route))
        };
        if matches!(self.asked, Asked::ServerName(_)) && !is_of(authority.host()) {
            let text = "the host is not the one of this connection";
            return Err(status::refuse(StatusCode::MISDIRECTED_REQUEST, text));
        }
        Ok((Arc::clone(route), Arc::clone(own)))
    }

    /// Sends a request on; an upgrade that the server agrees to has no body.
    async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<(Response<Incoming>, Option<Active>), status::Refusal> {
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
        let caller = match &self.presented {
            None => Caller::Anonymous,
            Some(presented) => {
                let verified = presented.verify(&secrets, SystemTime::now());
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
        let way = Way {
            cluster: route.cluster(),
            server_name: &own.params.server_name,
            secrets: &secrets,
            client: self.address,
            worker: &self.worker,
        };
        let request = request.map(RequestBody::new);
        let pools = self.worker.terminations.of(&own);
        let sent = pools.send(&way, caller, request, upgrade.is_some()).await;
        let (mut response, active) = sent.map_err(status::of_upstream)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let agreed = response.headers().get(header::UPGRADE);
            let same = |(agreed, asked): (&HeaderValue, &HeaderValue)| {
                agreed.as_bytes().eq_ignore_ascii_case(asked.as_bytes())
            };
            let Some(down) = down.filter(|_| agreed.zip(upgrade.as_ref()).is_some_and(same)) else {
                return Err(status::of_upstream(StatusCode::BAD_GATEWAY));
            };
            let up = hyper::upgrade::on(&mut response);
            *self.upgraded.borrow_mut() = Some((down, up, active));
            return Ok((response, None));
        }
        headers::remove_hop_by_hop(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        Ok((response, Some(active)))
    }
}
