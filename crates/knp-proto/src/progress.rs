//! Whether a socket takes its data, asked where the peer knows no credit.
//!
//! Closes nothing: that depends on what others of the link wait for.

use std::time::{Duration, Instant};

/// Bytes that a socket has to take in 5 s when memory is short: 200 KiB/s.
const PACE: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Since when data waits of which the socket has taken nothing.
    waiting: Option<Instant>,
    /// Since when data waits of which it has taken little, and how much.
    paced: Option<Instant>,
    taken: usize,
}

impl Progress {
    /// Data came for the socket.
    pub(crate) fn arrived(&mut self, now: Instant) {
        self.waiting.get_or_insert(now);
        self.paced.get_or_insert(now);
    }

    /// The socket has taken `len` bytes, and with them all there was if it is `drained`.
    pub(crate) fn took(&mut self, now: Instant, len: usize, drained: bool) {
        self.waiting = (!drained).then_some(now);
        self.taken += len;
        if drained || self.taken >= PACE {
            self.paced = self.waiting;
            self.taken = 0;
        }
    }

    /// Returns whether the socket has taken nothing for `limit`.
    pub(crate) fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        has_passed(self.waiting, now, limit)
    }

    /// Returns whether it has taken less than [`PACE`] for `limit`.
    pub(crate) fn is_slow(&self, now: Instant, limit: Duration) -> bool {
        has_passed(self.paced, now, limit)
    }
}

fn has_passed(since: Option<Instant>, now: Instant, limit: Duration) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
}
