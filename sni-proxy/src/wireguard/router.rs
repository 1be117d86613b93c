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

use relay::{Direction, Meter};
use route::{Route, Snapshot};
use serve::{ConnRecord, Permit, Reason};
use tunnel_proto::SourceBuckets;
use tunnel_proto::datagram::{self, Header, Kind};
use tunnel_proto::wrapped;

use super::dropped::Dropped;
use super::flow::{Choice, Flow, choose, has_keys, knows_key, number, rejects, servers};
use super::flows::{FlowId, FlowTable, Standing};
use super::metrics::ListenerMetrics;
use crate::config::WireGuardLimits;
use crate::routing::Published;
use crate::worker::{Listener, Worker};

/// Flows of one client address at most: one for each server that it speaks with.
const MAX_PER_CLIENT: usize = 64;

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
    limits: WireGuardLimits,
    /// Of handshakes whose sender knows the server's key.
    handshakes: SourceBuckets,
    /// Of everything else that belongs to no proven flow.
    strangers: SourceBuckets,
    /// No new flows any more.
    pub(super) draining: bool,
}

impl Router {
    pub(super) fn new(worker: &Rc<Worker>, listener: &Rc<Listener>, now: Instant) -> Self {
        let limits = worker.shared.config.wireguard;
        let secret = RandomState::new();
        let buckets = |which: u8| {
            let (rate, burst) = (limits.source_rate, limits.source_burst);
            SourceBuckets::new(
                rate,
                burst,
                usize::try_from(limits.source_slots).unwrap_or(usize::MAX),
                secret.hash_one(which),
                now,
            )
        };
        Self {
            metrics: worker.shared.wireguard.listener(&listener.config.name),
            published: worker.shared.routing.current(),
            flows: FlowTable::new(),
            limits,
            handshakes: buckets(1),
            strangers: buckets(2),
            draining: false,
            worker: Rc::clone(worker),
            listener: Rc::clone(listener),
        }
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
        let id = match self.find(client, &header, wanted, datagram) {
            Some(id) => {
                self.admit_known(now, client, id, &header, datagram)?;
                id
            }
            None if self.draining => return Err(Dropped::Draining),
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

    /// Goes on with a handshake whose route was found by its keys.
    pub(super) fn found(
        &mut self,
        now: Instant,
        (client, local): (SocketAddr, Option<IpAddr>),
        route: &Arc<Route>,
        datagram: &mut [u8],
    ) -> Result<Verdict, Dropped> {
        let header = Header::parse(datagram)?;
        let same = |flow: &Flow| servers(&flow.route) == servers(route);
        let known = self.flows.of(client).find(|(_, flow)| same(flow));
        let id = match known.map(|(id, _)| id) {
            Some(id) => id,
            None if self.draining => return Err(Dropped::Draining),
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
        flow.record
            .info()
            .relayed(Direction::Tx, datagram.len() as u64, true);
        self.metrics.tx.inc();
        let local = flow.local;
        if header.kind == Kind::Data && self.flows.standing(id) == Some(Standing::Fresh) {
            self.flows.prove(id);
            self.metrics.fresh.dec();
            self.metrics.proven.inc();
        }
        Ok(Answer {
            client,
            local,
            datagram,
        })
    }

    /// Ends the flows that have been silent for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(id) = self.flows.expired(now, self.limits.flow_idle.0) {
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
        let by_key = keys_of(snapshot);
        for id in self.flows.ids() {
            let client = self.flows.client(id);
            let (Some(flow), Some(client)) = (self.flows.get_mut(id), client) else {
                continue;
            };
            let route = next(&flow.route, snapshot, &by_key)
                .filter(|route| route.serves(self.listener.index));
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
        &self,
        client: SocketAddr,
        header: &Header,
        wanted: Option<u32>,
        datagram: &[u8],
    ) -> Option<FlowId> {
        let belongs = |flow: &Flow| match (header.route, header.receiver) {
            (None, None) => knows_key(&flow.route, datagram),
            (None, Some(receiver)) if number(&flow.route).is_none() => flow.is_known(receiver),
            (None | Some(_), _) => wanted.is_some() && number(&flow.route) == wanted,
        };
        let own = { self.flows.of(client) }.find(|(_, flow)| belongs(flow));
        own.map(|(id, _)| id)
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
        let fresh = self.flows.standing(id) == Some(Standing::Fresh);
        if header.kind == Kind::Initiation {
            let flow = self.flows.get_mut(id).ok_or(Dropped::UnknownRoute)?;
            if header.route.is_some() && rejects(&flow.route, datagram) {
                return Err(Dropped::BadMac1);
            }
            let vouched = has_keys(&flow.route);
            self.pay(now, client, vouched)
        } else if fresh {
            self.pay(now, client, false)
        } else {
            Ok(())
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
        let handshake = header.kind == Kind::Initiation;
        if handshake && rejects(route, datagram) {
            return Err(Dropped::BadMac1);
        }
        self.pay(now, client, handshake && has_keys(route))?;
        self.open(now, client, route)
    }

    /// Takes one of the tokens of a client's network.
    fn pay(&mut self, now: Instant, client: SocketAddr, vouched: bool) -> Result<(), Dropped> {
        let buckets = if vouched {
            &mut self.handshakes
        } else {
            &mut self.strangers
        };
        let paid = buckets.take(now, client.ip());
        paid.then_some(()).ok_or(Dropped::SourceRate)
    }

    /// Begins a flow.
    fn open(
        &mut self,
        now: Instant,
        client: SocketAddr,
        route: &Arc<Route>,
    ) -> Result<FlowId, Dropped> {
        if self.flows.of(client).count() >= MAX_PER_CLIENT {
            return Err(Dropped::ClientLimit);
        }
        let cluster = route.cluster();
        let most = cluster.settings().max_connections;
        if most > 0 && cluster.active() >= most {
            return Err(Dropped::ClusterLimit);
        }
        let choice = choice(&self.worker, &self.published, client.ip(), now);
        let chosen = choose(cluster, &choice, None).ok_or(Dropped::NoEndpoint)?;
        let permit = self.reserve_slot(now)?;
        let record = ConnRecord::open(&self.listener.context, client, Some(permit));
        record.set_route(Arc::clone(route));
        if !record.acquire_cluster() {
            record.close(Reason::Limit);
            return Err(Dropped::ClusterLimit);
        }
        let record = self.worker.handle.connections.hold(record);
        let flow = Flow::new(now, Arc::clone(route), record, chosen);
        self.metrics.fresh.inc();
        Ok(self.flows.insert(now, client, flow))
    }

    /// Reserves a flow slot; when the table is full, the least useful flow is ended for it: the
    /// oldest unproven one, else the oldest proven one if its client has been silent for longer
    /// than clients behind an address translator let pass between two keepalives, twice.
    fn reserve_slot(&mut self, now: Instant) -> Result<Permit, Dropped> {
        let worker = Rc::clone(&self.worker);
        let permit = || worker.shared.flows.permit();
        if let Some(permit) = permit() {
            return Ok(permit);
        }
        let limit = self.limits.flow_idle.0 / 3;
        let oldest = self.flows.oldest(Standing::Fresh);
        let quiet = || self.flows.expired(now, limit);
        let id = oldest.or_else(quiet).ok_or(Dropped::FlowTable)?;
        self.end(id, Reason::Limit);
        // Another worker may have been faster.
        permit().ok_or(Dropped::FlowTable)
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
        flow.record
            .info()
            .relayed(Direction::Rx, datagram.len() as u64, true);
        self.metrics.rx.inc();
        Ok(Verdict::Forward(flow.server))
    }

    fn end(&mut self, id: FlowId, reason: Reason) {
        let standing = self.flows.standing(id);
        let Some(flow) = self.flows.remove(id) else {
            return;
        };
        match standing {
            Some(Standing::Proven) => self.metrics.proven.dec(),
            Some(Standing::Fresh) | None => self.metrics.fresh.dec(),
        }
        flow.record.close(reason);
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
        zone: worker.shared.zone.as_deref(),
        client,
        now,
        random: worker.random(),
    }
}

/// Returns the routes by the keys of their servers.
fn keys_of(snapshot: &Snapshot) -> HashMap<&[u8; 32], &Arc<Route>> {
    snapshot
        .wireguard_routes()
        .flat_map(|(keys, route)| keys.iter().map(move |key| (key, route)))
        .collect()
}

/// Returns the route that takes the place of one of an older snapshot: by number, else by key.
fn next<'s>(
    route: &Route,
    snapshot: &'s Snapshot,
    by_key: &HashMap<&[u8; 32], &'s Arc<Route>>,
) -> Option<&'s Arc<Route>> {
    let servers = servers(route)?;
    match servers.route_id {
        Some(number) => snapshot.by_route_id(number),
        None => servers
            .public_keys
            .iter()
            .find_map(|key| by_key.get(key).copied()),
    }
}
