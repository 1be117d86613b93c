//! From a link into the device: which session a datagram is of, and whether its packet may pass.
//!
//! ```text
//!   datagram ─ index │ initiation's key ─▶ pair ─ open ─▶ packet ─▶ probe? answered by its link
//!                                            │               └────▶ source, destination, filter ─▶ device
//!                                            └─▶ handshake: the answer goes back by its link
//! ```
//!
//! Nothing is believed of a datagram before it was opened: not where it is from, nor that its
//! sender lives.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use tunnel_proto::allowed::PeerIndex;
use tunnel_proto::codel::Band;
use tunnel_proto::datagram::{self, Kind, RouteId};
use tunnel_proto::echo::{self, Echo, Told};
use tunnel_proto::ip::{Header, mss};
use tunnel_proto::path::LinkId;

use crate::noise::{Identified, Keys, Noise, OUT_LEN, Opened, Reply};

use super::dropped::Dropped;
use super::outbound::{OVERHEAD, mark};
use super::peer::Remote;
use super::peers::Side;
use super::{Engine, MTU_PROBE, Out};

/// A datagram's session, as far as it says.
#[derive(Clone, Copy)]
pub(super) struct Of {
    /// Place of the peer.
    pub(super) peer: usize,
    /// Place of the pair.
    pub(super) pair: usize,
    place: PeerIndex,
    /// The receiver's index and the counter, of data.
    session: u32,
    counter: u64,
}

/// What is known of a datagram before it is opened.
enum Whose {
    Of(Of),
    /// A cookie in the scratch buffer goes back.
    Cookie(usize),
    Nobodys(&'static str),
}

/// What something authentic was.
#[derive(Clone, Copy)]
pub(super) enum Heard {
    /// A packet for the device, or one that the filter refused.
    Packet,
    Probe(Told),
    /// An answer to a probe, a keepalive: the peer does not send these by the link it chose.
    Quiet,
}

/// For how long the other end is told of a large packet: some of its probes.
const LATELY: Duration = Duration::from_secs(2);

/// The least MTU of IPv6 (RFC 8200 §5): a path that carries less is of no use.
pub(super) const LEAST_MTU: u16 = 1280;

/// What became of a datagram.
enum Verdict {
    /// The packet goes to the device.
    Deliver(usize),
    /// Something was authentic, and there is nothing to deliver.
    Heard,
    Nothing,
    /// A handshake message or keepalive goes back; it lies in the scratch buffer.
    Reply {
        len: usize,
        reply: Reply,
    },
    /// A probe, in the scratch buffer.
    Probe {
        len: usize,
        told: Told,
    },
    /// An answer to a probe.
    Answer {
        id: u32,
        told: Option<Told>,
    },
    Drop(&'static str),
    /// Refused by the filter, which counts.
    Refused,
}

impl<K: Keys> Engine<K> {
    /// Takes a datagram of a socket. Its reserved octets are zero afterwards.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Instant,
        from: &Remote,
        datagram: &mut [u8],
        out: &mut impl Out,
    ) {
        match datagram::clear_route(datagram) {
            Ok(()) => self.handle_frame(now, from, datagram, out),
            Err(error) => self.counts.drop(error.reason()),
        }
    }

    /// Takes a datagram with no route id in it, such as those in frames.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        from: &Remote,
        datagram: &[u8],
        out: &mut impl Out,
    ) {
        let of = match self.whose_datagram(now, from, datagram) {
            Whose::Of(of) => of,
            Whose::Cookie(len) => return self.send_scratch(from, len, None, out),
            Whose::Nobodys(why) => return self.counts.drop(why),
        };
        let mut verdict = Verdict::Nothing;
        out.packet(datagram.len().max(OUT_LEN), |room| {
            verdict = self.open(now, of, from, datagram, room);
            match verdict {
                Verdict::Deliver(len) => len,
                Verdict::Heard
                | Verdict::Nothing
                | Verdict::Reply { .. }
                | Verdict::Probe { .. }
                | Verdict::Answer { .. }
                | Verdict::Drop(_)
                | Verdict::Refused => 0,
            }
        });
        match verdict {
            Verdict::Deliver(_) | Verdict::Refused => {
                self.heard(now, of, from, Heard::Packet, out);
            }
            Verdict::Heard => {
                self.heard(now, of, from, Heard::Quiet, out);
            }
            Verdict::Reply { len, reply } => {
                let route = self.route_of(of.peer, from);
                self.send_scratch(from, len, route, out);
                self.replied(now, of, from, reply, out);
            }
            Verdict::Probe { len, told } => {
                // First, since it lies in the scratch buffer.
                self.answer(now, of, from, len, out);
                let link = self.heard(now, of, from, Heard::Probe(told), out);
                self.listen_to(now, of.peer, link, told);
            }
            Verdict::Answer { id, told } => {
                if let Some(link) = self.heard(now, of, from, Heard::Quiet, out) {
                    self.answered(now, of.peer, link, id, told, out);
                }
            }
            Verdict::Drop(why) => self.counts.drop(why),
            Verdict::Nothing => {}
        }
    }

    fn whose_datagram(&mut self, now: Instant, from: &Remote, datagram: &[u8]) -> Whose {
        let header = match datagram::Header::parse(datagram) {
            Ok(header) => header,
            Err(error) => return Whose::Nobodys(error.reason()),
        };
        let session = header.receiver.unwrap_or(0);
        let (place, pair) = if header.kind == Kind::Initiation {
            match self.whose_initiation(now, from, datagram) {
                Ok(found) => found,
                Err(other) => return other,
            }
        } else {
            let index = session >> 8;
            let found = self.by_index.iter().find(|(known, ..)| *known == index);
            let Some((_, place, pair)) = found else {
                return Whose::Nobodys(Dropped::UnknownSession.reason());
            };
            (*place, *pair)
        };
        Whose::Of(Of {
            peer: usize::from(place.get()),
            pair,
            place,
            session,
            counter: datagram::counter(datagram).unwrap_or(0),
        })
    }

    /// Returns whose handshake it is: only servers answer any, and not more than they can.
    fn whose_initiation(
        &mut self,
        now: Instant,
        from: &Remote,
        datagram: &[u8],
    ) -> Result<(PeerIndex, usize), Whose> {
        let source = self.source(from);
        let Side::Server { budget, .. } = &mut self.side else {
            return Err(Whose::Nobodys(Dropped::Handshake.reason()));
        };
        let afford = || budget.take(now, 1);
        let scratch = &mut self.scratch;
        let (own, theirs) = match self.keys.identify(source, datagram, scratch, afford) {
            Identified::Cookie { len } => return Err(Whose::Cookie(len)),
            Identified::Pair { own, theirs } => (own, theirs),
            Identified::Refused(refused) => return Err(Whose::Nobodys(refused.reason())),
        };
        let own = self.keys.own().get(own).copied();
        let found = self.by_index.iter().find(|(_, place, pair)| {
            let peer = self.peers.get(usize::from(place.get()));
            let peer = peer.and_then(Option::as_ref);
            let pair = peer.and_then(|peer| peer.pairs.get(*pair));
            pair.is_some_and(|pair| Some(pair.own) == own && pair.theirs == theirs)
        });
        let nobody = Whose::Nobodys(Dropped::Handshake.reason());
        found.map(|(_, place, pair)| (*place, *pair)).ok_or(nobody)
    }

    /// Returns the address that handshakes are counted by.
    fn source(&self, from: &Remote) -> IpAddr {
        let stream = |id| self.streams.get(id).map(|stream| stream.from.ip());
        let source = match from {
            Remote::Stream(id) => stream(id),
            Remote::Udp { to, .. } => to.map(|to| to.ip()),
            Remote::Wrapped { client, .. } => Some(client.ip()),
        };
        source.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// Opens a datagram into `room` and judges the packet in it.
    fn open(
        &mut self,
        now: Instant,
        of: Of,
        from: &Remote,
        datagram: &[u8],
        room: &mut [u8],
    ) -> Verdict {
        let source = self.source(from);
        let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
        let pair = peer.and_then(|peer| peer.pairs.get_mut(of.pair));
        let Some(pair) = pair else {
            return Verdict::Drop(Dropped::UnknownSession.reason());
        };
        match pair.noise.open(now, source, datagram, room) {
            Opened::Packet { len } => self.judge(now, of, room.get_mut(..len).unwrap_or_default()),
            Opened::Keepalive => Verdict::Heard,
            // The handshake goes on with the next initiation; nothing was shown of the link.
            Opened::Cookie => Verdict::Nothing,
            Opened::Reply { len, reply } => {
                let octets = room.get(..len).unwrap_or_default();
                if let Some(scratch) = self.scratch.get_mut(..len) {
                    scratch.copy_from_slice(octets);
                }
                Verdict::Reply { len, reply }
            }
            Opened::Refused(refused) => Verdict::Drop(refused.reason()),
        }
    }

    fn judge(&mut self, now: Instant, of: Of, packet: &mut [u8]) -> Verdict {
        let Ok(header) = Header::parse(packet) else {
            return Verdict::Drop(Dropped::NotIp.reason());
        };
        if !self.allowed.allows(of.place, header.src) {
            return Verdict::Drop(Dropped::Source.reason());
        }
        // WireGuard pads packets; what lies behind is nobody's.
        let packet = packet.get_mut(..header.total_len).unwrap_or_default();
        let for_us = self.own.contains(&header.dst);
        let peer = self.peers.get(of.peer).and_then(Option::as_ref);
        let from_end = peer.is_some_and(|peer| peer.addresses.contains(&header.src));
        if for_us
            && from_end
            && let Some(probe) = echo::parse(&header, packet)
        {
            return self.probe(probe, packet);
        }
        let passes = match &mut self.side {
            Side::Client { .. } => {
                let behind = |network: &crate::Network| network.contains(header.dst);
                for_us || self.networks.iter().any(behind)
            }
            Side::Server { filter, .. } => {
                if !for_us {
                    return Verdict::Drop(Dropped::Destination.reason());
                }
                if filter.inbound(now, &header, packet).is_err() {
                    return Verdict::Refused;
                }
                true
            }
        };
        if !passes {
            return Verdict::Drop(Dropped::Destination.reason());
        }
        let mtu = peer.and_then(|peer| peer.active_link().map(|link| link.mtu(self.mtu)));
        mss::clamp(&header, packet, mtu.unwrap_or(self.mtu));
        self.counts.opened.add(packet.len());
        Verdict::Deliver(packet.len())
    }

    fn probe(&mut self, probe: Echo, packet: &[u8]) -> Verdict {
        match probe {
            Echo::Request(told) => match self.scratch.get_mut(..packet.len()) {
                Some(scratch) => {
                    scratch.copy_from_slice(packet);
                    let len = packet.len();
                    Verdict::Probe { len, told }
                }
                None => Verdict::Heard,
            },
            Echo::Reply { id, told } => Verdict::Answer { id, told },
        }
    }

    /// Takes note that something authentic came by a link, and returns the link.
    fn heard(
        &mut self,
        now: Instant,
        of: Of,
        from: &Remote,
        what: Heard,
        out: &mut impl Out,
    ) -> Option<LinkId> {
        let newest = self.is_newest(now, of);
        match &self.side {
            Side::Client { .. } => self.heard_server(now, of, from, what, out),
            Side::Server { .. } => self.heard_client(now, of, from, what, newest),
        }
    }

    fn is_newest(&mut self, now: Instant, of: Of) -> bool {
        let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
        let pair = peer.and_then(|peer| peer.pairs.get_mut(of.pair));
        pair.is_some_and(|pair| pair.is_newest(now, of.session, of.counter))
    }

    /// Sends what lies in the scratch buffer.
    fn send_scratch(&self, to: &Remote, len: usize, route: Option<RouteId>, out: &mut impl Out) {
        let octets = self.scratch.get(..len).unwrap_or_default();
        out.datagram(to, Band::Urgent, len, |room| {
            if let Some(room) = room.get_mut(..len) {
                room.copy_from_slice(octets);
            }
            mark(room, len, route)
        });
    }

    /// Takes note of what a handshake message led to.
    fn replied(&mut self, now: Instant, of: Of, from: &Remote, reply: Reply, out: &mut impl Out) {
        match reply {
            Reply::Confirmation => {
                self.counts.handshakes += 1;
                let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
                if let Some(pair) = peer.and_then(|peer| peer.pairs.get_mut(of.pair)) {
                    pair.confirmed(now);
                    pair.pending = None;
                }
                self.heard_server(now, of, from, Heard::Quiet, out);
            }
            // An initiation may be a repetition of somebody else's: it shows nothing of the link.
            Reply::Response => self.counts.handshakes += 1,
            Reply::Cookie => {}
        }
    }

    /// Answers a probe by the link it came by, sealed with the pair it came with.
    fn answer(&mut self, now: Instant, of: Of, from: &Remote, len: usize, out: &mut impl Out) {
        let reply = self.tell(now, of.peer, false, 0);
        let route = self.route_of(of.peer, from);
        let Some(packet) = self.scratch.get_mut(..len) else {
            return;
        };
        let Ok(header) = Header::parse(packet) else {
            return;
        };
        if !echo::answer(&header, packet, reply) {
            return;
        }
        let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
        let Some(pair) = peer.and_then(|peer| peer.pairs.get_mut(of.pair)) else {
            return;
        };
        if !pair.noise.is_ready(now) {
            return;
        }
        out.datagram(from, Band::Urgent, len + OVERHEAD, |room| {
            let len = pair.noise.seal(packet, room).unwrap_or(0);
            mark(room, len, route)
        });
    }

    /// Takes what a peer told of itself in a probe.
    fn listen_to(&mut self, now: Instant, at: usize, link: Option<LinkId>, told: Told) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        peer.draining = told.draining;
        if matches!(self.side, Side::Client { .. }) {
            peer.flows = told.flows;
            let mtu = link.and_then(|id| peer.link_mut(id)?.mtu.as_mut());
            if let Some(mtu) = mtu.filter(|_| told.large) {
                mtu.handle_traffic(now);
            }
        } else if let Some(link) = link.and_then(|id| peer.link_mut(id)) {
            // A probe that searches for the size knows none; what nobody can mean is a lie.
            if told.mtu >= LEAST_MTU {
                link.told_mtu = told.mtu;
            }
        }
    }

    /// Returns what this end tells a peer.
    pub(super) fn tell(&self, now: Instant, at: usize, active: bool, mtu: u16) -> Told {
        let peer = self.peers.get(at).and_then(Option::as_ref);
        let large = peer.and_then(|peer| peer.sent_large);
        let large = large.is_some_and(|sent| now.saturating_duration_since(sent) < LATELY);
        let flows = match &self.side {
            Side::Client { .. } => 0,
            Side::Server { filter, .. } => {
                super::peer_index(at).map_or(0, |place| filter.open_flows(place))
            }
        };
        Told {
            active,
            draining: self.draining,
            large,
            mtu,
            flows,
        }
    }

    /// Takes the answer to a probe.
    fn answered(
        &mut self,
        now: Instant,
        at: usize,
        link: LinkId,
        id: u32,
        told: Option<Told>,
        out: &mut impl Out,
    ) {
        if let Some(told) = told {
            self.listen_to(now, at, Some(link), told);
        }
        if id >= MTU_PROBE {
            self.answered_mtu(now, at, link, id - MTU_PROBE);
        } else {
            self.answered_alive(now, at, link, id, out);
        }
    }
}
