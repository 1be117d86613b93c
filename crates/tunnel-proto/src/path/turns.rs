//! Two TCP connections that take turns while a tunnel is busy.
//!
//! ```text
//!   first   ████████████░░░░░░░░░░░░████████████      █ carries everything   ░ idle
//!   second  ░░░░░░░░░░░░████████████░░░░░░░░░░░░      each turn shorter than 10 s
//! ```
//!
//! BBR believes its estimate of the shortest round trip for 10 s. On a connection that is never
//! idle it then holds back nearly everything for 200 ms and a round trip (draft-cardwell-iccrg-bbr
//! §4.3.5, `ProbeRTT`), which everything in the tunnel waits for. One that begins to send after
//! a silence measures the round trip by that instead. Hence turns: none is so long that the
//! estimate of its beginning expires, and a connection whose turn it is not is silent. Until both
//! have been used for a while there are short turns, each twice as long as the last.
//!
//! Choosing and closing connections is otherwise the [`Selector`]'s.

use std::time::{Duration, Instant};

use super::{CloseReason, Event, SECOND, Selector, Transport};

/// For how long after the last busy moment a tunnel counts as busy.
const BUSY: Duration = Duration::from_secs(1);

/// For how long after it the second connection is kept.
const KEEP: Duration = Duration::from_secs(60);

/// The first turn after a second connection was begun, and each after it is twice as long: both
/// grow with the load, instead of the second having to begin with all of it.
const FIRST: Duration = Duration::from_millis(250);

/// When the next turn begins.
#[derive(Debug)]
pub(super) struct Turns {
    /// Of each turn; zero: there are none.
    length: Duration,
    /// Of this one.
    present: Duration,
    began: Instant,
    busy: Option<Instant>,
    /// When the connection that is next was asked whether it still works.
    pub(super) asked: Option<Instant>,
}

impl Turns {
    pub(super) fn new(length: Duration, now: Instant) -> Self {
        Self {
            length,
            present: length,
            began: now,
            busy: None,
            asked: None,
        }
    }

    /// Takes note that the tunnel is busy. A pause ends no turn: the estimate grows old in it, too.
    pub(super) fn busy(&mut self, now: Instant) {
        self.busy = Some(now);
    }

    /// Takes note that another connection is used from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.began, self.asked) = (now, None);
        self.present = (self.present * 2).min(self.length);
    }

    /// Takes note that a second connection is made.
    pub(super) fn second(&mut self, now: Instant) {
        (self.began, self.present) = (now, FIRST.min(self.length));
    }

    /// Answers whether two connections are wanted.
    pub(super) fn wants_two(&self, now: Instant) -> bool {
        !self.length.is_zero() && self.is_busy(now, KEEP)
    }

    /// Answers whether the turn is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        !self.length.is_zero() && self.is_busy(now, BUSY) && now >= self.began + self.present
    }

    fn is_busy(&self, now: Instant, within: Duration) -> bool {
        self.busy
            .is_some_and(|busy| now.saturating_duration_since(busy) < within)
    }
}

impl Selector {
    /// Takes note that the tunnel carries more than a little. To be called several times a second
    /// while it is so.
    pub fn handle_busy(&mut self, now: Instant) {
        self.turns.busy(now);
        self.handle_timeout(now);
    }

    /// Keeps a second TCP connection while it is wanted, and answers whether its turn has come.
    pub(super) fn take_turns(&mut self, now: Instant) -> bool {
        let by_tcp = matches!(self.active(), Some((_, Transport::Tcp)));
        let wanted = by_tcp && self.turns.wants_two(now);
        let [first, _, second] = &mut self.slots;
        let (used, other) = if self.turn == 0 {
            (first, second)
        } else {
            (second, first)
        };
        if !wanted && used.is_up() && other.retry_at.take().is_some() {
            let spare = other.link.take().map(|link| link.id);
            self.events.extend(spare.map(|link| Event::Close {
                link,
                reason: CloseReason::Spare,
            }));
        } else if wanted && other.retry_at.is_none() {
            other.retry_at = Some(now);
            self.turns.second(now);
        }
        let next = other.link.as_mut().and_then(|link| link.prober.as_mut());
        let next = next.filter(|next| wanted && self.turns.is_over(now) && !next.is_suspect());
        let Some(next) = next else {
            self.turns.asked = None;
            return false;
        };
        // Nothing is entrusted to a connection that may have died since it was probed.
        match self.turns.asked {
            Some(asked) if next.has_answered_since(asked) => {
                self.turn = SECOND - self.turn;
                true
            }
            Some(_) => false,
            None => {
                next.ask(now);
                self.turns.asked = Some(now);
                false
            }
        }
    }
}
