//! Whether a tunnel is to be closed by the peer, and what its deadline does.

use std::time::{Duration, Instant};

use super::{EndReason, Last, Outbound, Phase, Tunnel};
use crate::config::{LinkConfig, Role};
use crate::packet::Packet;

impl Tunnel {
    /// Returns whether the next packet asks the peer to close.
    pub(crate) fn asks_to_close(&self) -> bool {
        let ending = matches!(self.outbound, Outbound::Ending(Last::Close | Last::Reset));
        self.role == Role::Server && self.phase == Phase::Open && ending && self.outbox.is_empty()
    }

    /// Returns whether the peer has not answered a close for longer than it takes to pass its queue.
    pub(crate) fn closes_late(&self, now: Instant, config: &LinkConfig) -> bool {
        let late =
            |deadline: Instant| deadline < now + config.close_timeout.saturating_sub(CLOSE_TIME);
        self.phase == Phase::Closing && self.deadline.is_some_and(late)
    }

    /// The deadline has passed, not while dialing. Returns what the peer must be told at once.
    pub(crate) fn expire(&mut self, now: Instant, config: &LinkConfig) -> Option<Packet> {
        match self.phase {
            Phase::Dialing => None,
            Phase::Open => {
                self.end = Some(EndReason::LingerTimeout);
                self.marks.close_waits = false;
                self.outbox.clear();
                self.recharge();
                self.deadline = None;
                self.outbound = Outbound::Ending(Last::Close);
                self.take_last(now, config)
            }
            Phase::Closing => {
                if !self.detached {
                    self.end = Some(EndReason::CloseTimeout);
                }
                self.wire_over(now, config, EndReason::CloseTimeout);
                None
            }
            Phase::Lingering => {
                self.end = Some(EndReason::LingerTimeout);
                self.detach();
                self.recharge();
                None
            }
        }
    }
}

/// Longer than the pulses of the shared window take to let a packet pass the peer's queue.
const CLOSE_TIME: Duration = Duration::from_millis(600);
