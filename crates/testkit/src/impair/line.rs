//! One direction of a line: a packet and `now` go in, packets that are due come out.
//!
//! ```text
//!     packet ─▶ swallowed? lost? too large? ─▶ waits for its turn (rate) ─▶ on its way (delay) ─▶ due
//! ```
//!
//! Time is the duration since some beginning; no clock and no socket is touched here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::random::Random;
use super::{BlackHole, Counts, HELD_BACK, Impairment};

#[derive(Debug)]
pub(super) struct Line {
    pub(super) impairment: Impairment,
    random: Random,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    /// When each packet that waits for its turn will have left, in order.
    waiting: VecDeque<Duration>,
    /// When the last packet that was not held back arrives: no later one comes before it.
    latest: Duration,
    number: u64,
    spare: Vec<Vec<u8>>,
    counts: Counts,
}

/// A packet on its way. Ordered by when it arrives, then by when it came.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Duration,
    number: u64,
    packet: Vec<u8>,
}

impl Line {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            impairment: Impairment::default(),
            random: Random::new(seed),
            under_way: BinaryHeap::new(),
            waiting: VecDeque::new(),
            latest: Duration::ZERO,
            number: 0,
            spare: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Takes a packet that was sent at `now`, and decides what becomes of it.
    pub(super) fn offer(&mut self, now: Duration, packet: &[u8]) {
        let how = self.impairment;
        // Drawn for every packet, so that a switch that is turned does not shift the sequence.
        let [lost, twice, held_back, jitter] = std::array::from_fn(|_| self.random.share());
        if is_swallowed(packet, how.black_hole) {
            self.counts.swallowed += 1;
        } else if how.largest.is_some_and(|largest| packet.len() > largest) {
            self.counts.too_large += 1;
        } else if lost < how.loss {
            self.counts.lost += 1;
        } else if let Some(left) = self.leave(now, packet.len()) {
            let due = self.arrival(left, jitter);
            let extra = if held_back < how.reorder {
                HELD_BACK
            } else {
                self.latest = due;
                Duration::ZERO
            };
            self.send(due + extra, packet);
            if twice < how.duplicate {
                self.send(due + extra, packet);
            }
        } else {
            self.counts.overflowed += 1;
        }
    }

    pub(super) fn due(&self) -> Option<Duration> {
        self.under_way.peek().map(|Reverse(next)| next.due)
    }

    /// Returns a packet that has arrived by `now`. [`Line::arrived`] takes it back.
    pub(super) fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.due()? > now {
            return None;
        }
        self.under_way.pop().map(|Reverse(next)| next.packet)
    }

    /// Counts a packet, and keeps its memory for the next.
    pub(super) fn arrived(&mut self, packet: Vec<u8>, accepted: bool) {
        if accepted {
            self.counts.delivered += 1;
            let bytes = packet.len() as u64;
            self.counts.bytes += bytes;
            match protocol(&packet) {
                Some(TCP) => self.counts.tcp_bytes += bytes,
                Some(UDP) => self.counts.udp_bytes += bytes,
                _ => {}
            }
        } else {
            self.counts.refused += 1;
        }
        if self.spare.len() < SPARE {
            self.spare.push(packet);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns when a packet has left the queue, `None` when there is no room in it.
    fn leave(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let how = self.impairment;
        let Some(rate) = how.rate else {
            let room = how.queue.min(MAX_UNDER_WAY);
            return (self.under_way.len() < room).then_some(now);
        };
        while self.waiting.front().is_some_and(|left| *left <= now) {
            self.waiting.pop_front();
        }
        if self.waiting.len() >= how.queue || self.under_way.len() >= MAX_UNDER_WAY {
            return None;
        }
        let free = self.waiting.back().copied().unwrap_or(now);
        if free.saturating_sub(now) > how.buffer {
            return None;
        }
        let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / rate.max(1) as f64);
        self.waiting.push_back(free + takes);
        Some(free + takes)
    }

    /// Returns when a packet arrives that has left: never before one that had left earlier.
    fn arrival(&self, left: Duration, jitter: f64) -> Duration {
        let how = self.impairment;
        let earliest = (left + how.delay).saturating_sub(how.jitter).max(left);
        (earliest + how.jitter.mul_f64(2.0 * jitter)).max(self.latest)
    }

    fn send(&mut self, due: Duration, packet: &[u8]) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(packet);
        self.number += 1;
        self.under_way.push(Reverse(UnderWay {
            due,
            number: self.number,
            packet: copy,
        }));
    }
}

/// Whether the black hole is for packets of this kind.
fn is_swallowed(packet: &[u8], what: BlackHole) -> bool {
    match what {
        BlackHole::Everything => true,
        BlackHole::Nothing => false,
        BlackHole::Tcp => protocol(packet) == Some(TCP),
        BlackHole::Udp => protocol(packet) == Some(UDP),
    }
}

/// Returns what the IP header says is in it, which fragments say as well; IPv6 headers between are
/// not followed.
fn protocol(packet: &[u8]) -> Option<u8> {
    match packet.first()? >> 4 {
        4 => packet.get(9).copied(),
        6 => match packet.get(6) {
            Some(&FRAGMENT) => packet.get(40).copied(),
            other => other.copied(),
        },
        _ => None,
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The next header that says "a fragment" (RFC 8200, section 4.5).
const FRAGMENT: u8 = 44;

/// Bounds what a fast and long line holds, whatever its queue: 24 MB of full packets.
const MAX_UNDER_WAY: usize = 16_384;

const SPARE: usize = 4096;
