//! The window of a stream whose peer knows no credit: one for all its tunnels.
//!
//! ```text
//!   peer's queue ──▶ window of the stream ──▶ what waits for each socket
//!                          ▲   └── withheld: the excess of slow sockets, less what is lent
//!                          └────── lent in pulses once nearly all is withheld
//! ```
//!
//! A peer gets back what slow sockets take, and so sends at their pace. A pulse lends enough for
//! the packets of other tunnels to pass the peer's queue, which is first in, first out for all. More
//! is lent while the peer does not answer a close: upstream's agent sends all that it has read of that
//! tunnel, in turns with all others, before it hears anything else.
//! Which socket is given up is not decided here.

use std::time::{Duration, Instant};

use super::send::AHEAD;
use crate::config::STREAM_WINDOW;

#[derive(Debug, Default)]
pub(super) struct SharedWindow {
    /// How much of the stream's window is not returned once it was used.
    unused: usize,
    /// Bytes that wait beyond what any tunnel may hold.
    pub(super) excess: usize,
    /// The tunnels they are of.
    pub(super) holders: usize,
    /// How much of the excess was returned all the same.
    lent: usize,
    /// How much of that at the last pulse, and what came and was taken since.
    last: usize,
    passed: usize,
    taken: usize,
    /// The longest DATA so far.
    longest: usize,
    pulse: Option<Instant>,
}

impl SharedWindow {
    pub(super) fn new(unused: usize) -> Self {
        Self {
            unused,
            ..Self::default()
        }
    }

    /// Changes the excess of a tunnel. What was lent is paid back first.
    pub(super) fn change(&mut self, before: usize, after: usize) {
        self.holders = self.holders + usize::from(after > 0) - usize::from(before > 0);
        self.excess = self.excess + after - before;
        let taken = before.saturating_sub(after);
        self.taken += taken;
        self.lent = self.lent.saturating_sub(taken);
    }

    /// Counts DATA that came, whatever became of it.
    pub(super) fn receive(&mut self, now: Instant, len: usize) {
        self.passed += len;
        self.longest = self.longest.max(len.min(LONGEST));
        if self.is_short() {
            self.pulse.get_or_insert(now + PULSE);
        }
    }

    /// Returns how many bytes the peer is not to get back for now.
    pub(super) fn withheld(&self) -> usize {
        self.unused + self.excess - self.lent
    }

    /// Returns whether packets of other tunnels may have to wait for a pulse.
    pub(super) fn is_short(&self) -> bool {
        self.withheld() + self.enough() > STREAM_WINDOW
    }

    /// Returns whether soon no more is lent.
    pub(super) fn is_lent_out(&self) -> bool {
        self.lent + AHEAD * self.enough() > MAX_LENT
    }

    /// Returns when the next pulse is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pulse.filter(|_| self.is_short())
    }

    /// Begins the time to the next pulse. If `lend`, others can pass until then: by what slow
    /// sockets take if that suffices, by half of enough if that leaves something to pay back. `late` says
    /// that the peer has not answered a close.
    pub(super) fn pulse(&mut self, now: Instant, lend: bool, late: bool) {
        let enough = match late {
            true => self.enough_to_close(),
            false => self.enough(),
        };
        let paced = std::mem::take(&mut self.passed).saturating_sub(self.last) >= enough / 2;
        let slow = std::mem::take(&mut self.taken) >= enough / 2;
        let wanted = if slow { enough / 2 } else { enough };
        let short = (self.withheld() + wanted).saturating_sub(STREAM_WINDOW);
        let most = self.excess.min(MAX_LENT).saturating_sub(self.lent);
        self.last = if lend && !paced { short.min(most) } else { 0 };
        self.lent += self.last;
        self.pulse = Some(now + PULSE);
    }

    /// Returns how many bytes in each of [`PULSES`] let a packet pass the peer's queue.
    pub(super) fn enough(&self) -> usize {
        let queue = QUEUED + self.holders * self.longest;
        (queue / PULSES).min((STREAM_WINDOW - self.unused) / PULSES)
    }

    /// As [`Self::enough`], for half the pulses and all that the peer has read of one tunnel, and as much of each
    /// that is slow.
    fn enough_to_close(&self) -> usize {
        let queues = QUEUED * (self.holders + 1);
        queues.min((STREAM_WINDOW - self.unused) / 2) * 2 / PULSES
    }
}

/// Time between pulses. Fewer that lend as much in all have others wait longer: for the next one.
const PULSE: Duration = Duration::from_millis(50);
/// Pulses that let a packet pass the peer's queue.
pub(super) const PULSES: usize = 8;
/// Bytes a peer may have queued before its tunnels take turns: 150 packets of 4 KiB, upstream's
/// `--xfr-channel-size`. grpc-go itself queues 64 KiB.
const QUEUED: usize = 640 << 10;
/// Bytes of the packets that tunnels take turns with; ours are no longer.
const LONGEST: usize = 64 << 10;
/// Bytes that are lent at most: those of a hundred stalled readers of short packets in 30 s.
const MAX_LENT: usize = 80 << 20;
