//! A server's part: it follows where its clients' packets come from, and finds out by probes of its
//! own whether its answers arrive.
//!
//! ```text
//!   authentic packet ─▶ link remembered ─▶ newest, and no standby probe? used from now on
//!   time ─▶ probe by the link in use ─▶ answered: healthy │ missed: no new flows
//! ```
//!
//! A client's probes carry which link it uses, so a standby link moves nothing.

use std::net::SocketAddr;
use std::time::Instant;

use tunnel_proto::frame::Control;
use tunnel_proto::path::LinkId;

use super::inbound::{PairRef, Received};
use super::peer::{Remote, Steering};
use super::peers::close;
use super::{Engine, MAX_UNPROVEN, Out, PROOF_TIMEOUT, SILENCE, SILENT_TIMEOUT, Stream, StreamId};

impl Engine {
    /// Takes a stream that was accepted.
    pub(crate) fn handle_accepted(
        &mut self,
        now: Instant,
        stream: StreamId,
        from: SocketAddr,
        out: &mut impl Out,
    ) {
        let strangers = self.streams.iter().filter(|(_, stream)| !stream.proven);
        if strangers.clone().count() >= MAX_UNPROVEN {
            let oldest = strangers.min_by_key(|(_, stream)| (stream.knows_key, stream.heard));
            if let Some(id) = oldest.map(|(id, _)| *id) {
                self.streams.remove(&id);
                self.requests
                    .push_back(close(Remote::Stream(id), "too_many"));
            }
        }
        let known = Stream {
            from,
            heard: now,
            proven: false,
            knows_key: false,
        };
        self.streams.insert(stream, known);
        self.send_hello(stream, out);
    }

    pub(super) fn received_from_client(
        &mut self,
        now: Instant,
        of: PairRef,
        from: &Remote,
        what: Received,
        latest_seen: bool,
    ) -> Option<LinkId> {
        let mut address = None;
        if let Remote::Stream(stream) = from
            && let Some(stream) = self.streams.get_mut(stream)
        {
            (stream.proven, stream.heard) = (true, now);
            address = Some(stream.from);
        }
        let probes = self.probe_params();
        let peer = self.peers.get_mut(of.peer)?.as_mut()?;
        let new = LinkId(self.last_link + 1);
        let (id, evicted) = peer.remember(*from, new, now);
        if let Some(Remote::Stream(stream)) = evicted {
            self.streams.remove(&stream);
            let evicted = close(Remote::Stream(stream), "too_many");
            self.requests.push_back(evicted);
        }
        self.last_link = self.last_link.max(id.0);
        let link = peer.link_mut(id)?;
        (link.proven, link.heard, link.from) = (true, now, address);
        let silent = peer.active_link().is_none_or(|link| {
            let since = now.saturating_duration_since(link.heard);
            since > SILENCE
        });
        let follows = match what {
            Received::Packet => true,
            Received::Probe(info) => info.active,
            Received::Quiet => silent,
        };
        if latest_seen {
            peer.latest = peer.pairs.get(of.pair).map(|pair| pair.index);
        }
        let follows = (latest_seen && follows) || peer.active.is_none();
        if follows && peer.follow(id, probes, now) {
            self.counts.path_changes += 1;
            tracing::debug!(peer = %peer.name, to = %from.describe(), "path changed");
        }
        if let Steering::Server {
            prober: Some(prober),
            ..
        } = &mut peer.steering
            && peer.active == Some(id)
        {
            prober.received(now);
        }
        Some(id)
    }

    /// Probes the link in use.
    pub(super) fn drive_server(&mut self, now: Instant, at: usize, tick: bool, out: &mut impl Out) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let was_healthy = peer.is_healthy();
        let link = peer.active;
        let Steering::Server {
            prober,
            last_healthy,
        } = &mut peer.steering
        else {
            return;
        };
        let due = prober.as_mut().and_then(|prober| {
            let dead = prober.is_dead(now);
            if !dead && last_healthy.is_some() && tick {
                *last_healthy = Some(now);
            }
            prober.due(now)
        });
        if was_healthy != peer.is_healthy() {
            tracing::warn!(peer = %peer.name, "peer is unhealthy: probes are not answered");
        }
        if let (Some(id), Some(link)) = (due, link) {
            let info = self.probe_info(now, at, true, 0);
            self.send_probe(now, at, link, (id, info, 0), out);
        }
        if tick {
            self.tick_pairs(now, at, out);
        }
    }

    pub(super) fn answered_server(&mut self, now: Instant, at: usize, link: LinkId, id: u32) {
        let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
            return;
        };
        let was_healthy = peer.is_healthy();
        let is_active = peer.active == Some(link);
        if let Steering::Server {
            prober: Some(prober),
            last_healthy,
        } = &mut peer.steering
            && is_active
        {
            prober.answered(now, id);
            *last_healthy = Some(now);
        }
        if !was_healthy && peer.is_healthy() {
            tracing::info!(peer = %peer.name, "peer is healthy");
        }
    }

    /// Closes streams by which nothing authentic came in time.
    pub(super) fn close_silent(&mut self, now: Instant, out: &mut impl Out) {
        let late = |stream: &Stream| {
            let limit = if stream.proven {
                SILENT_TIMEOUT
            } else {
                PROOF_TIMEOUT
            };
            now.saturating_duration_since(stream.heard) >= limit
        };
        let streams = self.streams.iter().filter(|(_, stream)| late(stream));
        let late: Vec<(StreamId, bool)> =
            streams.map(|(id, stream)| (*id, stream.proven)).collect();
        for (id, proven) in late {
            let reason = if proven { "silent" } else { "unproven" };
            self.requests.push_back(close(Remote::Stream(id), reason));
            self.handle_closed(now, id, out);
        }
    }

    /// Records that a stream has ended.
    pub(crate) fn handle_closed(&mut self, now: Instant, stream: StreamId, out: &mut impl Out) {
        self.streams.remove(&stream);
        let remote = Remote::Stream(stream);
        let probes = self.probe_params();
        for at in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(at).and_then(Option::as_mut) else {
                continue;
            };
            let Some(link) = peer.link_of(&remote) else {
                continue;
            };
            if peer.forget(link, probes, now) {
                self.counts.path_changes += 1;
            }
            if let Steering::Client(selector) = &mut peer.steering {
                selector.handle_failed(now, link);
                self.drive_client(now, at, false, out);
            }
        }
    }

    /// Takes a control message of a stream.
    pub(crate) fn handle_control(
        &mut self,
        now: Instant,
        stream: StreamId,
        control: &Control<'_>,
        out: &mut impl Out,
    ) {
        match control {
            Control::Hello {
                instance, identity, ..
            } => {
                tracing::debug!(stream = stream.0, name = identity.as_str(), "hello");
                self.handle_instance(now, stream, *instance, out);
            }
            Control::Drain { .. } => self.handle_drain(now, stream, out),
            Control::Unknown { .. } => {}
        }
    }
}
