//! The requests of one client's connection that have not ended.
//!
//! ```text
//!     request ─▶ Open ─▶ counted, listed ─▶ answered ─▶ dropped: timed
//!                 └─ none for idleTimeout: the connection ends
//! ```
//!
//! Describes them for `/connections` and logs them, never by a header's value. Belongs to one thread; [`RequestCount`] alone is seen from below, by the stream that the requests come from.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use http::{Method, Request, StatusCode, Uri};
use relay::{Direction, Meter};
use route::Endpoint;
use serde_json::{Value, json};
use serve::{ConnInfo, Detail};
use slab::Slab;
use telemetry::access_log::RequestRecord;
use tokio::time::Instant;

use super::metrics::{Protocol, WorkerStats};

/// How much later than its limit a request is cut, so that one without an answer is told so first.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Bytes of a path that are kept.
const PATH_BYTES: usize = 120;
/// Requests of one connection that are described.
const MAX_DESCRIBED: usize = 10;

/// How many requests of a connection have begun and ended; both wrap.
#[derive(Debug, Default)]
pub(crate) struct RequestCount {
    begun: AtomicU32,
    ended: AtomicU32,
    upgraded: AtomicBool,
}

impl RequestCount {
    pub(crate) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.begun() == self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// Returns whether what passes is no longer HTTP.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }
}

/// The open requests of one connection.
#[derive(Debug)]
pub(crate) struct Exchanges {
    protocol: Protocol,
    pub(crate) stats: Rc<WorkerStats>,
    pub(crate) count: Arc<RequestCount>,
    open: RefCell<Slab<Rc<Exchange>>>,
    /// Where each request is logged.
    log: Option<Rc<ConnInfo>>,
    /// Since when no request is open.
    idle_since: Cell<Instant>,
}

/// One request with its answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    method: Method,
    path: Path,
    endpoint: RefCell<Option<Arc<Endpoint>>>,
    started: Instant,
    /// A watch, or upgraded: it lasts as long as its client likes.
    long_running: Cell<bool>,
    status: Cell<Option<StatusCode>>,
    rx: Cell<u64>,
    tx: Cell<u64>,
    /// What its client is told whose body has not come as a whole.
    fault: Cell<Option<StatusCode>>,
}

/// How long a connection, and what passes on it, may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The connection without a request.
    pub(crate) idle: Option<Duration>,
    /// A request, where one follows the other.
    pub(crate) request: Duration,
    /// When the connection ends.
    pub(crate) deadline: Option<Instant>,
}

/// Why the requests of a connection end it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    /// The connection has lasted as long as it may.
    Aged,
    /// There is none for longer than there may be.
    Idle,
    /// One takes longer than it may.
    Overdue,
}

impl Exchanges {
    /// Makes it without requests; where there is a `log`, each is logged there.
    pub(crate) fn new(
        protocol: Protocol,
        stats: &Rc<WorkerStats>,
        log: Option<Rc<ConnInfo>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            log,
            protocol,
            stats: Rc::clone(stats),
            count: Arc::default(),
            open: RefCell::default(),
            idle_since: Cell::new(Instant::now()),
        })
    }

    /// Opens the record of a request whose head has come.
    pub(crate) fn begin<B>(self: &Rc<Self>, request: &Request<B>) -> Open {
        let exchange = Rc::new(Exchange {
            method: request.method().clone(),
            path: Path::new(request.uri().path()),
            endpoint: RefCell::default(),
            started: Instant::now(),
            long_running: Cell::new(is_watch(request.uri())),
            status: Cell::new(None),
            rx: Cell::new(0),
            tx: Cell::new(0),
            fault: Cell::new(None),
        });
        self.count.begin();
        self.stats.active.inc();
        let key = self.open.borrow_mut().insert(Rc::clone(&exchange));
        Open {
            exchange,
            key,
            of: Rc::clone(self),
        }
    }

    /// Waits until one of `limits` is reached. Cancel-safe.
    #[expect(clippy::manual_async_fn, reason = "that would hold the limits twice")]
    pub(crate) fn ending(&self, limits: Limits) -> impl Future<Output = Ending> {
        async move {
            loop {
                let now = Instant::now();
                if limits.deadline.is_some_and(|deadline| deadline <= now) {
                    return Ending::Aged;
                }
                // One that begins later ends later than this.
                let longest = limits.request + GRACE;
                let mut next = (self.protocol == Protocol::Http1).then(|| now + longest);
                match (self.first_started(), limits.idle) {
                    (Some(first), _) if self.protocol == Protocol::Http1 => {
                        let until = first + longest;
                        if until <= now {
                            return Ending::Overdue;
                        }
                        next = Some(until);
                    }
                    (None, Some(idle)) => {
                        let until = self.idle_since.get() + idle;
                        if until <= now {
                            return Ending::Idle;
                        }
                        next = Some(next.map_or(until, |next| next.min(until)));
                    }
                    (Some(_), Some(idle)) => next = Some(now + idle),
                    (_, None) => {}
                }
                match next.into_iter().chain(limits.deadline).min() {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            }
        }
    }

    fn first_started(&self) -> Option<Instant> {
        let open = self.open.borrow();
        open.iter().map(|(_, own)| own.started).min()
    }
}

/// A request that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    exchange: Rc<Exchange>,
    key: usize,
    of: Rc<Exchanges>,
}

impl Open {
    pub(crate) fn exchange(&self) -> &Rc<Exchange> {
        &self.exchange
    }

    /// The last of its connection: it lasts as long as its client likes.
    pub(crate) fn set_upgraded(&self) {
        self.exchange.long_running.set(true);
        self.of.count.set_upgraded();
    }

    /// Counts what it is answered.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.exchange.status.set(Some(status));
        self.of.stats.answered(self.of.protocol, status);
    }
}

impl Deref for Open {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.exchange
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let now = Instant::now();
        let (of, exchange) = (&self.of, &self.exchange);
        of.stats.active.dec();
        of.count.end();
        if exchange.status.get().is_some() && !exchange.long_running.get() {
            of.stats.seconds.observe_duration(now - exchange.started);
        }
        if let Some(log) = &of.log {
            exchange.log(of.protocol, log, now - exchange.started);
        }
        let mut open = of.open.borrow_mut();
        drop(open.try_remove(self.key));
        if open.is_empty() {
            of.idle_since.set(now);
        }
    }
}

impl Exchange {
    pub(crate) fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn set_endpoint(&self, endpoint: &Arc<Endpoint>) {
        *self.endpoint.borrow_mut() = Some(Arc::clone(endpoint));
    }

    pub(crate) fn set_fault(&self, status: StatusCode) {
        self.fault.set(Some(status));
    }

    pub(crate) fn fault(&self) -> Option<StatusCode> {
        self.fault.get()
    }

    fn endpoint(&self) -> Option<String> {
        let endpoint = self.endpoint.borrow();
        endpoint.as_ref().map(|own| own.address().to_string())
    }

    fn log(&self, protocol: Protocol, log: &ConnInfo, duration: Duration) {
        let endpoint = self.endpoint();
        log.log_request(RequestRecord {
            time: SystemTime::now(),
            listener: "",
            protocol: protocol.as_str(),
            client: log.client(),
            server_name: None,
            cluster: None,
            endpoint: endpoint.as_deref(),
            method: self.method.as_str(),
            path: self.path.as_str(),
            status: self.status.get().map(|status| status.as_u16()),
            rx_bytes: self.rx.get(),
            tx_bytes: self.tx.get(),
            duration,
        });
    }

    fn to_json(&self) -> Value {
        json!({
            "method": self.method.as_str(),
            "path": self.path.as_str(),
            "endpoint": self.endpoint(),
            "status": self.status.get().map(|status| status.as_u16()),
            "rxBytes": self.rx.get(),
            "txBytes": self.tx.get(),
            "ageSeconds": self.started.elapsed().as_secs_f64(),
        })
    }
}

impl Detail for Exchanges {
    fn to_json(&self) -> Value {
        let open = self.open.borrow();
        let first = open.iter().take(MAX_DESCRIBED);
        json!({
            "protocol": self.protocol.as_str(),
            "requests": open.len(),
            "open": first.map(|(_, own)| own.to_json()).collect::<Vec<_>>(),
        })
    }
}

/// The begin of a path, without its query.
#[derive(Debug)]
struct Path {
    bytes: [u8; PATH_BYTES],
    len: u8,
}

impl Path {
    fn new(path: &str) -> Self {
        let text = &path[..path.floor_char_boundary(PATH_BYTES)];
        let mut bytes = [0; PATH_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let len = text.len() as u8;
        Self { bytes, len }
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl Meter for Exchange {
    fn relayed(&self, direction: Direction, bytes: u64, _: bool) {
        let total = match direction {
            Direction::Rx => &self.rx,
            Direction::Tx => &self.tx,
        };
        total.set(total.get() + bytes);
    }
}

/// Returns whether a request asks for events until it is ended, as API servers read it: `watch`, or `follow` of
/// logs, or the older paths.
fn is_watch(uri: &Uri) -> bool {
    let is_set = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        matches!(name, "watch" | "follow") && value != "0" && !value.eq_ignore_ascii_case("false")
    };
    if uri
        .query()
        .is_some_and(|query| query.split('&').any(is_set))
    {
        return true;
    }
    let mut path = uri.path().split('/').skip(1);
    let version = match path.next() {
        Some("api") => path.nth(1),
        Some("apis") => path.nth(2),
        _ => None,
    };
    version == Some("watch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_is_told_by_query_and_path() {
        for (uri, watch) in [
            ("/api/v1/pods?watch=true", true),
            ("/api/v1/pods?limit=1&watch=1", true),
            ("/api/v1/pods?watch", true),
            ("/api/v1/namespaces/a/pods/b/log?follow=true", true),
            ("/api/v1/watch/pods", true),
            ("/apis/apps/v1/watch/deployments", true),
            ("/api/v1/pods?watch=false", false),
            ("/api/v1/pods?watch=0", false),
            ("/api/v1/pods?labelSelector=watch%3Dtrue", false),
            ("/api/v1/namespaces/watch/pods", false),
            ("/apis/watch", false),
            ("/", false),
        ] {
            assert_eq!(is_watch(&uri.parse().unwrap()), watch, "{uri}");
        }
    }

    #[test]
    fn path_is_cut_at_a_character() {
        let long = format!("/{}", "\u{e9}".repeat(PATH_BYTES));
        let path = Path::new(&long);
        assert_eq!(path.as_str().len(), PATH_BYTES - 1);
        assert!(long.starts_with(path.as_str()));
        assert_eq!(Path::new("/api").as_str(), "/api");
    }

    fn request() -> Request<()> {
        Request::new(())
    }

    fn limits(idle: Option<Duration>, request: Duration) -> Limits {
        Limits {
            idle,
            request,
            deadline: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_requests_ends_after_its_limit() {
        let idle = Duration::from_secs(90);
        let limits = limits(Some(idle), Duration::from_secs(3600));
        for protocol in Protocol::ALL {
            let exchanges = Exchanges::new(protocol, &WorkerStats::detached(), None);
            let began = Instant::now();
            let open = exchanges.begin(&request());
            let while_open = Duration::from_secs(300);
            let ended = tokio::time::timeout(while_open, exchanges.ending(limits)).await;
            assert!(ended.is_err(), "{protocol:?}: a request is open");
            drop(open);
            assert_eq!(exchanges.ending(limits).await, Ending::Idle);
            assert_eq!(began.elapsed(), while_open + idle);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_ends_at_its_deadline_whatever_it_does() {
        for protocol in Protocol::ALL {
            let exchanges = Exchanges::new(protocol, &WorkerStats::detached(), None);
            let age = Duration::from_secs(30);
            let idle = Some(Duration::from_secs(90));
            let limits = Limits {
                deadline: Some(Instant::now() + age),
                ..limits(idle, Duration::from_secs(3600))
            };
            let (began, _open) = (Instant::now(), exchanges.begin(&request()));
            assert_eq!(exchanges.ending(limits).await, Ending::Aged);
            assert_eq!(began.elapsed(), age);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_a_request_for_too_long_is_overdue() {
        let limit = Duration::from_secs(60);
        let exchanges = Exchanges::new(Protocol::Http1, &WorkerStats::detached(), None);
        let began = Instant::now();
        for idle in [None, Some(limit / 10)] {
            let open = exchanges.begin(&request());
            let began = Instant::now();
            assert_eq!(exchanges.ending(limits(idle, limit)).await, Ending::Overdue);
            assert_eq!(began.elapsed(), limit + GRACE);
            drop(open);
        }
        assert_eq!(began.elapsed(), (limit + GRACE) * 2);
    }
}
