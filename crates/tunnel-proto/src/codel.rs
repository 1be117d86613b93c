//! A bounded queue in front of a socket that drops early instead of delaying long: CoDel.
//!
//! ```text
//!          ┌─ urgent: handshakes, control ── dropped when older than 5 s ─────────┐
//! push ──▶ │                                                                       ├──▶ pop
//!          └─ bulk ── CoDel: dropped at the head when it waited too long ──────────┘
//! ```
//!
//! A reliable stream below turns loss into delay, so without this queue the flows inside would see
//! seconds of delay and retransmit into it. Dropping follows RFC 8289 §5; when a bound is reached
//! the oldest packet goes, since it is the one whose flow learns of the congestion soonest.
//!
//! Marks no ECN (the packets are sealed), keeps no flows apart, and allocates nothing per packet
//! once it has grown.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Bounds and times of a [`Queue`].
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Delay that is always acceptable. RFC 8289 §4.3: 5 ms.
    pub target: Duration,
    /// For how long the delay may stay above the target; about the longest usual round trip of
    /// the flows inside. RFC 8289 §4.3: 100 ms.
    pub interval: Duration,
    /// Bulk packets held at most.
    pub max_packets: usize,
    /// Bytes of bulk packets held at most.
    pub max_bytes: usize,
    /// Urgent packets held at most.
    pub max_urgent: usize,
}

/// While no more bytes than this wait there is no standing queue; the size of one write.
const QUANTUM: usize = 1514;
/// The age at which an urgent packet is of no use any more. A handshake is repeated after 5 s
/// (WireGuard paper §6.1, Rekey-Timeout).
const URGENT_AGE: Duration = Duration::from_secs(5);

impl Default for Params {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            max_packets: 1024,
            max_bytes: 2 << 20,
            max_urgent: 64,
        }
    }
}

/// How a packet is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// Goes first and is not subject to CoDel: handshakes, control frames, probes.
    Urgent,
    /// Everything else.
    Bulk,
}

/// Why a packet left the queue without being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// CoDel: packets wait for too long.
    Delay,
    /// A newer packet needed the bytes.
    FullBytes,
    /// A newer packet needed the place.
    FullPackets,
    /// Larger than the whole queue may be.
    Oversize,
    /// An urgent packet older than 5 s.
    Stale,
}

impl DropReason {
    /// All of them with their labels for metrics, in the order of their declaration.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Delay, "queue_delay"),
        (Self::FullBytes, "queue_full_bytes"),
        (Self::FullPackets, "queue_full_packets"),
        (Self::Oversize, "queue_oversize"),
        (Self::Stale, "queue_stale"),
    ];
}

/// What went through a queue so far, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets given to the queue.
    pub pushed: u64,
    /// Packets taken from it.
    pub popped: u64,
    /// Packets dropped, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.pushed += other.pushed;
        self.popped += other.popped;
        for (count, more) in self.dropped.iter_mut().zip(other.dropped) {
            *count += more;
        }
    }
}

/// The queue. `T` is a packet; its size is given when it is pushed.
///
/// Dropped packets are handed to the `dropped` argument, so that their buffers can be used again.
#[derive(Debug)]
pub struct Queue<T> {
    params: Params,
    bulk: VecDeque<Waiting<T>>,
    urgent: VecDeque<Waiting<T>>,
    bytes: usize,
    control: Control,
    stats: Stats,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    bytes: usize,
    since: Instant,
}

impl<T> Queue<T> {
    /// Returns an empty queue. Bounds of zero count as one.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            params: Params {
                max_packets: params.max_packets.max(1),
                max_urgent: params.max_urgent.max(1),
                ..params
            },
            bulk: VecDeque::new(),
            urgent: VecDeque::new(),
            bytes: 0,
            control: Control::default(),
            stats: Stats::default(),
        }
    }

    /// Queues a packet of `bytes` bytes, dropping the oldest of its band where a bound demands it.
    pub fn push(
        &mut self,
        now: Instant,
        band: Band,
        item: T,
        bytes: usize,
        mut dropped: impl FnMut(T, DropReason),
    ) {
        self.stats.pushed += 1;
        let waiting = Waiting {
            item,
            bytes,
            since: now,
        };
        if band == Band::Urgent {
            while self.urgent.len() >= self.params.max_urgent {
                let oldest = self.urgent.pop_front();
                self.drop_packet(oldest, DropReason::FullPackets, &mut dropped);
            }
            self.urgent.push_back(waiting);
            return;
        }
        if bytes > self.params.max_bytes {
            return self.drop_packet(Some(waiting), DropReason::Oversize, &mut dropped);
        }
        while self.bulk.len() >= self.params.max_packets {
            let oldest = self.take_bulk();
            self.drop_packet(oldest, DropReason::FullPackets, &mut dropped);
        }
        while self.bytes + bytes > self.params.max_bytes {
            let oldest = self.take_bulk();
            self.drop_packet(oldest, DropReason::FullBytes, &mut dropped);
        }
        self.bytes += bytes;
        self.bulk.push_back(waiting);
    }

    /// Takes the next packet to send: urgent ones first, then what CoDel lets through.
    pub fn pop(&mut self, now: Instant, mut dropped: impl FnMut(T, DropReason)) -> Option<T> {
        while let Some(waiting) = self.urgent.pop_front() {
            if now.saturating_duration_since(waiting.since) <= URGENT_AGE {
                self.stats.popped += 1;
                return Some(waiting.item);
            }
            self.drop_packet(Some(waiting), DropReason::Stale, &mut dropped);
        }
        let waiting = self.pop_bulk(now, &mut dropped)?;
        self.stats.popped += 1;
        Some(waiting.item)
    }

    /// Returns the number of packets that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bulk.len() + self.urgent.len()
    }

    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bulk.is_empty() && self.urgent.is_empty()
    }

    /// Returns the bytes of the bulk packets that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns what went through so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The function `deque` of RFC 8289 §5.5.
    fn pop_bulk(
        &mut self,
        now: Instant,
        dropped: &mut impl FnMut(T, DropReason),
    ) -> Option<Waiting<T>> {
        let (mut head, mut may_drop) = self.head(now);
        if let Some(next) = self.control.drop_next.filter(|_| self.control.dropping) {
            let mut next = next;
            self.control.dropping = may_drop;
            while self.control.dropping && now >= next {
                self.drop_packet(head.take(), DropReason::Delay, dropped);
                self.control.count = self.control.count.saturating_add(1);
                (head, may_drop) = self.head(now);
                self.control.dropping = may_drop;
                if may_drop {
                    next = self.control.law(next, self.params.interval);
                    self.control.drop_next = Some(next);
                }
            }
        } else if may_drop {
            self.drop_packet(head.take(), DropReason::Delay, dropped);
            (head, _) = self.head(now);
            self.control.start_dropping(now, self.params.interval);
        }
        head
    }

    /// The function `dodequeue` of RFC 8289 §5.4: the oldest packet, and whether it may be dropped.
    fn head(&mut self, now: Instant) -> (Option<Waiting<T>>, bool) {
        let Some(waiting) = self.take_bulk() else {
            self.control.first_above = None;
            return (None, false);
        };
        let waited = now.saturating_duration_since(waiting.since);
        if waited < self.params.target || self.bytes <= QUANTUM {
            self.control.first_above = None;
            return (Some(waiting), false);
        }
        let first_above = *self
            .control
            .first_above
            .get_or_insert(now + self.params.interval);
        (Some(waiting), now >= first_above)
    }

    fn take_bulk(&mut self) -> Option<Waiting<T>> {
        let waiting = self.bulk.pop_front()?;
        self.bytes -= waiting.bytes;
        Some(waiting)
    }

    fn drop_packet(
        &mut self,
        waiting: Option<Waiting<T>>,
        reason: DropReason,
        dropped: &mut impl FnMut(T, DropReason),
    ) {
        let Some(waiting) = waiting else { return };
        if let Some(count) = self.stats.dropped.get_mut(reason as usize) {
            *count += 1;
        }
        dropped(waiting.item, reason);
    }
}

/// The variables of RFC 8289 §5.3.
#[derive(Debug, Default)]
struct Control {
    dropping: bool,
    count: u32,
    last_count: u32,
    first_above: Option<Instant>,
    drop_next: Option<Instant>,
}

impl Control {
    /// When to drop next, ever faster: the interval by the root of the count, after `from`.
    fn law(&self, from: Instant, interval: Duration) -> Instant {
        from + interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }

    /// Enters the dropping state, at the rate of the last time when that was recent.
    fn start_dropping(&mut self, now: Instant, interval: Duration) {
        let delta = self.count.saturating_sub(self.last_count);
        let recent = self
            .drop_next
            .is_some_and(|next| now.saturating_duration_since(next) < interval * 16);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.drop_next = Some(self.law(now, interval));
    }
}
