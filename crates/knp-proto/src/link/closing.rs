//! How many tunnels a peer is asked to close at once.

use super::Link;
use crate::tunnel::Tunnel;

impl Link {
    /// Returns whether the peer may be asked to close one tunnel more. Upstream's agent sends all that it has read
    /// of a tunnel first, in turns with all others, and hears nothing else meanwhile: so that dials come in between,
    /// one is asked for at a time while there are slow ones, or such that are to be closed in the midst of much.
    pub(super) fn may_close(&self) -> bool {
        let long = self.shared.holders + self.long_closes;
        self.extensions.window || long == 0 || self.closing == 0
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
        while self.may_close()
            && let Some(slot) = self.closes.pop_front()
        {
            let tunnel = self.tunnels.get_mut(slot as usize);
            let waits = |own: &mut Tunnel| std::mem::take(&mut own.marks.close_waits);
            if tunnel.is_some_and(|own| waits(own) && own.asks_to_close()) {
                // The rest when it was sent.
                return self.fair.activate(slot);
            }
        }
    }
}
