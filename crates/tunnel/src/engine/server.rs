//! A server's part: it follows where its clients' packets come from, and finds out by probes of its
//! own whether its answers arrive.
//!
//! ```text
//!   authentic packet ─▶ link remembered ─▶ newest, and no standby probe? used from now on
//!   time ─▶ probe by the link in use ─▶ answered: healthy │ missed: no new flows
//! ```
//!
//! A client's probes carry which link it uses, so a standby link moves nothing. `handle_closed` and
//! `handle_control` are for both ends.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tunnel_proto::frame::Control;
use tunnel_proto::path::LinkId;

use super::inbound::Received;
use super::peer::{Peer, Remote, Steering};
use super::{Engine, MAX_UNPROVEN, Out, PROOF_TIMEOUT, SILENCE, SILENT_TIMEOUT};
use super::{Shared, Stream, StreamId};

/// Between two lines that say that one peer is not healthy.
const QUIET: Duration = Duration::from_secs(10);

impl Engine {
    /// Takes a stream that was accepted.
    pub(crate) fn handle_accepted(
        &mut self,
        now: Instant,
        stream: StreamId,
        from: SocketAddr,
        out: &mut impl Out,
    ) {
        let shared = &mut self.shared;
        let strangers = shared.streams.iter().filter(|(_, stream)| !stream.proven);
        if strangers.clone().count() >= MAX_UNPROVEN {
            let oldest = strangers.min_by_key(|(_, stream)| (stream.knows_key, stream.heard));
            if let Some(id) = oldest.map(|(id, _)| *id) {
                shared.streams.remove(&id);
                shared.close(Remote::Stream(id), "too_many");
            }
        }
        let known = Stream {
            from,
            heard: now,
            proven: false,
            knows_key: false,
        };
        shared.streams.insert(stream, known);
        shared.send_hello(stream, out);
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
        let streams = self.shared.streams.iter();
        let late = streams.filter(|(_, stream)| late(stream));
        let late: Vec<(StreamId, bool)> = late.map(|(id, stream)| (*id, stream.proven)).collect();
        for (id, proven) in late {
            let reason = if proven { "silent" } else { "unproven" };
            self.shared.close(Remote::Stream(id), reason);
            self.handle_closed(now, id, out);
        }
    }

    /// Records that a stream has ended.
    pub(crate) fn handle_closed(&mut self, now: Instant, stream: StreamId, out: &mut impl Out) {
        let (peers, shared) = (&mut self.peers, &mut self.shared);
        shared.streams.remove(&stream);
        for peer in peers.iter_mut().flatten() {
            let Some(link) = peer.link_of(&Remote::Stream(stream)) else {
                continue;
            };
            if peer.forget(link, shared.path.probes, now) {
                shared.counts.path_changes += 1;
            }
            peer.link_failed(now, link, shared, out);
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
            Control::Unknown { .. } => {}
        }
    }
}

impl Peer {
    pub(super) fn received_from_client(
        &mut self,
        now: Instant,
        pair: usize,
        from: &Remote,
        what: Received,
        latest_seen: bool,
        shared: &mut Shared,
    ) -> Option<LinkId> {
        let mut address = None;
        if let Remote::Stream(stream) = from
            && let Some(stream) = shared.streams.get_mut(stream)
        {
            (stream.proven, stream.heard) = (true, now);
            address = Some(stream.from);
        }
        let new = LinkId(shared.last_link + 1);
        let (id, evicted) = self.remember(*from, new, now);
        if let Some(Remote::Stream(stream)) = evicted {
            shared.streams.remove(&stream);
            shared.close(Remote::Stream(stream), "too_many");
        }
        shared.last_link = shared.last_link.max(id.0);
        let link = self.link_mut(id)?;
        (link.proven, link.heard, link.from) = (true, now, address);
        let silent = self.active_link().is_none_or(|link| {
            let since = now.saturating_duration_since(link.heard);
            since > SILENCE
        });
        let follows = match what {
            Received::Packet => true,
            Received::Probe(info) => info.active,
            Received::Quiet => silent,
        };
        if latest_seen {
            self.latest = self.pairs.get(pair).map(|pair| pair.index);
        }
        let follows = (latest_seen && follows) || self.active.is_none();
        if follows && self.follow(id, shared.path.probes, now) {
            shared.counts.path_changes += 1;
            tracing::debug!(peer = %self.name, to = %from.describe(), "path changed");
        }
        if let Steering::Server {
            prober: Some(prober),
            ..
        } = &mut self.steering
            && self.active == Some(id)
        {
            prober.received(now);
        }
        Some(id)
    }

    /// Probes the link in use.
    pub(super) fn drive_server(
        &mut self,
        now: Instant,
        tick: bool,
        shared: &mut Shared,
        out: &mut impl Out,
    ) {
        let Steering::Server {
            prober,
            last_healthy,
            ..
        } = &mut self.steering
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
        if let (Some(id), Some(link)) = (due, self.active) {
            self.send_probe(now, link, (id, 0, 0), shared, out);
        }
        if tick {
            self.forget_left_addresses(now);
            self.tick_pairs(now, out);
            self.tell_health(now);
        }
    }

    /// Logs whether the peer is healthy, if that changed. A peer decides by what it sends how often it does.
    fn tell_health(&mut self, now: Instant) {
        let (healthy, has_link) = (self.is_healthy(), self.active.is_some());
        let Steering::Server { told, .. } = &mut self.steering else {
            return;
        };
        let recent = |at| now.saturating_duration_since(at) < QUIET;
        if healthy == told.healthy || (!healthy && told.trouble.is_some_and(recent)) {
            return;
        }
        told.healthy = healthy;
        if healthy {
            tracing::info!(peer = %self.name, "peer is healthy");
            return;
        }
        told.trouble = Some(now);
        if self.ended {
            tracing::info!(peer = %self.name, "peer has ended");
        } else if has_link {
            tracing::warn!(peer = %self.name, "peer is unhealthy: probes are not answered");
        } else {
            tracing::warn!(peer = %self.name, "peer is unhealthy: its link is closed");
        }
    }

    pub(super) fn answered_server(&mut self, now: Instant, link: LinkId, id: u32) {
        if let Steering::Server {
            prober: Some(prober),
            last_healthy,
            ..
        } = &mut self.steering
            && self.active == Some(link)
        {
            prober.answered(now, id);
            *last_healthy = Some(now);
        }
    }
}
