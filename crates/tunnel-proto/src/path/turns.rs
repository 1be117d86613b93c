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
//! estimate of its beginning expires, and a connection whose turn it is not is silent. The first
//! connection's is as old as the load, the second's as that connection, which is made shortly before the
//! first's expires: that one does so while the second has its first turn.
//!
//! What an old connection holds back because a segment was lost arrives behind what the new one
//! carries, and inner streams take that for a loss. So turns are taken only while the line shows next
//! to none, by what the kernel counts of the connection in use; where it does not tell there are none.
//! After one that showed some, the second connection is closed, and tried again after a pause.
//!
//! A second connection carries padding ahead of its first turn, which would begin with slow start.
//!
//! Choosing and closing connections is otherwise the [`Selector`]'s.

use std::time::{Duration, Instant};

use super::loss::{Loss, Segments};
use super::padding::{Padding, Rates};
use super::{CloseReason, Event, LinkId, SECOND, Selector, Transport};

/// For how long after the last busy moment a tunnel counts as busy.
const BUSY: Duration = Duration::from_secs(1);

/// For how long after it the second connection is kept.
const KEEP: Duration = Duration::from_secs(60);

/// How long before the estimate of a single connection expires a second one is made. A load that ends
/// before that needs none, and making it costs something: padding.
const READY: Duration = Duration::from_millis(1500);

/// For how long BBR believes its estimate.
const EXPIRY: Duration = Duration::from_secs(10);

/// How long before that a turn ends, since ending it takes a tick and a round trip.
const LEAD: Duration = Duration::from_millis(500);

/// For how long there are no turns after the line lost packets, and at least since it last did. Twice
/// as long each time that it does again soon after there was a second connection: what is lost then may
/// be lost because of it.
const PAUSE: Duration = Duration::from_secs(60);

/// The longest such pause.
const PAUSE_MOST: Duration = Duration::from_secs(960);

/// How long after a pause what is lost is not soon any more.
const PAUSE_MEMORY: Duration = Duration::from_secs(300);

/// When a second connection that could not be made is tried again: a gateway that refuses it for its
/// limits is not to be asked all the time, nor anybody told each time.
pub(super) const REFUSED: Duration = Duration::from_secs(300);

/// For how long padding may be what makes the line lose packets: until it was sent, and what was lost of
/// it sent again.
const PADS: Duration = Duration::from_millis(1500);

/// The longest round trip that padding is meant for: what takes longer to send is not there before the
/// turn begins. A round trip is measured beside the load, and may be that long by its queue alone.
const PADDED_RTT: Duration = Duration::from_millis(500);

/// The age at which what was counted tells nothing of the present, and a look is the first again.
const STALE: Duration = Duration::from_secs(2);

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
    /// What happened to the segments of this turn.
    line: Loss,
    /// What the connection in use carried lately.
    rates: Rates,
    /// When the kernel last told.
    told: Option<Instant>,
    /// Until when what is lost may be lost because of padding, and tells nothing of the line.
    pads_until: Option<Instant>,
    /// Until when there are none because the line loses packets.
    withheld_until: Option<Instant>,
    /// Since when the line is looked at meanwhile: for the length of a turn each time.
    looked_from: Instant,
    /// How long that lasts, and when it last was over.
    pause: Duration,
    resumed_at: Option<Instant>,
}

impl Turns {
    pub(super) fn new(length: Duration, now: Instant) -> Self {
        Self {
            length,
            present: length,
            began: now,
            busy: None,
            asked: None,
            line: Loss::default(),
            rates: Rates::default(),
            told: None,
            pads_until: None,
            withheld_until: None,
            looked_from: now,
            pause: PAUSE,
            resumed_at: None,
        }
    }

    /// Takes note of what happened to the segments since the last look.
    fn look(&mut self, now: Instant, line: Loss) {
        self.told = Some(now);
        let pads = self.pads_until.is_some_and(|until| now < until);
        self.line.add(if pads { line.lossless() } else { line });
        let Some(until) = &mut self.withheld_until else {
            return;
        };
        if now < self.looked_from + self.length {
            return;
        }
        if self.line.is_telling() && self.line.is_much() {
            *until = (*until).max(now + PAUSE);
        }
        (self.line, self.looked_from) = (Loss::default(), now);
    }

    /// Takes no turns for a while; `tried` when there was a second connection.
    fn withhold(&mut self, now: Instant, tried: bool) {
        let soon = |resumed: Instant| now < resumed + PAUSE_MEMORY;
        self.pause = if tried && self.resumed_at.is_some_and(soon) {
            (self.pause * 2).min(PAUSE_MOST)
        } else {
            PAUSE
        };
        self.withheld_until = Some(now + self.pause);
        (self.line, self.looked_from) = (Loss::default(), now);
    }

    /// Ends a pause that is over. What was seen before it counts no more.
    pub(super) fn resume(&mut self, now: Instant) {
        if self.withheld_until.is_some_and(|until| now >= until) {
            (self.withheld_until, self.resumed_at) = (None, Some(now));
            self.line = Loss::default();
        }
    }

    /// Takes note that the tunnel is busy. A pause ends no turn: the estimate grows old in it, too.
    pub(super) fn busy(&mut self, now: Instant) {
        self.busy = Some(now);
    }

    /// Takes note that another connection is used from now on, whose estimate is of `learned`.
    pub(super) fn begin(&mut self, now: Instant, learned: Instant) {
        (self.began, self.asked) = (now, None);
        (self.line, self.pads_until) = (Loss::default(), None);
        // By then the other's has expired, and is renewed by its turn.
        let left = (learned + EXPIRY - LEAD).saturating_duration_since(now);
        self.present = if left > LEAD {
            left.min(self.length)
        } else {
            self.length
        };
    }

    /// Takes note that a second connection is made.
    pub(super) fn second(&mut self, now: Instant) {
        (self.began, self.present) = (now, READY - LEAD);
    }

    /// Answers whether two connections are wanted.
    fn wants_two(&self, now: Instant) -> bool {
        let lately = |then: Instant| now.saturating_duration_since(then) < KEEP;
        let may = !self.length.is_zero() && self.withheld_until.is_none();
        may && self.told.is_some_and(lately) && self.is_busy(now, KEEP)
    }

    /// Answers whether the turn has lasted as long as it is to.
    fn is_due(&self, now: Instant) -> bool {
        now >= self.began + self.present
    }

    /// Answers whether the turn is over, and enough was seen in it to take another.
    fn is_over(&self, now: Instant) -> bool {
        let over = self.is_busy(now, BUSY) && self.is_due(now);
        !self.length.is_zero() && over && self.line.is_telling()
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
        if let Some(link) = self.active {
            self.renew(now, link);
        }
        self.handle_timeout(now);
    }

    /// Returns the connection that turns depend on, to be told of by [`Selector::handle_segments`]
    /// while the tunnel is busy.
    #[must_use]
    pub fn watched(&self) -> Option<LinkId> {
        let (link, transport) = self.active()?;
        let on = !self.turns.length.is_zero();
        (on && transport == Transport::Tcp).then_some(link)
    }

    /// Takes note of what the kernel has counted of a connection by TCP. To be called ahead of
    /// [`Selector::handle_busy`]; of a connection that it is not called for no turns are taken.
    pub fn handle_segments(&mut self, now: Instant, id: LinkId, counted: Segments) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        let fresh = |then: Instant| now.saturating_duration_since(then) < STALE;
        let (then, before) = match link.counted.replace((now, counted)) {
            Some((then, before)) if fresh(then) => (then, before),
            None if fresh(link.since) && !link.padded => (link.since, Segments::default()),
            Some(_) | None => (now, counted),
        };
        let time = now.saturating_duration_since(then);
        self.turns.rates.look(time, &before, &counted);
        self.turns.look(now, Loss::between(&before, &counted));
    }

    /// Answers whether, by TCP, no turns are taken because the line lost packets.
    #[must_use]
    pub fn withholds_turns(&self) -> bool {
        self.turns.withheld_until.is_some() && self.watched().is_some()
    }

    /// Takes note that a connection carries something: its estimate is renewed if it has expired.
    /// Returns of when it is.
    pub(super) fn renew(&mut self, now: Instant, id: LinkId) -> Instant {
        let Some(link) = self.link_mut(id) else {
            return now;
        };
        link.needs_padding = false;
        if now < link.learned + EXPIRY {
            return link.learned;
        }
        link.learned = now;
        // What was seen is no older than the estimate.
        self.turns.line = Loss::default();
        now
    }

    /// Answers whether it is time for a second connection, and enough was seen of the line.
    fn is_ready(&mut self, now: Instant) -> bool {
        let used = self.active.and_then(|id| self.link_mut(id));
        let soon = used.is_some_and(|link| now + READY >= link.learned + EXPIRY);
        soon && self.turns.is_busy(now, BUSY) && self.turns.line.is_telling()
    }

    /// Keeps a second TCP connection while it is wanted, and answers whether its turn has come.
    pub(super) fn take_turns(&mut self, now: Instant) -> bool {
        self.turns.resume(now);
        let ready = self.is_ready(now);
        let by_tcp = matches!(self.active(), Some((_, Transport::Tcp)));
        let matters = by_tcp && (ready || self.turns.is_over(now));
        if matters && self.turns.wants_two(now) && self.turns.line.is_much() {
            let other = self.slots.get(SECOND - self.turn);
            let tried = other.is_some_and(|slot| slot.retry_at.is_some());
            self.turns.withhold(now, tried);
        }
        let wanted = by_tcp && self.turns.wants_two(now);
        let [first, _, second] = &mut self.slots;
        let (used, other) = if self.turn == 0 {
            (first, second)
        } else {
            (second, first)
        };
        if !wanted && used.is_up() && other.retry_at.take().is_some() {
            let spare = other.link.take().map(|link| link.id);
            let reason = match self.turns.withheld_until {
                Some(_) => CloseReason::Lossy,
                None => CloseReason::Spare,
            };
            self.events
                .extend(spare.map(|link| Event::Close { link, reason }));
        } else if wanted && other.retry_at.is_none() && ready {
            other.retry_at = Some(now);
            self.turns.second(now);
        }
        // Padding is for a load, and in vain once the load may come any moment.
        let is_time = self.turns.is_busy(now, BUSY) && !self.turns.is_due(now);
        if let Some(link) = other.link.as_mut().filter(|_| wanted && is_time)
            && link.needs_padding
            && let Some(rtt) = link.prober.as_ref().and_then(|it| it.stats().rtt)
        {
            link.needs_padding = false;
            let padding = self.turns.rates.padding(rtt.min(PADDED_RTT));
            if padding != Padding::default() {
                link.padded = true;
                self.turns.pads_until = Some(now + PADS);
                let link = link.id;
                self.events.push_back(Event::Pad { link, padding });
            }
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
