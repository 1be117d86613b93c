//! A server's part: it follows where its clients' packets come from, and finds out by probes of its
//! own whether its answers arrive.
//!
//! ```text
//!   authentic packet ─▶ link remembered ─▶ newest, and no standby probe? used from now on
//!   time ─▶ probe by the link in use ─▶ answered: healthy │ missed: no new flows
//! ```
//!
//! A client says in its probes which link it uses, so one that is only kept ready moves nothing.

use std::net::SocketAddr;
use std::time::Instant;

use tunnel_proto::echo::Told;
use tunnel_proto::frame::Control;
use tunnel_proto::path::LinkId;

use crate::noise::Keys;

use super::inbound::Of;
use super::peer::{Remote, Steering};
use super::peers::close;
use super::{Engine, Out, PROOF, Stream, StreamId};

impl<K: Keys> Engine<K> {
    /// Takes a stream that was accepted.
    pub(crate) fn handle_accepted(
        &mut self,
        now: Instant,
        stream: StreamId,
        from: SocketAddr,
        out: &mut impl Out,
    ) {
        let known = Stream {
            from,
            since: now,
            proven: false,
        };
        self.streams.insert(stream, known);
        self.greet(stream, out);
    }

    pub(super) fn heard_client(
        &mut self,
        now: Instant,
        of: Of,
        from: &Remote,
        probe: Option<Told>,
        newest: bool,
    ) -> Option<LinkId> {
        if let Remote::Stream(stream) = from
            && let Some(stream) = self.streams.get_mut(stream)
        {
            stream.proven = true;
        }
        let probes = self.probe_params();
        let peer = self.peers.get_mut(of.peer)?.as_mut()?;
        let new = LinkId(self.last_link + 1);
        let id = peer.remember(*from, new, now);
        self.last_link = self.last_link.max(id.0);
        let link = peer.link_mut(id)?;
        (link.proven, link.heard) = (true, now);
        let standby = probe.is_some_and(|told| !told.active);
        if newest {
            peer.latest = of.pair;
        }
        if (newest && !standby) || peer.active.is_none() {
            let moved = peer.active.is_some();
            if peer.follow(id, probes, now) && moved {
                self.counts.path_changes += 1;
                tracing::info!(peer = %peer.name, to = %from.describe(), "path changed");
            }
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
    pub(super) fn steer_server(&mut self, now: Instant, at: usize, tick: bool, out: &mut impl Out) {
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
            tracing::warn!(peer = %peer.name, "probes are not answered");
        }
        if let (Some(id), Some(link)) = (due, link) {
            let told = self.tell(at, true, 0);
            self.send_probe(now, at, link, (id, told, 0), out);
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
            tracing::info!(peer = %peer.name, "probes are answered");
        }
    }

    /// Closes streams by which nothing authentic came in time.
    pub(super) fn close_unproven(&mut self, now: Instant) {
        let late = |stream: &Stream| {
            !stream.proven && now.saturating_duration_since(stream.since) >= PROOF
        };
        let requests = &mut self.requests;
        self.streams.retain(|id, stream| {
            let late = late(stream);
            if late {
                tracing::info!(from = %stream.from, "stream closed: nothing authentic came");
                requests.push_back(close(Remote::Stream(*id), "unproven"));
            }
            !late
        });
    }

    /// Takes note that a stream has ended.
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
            peer.forget(link, probes, now);
            if let Steering::Client(selector) = &mut peer.steering {
                selector.handle_failed(now, link);
                self.steer_client(now, at, false, out);
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
            Control::Ping { id, sent } => out.control(
                stream,
                &Control::Pong {
                    id: *id,
                    sent: *sent,
                    delay: 0,
                },
            ),
            Control::Hello {
                instance, identity, ..
            } => {
                tracing::debug!(stream = stream.0, name = identity.as_str(), "hello");
                self.handle_instance(now, stream, *instance, out);
            }
            Control::Drain { .. } => self.handle_drain(now, stream, out),
            // Packet sizes are found by probes, which a claim cannot replace.
            Control::MtuHint { .. } | Control::Pong { .. } | Control::Unknown { .. } => {}
        }
    }
}
