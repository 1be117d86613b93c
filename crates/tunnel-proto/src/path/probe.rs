//! Returns whether one link is alive, by probes and their answers.
//!
//! ```text
//! answered: every `interval`     unanswered for a time-out (from the round trip, RFC 6298):
//!   ○────○────○                  a miss, and the next ones follow every `fast`
//!                                `misses` of them in a row: dead
//! ```
//!
//! With the defaults a link whose packets vanish is dead at most 0.5 + 0.6 + 0.15 + 0.6 s after
//! its last answer was asked for, as long as its round trip is below 0.48 s. Late answers count: a
//! round trip that suddenly grows makes misses, but no death.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How links are probed.
#[derive(Clone, Copy, Debug)]
pub struct ProbeParams {
    /// Between probes of the link in use.
    pub interval: Duration,
    /// Between probes of the others.
    pub standby: Duration,
    /// Between probes after a miss.
    pub fast: Duration,
    /// Misses in a row that make a link dead.
    pub misses: u32,
    /// The shortest time to wait for an answer.
    pub min_timeout: Duration,
    /// The longest time to wait for an answer, unless the round trip itself is longer.
    pub max_timeout: Duration,
    /// For how long after the last answer a miss does not count because other packets came in
    /// meanwhile. A link that works in this direction alone is found dead that much later.
    pub excused: Duration,
}

impl Default for ProbeParams {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(500),
            standby: Duration::from_secs(5),
            fast: Duration::from_millis(150),
            misses: 3,
            min_timeout: Duration::from_millis(200),
            max_timeout: Duration::from_millis(600),
            excused: Duration::from_secs(3),
        }
    }
}

/// What the probes of a link showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Smoothed round trip; `None` before the first answer.
    pub rtt: Option<Duration>,
    /// How long to wait for an answer.
    pub timeout: Duration,
    /// Answers, late ones included.
    pub answered: u64,
    /// The last probes that were answered or missed, 128 at most.
    pub recent: u32,
    /// Those of them that were not answered.
    pub lost: u32,
}

impl LinkStats {
    /// Returns the share of the last probes that went unanswered, 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        f64::from(self.lost) / f64::from(self.recent.max(1))
    }
}

/// The state machine of one link's liveness.
#[derive(Debug)]
pub struct Prober {
    params: ProbeParams,
    active: bool,
    next: Instant,
    next_id: u32,
    /// Not answered; the oldest first, those that were missed until they are answered late.
    waiting: VecDeque<Waiting>,
    misses: u32,
    last_answer: Instant,
    received: Option<Instant>,
    rtt: Option<(Duration, Duration)>,
    /// How long to wait before the round trip is known.
    first_timeout: Duration,
    answered: u64,
    outcomes: Outcomes,
}

/// What became of the last probes that no answer is awaited to.
#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    /// A bit for each, set if it was lost; the newest is the lowest.
    lost: u128,
    count: u32,
}

impl Outcomes {
    fn add(&mut self, lost: bool) {
        self.lost = self.lost << 1 | u128::from(lost);
        self.count = (self.count + 1).min(u128::BITS);
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u32,
    sent: Instant,
    missed: bool,
}

impl Prober {
    /// Returns one for a link that has just come up, to be probed at once.
    ///
    /// `connecting` is how long that took: as much as a round trip or more.
    #[must_use]
    pub fn new(params: ProbeParams, connecting: Duration, now: Instant) -> Self {
        let most = params.max_timeout;
        Self {
            params,
            active: false,
            next: now,
            next_id: 0,
            waiting: VecDeque::new(),
            misses: 0,
            last_answer: now,
            received: None,
            rtt: None,
            first_timeout: connecting.min(most * 5).max(most),
            answered: 0,
            outcomes: Outcomes::default(),
        }
    }

    /// Returns whether the link is in use; one that comes into use is probed at once.
    pub fn set_active(&mut self, now: Instant, active: bool) {
        if active && !self.active {
            self.next = self.next.min(now);
        }
        self.active = active;
    }

    /// Records an authentic packet other than an answer.
    pub fn received(&mut self, now: Instant) {
        self.received = Some(now);
    }

    /// Records the answer to a probe, a late one too.
    pub fn answered(&mut self, now: Instant, id: u32) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) else {
            return;
        };
        // Older ones are lost or overtaken; their answers add nothing.
        for _ in self.waiting.drain(..at) {
            self.outcomes.add(true);
        }
        let Some(waiting) = self.waiting.pop_front() else {
            return;
        };
        self.outcomes.add(false);
        self.measure(now.saturating_duration_since(waiting.sent));
        self.answered += 1;
        self.misses = 0;
        self.last_answer = now;
        self.received = Some(now);
    }

    /// Counts misses and returns whether there are too many.
    pub fn is_dead(&mut self, now: Instant) -> bool {
        let timeout = self.timeout();
        let excused = now < self.last_answer + self.params.excused;
        for waiting in &mut self.waiting {
            if waiting.missed || now < waiting.sent + timeout {
                continue;
            }
            waiting.missed = true;
            self.next = self.next.min(now);
            let heard = self
                .received
                .is_some_and(|received| received > waiting.sent);
            if !(heard && excused) {
                self.misses += 1;
            }
        }
        self.misses >= self.params.misses
    }

    /// Returns whether so many were missed in a row, when last asked, that the link is dead.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.misses >= self.params.misses
    }

    /// Returns whether the last probe due was missed.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.misses > 0
    }

    /// Returns the id of the probe to send now, if one is due.
    pub fn due(&mut self, now: Instant) -> Option<u32> {
        if now < self.next {
            return None;
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
            self.outcomes.add(true);
        }
        self.waiting.push_back(Waiting {
            id,
            sent: now,
            missed: false,
        });
        let missed = self.waiting.iter().any(|waiting| waiting.missed);
        self.next = now
            + match (missed, self.active) {
                (true, _) => self.params.fast,
                (false, true) => self.params.interval,
                (false, false) => self.params.standby,
            };
        Some(id)
    }

    /// Returns when [`Prober::is_dead`] and [`Prober::due`] are to be asked next, at the latest.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let timeout = self.timeout();
        let waiting = self.waiting.iter().filter(|waiting| !waiting.missed);
        let miss = waiting.map(|waiting| waiting.sent + timeout).min();
        miss.map_or(self.next, |miss| miss.min(self.next))
    }

    /// Returns what the probes showed so far.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let mut outcomes = self.outcomes;
        for _ in self.waiting.iter().filter(|waiting| waiting.missed) {
            outcomes.add(true);
        }
        LinkStats {
            rtt: self.rtt.map(|(rtt, _)| rtt),
            timeout: self.timeout(),
            answered: self.answered,
            recent: outcomes.count,
            lost: outcomes.lost.count_ones(),
        }
    }

    /// RFC 6298 §2, with bounds of our own.
    fn timeout(&self) -> Duration {
        let (least, most) = (self.params.min_timeout, self.params.max_timeout);
        self.rtt.map_or(self.first_timeout, |(rtt, variation)| {
            (rtt + variation * 4)
                .max(least)
                .min(most)
                .max(rtt + rtt / 4)
        })
    }

    fn measure(&mut self, sample: Duration) {
        self.rtt = Some(match self.rtt {
            None => (sample, sample / 2),
            Some((rtt, variation)) => (
                (rtt * 7 + sample) / 8,
                (variation * 3 + rtt.abs_diff(sample)) / 4,
            ),
        });
    }
}

const MAX_WAITING: usize = 16;
