//! A client's part: it connects to each server by both transports, begins the handshakes, and uses
//! the link that its probes speak for.
//!
//! ```text
//!   Selector ─ Dial ─▶ program ─▶ handle_connected ─▶ initiation on every open link
//!                                                     └ authentic packet: the link is proven
//!   Selector ─ Probe, Use, Close ─▶ probes, link in use, closed sockets        Mtu ─▶ probes
//! ```
//!
//! There is one session for all links of a server, so changing the link needs no handshake. While
//! no link is proven a handshake is begun every second, whatever sessions there still are: the
//! server may have been restarted and know none of them.

use std::time::{Duration, Instant};

use tunnel_proto::codel::Band;
use tunnel_proto::datagram::RouteId;
use tunnel_proto::echo::{self, ProbeInfo};
use tunnel_proto::frame::{Control, Identity as FrameIdentity, MAX_IDENTITY_LEN};
use tunnel_proto::path::{Event, LinkId, Mtu, MtuEvent, Transport};

use crate::noise::{Due, OUT_LEN};

use super::inbound::{MIN_MTU, PairRef, Received};
use super::outbound::{OVERHEAD, mark};
use super::peer::{Link, Pending, Remote, Steering};
use super::peers::close;
use super::{Engine, MTU_PROBE, Out, Request, StreamId};

/// Between handshakes while there is no session that works.
const RETRY: Duration = Duration::from_secs(1);

/// Between handshakes with a key that is preferred to the one in use, but was not answered.
const RETRY_PREFERRED: Duration = Duration::from_secs(30);

/// Between attempts to prove a link.
const PROVE: Duration = Duration::from_millis(250);

/// The age at which an initiation is of no use on a new link: its answer would come too late.
const STALE: Duration = Duration::from_secs(4);

impl Engine {
    /// Adds a link that the program connected. Returns `false` when it is no longer wanted and must be
    /// closed.
    pub(crate) fn handle_connected(
        &mut self,
        now: Instant,
        server: &str,
        id: LinkId,
        remote: Remote,
        out: &mut impl Out,
    ) -> bool {
        let Some(at) = self.position_of(server) else {
            return false;
        };
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return false;
        };
        let Steering::Client(selector) = &peer.steering else {
            return false;
        };
        if !selector.awaits(id) || peer.link(id).is_some() {
            return false;
        }
        peer.links.push(Link::new(id, remote, now));
        if let Remote::Stream(stream) = remote {
            self.send_hello(stream, out);
        }
        self.prove(now, at, id, out);
        true
    }

    /// Records that the program could not connect.
    pub(crate) fn handle_failed(
        &mut self,
        now: Instant,
        server: &str,
        id: LinkId,
        out: &mut impl Out,
    ) {
        let Some(at) = self.position_of(server) else {
            return;
        };
        let peer = self.peers.get_mut(at).and_then(Option::as_mut);
        if let Some(Steering::Client(selector)) = peer.map(|peer| &mut peer.steering) {
            selector.handle_failed(now, id);
            self.drive_client(now, at, false, out);
        }
    }

    /// Records that the other end of a stream will close it.
    pub(super) fn handle_drain(&mut self, now: Instant, stream: StreamId, out: &mut impl Out) {
        let remote = Remote::Stream(stream);
        for at in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
                continue;
            };
            let link = peer.link_of(&remote);
            if let (Some(link), Steering::Client(selector)) = (link, &mut peer.steering) {
                selector.handle_drain(now, link);
                self.drive_client(now, at, false, out);
            }
        }
    }

    /// Handles the instance number of the process behind a stream: a new one knows none of our sessions.
    /// A stream's first hello counts, since anything between the ends can forge more.
    pub(super) fn handle_instance(
        &mut self,
        now: Instant,
        stream: StreamId,
        instance: u64,
        out: &mut impl Out,
    ) {
        let remote = Remote::Stream(stream);
        for at in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
                continue;
            };
            if !matches!(peer.steering, Steering::Client(_)) {
                continue;
            }
            let link = peer.link_of(&remote).and_then(|id| peer.link_mut(id));
            if link.is_none_or(|link| std::mem::replace(&mut link.greeted, true)) {
                continue;
            }
            let before = peer.instance.replace(instance);
            if before.is_some_and(|before| before != instance) {
                tracing::info!(peer = %peer.name, "server was restarted");
                for pair in &mut peer.pairs {
                    pair.next_initiation = now;
                }
                self.initiate(now, at, true, out);
            }
        }
    }

    pub(super) fn received_from_server(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        what: Received,
        out: &mut impl Out,
    ) -> Option<LinkId> {
        let most = self.mtu;
        let peer = self.peers.get_mut(of.peer)?.as_mut()?;
        let id = peer.link_of(from)?;
        let link = peer.link_mut(id)?;
        link.heard = now;
        let first = !std::mem::replace(&mut link.proven, true);
        if first && link.remote.transport() == Transport::Udp {
            link.mtu = Some(Mtu::new(MIN_MTU.min(most), most, now));
        }
        let Steering::Client(selector) = &mut peer.steering else {
            return None;
        };
        if first {
            selector.handle_connected(now, id);
            self.drive_client(now, of.peer, false, out);
        } else if let Received::Packet = what {
            // The server's probes come whether ours arrive or not; packets are answers, mostly.
            selector.handle_received(now, id);
        }
        Some(id)
    }

    /// Does what a server's selector and the timers of its sessions ask for.
    pub(super) fn drive_client(&mut self, now: Instant, at: usize, tick: bool, out: &mut impl Out) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let Steering::Client(selector) = &mut peer.steering else {
            return;
        };
        selector.handle_timeout(now);
        while let Some(event) = self.next_event(at) {
            self.handle_event(now, at, event, out);
        }
        self.find_mtu(now, at, out);
        if tick {
            self.tick_pairs(now, at, out);
            self.initiate(now, at, false, out);
            let peer = self.peers.get(at).and_then(Option::as_ref);
            let links = peer.map(|peer| peer.links.iter()).into_iter().flatten();
            let unproven = links.filter(|link| !link.proven).map(|link| link.id);
            for link in unproven.collect::<Vec<_>>() {
                self.prove(now, at, link, out);
            }
        }
    }

    fn next_event(&mut self, at: usize) -> Option<Event> {
        match &mut self.peers.get_mut(at)?.as_mut()?.steering {
            Steering::Client(selector) => selector.poll_event(),
            Steering::Server { .. } => None,
        }
    }

    fn handle_event(&mut self, now: Instant, at: usize, event: Event, out: &mut impl Out) {
        let probes = self.probe_params();
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        match event {
            Event::Dial { link, transport } => {
                let server = peer.name.clone();
                self.requests.push_back(Request::Dial {
                    server,
                    link,
                    transport,
                });
            }
            Event::Close { link, reason } => {
                if let Some(known) = peer.link(link) {
                    let remote = known.remote;
                    tracing::info!(peer = %peer.name, link = %remote.describe(), reason = reason.reason(), "link closed");
                    self.requests.push_back(close(remote, reason.reason()));
                }
                peer.forget(link, probes, now);
            }
            Event::Down => {
                tracing::warn!(peer = %peer.name, "no link works");
                peer.active = None;
                for pair in &mut peer.pairs {
                    pair.next_initiation = pair.next_initiation.min(now + RETRY);
                }
            }
            Event::Use { link, transport } => {
                tracing::info!(peer = %peer.name, ?transport, "link in use");
                if peer.follow(link, probes, now) {
                    self.counts.path_changes += 1;
                }
            }
            Event::Probe { link, id } => {
                let active = peer.active == Some(link);
                let mtu = peer.link(link).and_then(|link| link.mtu.as_ref());
                let mtu = mtu.map_or(self.mtu, Mtu::mtu);
                let info = self.probe_info(now, at, active, mtu);
                self.send_probe(now, at, link, (id, info, 0), out);
            }
        }
    }

    /// Sends a probe by a link; `None` when there is no session.
    pub(super) fn send_probe(
        &mut self,
        now: Instant,
        at: usize,
        link: LinkId,
        (id, info, size): (u32, ProbeInfo, usize),
        out: &mut impl Out,
    ) -> Option<()> {
        let peer = self.peers.get_mut(at)?.as_mut()?;
        let addresses = peer.probe_addresses(&self.own)?;
        let remote = peer.link(link)?.remote;
        let len = echo::request(addresses, id, info, size, &mut self.scratch)?;
        let route = remote.route(peer.route);
        let sealing = peer.sealing(now)?;
        let pair = peer.pairs.get_mut(sealing)?;
        let packet = self.scratch.get(..len)?;
        out.datagram(&remote, Band::Urgent, len + OVERHEAD, |buf| {
            let len = pair.noise.seal(packet, buf).unwrap_or(0);
            mark(buf, len, route)
        });
        Some(())
    }

    /// Sends what may prove a new link: the initiations under way, or a probe.
    fn prove(&mut self, now: Instant, at: usize, id: LinkId, out: &mut impl Out) {
        self.initiate(now, at, false, out);
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let Some(link) = peer.link_mut(id) else {
            return;
        };
        let recent = |tried: Instant| now.saturating_duration_since(tried) < PROVE;
        if link.tried.is_some_and(recent) {
            return;
        }
        let first = link.tried.replace(now).is_none();
        let remote = link.remote;
        let fresh = |pending: &&Pending| {
            let age = now.saturating_duration_since(pending.sent);
            age < STALE && (first || age >= PROVE)
        };
        for pair in &peer.pairs {
            if let Some(pending) = pair.pending.as_ref().filter(fresh) {
                send(&remote, &pending.bytes, peer.route, out);
            }
        }
        if peer.sealing(now).is_some() {
            let info = self.probe_info(now, at, false, 0);
            // The answer's arrival alone proves the link.
            self.send_probe(now, at, id, (MTU_PROBE - 1, info, 0), out);
        }
    }

    /// Begins the handshakes that are due, on all links. `force`: whatever sessions there are.
    fn initiate(&mut self, now: Instant, at: usize, force: bool, out: &mut impl Out) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        if peer.links.is_empty() {
            return;
        }
        let works = peer.active.is_some() && !force;
        let best = peer.pairs.iter().position(|pair| pair.noise.is_ready(now));
        let (links, route) = (&peer.links, peer.route);
        for (place, pair) in peer.pairs.iter_mut().enumerate() {
            let preferred = best.is_none_or(|best| place < best);
            let wanted = !works || preferred;
            if !wanted || now < pair.next_initiation {
                continue;
            }
            let pause = if works && best.is_some() {
                RETRY_PREFERRED
            } else {
                RETRY
            };
            pair.next_initiation = now + pause;
            let mut bytes = [0; OUT_LEN];
            if pair.noise.initiate(now, &mut bytes).is_none() {
                continue;
            }
            for link in links {
                send(&link.remote, &bytes, route, out);
            }
            pair.pending = Some(Pending { bytes, sent: now });
        }
    }

    /// Sends what the sessions' timers ask for: a client's new handshakes, and keepalives.
    pub(super) fn tick_pairs(&mut self, now: Instant, at: usize, out: &mut impl Out) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let (links, route, active) = (&peer.links, peer.route, peer.active);
        for pair in &mut peer.pairs {
            let mut bytes = [0; OUT_LEN];
            let due = pair.noise.tick(now, &mut bytes);
            let (len, everywhere) = match due {
                None => continue,
                // Repeated as often as this end begins them: a key that the server lacks while
                // another one works, rarely.
                Some(Due::Initiation(_)) if now < pair.next_initiation => continue,
                Some(Due::Initiation(len)) => (len, true),
                Some(Due::Keepalive(len)) => (len, false),
            };
            let message = bytes.get(..len).unwrap_or_default();
            for link in links
                .iter()
                .filter(|link| everywhere || Some(link.id) == active)
            {
                send(&link.remote, message, route, out);
            }
            if everywhere {
                pair.next_initiation = now + RETRY;
                pair.pending = Some(Pending { bytes, sent: now });
            }
        }
    }

    pub(super) fn answered_alive(
        &mut self,
        now: Instant,
        at: usize,
        link: LinkId,
        id: u32,
        out: &mut impl Out,
    ) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let Steering::Client(selector) = &mut peer.steering else {
            return self.answered_server(now, at, link, id);
        };
        selector.handle_pong(now, link, id);
        let timeout = selector.stats(link).map(|stats| stats.timeout);
        if let (Some(timeout), Some(known)) = (timeout, peer.link_mut(link))
            && let Some(mtu) = &mut known.mtu
        {
            mtu.handle_alive(now, timeout);
        }
        self.drive_client(now, at, false, out);
    }

    pub(super) fn answered_mtu(&mut self, now: Instant, at: usize, link: LinkId, id: u32) {
        let peer = self.peers.get_mut(at).and_then(Option::as_mut);
        if let Some(mtu) = peer.and_then(|peer| peer.link_mut(link)?.mtu.as_mut()) {
            mtu.handle_pong(now, id);
        }
    }

    /// Sends the probes that find how large packets may be.
    fn find_mtu(&mut self, now: Instant, at: usize, out: &mut impl Out) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let mut events: Vec<(LinkId, MtuEvent)> = Vec::new();
        for link in &mut peer.links {
            if let Some(mtu) = &mut link.mtu {
                mtu.handle_timeout(now);
                while let Some(event) = mtu.poll_event() {
                    events.push((link.id, event));
                }
            }
        }
        for (link, event) in events {
            match event {
                MtuEvent::Changed { mtu } => {
                    tracing::info!(mtu, "MTU changed");
                    // At once: the server sends the larger packets.
                    self.report(now, at, link, mtu, out);
                }
                MtuEvent::Probe { id, size } => {
                    let peer = self.peers.get(at).and_then(Option::as_ref);
                    let active = peer.is_some_and(|peer| peer.active == Some(link));
                    let info = self.probe_info(now, at, active, 0);
                    let probe = (MTU_PROBE + id, info, usize::from(size));
                    self.send_probe(now, at, link, probe, out);
                }
                MtuEvent::Unfit => {
                    let peer = self.peers.get_mut(at).and_then(Option::as_mut);
                    if let Some(Steering::Client(selector)) = peer.map(|peer| &mut peer.steering) {
                        selector.handle_unfit(now, link);
                    }
                }
            }
        }
    }

    /// Sends a probe by every link in use, for the information in it.
    pub(super) fn send_probes(&mut self, now: Instant, out: &mut impl Out) {
        for at in 0..self.peers.len() {
            let peer = self.peers.get(at).and_then(Option::as_ref);
            let link = peer.and_then(|peer| peer.active_link());
            if let Some((id, mtu)) = link.map(|link| (link.id, link.mtu(self.mtu))) {
                self.report(now, at, id, mtu, out);
            }
        }
    }

    /// Sends a probe for the information in it, whatever becomes of it.
    fn report(&mut self, now: Instant, at: usize, link: LinkId, mtu: u16, out: &mut impl Out) {
        let peer = self.peers.get(at).and_then(Option::as_ref);
        let active = peer.is_some_and(|peer| peer.active == Some(link));
        let info = self.probe_info(now, at, active, mtu);
        self.send_probe(now, at, link, (MTU_PROBE - 1, info, 0), out);
    }

    /// Sends the first control message of a stream.
    pub(super) fn send_hello(&self, stream: StreamId, out: &mut impl Out) {
        let end = (0..=self.name.len().min(MAX_IDENTITY_LEN))
            .rev()
            .find(|end| self.name.is_char_boundary(*end));
        let name = end.and_then(|end| self.name.get(..end)).unwrap_or_default();
        if let Some(identity) = FrameIdentity::new(name) {
            let hello = Control::Hello {
                version: 1,
                instance: self.instance,
                identity,
            };
            out.control(stream, &hello);
        }
    }

    fn position_of(&self, server: &str) -> Option<usize> {
        let named =
            |peer: &Option<super::Peer>| peer.as_ref().is_some_and(|peer| peer.name == server);
        self.peers.iter().position(named)
    }
}

/// Sends a handshake message or a keepalive; `route` is the peer's.
pub(super) fn send(to: &Remote, bytes: &[u8], route: Option<RouteId>, out: &mut impl Out) {
    out.datagram(to, Band::Urgent, bytes.len(), |buf| {
        if let Some(buf) = buf.get_mut(..bytes.len()) {
            buf.copy_from_slice(bytes);
        }
        mark(buf, bytes.len(), to.route(route))
    });
}
