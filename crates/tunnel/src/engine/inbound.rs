//! From a link into the device: which session a datagram is of, and whether its packet may pass.
//!
//! ```text
//!   datagram ─ index │ initiation's key ─▶ pair ─ open ─▶ packet ─▶ probe? answered by its link
//!                                            │               └────▶ source, destination, filter ─▶ device
//!                                            └─▶ handshake: the answer goes back by its link
//! ```
//!
//! Nothing about a datagram is trusted before it was opened: neither its source nor that its sender
//! is alive.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use tunnel_proto::allowed::PeerIndex;
use tunnel_proto::codel::Band;
use tunnel_proto::datagram::{self, Kind};
use tunnel_proto::echo::{self, Echo, ProbeInfo};
use tunnel_proto::ip::{Header, mss};
use tunnel_proto::path::LinkId;

use crate::noise::{Identified, OUT_LEN, Opened, Refused, Reply};

use super::client::send;
use super::dropped::Dropped;
use super::outbound::{OVERHEAD, mark};
use super::peer::Remote;
use super::peers::Side;
use super::{Engine, MTU_PROBE, Out};

/// The pair and session of a datagram, as far as its header says.
#[derive(Clone, Copy)]
pub(super) struct PairRef {
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
enum Lookup {
    Pair(PairRef),
    /// A cookie in the scratch buffer goes back.
    Cookie(usize),
    Unknown(&'static str),
}

/// What something authentic was.
#[derive(Clone, Copy)]
pub(super) enum Received {
    /// A packet for the device, or one that the filter refused.
    Packet,
    Probe(ProbeInfo),
    /// An answer to a probe, a keepalive: the peer does not send these by the link it chose.
    Quiet,
}

/// For how long probes report that a large packet was sent.
const LATELY: Duration = Duration::from_secs(2);

/// The minimum MTU of IPv6 (RFC 8200 §5): a path that carries less is of no use.
pub(super) const MIN_MTU: u16 = 1280;

/// What became of a datagram.
enum Verdict {
    /// The packet goes to the device.
    Deliver(usize),
    /// Something was authentic, and there is nothing to deliver.
    Received,
    Nothing,
    /// A handshake message or keepalive goes back; it lies in the scratch buffer.
    Reply {
        len: usize,
        reply: Reply,
    },
    /// A probe, in the scratch buffer.
    Probe {
        len: usize,
        info: ProbeInfo,
    },
    /// An answer to a probe.
    Answer {
        id: u32,
        info: Option<ProbeInfo>,
    },
    Drop(&'static str),
    /// Refused by the filter, which counts.
    Refused,
}

impl Engine {
    /// Handles a datagram of a socket. Its reserved bytes are zero afterwards.
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

    /// Handles a datagram with no route id in it, such as those in frames.
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        from: &Remote,
        datagram: &[u8],
        out: &mut impl Out,
    ) {
        let of = match self.find_pair(now, from, datagram) {
            Lookup::Pair(of) => of,
            Lookup::Cookie(len) => {
                let cookie = self.scratch.get(..len).unwrap_or_default();
                return send(from, cookie, None, out);
            }
            Lookup::Unknown(why) => return self.counts.drop(why),
        };
        let mut verdict = Verdict::Nothing;
        out.packet(datagram.len().max(OUT_LEN), |buf| {
            verdict = self.open(now, of, from, datagram, buf);
            if let Verdict::Deliver(len) = verdict {
                len
            } else {
                0
            }
        });
        match verdict {
            Verdict::Deliver(_) | Verdict::Refused => {
                self.heard(now, of, from, Received::Packet, out);
            }
            Verdict::Received => {
                self.heard(now, of, from, Received::Quiet, out);
            }
            Verdict::Reply { len, reply } => {
                let peer = self.peers.get(of.peer).and_then(Option::as_ref);
                let route = peer.and_then(|peer| peer.route);
                send(
                    from,
                    self.scratch.get(..len).unwrap_or_default(),
                    route,
                    out,
                );
                self.replied(now, of, from, reply, out);
            }
            Verdict::Probe { len, info } => {
                // First, since it lies in the scratch buffer.
                self.answer(now, of, from, len, out);
                let link = self.heard(now, of, from, Received::Probe(info), out);
                self.apply_probe_info(now, of.peer, link, info);
            }
            Verdict::Answer { id, info } => {
                if let Some(link) = self.heard(now, of, from, Received::Quiet, out) {
                    self.answered(now, of.peer, link, id, info, out);
                }
            }
            Verdict::Drop(why) => self.counts.drop(why),
            Verdict::Nothing => {}
        }
    }

    fn find_pair(&mut self, now: Instant, from: &Remote, datagram: &[u8]) -> Lookup {
        let header = match datagram::Header::parse(datagram) {
            Ok(header) => header,
            Err(error) => return Lookup::Unknown(error.reason()),
        };
        let session = header.receiver.unwrap_or(0);
        let (place, pair) = if header.kind == Kind::Initiation {
            match self.find_initiator(now, from, datagram) {
                Ok(found) => found,
                Err(other) => return other,
            }
        } else {
            let index = session >> 8;
            let found = self.by_index.iter().find(|(known, ..)| *known == index);
            let Some((_, place, pair)) = found else {
                return Lookup::Unknown(Dropped::UnknownSession.as_str());
            };
            (*place, *pair)
        };
        Lookup::Pair(PairRef {
            peer: usize::from(place.get()),
            pair,
            place,
            session,
            counter: datagram::counter(datagram).unwrap_or(0),
        })
    }

    /// Returns the peer and pair of a handshake: only servers answer any, within a budget.
    fn find_initiator(
        &mut self,
        now: Instant,
        from: &Remote,
        datagram: &[u8],
    ) -> Result<(PeerIndex, usize), Lookup> {
        let source = self.source(from);
        let Side::Server { budget, .. } = &mut self.side else {
            return Err(Lookup::Unknown(Dropped::Handshake.as_str()));
        };
        let afford = || budget.take(now, 1);
        let scratch = &mut self.scratch;
        let identified = self.keys.identify(source, datagram, scratch, afford);
        if let Remote::Stream(stream) = from
            && matches!(identified, Ok(_) | Err(Refused::Budget))
            && let Some(stream) = self.streams.get_mut(stream)
        {
            stream.knows_key = true;
        }
        let (own, theirs) = match identified {
            Ok(Identified::Cookie { len }) => return Err(Lookup::Cookie(len)),
            Ok(Identified::Pair { own, theirs }) => (own, theirs),
            Err(refused) => return Err(Lookup::Unknown(refused.as_str())),
        };
        let own = self.keys.own().get(own).copied();
        let found = self.by_index.iter().find(|(_, place, pair)| {
            let peer = self.peers.get(usize::from(place.get()));
            let peer = peer.and_then(Option::as_ref);
            let pair = peer.and_then(|peer| peer.pairs.get(*pair));
            pair.is_some_and(|pair| Some(pair.own) == own && pair.theirs == theirs)
        });
        let error = Lookup::Unknown(Dropped::Handshake.as_str());
        found.map(|(_, place, pair)| (*place, *pair)).ok_or(error)
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

    /// Opens a datagram into `buf` and judges the packet in it.
    fn open(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        datagram: &[u8],
        buf: &mut [u8],
    ) -> Verdict {
        let source = self.source(from);
        let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
        let pair = peer.and_then(|peer| peer.pairs.get_mut(of.pair));
        let Some(pair) = pair else {
            return Verdict::Drop(Dropped::UnknownSession.as_str());
        };
        match pair.noise.open(now, source, datagram, buf) {
            Ok(Opened::Packet { len }) => {
                self.judge(now, of, buf.get_mut(..len).unwrap_or_default())
            }
            Ok(Opened::Keepalive) => Verdict::Received,
            // The handshake goes on with the next initiation; nothing was shown of the link.
            Ok(Opened::Cookie) => Verdict::Nothing,
            Ok(Opened::Reply { len, reply }) => {
                let bytes = buf.get(..len).unwrap_or_default();
                if let Some(scratch) = self.scratch.get_mut(..len) {
                    scratch.copy_from_slice(bytes);
                }
                Verdict::Reply { len, reply }
            }
            Err(refused) => Verdict::Drop(refused.as_str()),
        }
    }

    fn judge(&mut self, now: Instant, of: PairRef, packet: &mut [u8]) -> Verdict {
        let Ok(header) = Header::parse(packet) else {
            return Verdict::Drop(Dropped::NotIp.as_str());
        };
        if !self.allowed.allows(of.place, header.src) {
            return Verdict::Drop(Dropped::Source.as_str());
        }
        // WireGuard pads packets; the rest is padding.
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
                let behind = |network: &ipnet::IpNet| network.contains(&header.dst);
                for_us || self.networks.iter().any(behind)
            }
            Side::Server { filter, .. } => {
                if !for_us {
                    return Verdict::Drop(Dropped::Destination.as_str());
                }
                if filter.inbound(now, &header, packet).is_err() {
                    return Verdict::Refused;
                }
                true
            }
        };
        if !passes {
            return Verdict::Drop(Dropped::Destination.as_str());
        }
        let mtu = peer.and_then(|peer| peer.active_link().map(|link| link.mtu(self.mtu)));
        mss::clamp(&header, packet, mtu.unwrap_or(self.mtu));
        self.counts.opened.add(packet.len());
        Verdict::Deliver(packet.len())
    }

    fn probe(&mut self, probe: Echo, packet: &[u8]) -> Verdict {
        match probe {
            Echo::Request(info) => match self.scratch.get_mut(..packet.len()) {
                Some(scratch) => {
                    scratch.copy_from_slice(packet);
                    let len = packet.len();
                    Verdict::Probe { len, info }
                }
                None => Verdict::Received,
            },
            Echo::Reply { id, info } => Verdict::Answer { id, info },
        }
    }

    /// Records that something authentic came by a link, and returns the link.
    fn heard(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        what: Received,
        out: &mut impl Out,
    ) -> Option<LinkId> {
        let latest_seen = self.is_latest(now, of);
        match &self.side {
            Side::Client { .. } => self.received_from_server(now, of, from, what, out),
            Side::Server { .. } => self.received_from_client(now, of, from, what, latest_seen),
        }
    }

    fn is_latest(&mut self, now: Instant, of: PairRef) -> bool {
        let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
        let pair = peer.and_then(|peer| peer.pairs.get_mut(of.pair));
        pair.is_some_and(|pair| pair.is_latest(now, of.session, of.counter))
    }

    /// Records what a handshake message led to.
    fn replied(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        reply: Reply,
        out: &mut impl Out,
    ) {
        match reply {
            Reply::Confirmation => {
                self.counts.handshakes += 1;
                let peer = self.peers.get_mut(of.peer).and_then(Option::as_mut);
                if let Some(pair) = peer.and_then(|peer| peer.pairs.get_mut(of.pair)) {
                    pair.confirmed(now);
                    pair.pending = None;
                }
                self.received_from_server(now, of, from, Received::Quiet, out);
            }
            // An initiation may be a replay: it proves nothing about the link.
            Reply::Response => self.counts.handshakes += 1,
            Reply::Cookie => {}
        }
    }

    /// Answers a probe by the link it came by, sealed with the pair it came with; `None` when that is not
    /// possible.
    fn answer(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        len: usize,
        out: &mut impl Out,
    ) -> Option<()> {
        let reply = self.probe_info(now, of.peer, false, 0);
        let packet = self.scratch.get_mut(..len)?;
        let header = Header::parse(packet).ok()?;
        let peer = self.peers.get_mut(of.peer)?.as_mut()?;
        let route = from.route(peer.route);
        let pair = peer.pairs.get_mut(of.pair)?;
        if pair.noise.is_ready(now) && echo::answer(&header, packet, reply) {
            out.datagram(from, Band::Urgent, len + OVERHEAD, |buf| {
                let len = pair.noise.seal(packet, buf).unwrap_or(0);
                mark(buf, len, route)
            });
        }
        Some(())
    }

    /// Applies what a peer reported in a probe.
    fn apply_probe_info(&mut self, now: Instant, at: usize, link: Option<LinkId>, info: ProbeInfo) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        peer.draining = info.draining;
        if matches!(self.side, Side::Client { .. }) {
            peer.flows = Some((info.flows, now));
            let mtu = link.and_then(|id| peer.link_mut(id)?.mtu.as_mut());
            if let Some(mtu) = mtu.filter(|_| info.large) {
                mtu.handle_traffic(now);
            }
        } else if let Some(link) = link.and_then(|id| peer.link_mut(id)) {
            // A probe that searches for the size has none, and smaller ones are impossible.
            if info.mtu >= MIN_MTU {
                link.reported_mtu = info.mtu;
            }
        }
    }

    /// Returns what this end reports to a peer.
    pub(super) fn probe_info(&self, now: Instant, at: usize, active: bool, mtu: u16) -> ProbeInfo {
        let peer = self.peers.get(at).and_then(Option::as_ref);
        let large = peer.and_then(|peer| peer.sent_large);
        let large = large.is_some_and(|sent| now.saturating_duration_since(sent) < LATELY);
        let flows = match &self.side {
            Side::Client { .. } => 0,
            Side::Server { filter, .. } => {
                super::peer_index(at).map_or(0, |place| filter.open_flows(place))
            }
        };
        ProbeInfo {
            active,
            draining: self.draining,
            large,
            mtu,
            flows,
        }
    }

    /// Handles the answer to a probe.
    fn answered(
        &mut self,
        now: Instant,
        at: usize,
        link: LinkId,
        id: u32,
        info: Option<ProbeInfo>,
        out: &mut impl Out,
    ) {
        if let Some(info) = info {
            self.apply_probe_info(now, at, Some(link), info);
        }
        if id >= MTU_PROBE {
            self.answered_mtu(now, at, link, id - MTU_PROBE);
        } else {
            self.answered_alive(now, at, link, id, out);
        }
    }
}
