//! From the device into the tunnel: which peer gets a packet, by which link, how large it may be.
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

use super::dropped::Dropped;
use super::inbound::MIN_MTU;
use super::peer::{Peer, Remote};
use super::peers::Side;
use super::{Engine, FLOW_GRACE, Out};

/// Bytes that sealing adds to a packet (WireGuard paper §5.4.6).
pub(super) const OVERHEAD: usize = 32;

/// Where a packet goes.
struct NextHop {
    peer: usize,
    pair: usize,
    remote: Remote,
    route: Option<RouteId>,
    mtu: u16,
}

impl Engine {
    /// Takes what was read from the device. `packet` begins with the IP header.
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        vnet: &VnetHeader,
        packet: &mut [u8],
        out: &mut impl Out,
    ) {
        let Ok(header) = Header::parse(packet) else {
            return self.counts.drop(Dropped::NotIp.as_str());
        };
        let Some(place) = self.select_peer(now, &header, packet) else {
            return;
        };
        let hop = match self.next_hop(now, place) {
            Ok(hop) => hop,
            Err(why) => return self.counts.drop(why.as_str()),
        };
        if let Err(why) = self.seal(now, &hop, (&header, vnet), packet, out) {
            self.counts.drop(why.as_str());
        }
    }

    /// Returns the peer a packet goes to. A refusal is counted.
    fn select_peer(&mut self, now: Instant, header: &Header, packet: &[u8]) -> Option<PeerIndex> {
        match &mut self.side {
            Side::Client { .. } => {
                let peer = self.allowed.peers(header.dst).iter().next();
                if peer.is_none() {
                    self.counts.drop(Dropped::NoPeer.as_str());
                }
                peer
            }
            Side::Server { filter, .. } => {
                let (peers, allowed, secret) = (&self.peers, &self.allowed, self.secret);
                let choose =
                    |flow: &FlowKey, before| choose(now, peers, allowed, secret, flow, before);
                filter.outbound(now, header, packet, choose).ok()
            }
        }
    }

    fn next_hop(&self, now: Instant, place: PeerIndex) -> Result<NextHop, Dropped> {
        let at = usize::from(place.get());
        let peer = self.peers.get(at).and_then(Option::as_ref);
        let peer = peer.ok_or(Dropped::NoPeer)?;
        let link = peer.active_link().ok_or(Dropped::NoLink)?;
        let pair = peer.sealing(now).ok_or(Dropped::NoSession)?;
        Ok(NextHop {
            peer: at,
            pair,
            remote: link.remote,
            route: link.remote.route(peer.route),
            mtu: link.mtu(self.mtu),
        })
    }

    fn seal(
        &mut self,
        now: Instant,
        hop: &NextHop,
        (header, vnet): (&Header, &VnetHeader),
        packet: &mut [u8],
        out: &mut impl Out,
    ) -> Result<(), Dropped> {
        let is_single = vnet.gso == Gso::None;
        let total = packet.len();
        let mut segments = Segments::new(vnet, packet).map_err(|_| Dropped::Offload)?;
        if segments.max_len() > usize::from(hop.mtu) {
            let Some(first) = segments.next() else {
                return Err(Dropped::Offload);
            };
            return Self::too_big(hop.mtu, first, out);
        }
        let peer = self.peers.get_mut(hop.peer).and_then(Option::as_mut);
        let pair = peer.and_then(|peer| peer.pairs.get_mut(hop.pair));
        let pair = pair.ok_or(Dropped::NoPeer)?;
        let (mut bytes, mut packets) = (0, 0_u64);
        while let Some(segment) = segments.next() {
            if is_single {
                mss::clamp(header, segment, hop.mtu);
            }
            let mut sealed = 0;
            out.datagram(&hop.remote, Band::Bulk, segment.len() + OVERHEAD, |buf| {
                sealed = pair.noise.seal(segment, buf).unwrap_or(0);
                mark(buf, sealed, hop.route)
            });
            if sealed > 0 {
                packets += 1;
                bytes += segment.len();
            }
        }
        self.counts.sealed.bytes += bytes as u64;
        self.counts.sealed.packets += packets;
        if total > usize::from(MIN_MTU) {
            self.sent_large(now, hop.peer);
        }
        Ok(())
    }

    /// Records that a packet was sent that a smaller path would not carry.
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

    /// Sends the error "packet too big" to the sender.
    fn too_big(mtu: u16, packet: &[u8], out: &mut impl Out) -> Result<(), Dropped> {
        let header = Header::parse(packet).map_err(|_| Dropped::NotIp)?;
        let mut written = 0;
        out.packet(MAX_ERROR_LEN, |buf| {
            // From its destination: a host refuses what bears one of its own addresses.
            written = packet_too_big(&header, packet, mtu, header.dst, buf).unwrap_or(0);
            written
        });
        if written == 0 {
            return Err(Dropped::TooBig);
        }
        Ok(())
    }
}

/// Writes the route id into a sealed datagram of `len` bytes, and returns its length.
pub(super) fn mark(buf: &mut [u8], len: usize, route: Option<RouteId>) -> usize {
    if let (Some(route), Some(datagram)) = (route, buf.get_mut(..len)) {
        // Fails for what is no datagram, which nothing sealed is.
        let _ = datagram::set_route(datagram, route);
    }
    len
}

/// Returns the peer for a flow: the one it has, as long as that may come back; else one of the
/// healthy ones, the same for all packets of a flow while other peers come and go.
fn choose(
    now: Instant,
    peers: &[Option<Peer>],
    allowed: &AllowedIps,
    secret: u64,
    flow: &FlowKey,
    before: Option<Before>,
) -> Option<PeerIndex> {
    let peer = |place: PeerIndex| peers.get(usize::from(place.get())).and_then(Option::as_ref);
    let stays =
        |place: &PeerIndex| peer(*place).is_some_and(|peer| peer.keeps_flows(now, FLOW_GRACE));
    if let Some(Before {
        peer: place,
        answered,
    }) = before
        && stays(&place)
        // Nothing is lost with a flow that was not answered yet: this peer may have died.
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
