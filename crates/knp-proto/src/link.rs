//! One stream between a server and an agent, seen from either end, with all its tunnels.
//!
//! ```text
//!   packets ──▶ handle_packet ─┐                          ┌─▶ poll_event ──▶ owner of the sockets
//!   time ─────▶ handle_timeout ┼──▶ Dispatch, Tunnels ────┤
//!   sockets ──▶ dial, write, … ┘                          └─▶ poll_transmit ──▶ packets
//! ```
//!
//! After any call, drain [`Link::poll_event`] and, as far as the stream takes them,
//! [`Link::poll_transmit`]; then wait for input or for [`Link::poll_timeout`]. Every tunnel that
//! appeared ends with exactly one [`Event::Ended`]; when the stream itself ends, [`Link::end`]
//! ends the tunnels of this stream and no others. A link makes no use of its agent's id.

mod closing;
mod event;
mod receive;
mod send;
mod window;

pub use event::{DialTarget, Event, LinkError, LinkStats, Transmit};

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use slab::Slab;

use crate::admission::{AgentPermit, DialRefused, Tenant};
use crate::config::{LinkConfig, Role};
use crate::dispatch::Dispatch;
use crate::fair::FairQueue;
use crate::id::{ConnectId, DialId, StreamId, TunnelId};
use crate::metadata::Extensions;
use crate::packet::Packet;
use crate::tunnel::{EndReason, Gone, Phase, Read, Tunnel, WriteError};
use window::SharedWindow;

/// One end of one stream.
#[derive(Debug)]
pub struct Link {
    role: Role,
    config: LinkConfig,
    stream: StreamId,
    extensions: Extensions,
    tenant: Arc<Tenant>,
    /// Held for its count.
    _agent: Option<AgentPermit>,
    tunnels: Slab<Tunnel>,
    dispatch: Dispatch,
    fair: FairQueue,
    timers: BTreeSet<(Instant, u32)>,
    control: VecDeque<Packet>,
    /// Tunnels whose DIAL_REQ is to be sent.
    dials: VecDeque<u32>,
    /// Tunnels that owe CREDIT.
    credits: VecDeque<u32>,
    /// Tunnels whose close waits for others.
    closes: VecDeque<u32>,
    /// Tunnels that the peer is to close and has not answered for.
    closing: usize,
    /// Tunnels whose close takes the peer long, until they are gone.
    long_closes: usize,
    /// When the peer may be asked for the next close, but for long ones.
    close_after: Option<Instant>,
    events: VecDeque<Event>,
    /// Without credit.
    shared: SharedWindow,
    next_connect_id: i64,
    /// Tunnels so far.
    serial: u32,
    ended: bool,
    draining: bool,
    /// Packets that meant nothing, less those that did.
    garbage: u32,
    stats: LinkStats,
}

impl Link {
    /// Makes the end of a server, for the agent's stream `stream` of `tenant`; nothing when the
    /// tenant has too many agents. `extensions` is what both ends agreed on.
    #[must_use]
    pub fn server(
        tenant: &Arc<Tenant>,
        stream: StreamId,
        extensions: Extensions,
        config: LinkConfig,
    ) -> Option<Self> {
        Some(Self {
            role: Role::Server,
            _agent: Some(tenant.admit_agent()?),
            ..Self::agent(tenant, stream, extensions, config)
        })
    }

    /// Makes the end of an agent. `tenant` bounds what all its streams hold together.
    #[must_use]
    pub fn agent(
        tenant: &Arc<Tenant>,
        stream: StreamId,
        extensions: Extensions,
        config: LinkConfig,
    ) -> Self {
        Self {
            role: Role::Agent,
            stream,
            extensions,
            tenant: Arc::clone(tenant),
            _agent: None,
            tunnels: Slab::new(),
            dispatch: Dispatch::default(),
            fair: FairQueue::new(config.quantum_bytes),
            timers: BTreeSet::new(),
            control: VecDeque::new(),
            dials: VecDeque::new(),
            credits: VecDeque::new(),
            closes: VecDeque::new(),
            closing: 0,
            long_closes: 0,
            close_after: None,
            events: VecDeque::new(),
            shared: SharedWindow::new(match extensions.window {
                true => 0,
                false => tenant.unused_window(),
            }),
            next_connect_id: 1,
            serial: 0,
            ended: false,
            draining: false,
            garbage: 0,
            stats: LinkStats::default(),
            config,
        }
    }

    /// Returns which stream this is.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns what was odd so far.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Returns the number of tunnels, those being dialed or closed included.
    #[must_use]
    pub fn tunnels(&self) -> usize {
        self.tunnels.len()
    }

    /// Returns whether nothing is left: no tunnel, no id, no timer, nothing to send or to tell.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tunnels.is_empty()
            && self.dispatch.is_empty()
            && self.timers.is_empty()
            && self.control.is_empty()
            && self.dials.is_empty()
            && self.closes.is_empty()
            && self.events.is_empty()
    }

    /// Returns how many bytes of what came are not to be returned to the stream's receive window,
    /// [`STREAM_WINDOW`](crate::STREAM_WINDOW), for now; without credit that is what sockets are
    /// slow to take. Changes with any call.
    #[must_use]
    pub fn withheld(&self) -> usize {
        self.shared.withheld()
    }

    /// Returns whether slow sockets have used the window up, and so hold up all tunnels.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.shared.is_short()
    }

    /// Returns whether [`Link::poll_transmit`] has something to send.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        let nothing = self.control.is_empty()
            && self.dials.is_empty()
            && self.credits.is_empty()
            && self.fair.is_empty();
        !self.ended && !nothing
    }

    /// Returns the next thing the sockets' owner must know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`Link::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = self.timers.first().map(|&(at, _)| at);
        let close = self.close_after.filter(|_| !self.closes.is_empty());
        first
            .into_iter()
            .chain(self.shared.due())
            .chain(close)
            .min()
    }

    // === Dialing ===

    /// Asks the agent for a connection, on a server. What becomes of it is reported by
    /// [`Event::Established`] or [`Event::Ended`].
    ///
    /// `random` names the dial toward the agent; draw it anew for each, not from a client.
    ///
    /// # Errors
    /// [`DialRefused`]: nothing was begun.
    pub fn dial(
        &mut self,
        now: Instant,
        random: DialId,
        target: DialTarget,
    ) -> Result<TunnelId, DialRefused> {
        if self.ended || self.role != Role::Server {
            return Err(DialRefused::Ended);
        }
        if self.dispatch.is_pending(random) {
            return Err(DialRefused::DuplicateId);
        }
        let request = Packet::DialRequest {
            protocol: target.protocol,
            address: target.address,
            random,
        };
        let id = self.begin(now, random)?;
        if let Some(tunnel) = self.tunnels.get_mut(id.slot as usize) {
            tunnel.request = Some(Box::new(request));
        }
        self.dials.push_back(id.slot);
        Ok(id)
    }

    fn begin(&mut self, now: Instant, random: DialId) -> Result<TunnelId, DialRefused> {
        let permit = self.tenant.admit_dial()?;
        let deadline = now + self.config.dial_timeout;
        let slot = u32::try_from(self.tunnels.vacant_key()).map_err(|_| DialRefused::Tunnels)?;
        self.serial = self.serial.wrapping_add(1);
        let id = TunnelId {
            stream: self.stream,
            slot,
            serial: self.serial,
        };
        self.tunnels.insert(Tunnel::dialing(
            self.role,
            id.serial,
            random,
            self.extensions,
            permit,
            deadline,
        ));
        self.dispatch.expect(random, slot);
        self.settle(slot);
        Ok(id)
    }

    /// Reports to an agent's link what became of a dial it was asked for by [`Event::Dial`]: with a
    /// connection the peer gets its id, with an error the text.
    ///
    /// # Errors
    /// [`Gone`] when the dial was called off meanwhile: close the connection.
    pub fn dialed(
        &mut self,
        now: Instant,
        id: TunnelId,
        result: Result<(), String>,
    ) -> Result<ConnectId, Gone> {
        let (role, slot) = (self.role, id.slot);
        let connect_id = ConnectId(self.next_connect_id);
        let tunnel = self.tunnel(id)?;
        if role != Role::Agent || tunnel.phase != Phase::Dialing {
            return Err(Gone);
        }
        let random = tunnel.dial_id;
        match result {
            Ok(()) => {
                tunnel.establish(now, connect_id);
                self.next_connect_id += 1;
                self.dispatch.take_dial(random);
                self.dispatch.establish(connect_id, slot);
                self.answer_dial(random, connect_id, String::new());
                self.settle(slot);
                Ok(connect_id)
            }
            Err(error) => {
                self.answer_dial(random, ConnectId(0), error.clone());
                self.fail_dial(slot, EndReason::DialFailed { error });
                Ok(ConnectId(0))
            }
        }
    }

    // === Sockets ===

    /// Returns at most `max` bytes for the socket. See [`Read`].
    ///
    /// # Errors
    /// [`Gone`] after the tunnel's end.
    pub fn read(&mut self, id: TunnelId, max: usize) -> Result<Read, Gone> {
        Ok(self.tunnel(id)?.read(max))
    }

    /// Reports that the socket took `len` bytes of what was read, which frees space for more. Nothing
    /// happens after the tunnel's end.
    pub fn consumed(&mut self, now: Instant, id: TunnelId, len: usize) {
        self.with(id, |tunnel, config| tunnel.consumed(now, config, len));
    }

    /// Returns how many bytes may be written now. After 0, [`Event::Writable`] says when to ask
    /// again; until then the socket is not to be read.
    pub fn write_capacity(&mut self, id: TunnelId) -> usize {
        let config = self.config;
        let Ok(tunnel) = self.tunnel(id) else {
            return 0;
        };
        let capacity = tunnel.write_capacity(&config);
        tunnel.marks.wants_write = capacity == 0;
        capacity
    }

    /// Queues bytes from the socket. Large ones are not copied.
    ///
    /// # Errors
    /// See [`WriteError`]; the bytes are lost.
    pub fn write(&mut self, id: TunnelId, data: Bytes) -> Result<(), WriteError> {
        let config = self.config;
        let tunnel = self.tunnel(id)?;
        if !data.is_empty() {
            tunnel.write(&config, data)?;
            self.settle(id.slot);
        }
        Ok(())
    }

    /// Reports that the socket has sent all it will: with half-close agreed on the other direction
    /// goes on, without it the tunnel closes once all is sent, and what comes until then is still
    /// to be read.
    pub fn finish(&mut self, now: Instant, id: TunnelId) {
        self.with(id, |tunnel, config| tunnel.finish(now, config));
    }

    /// Reports that the socket is gone. What it has sent still goes out, what comes is dropped; a
    /// dial is called off. `id` is no longer valid, but [`Event::Ended`] will follow.
    ///
    /// Without [`Link::finish`] before it the peer is told that data is missing, and resets its
    /// socket instead of closing it. Without half-close an agent tells it by the error of
    /// CLOSE_RSP, and a server cannot.
    pub fn close(&mut self, now: Instant, id: TunnelId) {
        let Ok(tunnel) = self.tunnel(id) else { return };
        if tunnel.phase == Phase::Dialing {
            return self.call_off(id.slot, EndReason::Canceled);
        }
        if tunnel.is_busy(now) {
            self.closes_long(id.slot);
        }
        self.with(id, |tunnel, config| tunnel.close(now, config));
    }

    /// Gives up a dial, on a server, that was not answered in the time its owner has for it; nothing
    /// happens to one that was.
    pub fn give_up_dial(&mut self, id: TunnelId) {
        if (self.tunnel(id)).is_ok_and(|tunnel| tunnel.phase == Phase::Dialing) {
            self.call_off(id.slot, EndReason::DialTimeout);
        }
    }

    /// Asks the server to dial other agents from now on, or an agent that knows extensions to find
    /// another server. Tunnels go on, and dials that still come are served.
    pub fn drain(&mut self) {
        let understood = self.role == Role::Agent || !self.extensions.is_empty();
        if understood && !self.ended {
            self.control.push_back(Packet::Drain);
        }
    }

    /// Reports that the stream is over. Its tunnels end with [`EndReason::LinkLost`], at once unless
    /// all that will ever come for their socket is there already.
    pub fn end(&mut self, now: Instant) {
        self.ended = true;
        self.control.clear();
        self.dials.clear();
        self.credits.clear();
        for slot in 0..u32::try_from(self.tunnels.capacity()).unwrap_or(u32::MAX) {
            let Some(tunnel) = self.tunnels.get_mut(slot as usize) else {
                continue;
            };
            if tunnel.phase == Phase::Dialing {
                self.fail_dial(slot, EndReason::LinkLost);
            } else {
                tunnel.lose_link(now, &self.config);
                self.settle(slot);
            }
        }
    }

    // === Within ===

    /// Returns a tunnel whose socket is still there.
    fn tunnel(&mut self, id: TunnelId) -> Result<&mut Tunnel, Gone> {
        let found = self.tunnels.get_mut(id.slot as usize);
        found
            .filter(|tunnel| tunnel.serial == id.serial && !tunnel.is_detached())
            .filter(|_| id.stream == self.stream)
            .ok_or(Gone)
    }

    fn id(&self, slot: u32) -> Option<TunnelId> {
        let serial = self.tunnels.get(slot as usize)?.serial;
        Some(TunnelId {
            stream: self.stream,
            slot,
            serial,
        })
    }

    fn with(&mut self, id: TunnelId, change: impl FnOnce(&mut Tunnel, &LinkConfig)) {
        if self.tunnel(id).is_ok() {
            self.with_slot(id.slot, change);
        }
    }

    fn with_slot(&mut self, slot: u32, change: impl FnOnce(&mut Tunnel, &LinkConfig)) {
        if let Some(tunnel) = self.tunnels.get_mut(slot as usize) {
            change(tunnel, &self.config);
            self.settle(slot);
        }
    }

    fn kill(&mut self, now: Instant, slot: u32, reason: EndReason) {
        if matches!(reason, EndReason::Violation(_)) {
            self.stats.violations += 1;
        }
        let slow = reason == EndReason::SlowConsumer;
        self.with_slot(slot, |tunnel, config| tunnel.kill(now, config, reason));
        if slow {
            self.closes_long(slot);
        }
        self.tell_ended(slot);
    }

    /// Ends a dial because the dialler gave up; the agent is told if it knows of it.
    fn call_off(&mut self, slot: u32, reason: EndReason) {
        let Some(tunnel) = self.tunnels.get_mut(slot as usize) else {
            return;
        };
        let random = tunnel.dial_id;
        if tunnel.request.take().is_some() {
            self.dials.retain(|&waiting| waiting != slot);
        } else if self.role == Role::Server {
            self.control.push_back(Packet::CloseDial { random });
        } else {
            self.answer_dial(random, ConnectId(0), "dial cancelled".to_owned());
        }
        self.fail_dial(slot, reason);
    }

    fn fail_dial(&mut self, slot: u32, reason: EndReason) {
        if let Some(tunnel) = self.tunnels.get_mut(slot as usize) {
            tunnel.end = Some(reason);
            self.dispatch.take_dial(tunnel.dial_id);
            self.remove(slot);
        }
    }

    /// Brings everything that follows from a tunnel's state in line with it.
    fn settle(&mut self, slot: u32) {
        let Some(id) = self.id(slot) else { return };
        let Some(tunnel) = self.tunnels.get_mut(slot as usize) else {
            return;
        };
        if tunnel.is_sendable() && !tunnel.marks.close_waits {
            self.fair.activate(slot);
        } else {
            self.fair.deactivate(slot);
        }
        if tunnel.owes_credit() && !std::mem::replace(&mut tunnel.marks.credit_queued, true) {
            self.credits.push_back(slot);
        }
        let excess = tunnel.excess();
        (self.shared).change(std::mem::replace(&mut tunnel.marks.excess, excess), excess);
        let closing = tunnel.phase == Phase::Closing;
        if std::mem::replace(&mut tunnel.marks.closing, closing) != closing {
            self.closing = self.closing + usize::from(closing) - usize::from(!closing);
        }
        let due = tunnel.deadline;
        if due != tunnel.marks.timer {
            if let Some(at) = tunnel.marks.timer {
                self.timers.remove(&(at, slot));
            }
            tunnel.marks.timer = due;
            self.timers.extend(due.map(|at| (at, slot)));
        }
        if tunnel.phase == Phase::Lingering {
            self.dispatch.release(tunnel.connect_id, slot);
        }
        if tunnel.is_done() {
            self.remove(slot);
        } else if !tunnel.is_detached() {
            if tunnel.is_readable() && !std::mem::replace(&mut tunnel.marks.readable_told, true) {
                self.events.push_back(Event::Readable(id));
            }
            if tunnel.marks.wants_write && tunnel.is_writable(&self.config) {
                tunnel.marks.wants_write = false;
                self.events.push_back(Event::Writable(id));
            }
        }
        self.next_close();
    }

    fn tell_ended(&mut self, slot: u32) {
        let Some(id) = self.id(slot) else { return };
        let Some(tunnel) = self.tunnels.get_mut(slot as usize) else {
            return;
        };
        if !std::mem::replace(&mut tunnel.marks.ended_told, true) {
            let reason = tunnel.end.clone().unwrap_or(EndReason::LocalClosed);
            self.events.push_back(Event::Ended(id, reason));
        }
    }

    fn remove(&mut self, slot: u32) {
        self.tell_ended(slot);
        let Some(tunnel) = self.tunnels.try_remove(slot as usize) else {
            return;
        };
        if self.tunnels.is_empty() && self.tunnels.capacity() > KEPT {
            self.tunnels.shrink_to_fit();
        }
        self.fair.deactivate(slot);
        self.dispatch.release(tunnel.connect_id, slot);
        if let Some(at) = tunnel.marks.timer {
            self.timers.remove(&(at, slot));
        }
        if tunnel.marks.credit_queued {
            self.credits.retain(|&waiting| waiting != slot);
        }
        if tunnel.marks.close_waits {
            self.closes.retain(|&waiting| waiting != slot);
        }
        self.shared.change(tunnel.marks.excess, 0);
        self.long_closes -= usize::from(tunnel.marks.long_close);
        self.closing -= usize::from(tunnel.marks.closing);
        self.next_close();
    }
}

/// Tunnels whose memory an idle link keeps.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Budget, TenantId, TenantLimits};

    #[test]
    fn memory_comes_back_and_ids_stay_unique() {
        let (limits, budget) = (TenantLimits::default(), Budget::new(1 << 20));
        let limits = TenantLimits {
            dials_per_second: 0,
            ..limits
        };
        let tenant = Tenant::new(TenantId::new("a"), limits, budget);
        let config = LinkConfig::default();
        let link = Link::server(&tenant, StreamId(1), Extensions::default(), config);
        let mut link = link.unwrap();
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let mut ids = BTreeSet::new();
        for round in 0..3 {
            let mut opened = Vec::new();
            for number in 0..4 * KEPT {
                let target = DialTarget {
                    protocol: "tcp".to_owned(),
                    address: "a:1".to_owned(),
                };
                let random = DialId::from_random((number + 1) as u64 * 2);
                opened.push(link.dial(now, random, target).unwrap());
            }
            assert_eq!(link.tunnels(), 4 * KEPT);
            assert!(opened.iter().all(|id| ids.insert(*id)), "round {round}");
            for id in opened {
                link.close(now, id);
                assert_eq!(link.read(id, 1), Err(Gone));
            }
            assert!(link.tunnels.capacity() <= KEPT);
        }
    }
}
