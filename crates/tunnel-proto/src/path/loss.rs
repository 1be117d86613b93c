//! Tells from what the kernel counts of a TCP connection whether its line loses packets.
//!
//! ```text
//!   received  ▮▮▮▮ ▮▮▮▮▮▮▮▮     one was lost: all that came after it until it was sent again have
//!                 ╰───┬──╯      waited for it; of what was sent, as many as were in flight
//!                   waited
//! ```
//!
//! What counts is not the share of segments that were lost but of those that waited behind one: it is
//! the probability that at a given moment something is held back. What only overtook another on the way
//! waits as well, and counts.

/// What the kernel has counted of a TCP connection since it was made. Counts go round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Sent with data, those sent again included.
    pub sent: u32,
    /// Sent again, those that turned out to have arrived already not counted: it may sink.
    pub resent: u32,
    /// Sent and not acknowledged at present.
    pub in_flight: u32,
    /// Received with data.
    pub received: u32,
    /// Received while an earlier one was missing.
    pub out_of_order: u32,
}

/// What happened to the segments of a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loss {
    seen: u32,
    /// Of those received.
    waited: u32,
    sent: u32,
    /// Sent again. What turns out to have arrived is told a round trip later, in another look.
    resent: i64,
    /// At most.
    in_flight: u32,
}

impl Loss {
    /// Returns what happened between two looks at one connection.
    pub(super) fn between(before: &Segments, after: &Segments) -> Self {
        let sent = after.sent.wrapping_sub(before.sent);
        let received = after.received.wrapping_sub(before.received);
        let out_of_order = after.out_of_order.wrapping_sub(before.out_of_order);
        // It may sink, so a great difference is one below zero.
        let resent = after.resent.wrapping_sub(before.resent).cast_signed();
        Self {
            seen: sent.saturating_add(received),
            waited: out_of_order.min(received),
            sent,
            resent: i64::from(resent),
            in_flight: before.in_flight.max(after.in_flight).max(1),
        }
    }

    /// Adds what happened meanwhile.
    pub(super) fn add(&mut self, more: Self) {
        self.seen = self.seen.saturating_add(more.seen);
        self.waited = self.waited.saturating_add(more.waited);
        self.sent = self.sent.saturating_add(more.sent);
        self.resent = self.resent.saturating_add(more.resent);
        self.in_flight = self.in_flight.max(more.in_flight);
    }

    /// Returns the same, as if nothing had been lost.
    pub(super) fn lossless(self) -> Self {
        Self {
            waited: 0,
            resent: 0,
            ..self
        }
    }

    /// Answers whether enough was seen to go by.
    pub(super) fn is_telling(self) -> bool {
        self.seen >= TELLING
    }

    /// Answers whether more waited than is next to nothing.
    pub(super) fn is_much(self) -> bool {
        // Several lost at once are waited for together, so this is the most it can have been.
        let behind = self.resent.max(0).saturating_mul(self.in_flight.into());
        let behind = behind.min(self.sent.into());
        i64::from(self.waited).saturating_add(behind) > i64::from(self.seen / MUCH)
    }
}

/// As many pass a line that loses one of a hundred without a loss once in 170 times.
const TELLING: u32 = 512;

/// One of so many. A change of connection while something is held back costs inner streams a
/// reaction to a loss that was none: with turns of 9 s one in three minutes at most. What a full line
/// of 50 ms and 100 Mb/s has in flight are 500 segments, so this is one lost of 10,000.
const MUCH: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// What so many segments each way are, of which these were sent again and out of order.
    fn line(resent: u32, in_flight: u32, out_of_order: u32) -> Loss {
        let before = Segments {
            sent: u32::MAX - 10,
            resent: u32::MAX - 1,
            in_flight: 0,
            received: u32::MAX - 10,
            out_of_order: u32::MAX - 1,
        };
        let after = Segments {
            sent: before.sent.wrapping_add(1000),
            resent: before.resent.wrapping_add(resent),
            in_flight,
            received: before.received.wrapping_add(1000),
            out_of_order: before.out_of_order.wrapping_add(out_of_order),
        };
        Loss::between(&before, &after)
    }

    #[test]
    fn counts_go_round() {
        for (resent, in_flight, out_of_order, much) in [
            (0, 500, 0, false),
            (0, 500, 100, false),
            (0, 500, 101, true),
            (1, 100, 0, false),
            (1, 101, 0, true),
            (1, 60, 50, true),
        ] {
            let line = line(resent, in_flight, out_of_order);
            assert!(line.is_telling());
            assert_eq!(line.is_much(), much, "{resent} {in_flight} {out_of_order}");
        }
    }

    #[test]
    fn what_turns_out_to_have_arrived_in_a_later_look_is_not_counted() {
        let mut all = line(3, 500, 0);
        assert!(all.is_much());
        all.add(line(3_u32.wrapping_neg(), 500, 0));
        assert!(!all.is_much());
    }

    #[test]
    fn no_more_wait_behind_a_loss_than_were_sent() {
        let mut all = line(1000, u32::MAX, 0);
        all.add(Loss {
            seen: 100_000,
            ..Loss::default()
        });
        assert!(!all.is_much());
    }

    #[test]
    fn few_segments_tell_nothing() {
        assert!(!Loss::default().is_telling());
    }
}
