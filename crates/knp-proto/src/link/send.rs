//! What is sent next, and what time does.
//!
//! ```text
//! answers, closes of unknown ids ─▶ DIAL_REQ ─▶ CREDIT ─▶ DATA, FIN and CLOSE, tunnel by tunnel
//! ```
//!
//! What ends a tunnel waits behind that tunnel's data; all else goes first.

use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::{Link, Transmit};
use crate::config::Role;
use crate::id::ConnectId;
use crate::packet::{Packet, PacketKind, encode_data_head};
use crate::tunnel::{EndReason, Phase, Tunnel};

impl Link {
    /// Appends the next packet, without the payload of DATA, to `buf`; nothing when there is none
    /// to send. Call it only when the stream takes more, or all waits there instead of here.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut BytesMut) -> Option<Transmit> {
        if self.ended {
            return None;
        }
        self.end_close_pause(now);
        let next = self.next_packet(now, buf);
        if next.is_some() {
            self.shared.sent(now);
        }
        next
    }

    fn next_packet(&mut self, now: Instant, buf: &mut BytesMut) -> Option<Transmit> {
        if let Some(packet) = self.next_control() {
            return Some(whole(packet, buf));
        }
        while let Some(grant) = self.fair.next_flow() {
            let may_close = self.may_close(grant.flow);
            let Some(tunnel) = self.tunnels.get_mut(grant.flow as usize) else {
                self.fair.deactivate(grant.flow);
                continue;
            };
            if tunnel.asks_to_close() && !may_close {
                tunnel.marks.close_waits = true;
                self.closes.push_back(grant.flow);
                self.fair.deactivate(grant.flow);
                continue;
            }
            let max = grant.allowance.min(self.config.max_data_bytes);
            let connect_id = tunnel.connect_id;
            let data = tunnel.take_data(now, &self.config, max);
            let last = match data {
                Some(_) => None,
                None => tunnel.take_last(now, &self.config),
            };
            self.fair.spend(data.as_ref().map_or(0, |data| data.len()));
            self.settle(grant.flow);
            if let Some(data) = data {
                encode_data_head(connect_id, data.len(), buf);
                return Some(Transmit {
                    kind: PacketKind::Data,
                    payload: Some(data),
                });
            }
            if let Some(last) = last {
                if last.kind() == PacketKind::CloseRequest {
                    self.begin_close_pause(now, grant.flow);
                }
                return Some(whole(last, buf));
            }
        }
        None
    }

    fn next_control(&mut self) -> Option<Packet> {
        if let Some(packet) = self.control.pop_front() {
            return Some(packet);
        }
        while let Some(slot) = self.dials.pop_front() {
            let request = self
                .tunnels
                .get_mut(slot as usize)
                .and_then(|tunnel| tunnel.request.take());
            if let Some(request) = request {
                return Some(*request);
            }
        }
        while let Some(slot) = self.credits.pop_front() {
            let Some(tunnel) = self.tunnels.get_mut(slot as usize) else {
                continue;
            };
            tunnel.marks.credit_queued = false;
            if let Some(credit) = tunnel.take_credit() {
                return Some(credit);
            }
        }
        None
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.shared.due().is_some_and(|at| at <= now) && !self.shared.lend_more(now) {
            self.pulse(now);
        }
        self.end_close_pause(now);
        while let Some(&(at, slot)) = self.timers.first() {
            if at > now {
                return;
            }
            let Some(tunnel) = self.tunnels.get_mut(slot as usize) else {
                self.timers.remove(&(at, slot));
                continue;
            };
            if tunnel.phase == Phase::Dialing {
                self.expire_dial(slot);
                continue;
            }
            if tunnel.phase == Phase::Closing {
                self.dispatch.give_up(tunnel.connect_id);
            }
            let packet = tunnel.expire(now, &self.config);
            if !self.ended {
                self.control.extend(packet);
            }
            self.settle(slot);
        }
    }

    /// Lets others get past slow sockets, and gives up those that have stopped.
    fn pulse(&mut self, now: Instant) {
        let (mut waiting, mut largest) = (0, 0);
        for (_, tunnel) in &self.tunnels {
            waiting += usize::from(tunnel.is_waiting());
            largest = largest.max(tunnel.marks.excess);
        }
        self.shared.prepare(now, waiting, self.tenant.free());
        // What comes may all be of one tunnel, or of many.
        let share = |more: usize| more / self.shared.holders.max(1);
        let short = |more: usize| self.tenant.is_short(largest + share(more), more);
        // Early, so that others need not wait while it shows who is slow.
        let judged = short((MARGIN + TO_JUDGE) * self.shared.enough_if_taken());
        let short = short(MARGIN * self.shared.enough());
        // An agent cannot know that it is about to be dialed.
        let others = self.role == Role::Agent || self.tunnels.len() > self.shared.holders;
        let limit = self.config.stall_timeout;
        let stalled = |tunnel: &Tunnel| match judged && others {
            true => tunnel.slow(now, limit.min(SLOW)),
            false => tunnel.stalled(now, limit),
        };
        let most = self
            .tunnels
            .iter()
            .filter_map(|(_, tunnel)| stalled(tunnel))
            .filter(|_| self.shared.is_short())
            .max();
        for slot in 0..u32::try_from(self.tunnels.capacity()).unwrap_or(u32::MAX) {
            // Those that hold little may do no harm once the others are gone.
            let held = self.tunnels.get(slot as usize).and_then(stalled);
            if most.is_some_and(|most| held >= Some(most / 2)) {
                self.kill(now, slot, EndReason::SlowConsumer);
            }
        }
        let late = self.closing > 0
            && self
                .tunnels
                .iter()
                .any(|(_, own)| own.closes_late(now, &self.config));
        self.shared.pulse(now, others && !short, late && !judged);
    }

    fn expire_dial(&mut self, slot: u32) {
        match self.role {
            Role::Server => self.call_off(slot, EndReason::DialTimeout),
            Role::Agent => {
                if let Some(random) = self.tunnels.get(slot as usize).map(|tunnel| tunnel.dial_id) {
                    // What Go's dialer says; servers map it to a status by the word.
                    let error = "dial tcp: i/o timeout".to_owned();
                    self.answer_dial(random, ConnectId(0), error);
                    self.fail_dial(slot, EndReason::DialTimeout);
                }
            }
        }
    }
}

fn whole(packet: Packet, buf: &mut BytesMut) -> Transmit {
    let kind = packet.kind();
    packet.encode(buf);
    Transmit {
        kind,
        payload: None,
    }
}

/// For how long a socket may take little when soon no more can be lent, and the pulses in that time.
const SLOW: Duration = Duration::from_secs(5);
const TO_JUDGE: usize = 50;
/// Pulses for which memory has to be there, or none is lent: other links of the tenant have theirs.
const MARGIN: usize = 8;
