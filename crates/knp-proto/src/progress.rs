//! What comes for a socket and whether it takes it, asked where the peer knows no credit.
//!
//! Closes nothing: that depends on what others of the link wait for.

use std::time::{Duration, Instant};

/// Bytes that a socket has to take in 5 s when memory is short: 200 KiB/s.
const PACE: u32 = 1 << 20;
/// Bytes within a [`PERIOD`] after which the peer may have read more of the connection than it has sent.
const BUSY: u32 = 64 << 10;
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Since when data waits of which the socket has taken nothing.
    waiting: Option<Instant>,
    /// Since when data waits of which it has taken little, and how much.
    paced: Option<Instant>,
    taken: u32,
    /// When the current period began, and what came in it.
    period: Option<Instant>,
    came: u32,
}

impl Progress {
    /// Data of `len` bytes came for the socket.
    pub(crate) fn arrived(&mut self, now: Instant, len: usize) {
        self.waiting.get_or_insert(now);
        self.paced.get_or_insert(now);
        if has_passed(*self.period.get_or_insert(now), now, PERIOD) {
            (self.period, self.came) = (Some(now), 0);
        }
        self.came = self
            .came
            .saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Returns whether much came lately, of which more may be under way.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        let lately = |period| !has_passed(period, now, 2 * PERIOD);
        self.came >= BUSY && self.period.is_some_and(lately)
    }

    /// The socket has taken `len` bytes, and with them all there was if it is `drained`.
    pub(crate) fn took(&mut self, now: Instant, len: usize, drained: bool) {
        self.waiting = (!drained).then_some(now);
        self.taken = self
            .taken
            .saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        if drained || self.taken >= PACE {
            self.paced = self.waiting;
            self.taken = 0;
        }
    }

    /// Returns whether the socket has taken nothing for `limit`.
    pub(crate) fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        self.waiting
            .is_some_and(|since| has_passed(since, now, limit))
    }

    /// Returns whether it has taken less than [`PACE`] for `limit`.
    pub(crate) fn is_slow(&self, now: Instant, limit: Duration) -> bool {
        self.paced
            .is_some_and(|since| has_passed(since, now, limit))
    }
}

fn has_passed(since: Instant, now: Instant, limit: Duration) -> bool {
    now.saturating_duration_since(since) >= limit
}
