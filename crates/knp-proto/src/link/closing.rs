//! How many tunnels a peer is asked to close at once.

use std::time::{Duration, Instant};

use super::Link;
use super::window::PULSE;
use crate::tunnel::Tunnel;

impl Link {
    /// Returns whether the peer may be asked to close one tunnel more. Upstream's agent hears
    /// nothing else until its answer has passed its queue. So that dials come in between,
    /// one close is asked for at a time while there are slow tunnels, or some that are to be closed amid much data;
    /// and the next one after a pause, unless many wait, or the tunnel is one with much data.
    pub(super) fn may_close(&self, slot: u32) -> bool {
        let pauses = self.are_closes_long() && self.close_after.is_some();
        self.may_close_any() && (!pauses || self.is_long_close(slot))
    }

    fn may_close_any(&self) -> bool {
        !self.are_closes_long() || self.closing == 0
    }

    fn are_closes_long(&self) -> bool {
        !self.extensions.window && self.shared.holders + self.long_closes > 0
    }

    fn is_long_close(&self, slot: u32) -> bool {
        let tunnel = self.tunnels.get(slot as usize);
        tunnel.is_some_and(|tunnel| tunnel.marks.long_close)
    }

    /// Begins the pause behind a close, if it has to wait for pulses.
    pub(super) fn begin_close_pause(&mut self, now: Instant, slot: u32) {
        let waits = self.shared.holders > 0 && self.shared.is_tight();
        if waits && self.closes.len() < MANY && !self.is_long_close(slot) {
            self.close_after = Some(now + CLOSE_PAUSE);
        }
    }

    pub(super) fn end_close_pause(&mut self, now: Instant) {
        if self.close_after.take_if(|at| *at <= now).is_some() {
            self.next_close();
        }
    }

    /// Counts a tunnel, whose socket is gone or given up, among those whose close takes long.
    pub(super) fn closes_long(&mut self, slot: u32) {
        if let Some(tunnel) = self.tunnels.get_mut(slot as usize)
            && !std::mem::replace(&mut tunnel.marks.long_close, true)
        {
            self.long_closes += 1;
        }
    }

    pub(super) fn next_close(&mut self) {
        while self.may_close_any() {
            let next = self.closes.iter().position(|&slot| self.may_close(slot));
            let Some(slot) = next.and_then(|at| self.closes.remove(at)) else {
                return;
            };
            let tunnel = self.tunnels.get_mut(slot as usize);
            let waits = |own: &mut Tunnel| std::mem::take(&mut own.marks.close_waits);
            if tunnel.is_some_and(|own| waits(own) && own.asks_to_close()) {
                // The rest when it was sent.
                return self.fair.activate(slot);
            }
        }
    }
}

/// From one close to the next: the pulse in which it passes the peer's queue, and two in which dials and answers do.
const CLOSE_PAUSE: Duration = PULSE.saturating_mul(3);
/// Closes that wait, from which on there are no pauses. With pauses, the last of them has waited for most of the
/// time that it may.
const MANY: usize = 128;
