//! The window of a stream whose peer knows no credit: one for all its tunnels.
//!
//! ```text
//!   peer's queue ──▶ window of the stream ──▶ what waits for each socket
//!                          ▲   └── withheld: the excess of slow sockets, less what is lent
//!                          └────── lent in pulses once nearly all is withheld
//! ```
//!
//! A peer gets back what slow sockets take, and so sends at their pace. A pulse lends enough for the packets
//! of other tunnels to pass the peer's queue, which is first in, first out for all: the bytes that are queued,
//! and while this end sends anything, and so may wait for an answer, a packet of each tunnel whose data waits.
//! So a hundred slow readers delay others little more than one does, as long as memory and half of the window
//! are enough. More is lent while the peer does not answer a close: upstream's agent hears nothing else until its
//! answer has passed the queue.
//!
//! A pulse is lent in parts. Upstream's agent sends under a Go mutex: the goroutine that has it takes it again
//! before those that wait, until one of them that has waited for 1 ms fails to get it; then it is handed on in
//! order, until one has waited for less (Go, sync/mutex.go). The first part is small, so that one fails; between
//! parts all wait for longer than 1 ms.
//!
//! Which socket is given up is not decided here.

use std::time::{Duration, Instant};

use crate::config::STREAM_WINDOW;

#[derive(Debug, Default)]
pub(super) struct SharedWindow {
    /// How much of the stream's window is not returned once it was used.
    unused: usize,
    /// How much a pulse lends at most.
    max_pulse: usize,
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
    /// When the next pulse is due, or the next part of one.
    pulse: Option<Instant>,
    /// What is still to be lent of the last pulse, and when the next one is due.
    unlent: usize,
    next: Option<Instant>,
    /// When this end last sent a packet.
    sent: Option<Instant>,
    /// At the last pulse: whether that was lately, and the tunnels whose data waited.
    awaits_answer: bool,
    waiting: usize,
}

impl SharedWindow {
    pub(super) fn new(unused: usize) -> Self {
        Self {
            unused,
            max_pulse: (STREAM_WINDOW - unused) / 8,
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

    /// Records that a packet was sent, to which there may be an answer.
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// Returns how many bytes the peer is not to get back for now.
    pub(super) fn withheld(&self) -> usize {
        self.unused + self.excess - self.lent
    }

    /// Returns whether packets of other tunnels may have to wait for a pulse.
    pub(super) fn is_short(&self) -> bool {
        self.withheld() + self.enough() > STREAM_WINDOW
    }

    /// Returns when the next pulse, or the next part of one, is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pulse.filter(|_| self.is_short())
    }

    /// Returns whether the peer's next packets may have to wait for a pulse, also right after one.
    pub(super) fn is_tight(&self) -> bool {
        self.withheld() + 2 * self.enough() > STREAM_WINDOW
    }

    /// Prepares a pulse, where the data of so many tunnels waits and `free` bytes of memory are left: it lends less
    /// the less there is, so that some is left when those that have stopped are found.
    pub(super) fn prepare(&mut self, now: Instant, waiting: usize, free: usize) {
        self.max_pulse = (free / 64).clamp(self.eighth(), 4 * self.eighth());
        self.awaits_answer = self.sent.is_some_and(|sent| now - sent < ANSWER);
        self.waiting = waiting;
    }

    /// Begins the time to the next pulse. If `lend`, others can pass until then: by half of enough where
    /// slow sockets have taken as much since the last one, or else by enough. `late` says that the peer has not answered a close.
    pub(super) fn pulse(&mut self, now: Instant, lend: bool, late: bool) {
        let (enough, if_taken) = match late {
            true => (self.enough_to_close(), self.enough_to_close()),
            false => (self.enough(), self.enough_if_taken()),
        };
        let paced = std::mem::take(&mut self.passed).saturating_sub(self.last) >= enough / 2;
        let slow = std::mem::take(&mut self.taken) >= if_taken / 2;
        let wanted = if slow { if_taken / 2 } else { enough };
        let short = (self.withheld() + wanted).saturating_sub(STREAM_WINDOW);
        self.last = if lend && !paced {
            short.min(self.excess - self.lent)
        } else {
            0
        };
        self.unlent = self.last;
        self.next = Some(now + PULSE);
        self.lend(now, FIRST);
    }

    /// Lends the next part of the last pulse; false if there is none, or the next pulse is due.
    pub(super) fn lend_more(&mut self, now: Instant) -> bool {
        if self.unlent == 0 || self.next.is_some_and(|next| next <= now) {
            return false;
        }
        self.lend(now, PART.max(self.last / PARTS));
        true
    }

    fn lend(&mut self, now: Instant, max: usize) {
        let part = self.unlent.min(max);
        self.unlent -= part;
        self.lent += part.min(self.excess - self.lent);
        self.pulse = match self.unlent {
            0 => self.next,
            _ => Some(now + GAP),
        };
    }

    /// Returns how many bytes a pulse has to let pass: the peer's queue and a packet of each tunnel whose data
    /// waits; a quarter of those packets while there is no answer to wait for.
    pub(super) fn enough(&self) -> usize {
        let round = self.waiting * self.longest;
        let in_one = if self.awaits_answer { round } else { round / 4 };
        (QUEUED + in_one).min(self.max_pulse)
    }

    /// As [`Self::enough`], but at most an eighth of the usable window: by which it is judged whether sockets take
    /// their bytes, if slowly, and whether memory is short.
    pub(super) fn enough_if_taken(&self) -> usize {
        self.enough().min(self.eighth())
    }

    fn eighth(&self) -> usize {
        (STREAM_WINDOW - self.unused) / 8
    }

    /// As [`Self::enough`], for half of all that the peer has read of one tunnel, and of as much of each that is
    /// slow.
    fn enough_to_close(&self) -> usize {
        let queues = READ * (self.holders + 1);
        let half = queues.min((STREAM_WINDOW - self.unused) / 2) / 2;
        half.max(self.enough())
    }
}

/// Time between pulses. A packet waits for one even if little is ahead of it.
pub(super) const PULSE: Duration = Duration::from_millis(100);
/// The first part of a pulse, the least and the most of the others, and the time between them.
const FIRST: usize = 8 << 10;
const PART: usize = 64 << 10;
const PARTS: usize = 16;
const GAP: Duration = Duration::from_millis(5);
/// Bytes that may be ahead of a tunnel's packet: 64 KiB in grpc-go, and some that are sent out of order.
const QUEUED: usize = 160 << 10;
/// Bytes that a peer may have read of one connection.
const READ: usize = 640 << 10;
/// Longest packet that is reckoned with; ours are no longer.
const LONGEST: usize = 64 << 10;
/// For how long an answer may be awaited after the last packet was sent.
const ANSWER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn pulse_is_lent_in_parts() {
        let mut window = SharedWindow::new(0);
        let mut now = Instant::now();
        window.receive(now, 4 << 10);
        window.change(0, STREAM_WINDOW);
        window.prepare(now, 1, 0);
        window.pulse(now, true, false);
        let mut lent = vec![window.lent];
        while window.due().is_some_and(|at| at < now + PULSE) {
            now += GAP;
            assert_eq!(window.due(), Some(now));
            assert!(window.lend_more(now));
            lent.push(window.lent);
        }
        assert_eq!(lent, [8 << 10, 72 << 10, 136 << 10, window.enough()]);
        // Nothing is short any more, until the peer has used it.
        assert_eq!(window.due(), None);
        window.change(STREAM_WINDOW, STREAM_WINDOW + window.enough());
        assert!(!window.lend_more(window.due().unwrap()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn part_of_a_pulse_that_is_past_is_not_lent() {
        let mut window = SharedWindow::new(0);
        let now = Instant::now();
        window.change(0, STREAM_WINDOW);
        window.pulse(now, true, false);
        window.change(STREAM_WINDOW, 0);
        window.change(0, STREAM_WINDOW);
        assert!(!window.lend_more(now + PULSE));
    }
}
