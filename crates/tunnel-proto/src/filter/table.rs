//! The table of flows: found by key, forgotten in time, bounded.
//!
//! ```text
//! hash ──▶ buckets ──▶ chain of entries          one list for each class of time-out,
//!                      entries in one slab ◀──── oldest first: swept from the front
//! ```
//!
//! A packet only notes the time in its entry. The sweep looks at the front of each list: an entry
//! that was used meanwhile goes to the back, others are forgotten. So the work is bounded for every
//! packet, and an entry whose time is over is never found even if it was not swept yet.

use std::time::Instant;

use crate::allowed::PeerIndex;

use super::flow::{FlowKey, Phase};
use super::{Params, Refusal};

#[derive(Debug)]
pub(super) struct Table {
    /// Entry numbers plus one; zero is an empty chain, so that untouched memory stays untouched.
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    lists: [List; CLASSES],
    free: u32,
    len: usize,
    max: usize,
    secret: u64,
    epoch: Instant,
    open: [u32; 64],
    evicted: u64,
}

/// A flow as it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) phase: Phase,
    pub(super) peer: PeerIndex,
    at: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    key: FlowKey,
    phase: Phase,
    peer: PeerIndex,
    /// Milliseconds since the table's beginning: last use, and arrival in the list.
    used: u64,
    listed: u64,
    chain: u32,
    before: u32,
    behind: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    front: u32,
    back: u32,
}

/// What kinds of flow share a time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Both sides finished, or one reset it.
    Closed,
    /// Not answered: TCP until the handshake is complete, UDP until the first answer, ICMP echo always.
    Opening,
    /// One side has finished.
    HalfClosed,
    Established,
    /// Answered.
    Udp,
}

const CLASSES: usize = 5;

impl Class {
    const ALL: [Self; CLASSES] = [
        Self::Closed,
        Self::Opening,
        Self::HalfClosed,
        Self::Established,
        Self::Udp,
    ];

    fn of(phase: Phase) -> Self {
        match phase {
            Phase::SynSent
            | Phase::SynAnswered
            | Phase::PickedUp
            | Phase::Echo
            | Phase::UdpSent => Self::Opening,
            Phase::Established => Self::Established,
            Phase::FinNear | Phase::FinFar => Self::HalfClosed,
            Phase::Closed => Self::Closed,
            Phase::UdpAnswered => Self::Udp,
        }
    }

    /// How long a flow is kept with nothing sent, in milliseconds.
    fn limit(self) -> u64 {
        let seconds = match self {
            Self::Closed => 20,
            Self::Opening => 30,
            Self::HalfClosed => 600,
            // RFC 5382 REQ-5 asks for more than 2 h 4 min.
            Self::Established => 7500,
            // Since the near side last sent. RFC 4787 REQ-5: at least 2 min.
            Self::Udp => 120,
        };
        seconds * 1000
    }
}

impl Table {
    pub(super) fn new(params: &Params, secret: u64, epoch: Instant) -> Self {
        let max = params.max_flows.clamp(1, MAX);
        Self {
            buckets: vec![0; max.next_power_of_two()],
            entries: Vec::new(),
            lists: [List::default(); CLASSES],
            free: 0,
            len: 0,
            max,
            secret,
            epoch,
            open: [0; 64],
            evicted: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn open_of(&self, peer: PeerIndex) -> u32 {
        self.open.get(usize::from(peer.get())).copied().unwrap_or(0)
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Finds a flow whose time is not over.
    pub(super) fn find(&self, now: Instant, key: &FlowKey) -> Option<Found> {
        let at = self.at(key)?;
        let entry = self.entry(at)?;
        (!self.is_over(entry, self.millis(now))).then_some(Found {
            phase: entry.phase,
            peer: entry.peer,
            at,
        })
    }

    /// Notes a packet of the near side: makes the flow when there is none.
    pub(super) fn put(
        &mut self,
        now: Instant,
        key: FlowKey,
        phase: Phase,
        peer: PeerIndex,
    ) -> Result<(), Refusal> {
        let now = self.millis(now);
        let at = match self.at(&key) {
            Some(at) => at,
            None => self.insert(key, phase, peer, now)?,
        };
        let stays_closed = |entry: &Entry| entry.phase == Phase::Closed && phase == Phase::Closed;
        if self.entry(at).is_some_and(|entry| !stays_closed(entry)) {
            self.change(at, phase, peer, now, true);
        }
        Ok(())
    }

    /// Notes an answer of the far side, which keeps the flow `alive` or not. A flow that enters
    /// another class begins its time anew either way.
    pub(super) fn answered(&mut self, now: Instant, found: &Found, phase: Phase, alive: bool) {
        let now = self.millis(now);
        self.change(found.at, phase, found.peer, now, alive);
    }

    /// Looks at the fronts of the lists, at up to `budget` entries of each.
    pub(super) fn sweep(&mut self, now: Instant, budget: usize) {
        let now = self.millis(now);
        for class in Class::ALL {
            for _ in 0..budget {
                let front = self.lists.get(class as usize).map_or(0, |list| list.front);
                let Some(entry) = self.entry(front) else {
                    break;
                };
                if now.saturating_sub(entry.listed) < class.limit() {
                    break;
                }
                if self.is_over(entry, now) {
                    self.remove(front);
                } else {
                    self.unlist(front);
                    self.list(front, now);
                }
            }
        }
    }

    fn insert(
        &mut self,
        key: FlowKey,
        phase: Phase,
        peer: PeerIndex,
        now: u64,
    ) -> Result<u32, Refusal> {
        if self.len >= self.max {
            self.evict(now)?;
        }
        let bucket = self.bucket(&key);
        let entry = Entry {
            key,
            phase,
            peer,
            used: now,
            listed: now,
            chain: self.buckets.get(bucket).copied().unwrap_or(0),
            before: 0,
            behind: 0,
        };
        let at = self.free;
        let at = if let Some(slot) = self.entry_mut(at) {
            let next_free = std::mem::replace(slot, entry).behind;
            self.free = next_free;
            at
        } else {
            self.entries.push(entry);
            u32::try_from(self.entries.len()).unwrap_or(0)
        };
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            *bucket = at;
        }
        self.len += 1;
        self.count_open(phase, peer, true);
        self.list(at, now);
        Ok(at)
    }

    /// Removes the oldest flow of a class that may go, else one whose time is over.
    fn evict(&mut self, now: u64) -> Result<(), Refusal> {
        let front = |class: Class| self.lists.get(class as usize).map_or(0, |list| list.front);
        let over = |at: &u32| {
            self.entry(*at)
                .is_some_and(|entry| self.is_over(entry, now))
        };
        let victim = Class::ALL.map(front).into_iter().find(over).or_else(|| {
            [front(Class::Closed), front(Class::Opening)]
                .into_iter()
                .find(|at| *at != 0)
        });
        self.remove(victim.ok_or(Refusal::TableFull)?);
        self.evicted += 1;
        Ok(())
    }

    fn change(&mut self, at: u32, phase: Phase, peer: PeerIndex, now: u64, alive: bool) {
        let Some(entry) = self.entry_mut(at) else {
            return;
        };
        let (old_phase, old_peer) = (entry.phase, entry.peer);
        let moved = Class::of(old_phase) != Class::of(phase);
        entry.phase = phase;
        entry.peer = peer;
        if alive || moved {
            entry.used = now;
        }
        if moved {
            self.unlist(at);
            self.list(at, now);
        }
        self.count_open(old_phase, old_peer, false);
        self.count_open(phase, peer, true);
    }

    fn remove(&mut self, at: u32) {
        self.unlist(at);
        let Some(entry) = self.entry(at) else { return };
        let (key, chain) = (entry.key, entry.chain);
        self.count_open(entry.phase, entry.peer, false);
        let bucket = self.bucket(&key);
        let mut link = self.buckets.get(bucket).copied().unwrap_or(0);
        if link == at {
            if let Some(bucket) = self.buckets.get_mut(bucket) {
                *bucket = chain;
            }
        } else {
            while let Some(entry) = self.entry_mut(link) {
                if entry.chain == at {
                    entry.chain = chain;
                    break;
                }
                link = entry.chain;
            }
        }
        let free = self.free;
        if let Some(entry) = self.entry_mut(at) {
            entry.behind = free;
        }
        self.free = at;
        self.len -= 1;
    }

    /// Appends an entry to the list of its class.
    fn list(&mut self, at: u32, now: u64) {
        let Some(class) = self.entry(at).map(|entry| Class::of(entry.phase) as usize) else {
            return;
        };
        let Some(list) = self.lists.get_mut(class) else {
            return;
        };
        let back = std::mem::replace(&mut list.back, at);
        if list.front == 0 {
            list.front = at;
        }
        if let Some(last) = self.entry_mut(back) {
            last.behind = at;
        }
        if let Some(entry) = self.entry_mut(at) {
            entry.before = back;
            entry.behind = 0;
            entry.listed = now;
        }
    }

    /// Takes an entry out of the list it is in, whichever that is.
    fn unlist(&mut self, at: u32) {
        let Some(entry) = self.entry(at) else { return };
        let (before, behind) = (entry.before, entry.behind);
        if let Some(entry) = self.entry_mut(before) {
            entry.behind = behind;
        }
        if let Some(entry) = self.entry_mut(behind) {
            entry.before = before;
        }
        for list in &mut self.lists {
            if list.front == at {
                list.front = behind;
            }
            if list.back == at {
                list.back = before;
            }
        }
    }

    fn at(&self, key: &FlowKey) -> Option<u32> {
        let mut at = *self.buckets.get(self.bucket(key))?;
        loop {
            let entry = self.entry(at)?;
            if entry.key == *key {
                return Some(at);
            }
            at = entry.chain;
        }
    }

    fn bucket(&self, key: &FlowKey) -> usize {
        let mask = u64::try_from(self.buckets.len() - 1).unwrap_or(0);
        usize::try_from(key.hash(self.secret) & mask).unwrap_or(0)
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.entries.get(usize::try_from(at).ok()?.checked_sub(1)?)
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries
            .get_mut(usize::try_from(at).ok()?.checked_sub(1)?)
    }

    fn is_over(&self, entry: &Entry, now: u64) -> bool {
        now.saturating_sub(entry.used) >= Class::of(entry.phase).limit()
    }

    fn count_open(&mut self, phase: Phase, peer: PeerIndex, more: bool) {
        let counts = phase.is_open_connection();
        let count = self.open.get_mut(usize::from(peer.get()));
        if let Some(count) = count.filter(|_| counts) {
            *count = if more {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
        }
    }

    fn millis(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.epoch);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

const MAX: usize = 1 << 24;
