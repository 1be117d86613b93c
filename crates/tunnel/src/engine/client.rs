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
use tunnel_proto::echo;
use tunnel_proto::frame::{Control, Identity as FrameIdentity, MAX_IDENTITY_LEN};
use tunnel_proto::path::{Event, LinkId, Mtu, MtuEvent, Transport};

use crate::noise::{Due, OUT_LEN};

use super::inbound::{MIN_MTU, Received};
use super::outbound::{OVERHEAD, mark};
use super::peer::{Link, Peer, Pending, Remote, Steering};
use super::{Engine, MTU_PROBE, Out, Request, Shared, StreamId};

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
        let mut peers = self.peers.iter_mut().flatten();
        let Some(peer) = peers.find(|peer| peer.name == server) else {
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
            self.shared.send_hello(stream, out);
        }
        peer.prove(now, id, &mut self.shared, out);
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
        let mut peers = self.peers.iter_mut().flatten();
        if let Some(peer) = peers.find(|peer| peer.name == server) {
            peer.link_failed(now, id, &mut self.shared, out);
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
        for peer in self.peers.iter_mut().flatten() {
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
                peer.initiate(now, true, out);
            }
        }
    }
}

impl Peer {
    pub(super) fn link_failed(
        &mut self,
        now: Instant,
        id: LinkId,
        shared: &mut Shared,
        out: &mut impl Out,
    ) {
        if let Steering::Client(selector) = &mut self.steering {
            selector.handle_failed(now, id);
            self.drive_client(now, false, shared, out);
        }
    }

    pub(super) fn received_from_server(
        &mut self,
        now: Instant,
        from: &Remote,
        what: Received,
        shared: &mut Shared,
        out: &mut impl Out,
    ) -> Option<LinkId> {
        let id = self.link_of(from)?;
        let link = self.link_mut(id)?;
        link.heard = now;
        let first = !std::mem::replace(&mut link.proven, true);
        if first && link.remote.transport() == Transport::Udp {
            let most = shared.mtu;
            link.mtu = Some(Mtu::new(MIN_MTU.min(most), most, now));
        }
        let Steering::Client(selector) = &mut self.steering else {
            return None;
        };
        if first {
            selector.handle_connected(now, id);
            self.drive_client(now, false, shared, out);
        } else if let Received::Packet = what {
            // The server's probes come whether ours arrive or not; packets are answers, mostly.
            selector.handle_received(now, id);
        }
        Some(id)
    }

    /// Does what a server's selector and the timers of its sessions ask for.
    pub(super) fn drive_client(
        &mut self,
        now: Instant,
        tick: bool,
        shared: &mut Shared,
        out: &mut impl Out,
    ) {
        if let Steering::Client(selector) = &mut self.steering {
            selector.handle_timeout(now);
        }
        while let Steering::Client(selector) = &mut self.steering
            && let Some(event) = selector.poll_event()
        {
            self.handle_event(now, event, shared, out);
        }
        self.find_mtu(now, shared, out);
        if tick {
            self.tick_pairs(now, out);
            self.initiate(now, false, out);
            let unproven = self.links.iter().filter(|link| !link.proven);
            for link in unproven.map(|link| link.id).collect::<Vec<_>>() {
                self.prove(now, link, shared, out);
            }
        }
    }

    fn handle_event(
        &mut self,
        now: Instant,
        event: Event,
        shared: &mut Shared,
        out: &mut impl Out,
    ) {
        let probes = shared.path.probes;
        match event {
            Event::Dial { link, transport } => {
                let server = self.name.clone();
                shared.requests.push_back(Request::Dial {
                    server,
                    link,
                    transport,
                });
            }
            Event::Close { link, reason } => {
                if let Some(known) = self.link(link) {
                    let (remote, reason) = (known.remote, reason.reason());
                    tracing::info!(peer = %self.name, link = %remote.describe(), reason, "link closed");
                    shared.close(remote, reason);
                }
                self.forget(link, probes, now);
            }
            Event::Down => {
                tracing::warn!(peer = %self.name, "no link works");
                self.active = None;
                for pair in &mut self.pairs {
                    pair.next_initiation = pair.next_initiation.min(now + RETRY);
                }
            }
            Event::Use { link, transport } => {
                tracing::info!(peer = %self.name, ?transport, "link in use");
                if self.follow(link, probes, now) {
                    shared.counts.path_changes += 1;
                }
            }
            Event::Probe { link, id } => {
                let mtu = self
                    .link(link)
                    .map_or(shared.mtu, |link| link.mtu(shared.mtu));
                self.send_probe(now, link, (id, mtu, 0), shared, out);
            }
        }
    }

    /// Sends a probe of this number, with this MTU in it and of at least this size, by a link; `None`
    /// when there is no session.
    pub(super) fn send_probe(
        &mut self,
        now: Instant,
        link: LinkId,
        (id, mtu, size): (u32, u16, usize),
        shared: &mut Shared,
        out: &mut impl Out,
    ) -> Option<()> {
        let info = self.probe_info(now, self.active == Some(link), mtu, shared);
        let addresses = self.probe_addresses(&shared.own)?;
        let remote = self.link(link)?.remote;
        let len = echo::request(addresses, id, info, size, &mut shared.scratch)?;
        let route = remote.route(self.route);
        let sealing = self.sealing(now)?;
        let pair = self.pairs.get_mut(sealing)?;
        let packet = shared.scratch.get(..len)?;
        out.datagram(&remote, Band::Urgent, len + OVERHEAD, |buf| {
            let len = pair.noise.seal(packet, buf).unwrap_or(0);
            mark(buf, len, route)
        });
        Some(())
    }

    /// Sends what may prove a new link: the initiations under way, or a probe.
    fn prove(&mut self, now: Instant, id: LinkId, shared: &mut Shared, out: &mut impl Out) {
        self.initiate(now, false, out);
        let Some(link) = self.link_mut(id) else {
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
        for pair in &self.pairs {
            if let Some(pending) = pair.pending.as_ref().filter(fresh) {
                send(&remote, &pending.bytes, self.route, out);
            }
        }
        // The answer's arrival alone proves the link.
        self.report(now, id, 0, shared, out);
    }

    /// Begins the handshakes that are due, on all links. `force`: whatever sessions there are.
    fn initiate(&mut self, now: Instant, force: bool, out: &mut impl Out) {
        if self.links.is_empty() {
            return;
        }
        let works = self.active.is_some() && !force;
        let best = self.pairs.iter().position(|pair| pair.noise.is_ready(now));
        for (place, pair) in self.pairs.iter_mut().enumerate() {
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
            for link in &self.links {
                send(&link.remote, &bytes, self.route, out);
            }
            pair.pending = Some(Pending { bytes, sent: now });
        }
    }

    /// Sends what the sessions' timers ask for: a client's new handshakes, and keepalives.
    pub(super) fn tick_pairs(&mut self, now: Instant, out: &mut impl Out) {
        for pair in &mut self.pairs {
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
            for link in &self.links {
                if everywhere || Some(link.id) == self.active {
                    send(&link.remote, message, self.route, out);
                }
            }
            if everywhere {
                pair.next_initiation = now + RETRY;
                pair.pending = Some(Pending { bytes, sent: now });
            }
        }
    }

    /// Handles the answer to a probe.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        link: LinkId,
        id: u32,
        shared: &mut Shared,
        out: &mut impl Out,
    ) {
        if id >= MTU_PROBE {
            if let Some(mtu) = self.link_mut(link).and_then(|link| link.mtu.as_mut()) {
                mtu.handle_pong(now, id - MTU_PROBE);
            }
            return;
        }
        let Steering::Client(selector) = &mut self.steering else {
            return self.answered_server(now, link, id);
        };
        selector.handle_pong(now, link, id);
        let timeout = selector.stats(link).map(|stats| stats.timeout);
        if let (Some(timeout), Some(known)) = (timeout, self.link_mut(link))
            && let Some(mtu) = &mut known.mtu
        {
            mtu.handle_alive(now, timeout);
        }
        self.drive_client(now, false, shared, out);
    }

    /// Sends the probes that find how large packets may be.
    fn find_mtu(&mut self, now: Instant, shared: &mut Shared, out: &mut impl Out) {
        let mut events: Vec<(LinkId, MtuEvent)> = Vec::new();
        for link in &mut self.links {
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
                    self.report(now, link, mtu, shared, out);
                }
                MtuEvent::Probe { id, size } => {
                    let probe = (MTU_PROBE + id, 0, usize::from(size));
                    self.send_probe(now, link, probe, shared, out);
                }
                MtuEvent::Unfit => {
                    if let Steering::Client(selector) = &mut self.steering {
                        selector.handle_unfit(now, link);
                    }
                }
            }
        }
    }

    /// Sends a probe for the information in it, whatever becomes of it.
    pub(super) fn report(
        &mut self,
        now: Instant,
        link: LinkId,
        mtu: u16,
        shared: &mut Shared,
        out: &mut impl Out,
    ) {
        self.send_probe(now, link, (MTU_PROBE - 1, mtu, 0), shared, out);
    }
}

impl Shared {
    /// Sends the first control message of a stream.
    pub(super) fn send_hello(&self, stream: StreamId, out: &mut impl Out) {
        let end = self.name.floor_char_boundary(MAX_IDENTITY_LEN);
        let name = self.name.get(..end).unwrap_or_default();
        if let Some(identity) = FrameIdentity::new(name) {
            let hello = Control::Hello {
                version: 1,
                instance: self.instance,
                identity,
            };
            out.control(stream, &hello);
        }
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
