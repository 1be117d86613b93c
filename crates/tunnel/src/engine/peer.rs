//! One other end: its keys, the links to it, and which of them is used.
//!
//! ```text
//!   Peer ── Pair (own key × its key): one WireGuard state, for all links
//!      └─── Link (a UDP address or a stream): proven once an authentic packet came by it
//!              └─ used: what the client's Selector chose; at a server, where the newest came from
//! ```
//!
//! Holds state and answers questions about it; what is sent when is the engine's.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tunnel_proto::allowed::PeerIndex;
use tunnel_proto::datagram::{INITIATION_LEN, RouteId};
use tunnel_proto::path::{LinkId, LinkStats, Mtu, ProbeParams, Prober, Selector, Transport};

use super::{DRAINED_GRACE, FLOW_GRACE, SILENT_TIMEOUT};
use crate::keys::{PresharedKey, PublicKey};
use crate::noise::Noise;
use crate::status::{LinkStatus, PeerStatus};

/// Links of one peer at a server. A client has two; those that it lost may still be known.
const LINKS: usize = 8;

/// How much longer ago than by another pair something may have come by a pair that is preferred.
const ANSWERED: Duration = Duration::from_secs(1);

/// For how long a link that nothing came by may be fallen back to.
const FALL_BACK: Duration = Duration::from_secs(15);

/// A stream, for as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

/// A UDP socket, for as long as the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SocketId(pub(crate) u64);

/// Where datagrams go and come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    /// Frames on a stream.
    Stream(StreamId),
    /// Datagrams of a socket; `to` is `None` when it is connected.
    Udp {
        socket: SocketId,
        to: Option<SocketAddr>,
        /// The address of ours that they are sent to.
        local: Option<IpAddr>,
    },
    /// Datagrams that a gateway wraps.
    Wrapped {
        gateway: SocketAddr,
        local: Option<IpAddr>,
        client: SocketAddr,
    },
}

impl Remote {
    pub(crate) fn transport(&self) -> Transport {
        match self {
            Self::Stream(_) => Transport::Tcp,
            Self::Udp { .. } | Self::Wrapped { .. } => Transport::Udp,
        }
    }

    /// Returns the route id to write into datagrams, of that of the peer: only UDP has any.
    pub(crate) fn route(&self, of_peer: Option<RouteId>) -> Option<RouteId> {
        of_peer.filter(|_| self.transport() == Transport::Udp)
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Stream(StreamId(id)) => format!("stream {id}"),
            Self::Udp { to: Some(to), .. } => to.to_string(),
            Self::Udp { to: None, .. } => "the gateway".to_owned(),
            Self::Wrapped {
                gateway, client, ..
            } => format!("{client} by way of {gateway}"),
        }
    }
}

/// A pair of keys and what WireGuard knows of it.
#[derive(Debug)]
pub(crate) struct Pair {
    /// What its datagrams name it by: the upper 24 bits of every index.
    pub(crate) index: u32,
    pub(crate) own: PublicKey,
    pub(crate) theirs: PublicKey,
    pub(crate) noise: Noise,
    /// Of what was opened: the order of the session that began last, and its highest counter.
    latest_seen: Option<(u64, u64)>,
    /// When something was opened with it.
    heard: Option<Instant>,
    /// Client: when the next handshake may begin.
    pub(crate) next_initiation: Instant,
    /// Client: the initiation that waits for its response.
    pub(crate) pending: Option<Pending>,
}

/// An initiation on its way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) bytes: [u8; INITIATION_LEN],
    pub(crate) sent: Instant,
}

impl Pair {
    pub(crate) fn new(
        index: u32,
        own: PublicKey,
        theirs: PublicKey,
        noise: Noise,
        now: Instant,
    ) -> Self {
        Self {
            index,
            own,
            theirs,
            noise,
            latest_seen: None,
            heard: None,
            next_initiation: now,
            pending: None,
        }
    }

    /// Records an authentic datagram of the session with this own index, and returns whether no
    /// newer one came before: of a session that began later, or of the same with a higher counter.
    pub(crate) fn is_latest(&mut self, now: Instant, session: u32, counter: u64) -> bool {
        self.heard = Some(now);
        let Some(order) = self.noise.session_order(session) else {
            return false; // it was opened a moment ago, so there is one
        };
        let seen = Some((order, counter));
        let newer = seen >= self.latest_seen;
        if newer {
            self.latest_seen = seen;
        }
        newer
    }

    /// Records that its handshake was completed.
    pub(crate) fn confirmed(&mut self, now: Instant) {
        self.heard = Some(now);
        self.pending = None;
    }
}

/// One way to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) remote: Remote,
    /// Whether an authentic packet came by it.
    pub(crate) proven: bool,
    pub(crate) heard: Instant,
    /// Server: the client's address of a stream.
    pub(crate) from: Option<SocketAddr>,
    /// Client: when something was last sent to prove it.
    pub(crate) tried: Option<Instant>,
    /// Client: whether a hello came by it.
    pub(crate) greeted: bool,
    /// Client, UDP: how large packets may be.
    pub(crate) mtu: Option<Mtu>,
    /// Server: how large the client found that packets may be; 0: not known.
    pub(crate) reported_mtu: u16,
}

impl Link {
    pub(crate) fn new(id: LinkId, remote: Remote, now: Instant) -> Self {
        Self {
            id,
            remote,
            proven: false,
            heard: now,
            from: None,
            tried: None,
            greeted: false,
            mtu: None,
            reported_mtu: 0,
        }
    }

    /// Returns where it leads.
    pub(crate) fn describe(&self) -> String {
        match self.from {
            Some(from) => from.to_string(),
            None => self.remote.describe(),
        }
    }

    /// Returns the bytes of the largest inner packet, at most `most`.
    pub(crate) fn mtu(&self, most: u16) -> u16 {
        match (&self.mtu, self.reported_mtu) {
            (Some(mtu), _) => mtu.mtu().min(most),
            (None, 0) => most,
            (None, info) => info.min(most),
        }
    }
}

/// How the link in use is chosen, and whether it works.
#[derive(Debug)]
pub(crate) enum Steering {
    /// A client chooses.
    Client(Box<Selector>),
    /// A server follows, and knows by probes of its own whether answers arrive.
    Server {
        prober: Option<Box<Prober>>,
        last_healthy: Option<Instant>,
        told: Told,
    },
}

/// What the log says of a peer's health.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(super) healthy: bool,
    /// When it said last that the peer is not healthy.
    pub(super) trouble: Option<Instant>,
}

/// One other end.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) place: PeerIndex,
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) route: Option<RouteId>,
    pub(crate) preshared: Option<PresharedKey>,
    /// The preferred one first.
    pub(crate) pairs: Vec<Pair>,
    pub(crate) links: Vec<Link>,
    pub(crate) active: Option<LinkId>,
    /// The one that was in use last, which may be gone.
    pub(super) last_used: Option<LinkId>,
    /// Server: the index of the pair that the newest packet was opened with.
    pub(crate) latest: Option<u32>,
    pub(crate) steering: Steering,
    /// Whether it asked for no new flows.
    pub(crate) draining: bool,
    /// Whether it said that it ends, in the newest probe or answer.
    pub(super) ended: bool,
    /// Whether it said that it cannot forward.
    pub(super) unsettled: bool,
    /// When a packet was sent to it that the minimum MTU would not carry.
    pub(crate) sent_large: Option<Instant>,
    /// Client: the open flows that the server counted, and when it said so.
    pub(crate) flows: Option<(u32, Instant)>,
    /// The number of the server process behind the latest stream.
    pub(crate) instance: Option<u64>,
}

impl Peer {
    /// Returns the place of the pair to seal with. At a client that is the preferred one of those
    /// that the server answers with: it may have lost a key that this end still has a session of.
    pub(crate) fn sealing(&self, now: Instant) -> Option<usize> {
        let ready = |pair: &Pair| pair.noise.is_ready(now);
        match self.steering {
            Steering::Client(_) => {
                let live = || {
                    self.pairs
                        .iter()
                        .enumerate()
                        .filter(|(_, pair)| ready(pair))
                };
                let latest = live().filter_map(|(_, pair)| pair.heard).max();
                let answered = |pair: &Pair| pair.heard.map(|heard| heard + ANSWERED) >= latest;
                let mut answering = live().filter(|(_, pair)| answered(pair));
                answering.next().map(|(place, _)| place)
            }
            Steering::Server { .. } => {
                let latest = |pair: &Pair| Some(pair.index) == self.latest && ready(pair);
                let other = || self.pairs.iter().position(ready);
                self.pairs.iter().position(latest).or_else(other)
            }
        }
    }

    pub(crate) fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.iter().find(|link| link.id == id)
    }

    pub(crate) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.id == id)
    }

    pub(crate) fn link_of(&self, remote: &Remote) -> Option<LinkId> {
        let link = self.links.iter().find(|link| link.remote == *remote);
        link.map(|link| link.id)
    }

    /// Returns the link that packets are sent by.
    pub(crate) fn active_link(&self) -> Option<&Link> {
        self.active.and_then(|id| self.link(id))
    }

    /// Returns the inner addresses of both ends, of a family that both have.
    pub(crate) fn probe_addresses(&self, own: &[IpAddr]) -> Option<(IpAddr, IpAddr)> {
        let pairs = self.addresses.iter().filter_map(|theirs| {
            let same = own.iter().find(|own| own.is_ipv4() == theirs.is_ipv4());
            same.map(|own| (*own, *theirs))
        });
        pairs.into_iter().next()
    }

    /// Returns whether probes through the tunnel come back. At a client that may be by another link than the
    /// one in use, which may have just connected.
    pub(crate) fn is_healthy(&self) -> bool {
        match &self.steering {
            Steering::Client(selector) => {
                let answered =
                    |link: &Link| selector.stats(link.id).is_some_and(|own| own.answered > 0);
                selector.active().is_some() && self.links.iter().any(answered)
            }
            Steering::Server {
                prober,
                last_healthy,
                ..
            } => {
                let answers = prober.as_ref().is_some_and(|prober| !prober.is_lost());
                last_healthy.is_some() && answers && !self.ended
            }
        }
    }

    /// Server: returns whether flows that it has may stay with it: it is healthy, or was a moment
    /// ago. Its address translation knows them, so another client can only end them, which is what they
    /// need once it has ended. One that drained has, most likely, if it is silent.
    pub(crate) fn keeps_flows(&self, now: Instant, patience: Duration) -> bool {
        match self.steering {
            Steering::Client(_) => true,
            Steering::Server { last_healthy, .. } => {
                let patience = if self.draining {
                    DRAINED_GRACE
                } else {
                    patience
                };
                let kept = |last| now.saturating_duration_since(last) < patience;
                !self.ended && last_healthy.is_some_and(kept)
            }
        }
    }

    /// Server: finds a link or adds it. Above the limit the one that was silent longest is removed, and
    /// returned.
    pub(crate) fn remember(
        &mut self,
        remote: Remote,
        new: LinkId,
        now: Instant,
    ) -> (LinkId, Option<Remote>) {
        if let Some(id) = self.link_of(&remote) {
            return (id, None);
        }
        let mut evicted = None;
        if self.links.len() >= LINKS {
            let active = self.active;
            let silent = self.links.iter().enumerate();
            let silent = silent.filter(|(_, link)| Some(link.id) != active);
            if let Some((at, _)) = silent.min_by_key(|(_, link)| link.heard) {
                evicted = Some(self.links.remove(at).remote);
            }
        }
        self.links.push(Link::new(new, remote, now));
        (new, evicted)
    }

    /// Server: forgets addresses of datagrams that the peer has left. Streams end by themselves.
    pub(crate) fn forget_left_addresses(&mut self, now: Instant) {
        let active = self.active;
        self.links.retain(|link| {
            let recent = now.saturating_duration_since(link.heard) < SILENT_TIMEOUT;
            let stream = link.remote.transport() == Transport::Tcp;
            recent || stream || Some(link.id) == active
        });
    }

    /// Uses a link from now on and returns whether another one was in use before.
    pub(crate) fn follow(&mut self, id: LinkId, probes: ProbeParams, now: Instant) -> bool {
        if self.active == Some(id) {
            return false;
        }
        self.active = Some(id);
        let before = self.last_used.replace(id);
        if let Steering::Server { prober, .. } = &mut self.steering {
            let mut fresh = Prober::new(probes, Duration::ZERO, now);
            fresh.set_active(now, true);
            *prober = Some(Box::new(fresh));
        }
        before.is_some_and(|before| before != id)
    }

    /// Forgets a link. At a server another one that was heard from lately takes over; true when one did.
    pub(crate) fn forget(&mut self, id: LinkId, probes: ProbeParams, now: Instant) -> bool {
        self.links.retain(|link| link.id != id);
        if self.active != Some(id) {
            return false;
        }
        self.active = None;
        let Steering::Server { prober, .. } = &mut self.steering else {
            return false;
        };
        *prober = None;
        let lately = self
            .links
            .iter()
            .filter(|link| link.proven && now.saturating_duration_since(link.heard) < FALL_BACK);
        let next = lately.max_by_key(|link| link.heard).map(|link| link.id);
        next.is_some_and(|next| self.follow(next, probes, now))
    }

    /// Returns what the probes of a link showed.
    pub(crate) fn stats(&self, link: LinkId) -> Option<LinkStats> {
        match &self.steering {
            Steering::Client(selector) => selector.stats(link),
            Steering::Server { prober, .. } => {
                let prober = prober.as_ref().filter(|_| self.active == Some(link));
                prober.map(|prober| prober.stats())
            }
        }
    }

    /// Client: returns how many open flows the server has by this end. One that is silent is believed for
    /// as long as it keeps them.
    fn reported_flows(&self, now: Instant) -> u32 {
        let kept = |at| now.saturating_duration_since(at) < FLOW_GRACE;
        self.flows
            .map_or(0, |(count, at)| if kept(at) { count } else { 0 })
    }

    /// Describes it; `flows` is the number of open flows by it that this end counted.
    pub(crate) fn status(&self, now: Instant, mtu: u16, flows: Option<u32>) -> PeerStatus {
        let active = self.active_link();
        let stats = self
            .active
            .and_then(|id| self.stats(id))
            .unwrap_or_default();
        let ages = self.pairs.iter().filter(|pair| pair.noise.is_ready(now));
        let ages = ages.filter_map(|pair| pair.noise.handshake_age(now));
        let links = self.links.iter().map(|link| LinkStatus {
            transport: link.remote.transport(),
            remote: link.describe(),
            active: self.active == Some(link.id),
            proven: link.proven,
            rtt: self.stats(link.id).and_then(|stats| stats.rtt),
        });
        PeerStatus {
            name: self.name.clone(),
            healthy: self.is_healthy(),
            draining: self.draining,
            unsettled: self.unsettled,
            transport: active.map(|link| link.remote.transport()),
            remote: active.map(Link::describe),
            rtt: stats.rtt,
            loss: stats.loss(),
            handshake_age: ages.min(),
            mtu: active.map_or(mtu, |link| link.mtu(mtu)),
            flows: flows.unwrap_or_else(|| self.reported_flows(now)),
            links: links.collect(),
        }
    }
}
