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

use super::counts::Dropped;
use super::inbound::MIN_MTU;
use super::peer::Peer;
use super::{Engine, FLOW_GRACE, Out, Shared, at, at_mut};

/// Bytes that sealing adds to a packet (WireGuard paper §5.4.6).
pub(super) const OVERHEAD: usize = 32;

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
            return self.shared.counts.drop(Dropped::NotIp.as_str());
        };
        let Some(place) = self.select_peer(now, &header, packet) else {
            return;
        };
        let (peer, shared) = (at_mut(&mut self.peers, place), &mut self.shared);
        let peer = peer.ok_or(Dropped::NoPeer);
        let sealed = peer.and_then(|peer| peer.seal(now, (&header, vnet), packet, shared, out));
        if let Err(why) = sealed {
            shared.counts.drop(why.as_str());
        }
    }

    /// Returns the peer a packet goes to. A refusal is counted.
    fn select_peer(&mut self, now: Instant, header: &Header, packet: &[u8]) -> Option<PeerIndex> {
        match &mut self.shared.server {
            None => {
                let peer = self.allowed.peers(header.dst).iter().next();
                if peer.is_none() {
                    self.shared.counts.drop(Dropped::NoPeer.as_str());
                }
                peer
            }
            Some(server) => {
                let (peers, allowed, secret) = (&self.peers, &self.allowed, self.secret);
                let choose =
                    |flow: &FlowKey, before| choose(now, peers, allowed, secret, flow, before);
                server.filter.outbound(now, header, packet, choose).ok()
            }
        }
    }
}

impl Peer {
    fn seal(
        &mut self,
        now: Instant,
        (header, vnet): (&Header, &VnetHeader),
        packet: &mut [u8],
        shared: &mut Shared,
        out: &mut impl Out,
    ) -> Result<(), Dropped> {
        let link = self.active_link().ok_or(Dropped::NoLink)?;
        let (remote, mtu) = (link.remote, link.mtu(shared.mtu));
        let route = remote.route(self.route);
        let pair = self.sealing(now).ok_or(Dropped::NoSession)?;
        let is_single = vnet.gso == Gso::None;
        let total = packet.len();
        let mut segments = Segments::new(vnet, packet).map_err(|_| Dropped::Offload)?;
        if segments.max_len() > usize::from(mtu) {
            let first = segments.next().ok_or(Dropped::Offload)?;
            return too_big(mtu, first, out);
        }
        let pair = self.pairs.get_mut(pair).ok_or(Dropped::NoSession)?;
        let (mut bytes, mut packets) = (0, 0_u64);
        while let Some(segment) = segments.next() {
            if is_single {
                mss::clamp(header, segment, mtu);
            }
            let mut sealed = 0;
            out.datagram(&remote, Band::Bulk, segment.len() + OVERHEAD, |buf| {
                sealed = pair.noise.seal(segment, buf).unwrap_or(0);
                mark(buf, sealed, route)
            });
            if sealed > 0 {
                packets += 1;
                bytes += segment.len();
            }
        }
        shared.counts.sealed.bytes += bytes as u64;
        shared.counts.sealed.packets += packets;
        if total > usize::from(MIN_MTU) {
            self.sent_large = Some(now);
            let link = self.active.and_then(|id| self.link_mut(id));
            if let Some(mtu) = link.and_then(|link| link.mtu.as_mut()) {
                mtu.handle_traffic(now);
            }
        }
        Ok(())
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

/// Writes the route id into a sealed datagram of `len` bytes, and returns its length.
pub(super) fn mark(buf: &mut [u8], len: usize, route: Option<RouteId>) -> usize {
    if let (Some(route), Some(datagram)) = (route, buf.get_mut(..len)) {
        // Fails for what is no datagram, which nothing sealed is.
        let _ = datagram::set_route(datagram, route);
    }
    len
}

/// Returns the peer for a flow: the one it has, as long as that may come back; else one of the
/// healthy ones, the same for all packets of a flow while other peers come and go. One that cannot
/// forward is the last choice, one that drains the last but one.
fn choose(
    now: Instant,
    peers: &[Option<Peer>],
    allowed: &AllowedIps,
    secret: u64,
    flow: &FlowKey,
    before: Option<Before>,
) -> Option<PeerIndex> {
    let peer = |place: PeerIndex| at(peers, place);
    let stays =
        |place: &PeerIndex| peer(*place).is_some_and(|peer| peer.keeps_flows(now, FLOW_GRACE));
    if let Some(Before {
        peer: place,
        answered,
    }) = before
        && stays(&place)
        // Nothing is lost with a flow that was not answered yet: this peer may have died.
        && (answered || peer(place).is_some_and(|peer| peer.is_healthy() && !peer.unsettled))
    {
        return Some(place);
    }
    let usable = |place: &PeerIndex| peer(*place).is_some_and(|peer| peer.is_healthy());
    let candidates = allowed.peers(flow.far).iter().filter(usable);
    let weight = |place: &PeerIndex| {
        let willing = peer(*place).map(|peer| (!peer.unsettled, !peer.draining));
        (willing, flow.hash(secret.wrapping_add(place.get().into())))
    };
    candidates.max_by_key(weight)
}
