//! Finds the largest packet a link carries, and notices when it carries less.
//!
//! ```text
//! floor ──answered──▶ ceiling ──answered──▶ steady ◀── search between ◀──┐
//!   │ three misses        └─three misses──────────────────▶ halve ───────┘
//!   ▼                          above the floor, traffic, three misses: floor at once, then search
//! Unfit
//! ```
//!
//! After RFC 8899: probes are packets of the size in question, answered by the peer with one of the
//! same size, so both directions are shown. Sizes are those of inner packets; what wraps them is
//! not known here. Misses count only when smaller packets came through meanwhile: a dead link
//! is not a small one. Between rare attempts to grow, nothing is sent while there is no traffic.
//!
//! TCP streams need none of this: they cut segments of their own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The search ends when it is this near, in bytes.
const STEP: u16 = 8;
/// Probes of one size without answer that make it too large.
const MISSES: u32 = 3;
/// How often the present size is verified while there is traffic.
const VERIFY: Duration = Duration::from_secs(1);
/// When something larger is tried again.
const RAISE: Duration = Duration::from_secs(60);
/// How long to wait for an answer until the link's own time-out is known.
const TIMEOUT: Duration = Duration::from_millis(600);

/// What the caller is to do, or to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuEvent {
    /// Packets may be this large from now on.
    Changed {
        /// Bytes of an inner packet.
        mtu: u16,
    },
    /// Send a probe: an inner packet of this size.
    Probe {
        /// To be found in the answer.
        id: u32,
        /// Bytes of the inner packet.
        size: u16,
    },
    /// Not even the floor comes through, though smaller packets do. Reported once.
    Unfit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Whether the floor comes through; `below` is known to be too large.
    Floor {
        below: Option<u16>,
    },
    /// Whether the ceiling does.
    Ceiling,
    /// Between what does and what does not.
    Search {
        too_large: u16,
    },
    /// Found; now and then the size is verified.
    Steady,
    Unfit,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    id: u32,
    size: u16,
    misses: u32,
    first: Instant,
    sent: Instant,
}

/// The state machine of one link's packet size.
#[derive(Debug)]
pub struct Mtu {
    floor: u16,
    ceiling: u16,
    phase: Phase,
    mtu: u16,
    trial: Option<Trial>,
    next_id: u32,
    timeout: Duration,
    alive: Option<Instant>,
    traffic: bool,
    verified: Instant,
    raise_at: Instant,
    events: VecDeque<MtuEvent>,
}

impl Mtu {
    /// Returns the machine for a link that has just come up. Packets may be as large as the floor
    /// until more is known: smaller is of no use (1280 is the least for IPv6), larger than the ceiling
    /// is not tried.
    #[must_use]
    pub fn new(floor: u16, ceiling: u16, now: Instant) -> Self {
        let mut mtu = Self {
            floor,
            ceiling: ceiling.max(floor),
            phase: Phase::Floor { below: None },
            mtu: floor,
            trial: None,
            next_id: 0,
            timeout: TIMEOUT,
            alive: None,
            traffic: false,
            verified: now,
            raise_at: now + RAISE,
            events: VecDeque::new(),
        };
        mtu.advance(now);
        mtu
    }

    /// Returns how large packets may be, in bytes of an inner packet.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Records that small packets come through, with the link's time-out.
    pub fn handle_alive(&mut self, now: Instant, timeout: Duration) {
        self.alive = Some(now);
        self.timeout = timeout;
    }

    /// Records that packets were sent, at least one of them larger than the floor.
    pub fn handle_traffic(&mut self, now: Instant) {
        self.traffic = true;
        self.advance(now);
    }

    /// Records the answer to a probe.
    pub fn handle_pong(&mut self, now: Instant, id: u32) {
        let Some(trial) = self.trial.filter(|trial| trial.id == id) else {
            return;
        };
        self.trial = None;
        self.passed(now, trial.size);
        self.advance(now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(trial) = self.trial
            && now >= trial.sent + self.timeout
        {
            self.missed(now, trial);
        }
        self.advance(now);
    }

    /// Returns when [`Mtu::handle_timeout`] is to be called next, at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if let Some(trial) = self.trial.filter(|_| !self.events.is_empty()) {
            return Some(trial.sent); // not even sent yet
        }
        if let Some(trial) = self.trial {
            return Some(trial.sent + self.timeout);
        }
        if self.phase != Phase::Steady {
            return None; // unfit; the others always have a probe on its way
        }
        let verify = (self.traffic && self.mtu > self.floor).then(|| self.verified + VERIFY);
        let raise = (self.mtu < self.ceiling).then_some(self.raise_at);
        verify.into_iter().chain(raise).min()
    }

    /// Returns the next thing to do.
    pub fn poll_event(&mut self) -> Option<MtuEvent> {
        self.events.pop_front()
    }

    /// Sends the next probe when none is on its way and one is due.
    fn advance(&mut self, now: Instant) {
        if self.trial.is_some() {
            return;
        }
        let due = now >= self.verified + VERIFY;
        let verifies = self.traffic && due && self.mtu > self.floor;
        let size = match self.phase {
            Phase::Unfit => return,
            Phase::Floor { .. } => self.floor,
            // Also while something larger is tried: the path may have become smaller meanwhile.
            Phase::Ceiling | Phase::Search { .. } if verifies => self.mtu,
            Phase::Ceiling => self.ceiling,
            Phase::Search { too_large } => self.mtu + (too_large - self.mtu) / 2,
            Phase::Steady if self.mtu < self.ceiling && now >= self.raise_at => {
                self.phase = Phase::Ceiling;
                self.ceiling
            }
            Phase::Steady if verifies => self.mtu,
            Phase::Steady => return,
        };
        if size == self.mtu {
            self.traffic = false;
        }
        self.send(now, size, 0, now);
    }

    fn send(&mut self, now: Instant, size: u16, misses: u32, first: Instant) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.trial = Some(Trial {
            id,
            size,
            misses,
            first,
            sent: now,
        });
        self.events.push_back(MtuEvent::Probe { id, size });
    }

    fn passed(&mut self, now: Instant, size: u16) {
        match self.phase {
            Phase::Floor { below: None } if self.floor < self.ceiling => {
                self.phase = Phase::Ceiling;
            }
            Phase::Floor { below } => match below {
                Some(too_large) => self.search(now, too_large),
                None => self.settle(now),
            },
            Phase::Ceiling | Phase::Search { .. } if size == self.mtu => self.verified = now,
            Phase::Ceiling => {
                self.set(size);
                self.settle(now);
            }
            Phase::Search { too_large } => {
                self.set(size);
                self.verified = now;
                self.search(now, too_large);
            }
            Phase::Steady | Phase::Unfit => self.verified = now,
        }
    }

    fn missed(&mut self, now: Instant, trial: Trial) {
        let misses = trial.misses + 1;
        let alive = self.alive.is_some_and(|alive| alive >= trial.first);
        if misses < MISSES || !alive {
            let misses = misses.min(MISSES);
            self.send(now, trial.size, misses, trial.first);
            return;
        }
        self.trial = None;
        match self.phase {
            Phase::Floor { .. } | Phase::Unfit => {
                self.phase = Phase::Unfit;
                self.set(self.floor);
                self.events.push_back(MtuEvent::Unfit);
            }
            Phase::Ceiling | Phase::Search { .. } if trial.size > self.mtu => {
                self.search(now, trial.size);
            }
            Phase::Ceiling | Phase::Search { .. } | Phase::Steady => {
                self.set(self.floor);
                self.phase = Phase::Floor {
                    below: Some(trial.size),
                };
            }
        }
    }

    /// Goes on between the present size and one that is too large.
    fn search(&mut self, now: Instant, too_large: u16) {
        if too_large.saturating_sub(self.mtu) > STEP {
            self.phase = Phase::Search { too_large };
        } else {
            self.settle(now);
        }
    }

    fn settle(&mut self, now: Instant) {
        self.phase = Phase::Steady;
        self.verified = now;
        self.raise_at = now + RAISE;
    }

    fn set(&mut self, mtu: u16) {
        if self.mtu != mtu {
            self.mtu = mtu;
            self.events.push_back(MtuEvent::Changed { mtu });
        }
    }
}
