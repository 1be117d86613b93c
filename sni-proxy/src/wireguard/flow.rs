//! One client on one route: which server it goes to, and what it may be sent.
//!
//! ```text
//!     route ─▶ cluster: endpoint, kept while it is healthy and answers handshakes
//!     handshakes heard ─▶ credit ─▶ handshake answers        data heard ─▶ data
//! ```
//!
//! An address may be a lie until its server has answered it, which servers do only for those whose
//! datagrams they could open; only then is the flow a connection that is counted and logged. No
//! address is sent more bytes of handshakes than came in handshakes from it, and no data before any
//! was heard. Opens nothing itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use relay::{Direction, Meter};
use route::{
    Cluster, Endpoint, EndpointAddress, EndpointState, Matches, PickContext, Route, WireGuardMatch,
};
use serve::{ConnRecord, FlowRecord, NameSet, RelayRecord};
use tunnel_proto::datagram::{Header, Kind};
use tunnel_proto::{TokenBucket, network};

use super::flows::Holder;

/// Handshakes of a proven flow at once, and then one a second; clients send one in 5 s.
const RENEWALS: u32 = 5;

/// How often a flow in use asks whether its endpoint still is the right one.
const CHECK: Duration = Duration::from_secs(1);

/// Handshake bytes that a client may be owed at most: a few answers under way.
const MAX_CREDIT: usize = 4096;

/// Sessions of a tunnel whose indices are remembered: the current one, the one before and the next.
const SESSIONS: usize = 3;

/// Keys of a route without a number that go with each of its flows to another process.
const MOVED_KEYS: usize = 4;

/// Endpoints tried for an address before a flow goes without.
const TRIES: usize = 8;

/// A client on a route.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) route: Arc<Route>,
    /// Once the server has answered.
    pub(super) record: Option<ConnRecord>,
    /// Bytes from and to the client before.
    early: [u64; 2],
    /// Of handshakes by which its sessions are renewed.
    renewals: TokenBucket,
    /// The endpoint's address, in use.
    pub(super) server: SocketAddr,
    /// The address of ours that the client sends to.
    pub(super) local: Option<IpAddr>,
    endpoint: Arc<Endpoint>,
    checked: Instant,
    /// A handshake has been without an answer since.
    asked: Option<Instant>,
    credit: usize,
    sent_data: bool,
    /// Indices that the server chose last.
    indices: [u32; SESSIONS],
}

/// What endpoints are chosen by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) names: &'a NameSet,
    pub(super) zone: Option<&'a str>,
    pub(super) client: IpAddr,
    pub(super) now: Instant,
    pub(super) random: u64,
}

impl Flow {
    /// Begins a flow to an endpoint that was chosen for it.
    pub(super) fn new(
        now: Instant,
        route: Arc<Route>,
        (endpoint, server): (Arc<Endpoint>, SocketAddr),
    ) -> Self {
        Self {
            route,
            record: None,
            early: [0; 2],
            renewals: TokenBucket::new(1, RENEWALS, now),
            server,
            local: None,
            endpoint,
            checked: now,
            asked: None,
            credit: 0,
            sent_data: false,
            indices: [0; SESSIONS],
        }
    }

    /// Describes the flow for another process.
    pub(super) fn describe(
        &self,
        now: Instant,
        listener: &str,
        client: SocketAddr,
        silent: Duration,
    ) -> FlowRecord {
        let to = (&**self.route.cluster().name(), self.server);
        let mut connection = match &self.record {
            Some(record) => record.info().to_record(),
            None => RelayRecord::of_claim(listener, client, to, self.early),
        };
        connection.idle_micros = micros(silent);
        let route_id = number(&self.route);
        let keys = if route_id.is_none() {
            // Any of them finds the route.
            let all = keys(&self.route);
            all.get(..MOVED_KEYS).unwrap_or(all)
        } else {
            &[]
        };
        let asked = self.asked.map(|since| now.saturating_duration_since(since));
        FlowRecord {
            connection,
            proven: self.record.is_some(),
            route_id,
            local: self.local,
            credit: u32::try_from(self.credit).unwrap_or(u32::MAX),
            sent_data: self.sent_data,
            asked_micros: asked.map(micros),
            indices: self.indices.to_vec(),
            public_keys: keys.to_vec(),
        }
    }

    /// Goes on with a flow of another process.
    pub(super) fn adopt(
        now: Instant,
        route: Arc<Route>,
        (endpoint, server): (Arc<Endpoint>, SocketAddr),
        moved: &FlowRecord,
        record: Option<ConnRecord>,
    ) -> Self {
        let connection = &moved.connection;
        let mut early = [0; 2];
        match &record {
            Some(record) => record.set_endpoint(Arc::clone(&endpoint), server),
            None => early = [connection.rx_bytes, connection.tx_bytes],
        }
        let asked = moved.asked_micros.map(Duration::from_micros);
        let mut indices = [0; SESSIONS];
        for (own, index) in indices.iter_mut().zip(&moved.indices) {
            *own = *index;
        }
        Self {
            record,
            early,
            local: moved.local,
            asked: asked.map(|ago| now.checked_sub(ago).unwrap_or(now)),
            credit: (moved.credit as usize).min(MAX_CREDIT),
            sent_data: moved.sent_data,
            indices,
            ..Self::new(now, route, (endpoint, server))
        }
    }

    /// Counts the flow as a connection from now on.
    pub(super) fn record(&mut self, record: ConnRecord) {
        record.set_endpoint(Arc::clone(&self.endpoint), self.server);
        let [rx, tx] = self.early;
        record.info().relayed(Direction::Rx, rx, true);
        record.info().relayed(Direction::Tx, tx, true);
        self.record = Some(record);
    }

    /// Takes what one handshake costs of a proven flow, if there is as much.
    pub(super) fn may_renew(&mut self, now: Instant) -> bool {
        self.record.is_some() && self.renewals.take(now, 1)
    }

    /// Counts the bytes of a datagram.
    pub(super) fn relayed(&mut self, direction: Direction, bytes: usize) {
        match &self.record {
            Some(record) => record.info().relayed(direction, bytes as u64, true),
            None => self.early[direction as usize] += bytes as u64,
        }
    }

    /// Tells whether `receiver` is an index that the server of this flow chose.
    pub(super) fn is_known(&self, receiver: u32) -> bool {
        receiver != 0 && self.indices.contains(&receiver)
    }

    /// Notes what the client sends, and moves on to another endpoint where that is due.
    pub(super) fn heard(&mut self, header: &Header, bytes: usize, choice: &Choice<'_>) {
        match header.kind {
            Kind::Initiation => {
                self.credit = (self.credit + bytes).min(MAX_CREDIT);
                let since = *self.asked.get_or_insert(choice.now);
                let patience = self.route.cluster().settings().connect_timeout;
                if choice.now.saturating_duration_since(since) >= patience {
                    self.asked = Some(choice.now);
                    self.move_on(choice);
                }
            }
            Kind::Data => self.sent_data = true,
            Kind::CookieReply | Kind::Response => {}
        }
        if choice.now.saturating_duration_since(self.checked) >= CHECK {
            self.checked = choice.now;
            self.check(choice);
        }
    }

    /// Tells whether the client may be sent what the server answers, and counts it.
    pub(super) fn may_answer(&mut self, header: &Header, bytes: usize) -> bool {
        let may = match header.kind {
            Kind::Response | Kind::CookieReply => {
                let left = self.credit.checked_sub(bytes);
                self.credit = left.unwrap_or(self.credit);
                left.is_some()
            }
            Kind::Data | Kind::Initiation => self.sent_data,
        };
        if may {
            self.asked = None;
            if let (Kind::Response, Some(index)) = (header.kind, header.sender) {
                self.indices.rotate_right(1);
                self.indices[0] = index;
            }
        }
        may
    }

    /// Tells whether `sender` may answer: the server in use, or another of its cluster.
    pub(super) fn is_served_by(&self, sender: SocketAddr) -> bool {
        let endpoints = self.route.cluster().endpoints();
        sender == self.server
            || endpoints.iter().any(|endpoint| match endpoint.address() {
                EndpointAddress::Ip(address) => serve::unmapped(*address) == sender,
                EndpointAddress::Host { .. } => false,
            })
    }

    /// Goes on with the route of a new snapshot; false when it has no endpoint.
    pub(super) fn follow(&mut self, route: &Arc<Route>, choice: &Choice<'_>) -> bool {
        self.route = Arc::clone(route);
        let endpoints = route.cluster().endpoints();
        let same = endpoints
            .iter()
            .find(|endpoint| endpoint.address() == self.endpoint.address());
        if let Some(endpoint) = same {
            self.endpoint = Arc::clone(endpoint);
            self.checked = choice.now;
            self.check(choice);
            return true;
        }
        match choose(route.cluster(), choice, None) {
            Some(other) => {
                self.take(other);
                true
            }
            None => false,
        }
    }

    /// Keeps the endpoint if it is healthy and its name still has the address, or takes another.
    fn check(&mut self, choice: &Choice<'_>) {
        let healthy = self.endpoint.state(choice.now) == EndpointState::Healthy;
        let resolved = match self.endpoint.address() {
            EndpointAddress::Host { name, .. } => {
                let known = choice.names.known(name);
                known.is_empty() || known.iter().any(|ip| same_ip(*ip, self.server.ip()))
            }
            EndpointAddress::Ip(_) => true,
        };
        if !(healthy && resolved)
            && let Some(other) = choose(self.route.cluster(), choice, None)
        {
            self.take(other);
        }
    }

    /// Takes another endpoint, or another address of this one, because this one does not answer.
    fn move_on(&mut self, choice: &Choice<'_>) {
        let avoided = Some((&self.endpoint, self.server));
        if let Some(other) = choose(self.route.cluster(), choice, avoided) {
            tracing::debug!(from = %self.server, to = %other.1, "no answer to a handshake");
            self.take(other);
        }
    }

    fn take(&mut self, (endpoint, server): (Arc<Endpoint>, SocketAddr)) {
        if server != self.server || !Arc::ptr_eq(&endpoint, &self.endpoint) {
            if let Some(record) = &self.record {
                record.set_endpoint(Arc::clone(&endpoint), server);
            }
            (self.endpoint, self.server) = (endpoint, server);
        }
    }
}

/// Returns the servers that a route matches.
pub(super) fn servers(route: &Route) -> Option<&WireGuardMatch> {
    match route.matches() {
        Matches::WireGuard(servers) => Some(servers),
        Matches::ConnectDestinations(_)
        | Matches::Destinations { .. }
        | Matches::ServerNames(_) => None,
    }
}

/// Returns the number that datagrams of a route carry.
pub(super) fn number(route: &Route) -> Option<u32> {
    servers(route)?.route_id
}

/// Returns the keys that handshakes of a route can be checked by; there may be none.
pub(super) fn keys(route: &Route) -> &[[u8; 32]] {
    servers(route).map_or(&[], |servers| &*servers.public_keys)
}

/// Returns what a flow counts for: its route by its number, else by a key; the client's network.
pub(super) fn holder(route: &Route, client: IpAddr) -> Holder {
    let key = keys(route).first().and_then(|key| key.first_chunk());
    let key = key.copied().map_or(0, u64::from_be_bytes);
    Holder {
        route: number(route).map_or(key, u64::from),
        network: network(client),
    }
}

/// Chooses an endpoint that has an address; another than `avoided` if there is one.
pub(super) fn choose(
    cluster: &Cluster,
    choice: &Choice<'_>,
    avoided: Option<(&Arc<Endpoint>, SocketAddr)>,
) -> Option<(Arc<Endpoint>, SocketAddr)> {
    let mut tried: Vec<Arc<Endpoint>> = Vec::new();
    if let Some((endpoint, server)) = avoided {
        if let Some(other) = address(endpoint, choice, Some(server)) {
            return Some((Arc::clone(endpoint), other));
        }
        tried.push(Arc::clone(endpoint));
    }
    for _ in 0..TRIES {
        let endpoint = cluster.pick(&PickContext {
            source: choice.client,
            zone: choice.zone,
            now: choice.now,
            random: choice.random,
            tried: &tried,
        })?;
        if let Some(server) = address(endpoint, choice, None) {
            return Some((Arc::clone(endpoint), server));
        }
        tried.push(Arc::clone(endpoint));
    }
    None
}

/// Returns an address of an endpoint, but not `avoided`.
fn address(
    endpoint: &Endpoint,
    choice: &Choice<'_>,
    avoided: Option<SocketAddr>,
) -> Option<SocketAddr> {
    match endpoint.address() {
        EndpointAddress::Ip(address) => {
            Some(serve::unmapped(*address)).filter(|address| Some(*address) != avoided)
        }
        EndpointAddress::Host { name, port } => {
            let known = choice.names.known(name);
            let addresses = known
                .iter()
                .map(|ip| SocketAddr::new(ip.to_canonical(), *port));
            let addresses = addresses.filter(|address| Some(*address) != avoided);
            let turn = usize::try_from(choice.random % known.len().max(1) as u64).unwrap_or(0);
            let (mut all, mut again) = (addresses.clone().skip(turn), addresses);
            all.next().or_else(|| again.next())
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn same_ip(left: IpAddr, right: IpAddr) -> bool {
    left.to_canonical() == right.to_canonical()
}
