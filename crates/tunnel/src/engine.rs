//! Everything a tunnel decides: packets, datagrams and time go in; datagrams, packets and requests
//! come out.
//!
//! ```text
//!   device ── handle_packet ──▶ filter │ address ─▶ peer ─▶ link ─▶ seal ──▶ Out::datagram
//!   link ─── handle_datagram ─▶ pair ─▶ open ─▶ probe? allowed? filter ────▶ Out::packet
//!   link ─── handle_control, handle_connected, handle_closed     handle_timeout ◀─ time
//!                                   poll_request ──▶ Dial, Close
//! ```
//!
//! The two roles differ in which end connects and which end may open flows. A client dials each server by
//! both transports, begins all handshakes, and chooses the link by probes; the destination
//! address selects the server. A server follows its clients' choice, gives each flow to one of them, and admits
//! only what belongs to a flow.
//!
//! Knows no socket, device, clock or random number, and no cryptography: that is [`Noise`]'s.

mod client;
mod counts;
mod inbound;
mod outbound;
mod peer;
mod peers;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tunnel_proto::TokenBucket;
use tunnel_proto::allowed::{AllowedIps, PeerIndex};
use tunnel_proto::codel::Band;
use tunnel_proto::datagram::RouteId;
use tunnel_proto::filter::Filter;
use tunnel_proto::frame::Control;
use tunnel_proto::path::{self, LinkId, Transport};

use crate::handle::{Identity, IdentityError, Params, Role};
use crate::noise::Keys;
use crate::status::Status;

pub(crate) use counts::Counts;
use peer::{Peer, Steering};
pub(crate) use peer::{Remote, SocketId, StreamId};

/// How often sessions are looked after.
const TICK: Duration = Duration::from_millis(250);

/// Handshakes a server answers per second, and at once: each costs about 0.3 ms.
const HANDSHAKES: (u32, u32) = (500, 500);

/// For how long flows stay with a client whose probes go unanswered.
const FLOW_GRACE: Duration = Duration::from_secs(30);

/// The same with a client that drains.
const DRAINED_GRACE: Duration = Duration::from_secs(3);

/// Accepted streams that no authentic packet came by yet; the oldest is closed for a new one.
const MAX_UNPROVEN: usize = 64;

/// For how long a link in use may be silent before a keepalive by another one moves the path.
const SILENCE: Duration = Duration::from_secs(2);

/// For how long a stream that carried a tunnel may go without an authentic packet, or an address of
/// datagrams: clients probe even those that they do not use every 5 s.
const SILENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Flows of each kind that are looked at by a tick, to forget those whose time is over.
const SWEEP: usize = 256;

/// For how long a stream may go without an authentic packet before a server closes it.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);

/// Probes that find the size of packets have numbers from here on.
const MTU_PROBE: u32 = 1 << 31;

/// Where the engine's output goes.
pub(crate) trait Out {
    /// Adds a datagram of at most `max` bytes; `fill` writes it and returns its size, 0 for none.
    fn datagram(
        &mut self,
        to: &Remote,
        band: Band,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    );

    /// Adds a control message to a stream.
    fn control(&mut self, stream: StreamId, control: &Control<'_>);

    /// Adds a packet of at most `max` bytes for the device; `fill` as above.
    fn packet(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize);
}

/// What the engine asks the runner to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Close a socket or stream.
    Close {
        remote: Remote,
        reason: &'static str,
    },
    /// Connect to a server.
    Dial {
        server: String,
        link: LinkId,
        transport: Transport,
    },
}

/// The tunnels of one end.
#[derive(Debug)]
pub(crate) struct Engine {
    keys: Keys,
    /// By [`PeerIndex`]; a peer that was taken away leaves its place.
    peers: Vec<Option<Peer>>,
    /// Index, peer, place of the pair; few, so searched one by one.
    by_index: Vec<(u32, PeerIndex, usize)>,
    allowed: AllowedIps,
    /// Spreads flows over peers.
    secret: u64,
    next_tick: Instant,
    shared: Shared,
}

/// What this end is and has, whichever peer it is about.
#[derive(Debug)]
struct Shared {
    name: String,
    own: Vec<IpAddr>,
    mtu: u16,
    networks: Vec<IpNet>,
    path: path::Params,
    /// `None` at a client.
    server: Option<Server>,
    /// A random number, so that peers can detect a restart.
    instance: u64,
    scratch: Vec<u8>,
    streams: BTreeMap<StreamId, Stream>,
    requests: VecDeque<Request>,
    /// The greatest number of a link; at a client, of those of peers that are gone.
    last_link: u64,
    draining: bool,
    ended: bool,
    /// Whether this end cannot forward at present.
    unsettled: bool,
    counts: Counts,
}

/// What only a server has.
#[derive(Debug)]
struct Server {
    route: Option<RouteId>,
    filter: Filter,
    budget: TokenBucket,
}

/// A stream at a server.
#[derive(Debug)]
struct Stream {
    from: SocketAddr,
    /// When something authentic came by it, or it was accepted.
    heard: Instant,
    proven: bool,
    /// Whether a handshake came by it from one who knows a key of this server.
    knows_key: bool,
}

impl Engine {
    /// Returns an engine that has begun to dial, if it is a client's. `random` are random numbers;
    /// the first is sent to peers.
    ///
    /// # Errors
    ///
    /// Keys and peers that cannot be used together.
    pub(crate) fn new(
        params: Params,
        identity: Identity,
        keys: Keys,
        random: [u64; 3],
        now: Instant,
    ) -> Result<Self, IdentityError> {
        let (networks, path, server) = match params.role {
            Role::Client { networks, path } => (networks, path, None),
            Role::Server {
                route,
                networks,
                filter,
            } => {
                let server = Server {
                    route,
                    filter: Filter::new(filter, random[1], now),
                    budget: TokenBucket::new(HANDSHAKES.0, HANDSHAKES.1, now),
                };
                (networks, path::Params::default(), Some(server))
            }
        };
        let shared = Shared {
            name: params.name,
            own: params.addresses,
            mtu: params.mtu,
            networks,
            path,
            server,
            instance: random[0],
            scratch: vec![0; 2048 + usize::from(params.mtu)],
            streams: BTreeMap::new(),
            requests: VecDeque::new(),
            last_link: 0,
            draining: false,
            ended: false,
            unsettled: false,
            counts: Counts::default(),
        };
        let mut engine = Self {
            keys,
            peers: Vec::new(),
            by_index: Vec::new(),
            allowed: AllowedIps::default(),
            secret: random[2],
            next_tick: now + TICK,
            shared,
        };
        engine.replace(now, identity)?;
        Ok(engine)
    }

    /// Asks all peers, by a probe each, to give no new flows to this end.
    pub(crate) fn drain(&mut self, now: Instant, out: &mut impl Out) {
        self.shared.draining = true;
        self.report_to_all(now, out);
    }

    /// Tells all peers, by a probe each, whether this end can forward what it is given.
    pub(crate) fn set_settled(&mut self, now: Instant, settled: bool, out: &mut impl Out) {
        if self.shared.unsettled == settled {
            self.shared.unsettled = !settled;
            self.report_to_all(now, out);
        }
    }

    fn report_to_all(&mut self, now: Instant, out: &mut impl Out) {
        for peer in self.peers.iter_mut().flatten() {
            if let Some(link) = peer.active_link() {
                let (id, mtu) = (link.id, link.mtu(self.shared.mtu));
                peer.report(now, id, mtu, &mut self.shared, out);
            }
        }
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant, out: &mut impl Out) {
        let tick = now >= self.next_tick;
        if tick {
            self.next_tick = now + TICK;
        }
        for peer in self.peers.iter_mut().flatten() {
            match &peer.steering {
                Steering::Client(_) => peer.drive_client(now, tick, &mut self.shared, out),
                Steering::Server { .. } => peer.drive_server(now, tick, &mut self.shared, out),
            }
        }
        if tick {
            self.close_silent(now, out);
            self.keys.tick();
            if let Some(server) = &mut self.shared.server {
                server.filter.sweep(now, SWEEP);
            }
        }
    }

    /// Returns when [`Engine::handle_timeout`] is to be called next, at the latest.
    pub(crate) fn poll_timeout(&self) -> Instant {
        let peers = self.peers.iter().flatten();
        let due = peers.filter_map(|peer| match &peer.steering {
            Steering::Client(selector) => {
                let mtus = peer.links.iter().filter_map(|link| link.mtu.as_ref());
                let mtus = mtus.filter_map(path::Mtu::poll_timeout);
                mtus.chain(selector.poll_timeout()).min()
            }
            Steering::Server { prober, .. } => prober.as_ref().map(|prober| prober.deadline()),
        });
        due.chain([self.next_tick]).min().unwrap_or(self.next_tick)
    }

    /// Returns the next request to the runner.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.shared.requests.pop_front()
    }

    /// Describes all tunnels.
    pub(crate) fn status(&self, now: Instant) -> Status {
        let shared = &self.shared;
        let peers = self.peers.iter().flatten();
        let peers = peers.map(|peer| peer.status(now, shared.mtu, shared.open_flows(peer.place)));
        let streams = shared.streams.values();
        Status {
            peers: peers.collect(),
            draining: shared.draining,
            strangers: streams.filter(|stream| !stream.proven).count(),
        }
    }

    /// Drains, and announces to every peer that this end closes now.
    pub(crate) fn send_close(&mut self, now: Instant, out: &mut impl Out) {
        self.shared.ended = true;
        self.drain(now, out);
    }

    /// Returns what was counted.
    pub(crate) fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// Returns the filter of a server.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        let server = self.shared.server.as_ref();
        server.map(|server| &server.filter)
    }
}

impl Shared {
    /// Server: returns how many flows are open by a peer.
    fn open_flows(&self, peer: PeerIndex) -> Option<u32> {
        let server = self.server.as_ref()?;
        Some(server.filter.open_flows(peer))
    }

    fn close(&mut self, remote: Remote, reason: &'static str) {
        self.requests.push_back(Request::Close { remote, reason });
    }
}

fn at(peers: &[Option<Peer>], place: PeerIndex) -> Option<&Peer> {
    peers.get(usize::from(place.get()))?.as_ref()
}

fn at_mut(peers: &mut [Option<Peer>], place: PeerIndex) -> Option<&mut Peer> {
    peers.get_mut(usize::from(place.get()))?.as_mut()
}
