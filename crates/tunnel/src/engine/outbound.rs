//! From the device into the tunnel: whose packet it is, by which link it goes, how large it may be.
//!
//! ```text
//!   super-packet ─▶ filter (server) │ address (client) ─▶ peer ─▶ link, pair
//!                └▶ too big? error back to the device   ─▶ segments ─▶ seal ─▶ Out::datagram
//! ```
//!
//! A super-packet is judged once: its segments are one flow's.

use std::time::Instant;

use tunnel_proto::allowed::{AllowedIps, PeerIndex};
use tunnel_proto::codel::Band;
use tunnel_proto::datagram::{self, RouteId};
use tunnel_proto::filter::{Before, FlowKey};
use tunnel_proto::ip::icmp::{MAX_ERROR_LEN, packet_too_big};
use tunnel_proto::ip::segment::Segments;
use tunnel_proto::ip::vnet::{Gso, VnetHeader};
use tunnel_proto::ip::{Header, mss};

use crate::noise::{Keys, Noise};

use super::dropped::Dropped;
use super::inbound::LEAST_MTU;
use super::peer::{Peer, Remote};
use super::peers::Side;
use super::{Engine, Out, PATIENCE};

/// Octets that sealing adds to a packet (WireGuard paper §5.4.6).
pub(super) const OVERHEAD: usize = 32;

/// Where a packet goes.
struct Way {
    peer: usize,
    pair: usize,
    remote: Remote,
    route: Option<RouteId>,
    mtu: u16,
}

impl<K: Keys> Engine<K> {
    /// Takes what was read from the device. `packet` begins with the IP header.
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        vnet: &VnetHeader,
        packet: &mut [u8],
        out: &mut impl Out,
    ) {
        let Ok(header) = Header::parse(packet) else {
            return self.counts.drop(Dropped::NotIp.reason());
        };
        let Some(place) = self.whose_packet(now, &header, packet) else {
            return;
        };
        let way = match self.way(now, place) {
            Ok(way) => way,
            Err(why) => return self.counts.drop(why.reason()),
        };
        if let Err(why) = self.seal(now, &way, (&header, vnet), packet, out) {
            self.counts.drop(why.reason());
        }
    }

    /// Returns the peer a packet goes to. A refusal is counted.
    fn whose_packet(&mut self, now: Instant, header: &Header, packet: &[u8]) -> Option<PeerIndex> {
        match &mut self.side {
            Side::Client { .. } => {
                let peer = self.allowed.peers(header.dst).iter().next();
                if peer.is_none() {
                    self.counts.drop(Dropped::NoPeer.reason());
                }
                peer
            }
            Side::Server { filter, .. } => {
                let (peers, allowed, secret) = (&self.peers, &self.allowed, self.secret);
                let choose =
                    |flow: &FlowKey, before| choose(now, peers, allowed, secret, flow, before);
                let verdict = filter.outbound(now, header, packet, choose);
                verdict.ok().map(|outbound| outbound.peer)
            }
        }
    }

    fn way(&self, now: Instant, place: PeerIndex) -> Result<Way, Dropped> {
        let at = usize::from(place.get());
        let peer = self.peers.get(at).and_then(Option::as_ref);
        let peer = peer.ok_or(Dropped::NoPeer)?;
        let link = peer.active_link().ok_or(Dropped::NoLink)?;
        let pair = peer.sealing(now).ok_or(Dropped::NoSession)?;
        Ok(Way {
            peer: at,
            pair,
            remote: link.remote,
            route: self.route_of(at, &link.remote),
            mtu: link.mtu(self.mtu),
        })
    }

    fn seal(
        &mut self,
        now: Instant,
        way: &Way,
        (header, vnet): (&Header, &VnetHeader),
        packet: &mut [u8],
        out: &mut impl Out,
    ) -> Result<(), Dropped> {
        let is_single = vnet.gso == Gso::None;
        let total = packet.len();
        let mut segments = Segments::new(vnet, packet).map_err(|_| Dropped::Offload)?;
        if segments.max_len() > usize::from(way.mtu) {
            let Some(first) = segments.next() else {
                return Err(Dropped::Offload);
            };
            return Self::too_big(way.mtu, first, out);
        }
        let peer = self.peers.get_mut(way.peer).and_then(Option::as_mut);
        let pair = peer.and_then(|peer| peer.pairs.get_mut(way.pair));
        let pair = pair.ok_or(Dropped::NoPeer)?;
        let (mut bytes, mut packets) = (0, 0_u64);
        while let Some(segment) = segments.next() {
            if is_single {
                mss::clamp(header, segment, way.mtu);
            }
            let mut sealed = 0;
            out.datagram(&way.remote, Band::Bulk, segment.len() + OVERHEAD, |room| {
                sealed = pair.noise.seal(segment, room).unwrap_or(0);
                mark(room, sealed, way.route)
            });
            if sealed > 0 {
                packets += 1;
                bytes += segment.len();
            }
        }
        self.counts.sealed.bytes += bytes as u64;
        self.counts.sealed.packets += packets;
        if total > usize::from(LEAST_MTU) {
            self.sent_large(now, way.peer);
        }
        Ok(())
    }

    /// Takes note that a packet was sent that a smaller path would not carry.
    fn sent_large(&mut self, now: Instant, at: usize) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        peer.sent_large = Some(now);
        if let Some(link) = peer.active.and_then(|id| peer.link_mut(id))
            && let Some(mtu) = &mut link.mtu
        {
            mtu.handle_traffic(now);
        }
    }

    /// Tells the sender how large packets may be.
    fn too_big(mtu: u16, packet: &[u8], out: &mut impl Out) -> Result<(), Dropped> {
        let header = Header::parse(packet).map_err(|_| Dropped::NotIp)?;
        let mut written = 0;
        out.packet(MAX_ERROR_LEN, |room| {
            // From its destination: a host refuses what bears one of its own addresses.
            written = packet_too_big(&header, packet, mtu, header.dst, room).unwrap_or(0);
            written
        });
        if written == 0 {
            return Err(Dropped::TooBig);
        }
        Ok(())
    }
}

/// Writes the route id into a sealed datagram of `len` octets, and returns its length.
pub(super) fn mark(room: &mut [u8], len: usize, route: Option<RouteId>) -> usize {
    if let (Some(route), Some(datagram)) = (route, room.get_mut(..len)) {
        // Fails for what is no datagram, which nothing sealed is.
        let _ = datagram::set_route(datagram, route);
    }
    len
}

/// Returns the peer for a flow: the one it has, as long as that may come back; else one of the
/// healthy ones, the same for all packets of a flow whoever else comes and goes.
fn choose<N: Noise>(
    now: Instant,
    peers: &[Option<Peer<N>>],
    allowed: &AllowedIps,
    secret: u64,
    flow: &FlowKey,
    before: Option<Before>,
) -> Option<PeerIndex> {
    let peer = |place: PeerIndex| peers.get(usize::from(place.get())).and_then(Option::as_ref);
    let stays =
        |place: &PeerIndex| peer(*place).is_some_and(|peer| peer.keeps_flows(now, PATIENCE));
    if let Some(Before {
        peer: place,
        answered,
    }) = before
        && stays(&place)
        // Nothing is lost with a flow that nobody answered yet: this peer may have died.
        && (answered || peer(place).is_some_and(Peer::is_healthy))
    {
        return Some(place);
    }
    let usable = |place: &PeerIndex| peer(*place).is_some_and(|peer| peer.is_healthy());
    let candidates = allowed.peers(flow.far).iter().filter(usable);
    let weight = |place: &PeerIndex| {
        let willing = peer(*place).is_some_and(|peer| !peer.draining);
        (willing, flow.hash(secret.wrapping_add(place.get().into())))
    };
    candidates.max_by_key(weight)
}
