//! The record of one connection: peer, destination, bytes, and why it ended.
//!
//! One guard owns every counter that a connection moves and its line in the access log, so all of
//! them are right exactly once, also when the task is canceled or panics. It lives as long as the
//! connection and is what `/connections` shows; addresses and names appear only here.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use relay::{Direction, Meter};
use route::{Cluster, Endpoint, EndpointAddress, Route};
use serde_json::{Value, json};
use telemetry::access_log::{AccessLog, AccessRecord, RequestRecord};
use tokio::time::Instant;

use crate::admission::{Admission, Permit, SourcePermit};
use crate::connections::Connections;
use crate::handover::{HalfRecord, RelayRecord, micros};
use crate::metrics::ListenerMetrics;
use crate::reason::Reason;

/// What the connections of one listener share on one worker.
#[derive(Debug)]
pub struct ListenerContext {
    /// Name in logs and metrics.
    pub name: Arc<str>,
    /// Protocol as the configuration names it.
    pub protocol: &'static str,
    /// The listener's series.
    pub metrics: ListenerMetrics,
    /// Where connections are logged.
    pub access_log: AccessLog,
}

/// A connection's properties; filled in as its preamble is read.
#[derive(Debug)]
pub struct ConnInfo {
    listener: Rc<ListenerContext>,
    started: Instant,
    peer: SocketAddr,
    client: Cell<SocketAddr>,
    destination: Cell<Option<SocketAddr>>,
    endpoint_addr: Cell<Option<SocketAddr>>,
    server_name: OnceCell<Box<str>>,
    alpn: OnceCell<Box<str>>,
    connect: OnceCell<Box<str>>,
    route: OnceCell<Arc<Route>>,
    endpoint: RefCell<Option<Arc<Endpoint>>>,
    /// Counted on the route's cluster.
    acquired: Cell<bool>,
    /// Goes on in another process.
    moved: Cell<bool>,
    rx: Cell<u64>,
    tx: Cell<u64>,
    reason: Cell<Option<Reason>>,
    permit: RefCell<Option<Permit>>,
    source_permit: RefCell<Option<SourcePermit>>,
    detail: OnceCell<Weak<dyn Detail>>,
}

/// Bytes that are kept of a text that a client sent: it lives as long as the connection, and goes into its line
/// in the access log, where a byte may be written as six, and into messages to another process.
const TEXT: usize = 512;

/// What is known of a connection that is served here instead of being relayed.
pub trait Detail: fmt::Debug {
    /// Describes it for `/connections`.
    fn to_json(&self) -> Value;
}

/// The guard of a connection; dropping it ends the record.
#[derive(Debug)]
pub struct ConnRecord {
    info: Rc<ConnInfo>,
    slot: Option<(Rc<Connections>, usize)>,
}

impl ConnRecord {
    /// Opens the record of a connection that was just accepted.
    #[must_use]
    pub fn open(listener: &Rc<ListenerContext>, peer: SocketAddr, permit: Option<Permit>) -> Self {
        listener.metrics.connections.inc();
        Self::new(listener, peer, permit)
    }

    fn new(listener: &Rc<ListenerContext>, peer: SocketAddr, permit: Option<Permit>) -> Self {
        listener.metrics.active.inc();
        let info = ConnInfo {
            listener: Rc::clone(listener),
            started: Instant::now(),
            peer,
            client: Cell::new(peer),
            destination: Cell::new(None),
            endpoint_addr: Cell::new(None),
            server_name: OnceCell::new(),
            alpn: OnceCell::new(),
            connect: OnceCell::new(),
            route: OnceCell::new(),
            endpoint: RefCell::new(None),
            acquired: Cell::new(false),
            moved: Cell::new(false),
            rx: Cell::new(0),
            tx: Cell::new(0),
            reason: Cell::new(None),
            permit: RefCell::new(permit),
            source_permit: RefCell::new(None),
            detail: OnceCell::new(),
        };
        Self {
            info: Rc::new(info),
            slot: None,
        }
    }

    /// Opens the record of a connection that another process accepted: it counts as one that is open, whatever
    /// the limits, not as one that was accepted.
    #[must_use]
    pub fn adopt(
        listener: &Rc<ListenerContext>,
        relay: &RelayRecord,
        route: Option<&Arc<Route>>,
        admission: &Arc<Admission>,
    ) -> Self {
        let client = relay.client;
        let mut record = Self::new(listener, relay.peer, Some(admission.permit_beyond()));
        record.hold(admission.source_permit_beyond(client.ip()));
        if let Some(info) = Rc::get_mut(&mut record.info) {
            let age = Duration::from_micros(relay.age_micros);
            let now = Instant::now();
            info.started = now.checked_sub(age).unwrap_or(now);
        }
        let info = &record.info;
        info.client.set(client);
        info.destination.set(relay.destination);
        info.endpoint_addr.set(relay.endpoint);
        info.rx.set(relay.rx_bytes);
        info.tx.set(relay.tx_bytes);
        let cells = [
            (&info.server_name, &relay.server_name),
            (&info.alpn, &relay.alpn),
            (&info.connect, &relay.connect),
        ];
        for (cell, text) in cells {
            if let Some(text) = text {
                let _ = cell.set(begin(text).into());
            }
        }
        if let Some(route) = route {
            let cluster = route.cluster();
            cluster.acquire();
            info.acquired.set(true);
            if let Some(endpoint) = relay.endpoint.and_then(|at| endpoint_at(cluster, at)) {
                endpoint.begin();
                info.endpoint.replace(Some(Arc::clone(endpoint)));
            }
            record.set_route(Arc::clone(route));
        }
        record
    }

    /// Ends the record of a connection that goes on in another process, without a word.
    pub fn moved(self) {
        self.info.moved.set(true);
    }

    /// Returns its number in the list it is in.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.slot.as_ref().map(|(_, index)| *index)
    }

    /// Ties the connection's slot in a list to the record.
    pub(crate) fn in_slot(mut self, slots: Rc<Connections>, index: usize) -> Self {
        self.slot = Some((slots, index));
        self
    }

    /// Returns what the connection list shows while the connection lives.
    pub fn info(&self) -> &Rc<ConnInfo> {
        &self.info
    }

    /// Opens the record of a connection that was just accepted; at the limit it ends at once, and there is
    /// nothing to serve.
    #[must_use]
    pub fn admit(
        listener: &Rc<ListenerContext>,
        peer: SocketAddr,
        admission: &Arc<Admission>,
    ) -> Option<Self> {
        let permit = admission.permit();
        let admitted = permit.is_some();
        let record = Self::open(listener, peer, permit);
        if !admitted {
            record.close(Reason::Limit);
            return None;
        }
        Some(record)
    }

    /// Counts the connection among the client's; at the client's limit it ends, and there is nothing to serve.
    #[must_use]
    pub fn admit_client(self, client: IpAddr, admission: &Arc<Admission>) -> Option<Self> {
        let Some(permit) = admission.source_permit(client) else {
            self.close(Reason::SourceLimit);
            return None;
        };
        self.hold(permit);
        Some(self)
    }

    /// Ends the record with its reason.
    pub fn close(self, reason: Reason) {
        self.info.reason.set(Some(reason));
    }

    /// Sets the client's address where it differs from the peer's.
    pub fn set_client(&self, client: SocketAddr) {
        self.info.client.set(client);
    }

    /// Keeps the client's permit for as long as the connection lives.
    pub fn hold(&self, permit: SourcePermit) {
        *self.info.source_permit.borrow_mut() = Some(permit);
    }

    /// Sets the server name as it came from the wire; its begin, if it is long.
    pub fn set_server_name(&self, name: &str) {
        let _ = self.info.server_name.set(begin(name).into());
    }

    /// Sets the offered application protocols, comma-separated; only where they are logged, and the begin of a
    /// long list.
    pub fn set_alpn(&self, alpn: &str) {
        let _ = self.info.alpn.set(begin(alpn).into());
    }

    /// Sets the destination that a node proxy's header carried.
    pub fn set_destination(&self, destination: SocketAddr) {
        self.info.destination.set(Some(destination));
    }

    /// Sets the value of the header that names a CONNECT request's destination; its begin, if it is long.
    pub fn set_connect(&self, value: &str) {
        let _ = self.info.connect.set(begin(value).into());
    }

    /// Sets the route, admitted or not.
    pub fn set_route(&self, route: Arc<Route>) {
        debug_assert!(
            self.info.route.get().is_none(),
            "a connection has one route"
        );
        let _ = self.info.route.set(route);
    }

    /// Counts the connection on its route's cluster; false if the cluster is at its limit.
    #[must_use]
    pub fn acquire_cluster(&self) -> bool {
        let acquired = self
            .info
            .route
            .get()
            .is_some_and(|route| route.cluster().try_acquire());
        self.info.acquired.set(acquired);
        acquired
    }

    /// Sets the endpoint and counts the connection on it, and no longer on the one before; a TCP
    /// connection keeps its endpoint, a flow of datagrams may move to another.
    pub fn set_endpoint(&self, endpoint: Arc<Endpoint>, addr: SocketAddr) {
        endpoint.begin();
        if let Some(before) = self.info.endpoint.replace(Some(endpoint)) {
            before.end();
        }
        self.info.endpoint_addr.set(Some(addr));
    }

    /// Sets the connected address where no cluster has an endpoint for it.
    pub fn set_endpoint_address(&self, addr: SocketAddr) {
        self.info.endpoint_addr.set(Some(addr));
    }

    /// Adds what serves the connection to its description, for as long as that lives.
    pub fn set_detail(&self, detail: Weak<dyn Detail>) {
        let _ = self.info.detail.set(detail);
    }

    /// Counts the bytes of a preamble that were sent to the upstream.
    pub fn forwarded(&self, bytes: usize) {
        self.info.relayed(Direction::Rx, bytes as u64, true);
    }
}

impl Drop for ConnRecord {
    fn drop(&mut self) {
        let info = &self.info;
        // No reason: the task was canceled, which draining does, or it panicked.
        let fallback = if std::thread::panicking() {
            Reason::Internal
        } else {
            Reason::Drained
        };
        let reason = info.reason.get().unwrap_or(fallback);
        let listener = &info.listener;
        listener.metrics.active.dec();
        let moved = info.moved.get();
        if !moved {
            listener.metrics.closed(&listener.name, reason);
        }
        if info.acquired.get()
            && let Some(route) = info.route.get()
        {
            route.cluster().release();
        }
        if let Some(endpoint) = info.endpoint.take() {
            endpoint.end();
        }
        drop(info.permit.take());
        drop(info.source_permit.take());
        if !moved && listener.access_log.is_on() {
            listener.access_log.write(&info.access_record(reason));
        }
        if let Some((slots, index)) = self.slot.take() {
            slots.free(index);
        }
    }
}

impl ConnInfo {
    fn access_record(&self, reason: Reason) -> AccessRecord<'_> {
        let duration = self.started.elapsed();
        AccessRecord {
            time: SystemTime::now(),
            listener: &self.listener.name,
            protocol: self.listener.protocol,
            peer: self.peer,
            client: self.client.get(),
            server_name: text(&self.server_name),
            alpn: text(&self.alpn),
            destination: self.destination.get(),
            connect: text(&self.connect),
            cluster: self.cluster(),
            endpoint: self.endpoint_addr.get(),
            rx_bytes: self.rx.get(),
            tx_bytes: self.tx.get(),
            duration,
            reason: reason.as_str(),
        }
    }

    /// Describes the connection for another process.
    pub fn to_record(&self) -> RelayRecord {
        let owned = |cell| text(cell).map(str::to_owned);
        RelayRecord {
            listener: self.listener.name.as_ref().to_owned(),
            peer: self.peer,
            client: self.client.get(),
            destination: self.destination.get(),
            endpoint: self.endpoint_addr.get(),
            server_name: owned(&self.server_name),
            alpn: owned(&self.alpn),
            connect: owned(&self.connect),
            cluster: self.cluster().map(str::to_owned),
            age_micros: micros(self.started.elapsed()),
            rx_bytes: self.rx.get(),
            tx_bytes: self.tx.get(),
            idle_micros: 0,
            rx: HalfRecord::default(),
            tx: HalfRecord::default(),
        }
    }

    /// Describes the connection for `/connections`; bytes are those relayed so far, the age counts
    /// from when it was accepted.
    pub(crate) fn to_json(&self) -> Value {
        let mut value = json!({
            "listener": &*self.listener.name,
            "peer": self.peer,
            "client": self.client.get(),
            "serverName": text(&self.server_name),
            "destination": self.destination.get(),
            "connect": text(&self.connect),
            "cluster": self.cluster(),
            "endpoint": self.endpoint_addr.get(),
            "rxBytes": self.rx.get(),
            "txBytes": self.tx.get(),
            "ageSeconds": self.started.elapsed().as_secs_f64(),
        });
        if let Some(detail) = self.detail.get().and_then(Weak::upgrade) {
            value["terminated"] = detail.to_json();
        }
        value
    }

    /// Writes the line of a request of this connection, which has these properties as well.
    pub fn log_request(&self, request: RequestRecord<'_>) {
        self.listener.access_log.write_request(&RequestRecord {
            listener: &self.listener.name,
            client: self.client.get(),
            server_name: text(&self.server_name),
            cluster: self.cluster(),
            ..request
        });
    }

    /// Returns its route, once it is known.
    pub fn route(&self) -> Option<&Arc<Route>> {
        self.route.get()
    }

    /// Returns the time since it was accepted.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the name of its listener.
    pub fn listener(&self) -> &str {
        &self.listener.name
    }

    /// Returns the address of the TCP peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the client's address.
    pub fn client(&self) -> SocketAddr {
        self.client.get()
    }

    fn cluster(&self) -> Option<&str> {
        let route = self.route.get()?;
        Some(route.cluster().name())
    }
}

/// Returns the endpoint with an address, or the first with a name whose address it can be.
pub fn endpoint_at(cluster: &Cluster, at: SocketAddr) -> Option<&Arc<Endpoint>> {
    let is = |endpoint: &&Arc<Endpoint>| *endpoint.address() == EndpointAddress::Ip(at);
    let may_be = |endpoint: &&Arc<Endpoint>| {
        let address = endpoint.address();
        address.host_name().is_some() && address.port() == at.port()
    };
    let all = || cluster.endpoints().iter();
    all().find(is).or_else(|| all().find(may_be))
}

fn text(cell: &OnceCell<Box<str>>) -> Option<&str> {
    cell.get().map(AsRef::as_ref)
}

/// Returns what is kept of a text.
fn begin(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}

impl Meter for ConnInfo {
    fn relayed(&self, direction: Direction, bytes: u64, copied: bool) {
        let metrics = &self.listener.metrics;
        let (cell, counter) = match direction {
            Direction::Rx => (&self.rx, &metrics.rx),
            Direction::Tx => (&self.tx, &metrics.tx),
        };
        cell.set(cell.get() + bytes);
        counter.add(bytes);
        if copied {
            metrics.copied.add(bytes);
        }
    }
}
