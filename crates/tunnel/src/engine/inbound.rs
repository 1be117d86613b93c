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
use super::counts::Dropped;
use super::outbound::{OVERHEAD, mark};
use super::peer::{Peer, Remote, Steering};
use super::{Engine, Out, Shared, at, at_mut};

/// The pair and session of a datagram, as far as its header says.
#[derive(Clone, Copy)]
struct PairRef {
    peer: PeerIndex,
    /// Place of the pair.
    pair: usize,
    /// The receiver's index and the counter, of data.
    session: u32,
    counter: u64,
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
    /// The packet of so many bytes goes to the device.
    Deliver(usize),
    /// Something was authentic, and there is nothing to deliver.
    Received(Received),
    /// It was dropped, which was counted, or was a cookie.
    Nothing,
    /// A handshake message or keepalive goes back; it lies in the scratch buffer.
    Reply { len: usize, reply: Reply },
    /// A probe of so many bytes, in the scratch buffer, or the answer to one.
    Echo(Echo, usize),
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
            Err(error) => self.shared.counts.drop(error.reason()),
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
        let Some(of) = self.find_pair(now, from, datagram, out) else {
            return;
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
        let (peer, shared) = (at_mut(&mut self.peers, of.peer), &mut self.shared);
        let Some(peer) = peer else { return };
        match verdict {
            Verdict::Deliver(_) => {
                peer.heard(now, of, from, Received::Packet, shared, out);
            }
            Verdict::Received(what) => {
                peer.heard(now, of, from, what, shared, out);
            }
            Verdict::Reply { len, reply } => {
                let message = shared.scratch.get(..len).unwrap_or_default();
                send(from, message, peer.route, out);
                shared.counts.handshakes += u64::from(reply != Reply::Cookie);
                // An initiation may be a replay: it proves nothing about the link.
                if reply == Reply::Confirmation {
                    if let Some(pair) = peer.pairs.get_mut(of.pair) {
                        pair.confirmed(now);
                    }
                    peer.received_from_server(now, from, Received::Quiet, shared, out);
                }
            }
            Verdict::Echo(Echo::Request(info), len) => {
                // First, since it lies in the scratch buffer.
                peer.answer(now, of, from, len, shared, out);
                let link = peer.heard(now, of, from, Received::Probe(info), shared, out);
                peer.apply_intent(now, of, Some(info));
                peer.apply_probe_info(now, link, info);
            }
            Verdict::Echo(Echo::Reply { id, info }, _) => {
                if let Some(link) = peer.heard(now, of, from, Received::Quiet, shared, out) {
                    peer.apply_intent(now, of, info);
                    if let Some(info) = info {
                        peer.apply_probe_info(now, Some(link), info);
                    }
                    peer.answered(now, link, id, shared, out);
                }
            }
            Verdict::Nothing => {}
        }
    }

    /// Returns the pair and session of a datagram; `None` when there is none, which is counted, and
    /// when a cookie went back.
    fn find_pair(
        &mut self,
        now: Instant,
        from: &Remote,
        datagram: &[u8],
        out: &mut impl Out,
    ) -> Option<PairRef> {
        let counts = &mut self.shared.counts;
        let header = datagram::Header::parse(datagram);
        let header = header.map_err(|error| counts.drop(error.reason())).ok()?;
        let session = header.receiver.unwrap_or(0);
        let (peer, pair) = if header.kind == Kind::Initiation {
            self.find_initiator(now, from, datagram, out)?
        } else {
            let mut pairs = self.by_index.iter();
            let Some((_, peer, pair)) = pairs.find(|(index, ..)| *index == session >> 8) else {
                counts.drop(Dropped::UnknownSession.as_str());
                return None;
            };
            (*peer, *pair)
        };
        Some(PairRef {
            peer,
            pair,
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
        out: &mut impl Out,
    ) -> Option<(PeerIndex, usize)> {
        let shared = &mut self.shared;
        let source = shared.source(from);
        let Some(server) = &mut shared.server else {
            shared.counts.drop(Dropped::Handshake.as_str());
            return None;
        };
        let (scratch, afford) = (&mut shared.scratch, || server.budget.take(now, 1));
        let identified = self.keys.identify(source, datagram, scratch, afford);
        if let Remote::Stream(stream) = from
            && matches!(identified, Ok(_) | Err(Refused::Budget))
            && let Some(stream) = shared.streams.get_mut(stream)
        {
            stream.knows_key = true;
        }
        let found = match identified {
            Ok(Identified::Cookie { len }) => {
                send(from, scratch.get(..len).unwrap_or_default(), None, out);
                return None;
            }
            Ok(Identified::Pair { own, theirs }) => {
                let own = self.keys.own().get(own).copied();
                let found = self.by_index.iter().find(|(_, peer, pair)| {
                    let pair = at(&self.peers, *peer).and_then(|peer| peer.pairs.get(*pair));
                    pair.is_some_and(|pair| Some(pair.own) == own && pair.theirs == theirs)
                });
                found.ok_or(Dropped::Handshake.as_str())
            }
            Err(refused) => Err(refused.as_str()),
        };
        let found = found.map_err(|why| shared.counts.drop(why)).ok()?;
        Some((found.1, found.2))
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
        let source = self.shared.source(from);
        let peer = at_mut(&mut self.peers, of.peer);
        let Some(pair) = peer.and_then(|peer| peer.pairs.get_mut(of.pair)) else {
            return self.dropped(Dropped::UnknownSession.as_str());
        };
        match pair.noise.open(now, source, datagram, buf) {
            Ok(Opened::Packet { len }) => {
                self.judge(now, of, buf.get_mut(..len).unwrap_or_default())
            }
            Ok(Opened::Keepalive) => Verdict::Received(Received::Quiet),
            // The handshake goes on with the next initiation; nothing was shown of the link.
            Ok(Opened::Cookie) => Verdict::Nothing,
            Ok(Opened::Reply { len, reply }) => {
                let bytes = buf.get(..len).unwrap_or_default();
                if let Some(scratch) = self.shared.scratch.get_mut(..len) {
                    scratch.copy_from_slice(bytes);
                }
                Verdict::Reply { len, reply }
            }
            Err(refused) => self.dropped(refused.as_str()),
        }
    }

    fn dropped(&mut self, why: &'static str) -> Verdict {
        self.shared.counts.drop(why);
        Verdict::Nothing
    }

    fn judge(&mut self, now: Instant, of: PairRef, packet: &mut [u8]) -> Verdict {
        let Ok(header) = Header::parse(packet) else {
            return self.dropped(Dropped::NotIp.as_str());
        };
        if !self.allowed.allows(of.peer, header.src) {
            return self.dropped(Dropped::Source.as_str());
        }
        // WireGuard pads packets; the rest is padding.
        let packet = packet.get_mut(..header.total_len).unwrap_or_default();
        let (peer, shared) = (at(&self.peers, of.peer), &mut self.shared);
        let for_us = shared.own.contains(&header.dst);
        let from_end = peer.is_some_and(|peer| peer.addresses.contains(&header.src));
        if for_us
            && from_end
            && let Some(probe) = echo::parse(&header, packet)
        {
            let len = packet.len();
            if let Echo::Request(_) = probe {
                let Some(scratch) = shared.scratch.get_mut(..len) else {
                    return Verdict::Received(Received::Quiet);
                };
                scratch.copy_from_slice(packet);
            }
            return Verdict::Echo(probe, len);
        }
        let passes = match &mut shared.server {
            None => {
                let behind = |network: &ipnet::IpNet| network.contains(&header.dst);
                for_us || shared.networks.iter().any(behind)
            }
            Some(server) => {
                if for_us && server.filter.inbound(now, &header, packet).is_err() {
                    return Verdict::Received(Received::Packet); // the filter counts
                }
                for_us
            }
        };
        if !passes {
            return self.dropped(Dropped::Destination.as_str());
        }
        let mtu = peer.and_then(|peer| peer.active_link().map(|link| link.mtu(shared.mtu)));
        mss::clamp(&header, packet, mtu.unwrap_or(shared.mtu));
        shared.counts.opened.add(packet.len());
        Verdict::Deliver(packet.len())
    }
}

impl Shared {
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
}

impl Peer {
    /// Records that something authentic came by a link, and returns the link.
    fn heard(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        what: Received,
        shared: &mut Shared,
        out: &mut impl Out,
    ) -> Option<LinkId> {
        let pair = self.pairs.get_mut(of.pair)?;
        let latest_seen = pair.is_latest(now, of.session, of.counter);
        match &self.steering {
            Steering::Client(_) => self.received_from_server(now, from, what, shared, out),
            Steering::Server { .. } => {
                self.received_from_client(now, of.pair, from, what, latest_seen, shared)
            }
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
        shared: &mut Shared,
        out: &mut impl Out,
    ) -> Option<()> {
        let reply = self.probe_info(now, false, 0, shared);
        let packet = shared.scratch.get_mut(..len)?;
        let header = Header::parse(packet).ok()?;
        let route = from.route(self.route);
        let pair = self.pairs.get_mut(of.pair)?;
        if pair.noise.is_ready(now) && echo::answer(&header, packet, reply) {
            out.datagram(from, Band::Urgent, len + OVERHEAD, |buf| {
                let len = pair.noise.seal(packet, buf).unwrap_or(0);
                mark(buf, len, route)
            });
        }
        Some(())
    }

    /// Applies what the peer says of its end, if no newer datagram came before. An answer that says nothing
    /// is of a peer that never drains.
    fn apply_intent(&mut self, now: Instant, of: PairRef, info: Option<ProbeInfo>) {
        let pair = self.pairs.get_mut(of.pair);
        if !pair.is_some_and(|pair| pair.is_latest(now, of.session, of.counter)) {
            return;
        }
        let info = info.unwrap_or_default();
        (self.draining, self.ended) = (info.draining, info.ended);
        self.unsettled = info.unsettled;
    }

    /// Applies what the peer reported in a probe.
    fn apply_probe_info(&mut self, now: Instant, link: Option<LinkId>, info: ProbeInfo) {
        if let Steering::Client(_) = self.steering {
            self.flows = Some((info.flows, now));
            let mtu = link.and_then(|id| self.link_mut(id)?.mtu.as_mut());
            if let Some(mtu) = mtu.filter(|_| info.large) {
                mtu.handle_traffic(now);
            }
        } else if let Some(link) = link.and_then(|id| self.link_mut(id))
            // A probe that searches for the size has none, and smaller ones are impossible.
            && info.mtu >= MIN_MTU
        {
            link.reported_mtu = info.mtu;
        }
    }

    /// Returns what this end reports to the peer.
    pub(super) fn probe_info(
        &self,
        now: Instant,
        active: bool,
        mtu: u16,
        shared: &Shared,
    ) -> ProbeInfo {
        let recent = |sent| now.saturating_duration_since(sent) < LATELY;
        ProbeInfo {
            active,
            draining: shared.draining,
            ended: shared.ended,
            unsettled: shared.unsettled,
            large: self.sent_large.is_some_and(recent),
            mtu,
            flows: shared.open_flows(self.place).unwrap_or(0),
        }
    }
}
