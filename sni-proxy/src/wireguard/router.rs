//! Where each datagram goes: the decisions of one listener on one worker.
//!
//! ```text
//!     client ─▶ flow? ── no ──▶ route id │ receiver's index │ mac1 (scanner) ─▶ route ─▶ new flow
//!                └─ yes ──▶ its server, wrapped
//!     server ─▶ wrapped for client ─▶ a flow of that client to that server ─▶ client
//! ```
//!
//! Holds the flows and moves their counters, but no socket: datagrams come as bytes, and what to
//! do with them goes back as addresses. No datagram changes where a flow's answers go, since a
//! flow is an address: whether a client has moved is for its server to decide.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use relay::Direction;
use route::{Cluster, Route, Snapshot};
use serve::{ConnRecord, Reason};
use tunnel_proto::SourceBuckets;
use tunnel_proto::datagram::{self, Header, Kind};
use tunnel_proto::mac1::Mac1Key;
use tunnel_proto::wrapped;

mod moving;

use super::dropped::Dropped;
use super::flow::{Choice, Flow, choose, holder, keys, number, servers};
use super::flows::{FlowId, FlowTable, Standing};
use super::metrics::ListenerMetrics;
use crate::config::WireGuardLimits;
use crate::routing::Published;
use crate::worker::{Listener, Worker};

/// Flows of one client address at most: one for each server that it speaks with.
const MAX_PER_CLIENT: usize = 64;

/// Of its proven flows, those whose keys are tried for a handshake that names no route.
const MAX_TRIED: usize = 4;

/// Keys tried for a token: about a sixteenth of what a new flow costs.
const KEYS_PER_TOKEN: u32 = 16;

/// Proven flows that there may be for each fresh one. Few are fresh for longer than their server
/// takes to answer.
const PROVEN_PER_FRESH: usize = 4;

/// What becomes of a client's datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes to this server.
    Forward(SocketAddr),
    /// Keys have to be tried first.
    Scan,
}

/// What becomes of a server's datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    pub(super) client: SocketAddr,
    /// The address of ours that the client knows.
    pub(super) local: Option<IpAddr>,
    pub(super) datagram: &'a [u8],
}

/// The flows of one listener on one worker, and what they are routed by.
#[derive(Debug)]
pub(super) struct Router {
    worker: Rc<Worker>,
    listener: Rc<Listener>,
    pub(super) metrics: ListenerMetrics,
    published: Arc<Published>,
    flows: FlowTable<Flow>,
    /// How many of each standing there may be.
    places: [usize; 2],
    limits: WireGuardLimits,
    /// Keys that handshakes were checked by.
    keys: HashMap<[u8; 32], Mac1Key>,
    /// Of keys to be tried.
    trials: SourceBuckets,
    /// Of handshakes whose sender knows the server's key.
    handshakes: SourceBuckets,
    /// Of everything else that belongs to no proven flow.
    strangers: SourceBuckets,
    /// Begins no flow.
    pub(super) refusing: bool,
}

impl Router {
    pub(super) fn new(worker: &Rc<Worker>, listener: &Rc<Listener>, now: Instant) -> Self {
        let config = &worker.shared.config;
        let limits = config.wireguard;
        let tables = worker.flow_tables.max(1);
        let proven = usize::try_from(limits.flows).unwrap_or(usize::MAX) / tables;
        let secret = RandomState::new();
        let buckets = |which: u8, times: u32| {
            SourceBuckets::new(
                limits.source_rate.saturating_mul(times),
                limits.source_burst.saturating_mul(times),
                usize::try_from(limits.source_slots).unwrap_or(usize::MAX),
                secret.hash_one(which),
                now,
            )
        };
        Self {
            metrics: worker.shared.wireguard.listener(&listener.config.name),
            published: worker.shared.routing.current(),
            flows: FlowTable::new(),
            places: [proven / PROVEN_PER_FRESH, proven].map(|places| places.max(1)),
            limits,
            keys: HashMap::new(),
            trials: buckets(0, KEYS_PER_TOKEN),
            handshakes: buckets(1, 1),
            strangers: buckets(2, 1),
            refusing: false,
            worker: Rc::clone(worker),
            listener: Rc::clone(listener),
        }
    }

    /// Returns the name of its listener.
    pub(super) fn listener_name(&self) -> &str {
        &self.listener.config.name
    }

    /// Decides about a client's datagram, whose reserved bytes are zero afterwards.
    pub(super) fn client_sent(
        &mut self,
        now: Instant,
        (client, local): (SocketAddr, Option<IpAddr>),
        datagram: &mut [u8],
    ) -> Result<Verdict, Dropped> {
        let header = Header::parse(datagram)?;
        if datagram.len() > datagram::MAX_LEN - wrapped::HEADER_LEN {
            return Err(Dropped::BadSize);
        }
        let wanted = header.destination()?.map(datagram::RouteId::get);
        let id = match self.find(now, client, &header, wanted, datagram) {
            Some(id) => {
                self.admit_known(now, client, id, &header, datagram)?;
                id
            }
            None if self.refusing => return Err(Dropped::Draining),
            None => match wanted {
                Some(number) => self.admit_new(now, client, number, &header, datagram)?,
                None if header.kind == Kind::Initiation => {
                    self.pay(now, client, false)?;
                    return Ok(Verdict::Scan);
                }
                None => return Err(Dropped::UnknownRoute),
            },
        };
        self.forward(now, id, local, &header, datagram)
    }

    /// Goes on with a handshake whose route was found by its keys. The routes may have changed while
    /// they were tried, so it is the one of that match in effect now that counts.
    pub(super) fn found(
        &mut self,
        now: Instant,
        (client, local): (SocketAddr, Option<IpAddr>),
        route: &Arc<Route>,
        datagram: &mut [u8],
    ) -> Result<Verdict, Dropped> {
        self.follow(now);
        let published = Arc::clone(&self.published);
        let route = next(route, &published.snapshot).ok_or(Dropped::UnknownRoute)?;
        let header = Header::parse(datagram)?;
        let same = |flow: &Flow| servers(&flow.route) == servers(route);
        let known = self.flows.of(client).find(|(_, flow)| same(flow));
        let id = match known.map(|(id, _)| id) {
            Some(id) => id,
            None if self.refusing => return Err(Dropped::Draining),
            None if !route.serves(self.listener.index) => return Err(Dropped::UnknownRoute),
            None if !route.allows(client.ip()) => return Err(Dropped::SourceDenied),
            None => self.open(now, client, route)?,
        };
        self.forward(now, id, local, &header, datagram)
    }

    /// Decides about what came to the servers' port.
    pub(super) fn server_sent<'d>(
        &mut self,
        now: Instant,
        sender: SocketAddr,
        bytes: &'d [u8],
    ) -> Result<Answer<'d>, Dropped> {
        let wrapped::Wrapped { client, datagram } = wrapped::parse(bytes)?;
        let of_sender = |flow: &Flow| flow.is_served_by(sender);
        let flow = self.flows.of(client).find(|(_, flow)| of_sender(flow));
        let Some(id) = flow.map(|(id, _)| id) else {
            return Err(match self.flows.of(client).next() {
                Some(_) => Dropped::UnknownSender,
                None => Dropped::UnknownClient,
            });
        };
        if self.flows.silent(now, id) >= self.limits.flow_idle.0 {
            return Err(Dropped::UnknownClient);
        }
        let header = Header::parse(datagram)?;
        let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownClient)?;
        if !flow.may_answer(&header, datagram.len()) {
            return Err(Dropped::Unsolicited);
        }
        // Cookie replies go to all that know the server's public key.
        if flow.record.is_none() && matches!(header.kind, Kind::Data | Kind::Response) {
            self.prove(now, id)?;
        }
        let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownClient)?;
        flow.relayed(Direction::Tx, datagram.len());
        let local = flow.local;
        self.metrics.tx.inc();
        Ok(Answer {
            client,
            local,
            datagram,
        })
    }

    /// Ends the flows that have been silent for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        for id in self.flows.expired(now, self.limits.flow_idle.0) {
            self.end(id, Reason::IdleTimeout);
        }
    }

    /// Ends all flows.
    pub(super) fn end_all(&mut self, reason: Reason) {
        for id in self.flows.ids() {
            self.end(id, reason);
        }
    }

    /// Goes on by the routes in effect: flows stay whose route is still there.
    pub(super) fn follow(&mut self, now: Instant) {
        let current = self.worker.shared.routing.current();
        if Arc::ptr_eq(&current, &self.published) {
            return;
        }
        self.published = current;
        let published = Arc::clone(&self.published);
        let snapshot = &published.snapshot;
        self.keys
            .retain(|key, _| snapshot.by_public_key(key).is_some());
        for id in self.flows.ids() {
            let client = self.flows.client(id);
            let (Some(flow), Some(client)) = (self.flows.get_mut(id), client) else {
                continue;
            };
            let route =
                next(&flow.route, snapshot).filter(|route| route.serves(self.listener.index));
            let ended = match route {
                None => Some(Reason::UnknownDestination),
                Some(route) if !route.allows(client.ip()) => Some(Reason::SourceDenied),
                // Its next datagram begins a flow to the other cluster.
                Some(route) if route.cluster().name() != flow.route.cluster().name() => {
                    Some(Reason::Closed)
                }
                Some(route) => {
                    let choice = choice(&self.worker, &published, client.ip(), now);
                    (!flow.follow(route, &choice)).then_some(Reason::NoEndpoint)
                }
            };
            if let Some(reason) = ended {
                self.end(id, reason);
            }
        }
    }

    /// Finds the flow that a client's datagram belongs to.
    fn find(
        &mut self,
        now: Instant,
        client: SocketAddr,
        header: &Header,
        wanted: Option<u32>,
        datagram: &[u8],
    ) -> Option<FlowId> {
        if (header.route, header.receiver) == (None, None) {
            return self.find_by_key(now, client, datagram);
        }
        let belongs = |flow: &Flow| match (header.route, header.receiver) {
            (None, Some(receiver)) if number(&flow.route).is_none() => flow.is_known(receiver),
            (None | Some(_), _) => wanted.is_some() && number(&flow.route) == wanted,
        };
        let own = { self.flows.of(client) }.find(|(_, flow)| belongs(flow));
        own.map(|(id, _)| id)
    }

    /// Finds the flow of a handshake that names no route. Anyone can claim flows in a client's name,
    /// so only few and proven ones are tried; what they do not match is the scanner's.
    fn find_by_key(
        &mut self,
        now: Instant,
        client: SocketAddr,
        handshake: &[u8],
    ) -> Option<FlowId> {
        let proven = { self.flows.of(client) }.filter(|(_, flow)| flow.record.is_some());
        let proven = proven.map(|(id, flow)| (id, Arc::clone(&flow.route)));
        for (id, route) in proven.take(MAX_TRIED).collect::<Vec<_>>() {
            let flow = self.flows.get_mut(id);
            let tries =
                flow.is_some_and(|flow| flow.may_renew(now)) || self.may_try(now, client, &route);
            if tries && self.knows_key(&route, handshake) {
                return Some(id);
            }
        }
        None
    }

    /// Charges a client's network for trying the keys of a route.
    fn may_try(&mut self, now: Instant, client: SocketAddr, route: &Route) -> bool {
        let cost = u32::try_from(keys(route).len()).unwrap_or(u32::MAX);
        self.trials.take(now, client.ip(), cost)
    }

    /// Tells whether a handshake was made with a key of the route's servers.
    fn knows_key(&mut self, route: &Route, handshake: &[u8]) -> bool {
        keys(route).iter().any(|key| {
            let ready = self.keys.entry(*key);
            ready.or_insert_with(|| Mac1Key::new(key)).verify(handshake)
        })
    }

    /// Lets a datagram of a flow pass, unless it is a claim without proof.
    fn admit_known(
        &mut self,
        now: Instant,
        client: SocketAddr,
        id: FlowId,
        header: &Header,
        datagram: &[u8],
    ) -> Result<(), Dropped> {
        let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownRoute)?;
        match (header.kind, header.route) {
            (Kind::Initiation, Some(_)) => {
                let route = Arc::clone(&flow.route);
                self.pay_handshake(now, client, Some(id), &route, datagram)
            }
            // It was found by its key.
            (Kind::Initiation, None) if flow.may_renew(now) => Ok(()),
            (Kind::Initiation, None) => self.pay(now, client, true),
            _ if flow.record.is_some() => Ok(()),
            _ => self.pay(now, client, false),
        }
    }

    /// Takes what a handshake costs that names its route.
    fn pay_handshake(
        &mut self,
        now: Instant,
        client: SocketAddr,
        flow: Option<FlowId>,
        route: &Route,
        handshake: &[u8],
    ) -> Result<(), Dropped> {
        let vouched = !keys(route).is_empty();
        let flow = flow.and_then(|id| self.flows.get_mut(id));
        let renews = flow.is_some_and(|flow| flow.may_renew(now));
        if vouched && !renews && !self.may_try(now, client, route) {
            return Err(Dropped::SourceRate);
        }
        if vouched && !self.knows_key(route, handshake) {
            return Err(Dropped::BadMac1);
        }
        match renews {
            true => Ok(()),
            false => self.pay(now, client, vouched),
        }
    }

    /// Begins a flow for a datagram that names its route.
    fn admit_new(
        &mut self,
        now: Instant,
        client: SocketAddr,
        number: u32,
        header: &Header,
        datagram: &[u8],
    ) -> Result<FlowId, Dropped> {
        let published = Arc::clone(&self.published);
        let route = published.snapshot.by_route_id(number);
        let route = route
            .filter(|route| route.serves(self.listener.index))
            .ok_or(Dropped::UnknownRoute)?;
        if !route.allows(client.ip()) {
            return Err(Dropped::SourceDenied);
        }
        if header.kind == Kind::Initiation {
            self.pay_handshake(now, client, None, route, datagram)?;
        } else {
            self.pay(now, client, false)?;
        }
        self.open(now, client, route)
    }

    /// Takes one of the tokens of a client's network.
    fn pay(&mut self, now: Instant, client: SocketAddr, vouched: bool) -> Result<(), Dropped> {
        let buckets = if vouched {
            &mut self.handshakes
        } else {
            &mut self.strangers
        };
        let paid = buckets.take(now, client.ip(), 1);
        paid.then_some(()).ok_or(Dropped::SourceRate)
    }

    /// Begins a flow, in the place of another fresh one where there are too many.
    fn open(
        &mut self,
        now: Instant,
        client: SocketAddr,
        route: &Arc<Route>,
    ) -> Result<FlowId, Dropped> {
        if is_full(route.cluster()) {
            return Err(Dropped::ClusterLimit);
        }
        let choice = choice(&self.worker, &self.published, client.ip(), now);
        let chosen = choose(route.cluster(), &choice, None).ok_or(Dropped::NoEndpoint)?;
        let victim = if self.flows.of(client).count() >= MAX_PER_CLIENT {
            let claims = { self.flows.of(client) }.filter(|(_, flow)| flow.record.is_none());
            let oldest = claims.last().map(|(id, _)| id);
            Some(oldest.ok_or(Dropped::ClientLimit)?)
        } else if self.is_full(Standing::Fresh) {
            self.flows
                .victim(Standing::Fresh, now, self.limits.flow_idle.0)
        } else {
            None
        };
        if let Some(victim) = victim {
            self.end(victim, Reason::Limit);
        }
        self.metrics.fresh.inc();
        let flow = Flow::new(now, Arc::clone(route), chosen);
        let holder = holder(route, client.ip());
        Ok(self.flows.insert(now, client, holder, flow))
    }

    /// Counts a flow whose server has answered as a connection. In a full table it takes the place
    /// of one whose holder has more, or that is silent for a third of the time at which it would end;
    /// else the answer is lost.
    fn prove(&mut self, now: Instant, id: FlowId) -> Result<(), Dropped> {
        let client = self.flows.client(id).ok_or(Dropped::UnknownClient)?;
        let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownClient)?;
        let route = Arc::clone(&flow.route);
        if is_full(route.cluster()) {
            return Err(Dropped::ClusterLimit);
        }
        let mut victim = None;
        if self.is_full(Standing::Proven) {
            // More than clients behind an address translator let pass between two keepalives.
            let idle = self.limits.flow_idle.0 / 3;
            victim = self
                .flows
                .victim(Standing::Proven, now, idle)
                .filter(|victim| {
                    self.flows.outweighs(*victim, id) || self.flows.silent(now, *victim) >= idle
                });
            victim.ok_or(Dropped::FlowTable)?;
        }
        let permit = self.worker.shared.flows.permit();
        let record = ConnRecord::open(&self.listener.context, client, permit);
        record.set_route(route);
        if !record.acquire_cluster() {
            record.close(Reason::Limit); // another worker was faster
            return Err(Dropped::ClusterLimit);
        }
        if let Some(victim) = victim {
            self.end(victim, Reason::Limit);
        }
        let record = self.worker.handle.connections.hold(record);
        let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownClient)?;
        flow.record(record);
        self.flows.prove(id);
        self.metrics.fresh.dec();
        self.metrics.proven.inc();
        Ok(())
    }

    fn is_full(&self, standing: Standing) -> bool {
        self.flows.len(standing) >= self.places[standing as usize]
    }

    fn forward(
        &mut self,
        now: Instant,
        id: FlowId,
        local: Option<IpAddr>,
        header: &Header,
        datagram: &mut [u8],
    ) -> Result<Verdict, Dropped> {
        datagram::clear_route(datagram)?;
        self.flows.touch(now, id);
        let client = self.flows.client(id).ok_or(Dropped::UnknownRoute)?;
        let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownRoute)?;
        flow.local = local;
        let choice = choice(&self.worker, &self.published, client.ip(), now);
        flow.heard(header, datagram.len(), &choice);
        flow.relayed(Direction::Rx, datagram.len());
        self.metrics.rx.inc();
        Ok(Verdict::Forward(flow.server))
    }

    fn end(&mut self, id: FlowId, reason: Reason) {
        let Some(flow) = self.flows.remove(id) else {
            return;
        };
        if let Some(record) = flow.record {
            self.metrics.proven.dec();
            record.close(reason);
        } else {
            self.metrics.fresh.dec();
            self.metrics.unproven.inc();
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.end_all(Reason::Drained);
    }
}

fn choice<'a>(
    worker: &'a Worker,
    published: &'a Published,
    client: IpAddr,
    now: Instant,
) -> Choice<'a> {
    Choice {
        names: &published.names,
        zone: published.zone.as_deref(),
        client,
        now,
        random: worker.random(),
    }
}

/// Tells whether a cluster has as many connections as it may have.
fn is_full(cluster: &Cluster) -> bool {
    let most = cluster.settings().max_connections;
    most > 0 && cluster.active() >= most
}

/// Returns the route that takes the place of one of another snapshot: by number, else by key.
fn next<'s>(route: &Route, snapshot: &'s Snapshot) -> Option<&'s Arc<Route>> {
    let servers = servers(route)?;
    by_match(servers.route_id, &servers.public_keys, snapshot)
}

fn by_match<'s>(
    number: Option<u32>,
    keys: &[[u8; 32]],
    snapshot: &'s Snapshot,
) -> Option<&'s Arc<Route>> {
    match number {
        Some(number) => snapshot.by_route_id(number),
        None => keys.iter().find_map(|key| snapshot.by_public_key(key)),
    }
}

#[cfg(test)]
mod tests;
