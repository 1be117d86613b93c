//! How much padding goes over a new connection ahead of its first turn.
//!
//! ```text
//!   segments of the connection in use, by look ─▶ rate of each direction ─┐
//!   first answer by the new connection ─▶ round trip ─────────────────────┴▶ octets of padding
//! ```
//!
//! A connection begins with ten segments and twice as many each round trip (RFC 5681 §3.1, RFC 6928).
//! What goes over it while nobody waits for it brings it near to the rate that it will have to carry.

use std::time::Duration;

use super::loss::Segments;

/// Octets of padding for a connection, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// To be sent.
    pub send: u32,
    /// To be asked for.
    pub ask: u32,
}

/// What a connection carried lately, in octets a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    sent: u64,
    received: u64,
}

impl Rates {
    /// Adds what was counted within a while, of which the last ones count for most.
    pub(super) fn look(&mut self, time: Duration, before: &Segments, after: &Segments) {
        if time.is_zero() {
            return; // nothing to compare with
        }
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let rate = |segments: u32| {
            let octets = u64::from(segments) * SEGMENT;
            (octets.saturating_mul(1_000_000) / micros).min(u64::MAX / 4)
        };
        let sent = rate(after.sent.wrapping_sub(before.sent));
        let received = rate(after.received.wrapping_sub(before.received));
        self.sent = (self.sent * 3 + sent) / 4;
        self.received = (self.received * 3 + received) / 4;
    }

    /// Returns what a connection of such a round trip needs to carry as much.
    pub(super) fn padding(self, rtt: Duration) -> Padding {
        Padding {
            send: octets(self.sent, rtt),
            ask: octets(self.received, rtt),
        }
    }
}

fn octets(rate: u64, rtt: Duration) -> u32 {
    let carried = u128::from(rate) * rtt.as_micros() / 1_000_000;
    let octets = u32::try_from(carried).unwrap_or(u32::MAX).min(MOST);
    if octets < LEAST { 0 } else { octets }
}

/// About what a segment holds: by way of a gateway at most 1,220 octets.
const SEGMENT: u64 = 1_220;

/// Less than that a new connection carries from the first round trip on, or the second.
const LEAST: u32 = 32 * 1024;

/// The most for one connection and direction: a gigabit a second by 67 ms. What a server sends on request.
pub const MOST: u32 = 8 << 20;
