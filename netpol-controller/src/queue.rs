//! The work queue: each key once, a limited number running, failed ones retried later.
//!
//! ```text
//!     add ──▶ fresh ───take──▶ running ──done──▶ (forgotten)
//!             failed ◀────────────┘ failed: due after a pause
//! ```
//!
//! Of the keys that failed no more than half of the limit run at a time: what fails slowly must
//! not hold up what would succeed. Knows no clock: `now` is an argument. As large as there are
//! keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first failure; it doubles with each one in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The longest pause of a key that something happened to.
const EVENT_PAUSE: Duration = Duration::from_secs(1);

/// Keys that are to be worked on.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    max_running: usize,
    entries: BTreeMap<K, Entry>,
    /// Keys that wait and did not fail, by when something happened to them.
    fresh: BTreeSet<(Instant, K)>,
    /// Keys that failed and wait, by when they are due.
    failed: BTreeSet<(Instant, K)>,
    /// How many keys that failed are worked on.
    retrying: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Since when it is to be worked on.
    since: Instant,
    /// Failures in a row.
    failures: u32,
    /// When it is due; `None` while it is worked on.
    due: Option<Instant>,
    /// When something happened to it while it was worked on.
    again: Option<Instant>,
}

impl<K: Clone + Ord> Queue<K> {
    pub(crate) fn new(max_running: usize) -> Self {
        Self {
            max_running,
            entries: BTreeMap::new(),
            fresh: BTreeSet::new(),
            failed: BTreeSet::new(),
            retrying: 0,
        }
    }

    /// Adds a key that something happened to at `now`. A key that waits already stays where it is;
    /// one that is paused is due in [`EVENT_PAUSE`] at the latest.
    pub(crate) fn add(&mut self, key: K, now: Instant) {
        let Some(entry) = self.entries.get_mut(&key) else {
            let entry = Entry {
                since: now,
                failures: 0,
                due: Some(now),
                again: None,
            };
            self.entries.insert(key.clone(), entry);
            self.fresh.insert((now, key));
            return;
        };
        match entry.due {
            None => _ = entry.again.get_or_insert(now),
            Some(due) if entry.failures > 0 => self.pause(key, due.min(now + EVENT_PAUSE)),
            Some(_) => {}
        }
    }

    /// Ends all pauses: what made keys fail may be over.
    pub(crate) fn hasten(&mut self, now: Instant) {
        for (_, key) in std::mem::take(&mut self.failed) {
            self.pause(key, now);
        }
    }

    fn pause(&mut self, key: K, due: Instant) {
        if let Some(entry) = self.entries.get_mut(&key) {
            if let Some(before) = entry.due.replace(due) {
                self.failed.remove(&(before, key.clone()));
            }
            self.failed.insert((due, key));
        }
    }

    /// Removes and returns the next key, if the limit allows. It counts as running until
    /// [`Queue::done`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<K> {
        let (_, key) = if self.ready() {
            self.fresh.pop_first()?
        } else {
            self.next_due().filter(|due| *due <= now)?;
            self.failed.pop_first()?
        };
        let entry = self.entries.get_mut(&key)?;
        entry.due = None;
        self.retrying += usize::from(entry.failures > 0);
        Some(key)
    }

    /// Ends the work on a key. One that failed is due again after a pause; one that something
    /// happened to meanwhile at once. Returns since when it was to be worked on.
    pub(crate) fn done(&mut self, key: &K, failed: bool, now: Instant) -> Option<Instant> {
        let entry = self.entries.get_mut(key).filter(|own| own.due.is_none())?;
        let (since, again) = (entry.since, entry.again.take());
        self.retrying -= usize::from(entry.failures > 0);
        if failed {
            let pause = FIRST_PAUSE * 2_u32.saturating_pow(entry.failures.min(16));
            entry.failures += 1;
            let max = again.map_or(MAX_PAUSE, |_| EVENT_PAUSE);
            self.pause(key.clone(), now + pause.min(max));
        } else {
            self.entries.remove(key);
            if let Some(again) = again {
                self.add(key.clone(), again);
            }
        }
        Some(since)
    }

    /// Returns when the next key that failed is due; `None` while the limit is reached.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let free = self.has_capacity() && self.retrying < (self.max_running / 2).max(1);
        self.failed.first().map(|(due, _)| *due).filter(|_| free)
    }

    /// Returns whether a key that did not fail could be taken now.
    pub(crate) fn ready(&self) -> bool {
        self.has_capacity() && !self.fresh.is_empty()
    }

    fn has_capacity(&self) -> bool {
        self.entries.len() - self.fresh.len() - self.failed.len() < self.max_running
    }

    /// Returns the keys that wait, those that failed included.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.fresh.iter().chain(&self.failed).map(|(_, key)| key)
    }

    /// Forgets what waits; what is worked on goes on.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.failed.clear();
        self.entries.retain(|_, own| own.due.is_none());
        for entry in self.entries.values_mut() {
            entry.again = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_waits_once_since_first_event() {
        let (mut queue, start) = (Queue::new(8), Instant::now());
        let later = start + Duration::from_secs(1);
        queue.add(1, start);
        queue.add(2, start);
        queue.add(1, later);
        assert_eq!(queue.keys().count(), 2);
        assert_eq!(queue.take(later), Some(1));
        assert_eq!(queue.take(later), Some(2));
        assert_eq!(queue.take(later), None);
        assert_eq!(queue.done(&1, false, later), Some(start));
    }

    #[test]
    fn event_during_run_requeues_the_key() {
        let (mut queue, start) = (Queue::new(8), Instant::now());
        queue.add(1, start);
        queue.take(start);
        let later = start + Duration::from_secs(1);
        queue.add(1, later);
        assert_eq!(queue.take(later), None);
        queue.done(&1, false, later);
        assert_eq!(queue.take(later), Some(1));
        assert_eq!(queue.done(&1, false, later), Some(later));
    }

    #[test]
    fn pauses_grow_to_limit_and_reset_on_success() {
        let (mut queue, start) = (Queue::new(8), Instant::now());
        let mut at = start;
        queue.add(1, at);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(queue.take(at), Some(1));
            // Since when it is due is not forgotten over the pauses.
            assert_eq!(queue.done(&1, true, at), Some(start));
            let due = queue.next_due().unwrap();
            assert_eq!(queue.take(due - Duration::from_millis(1)), None);
            pauses.push(due - at);
            at = due;
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert_eq!(pauses[1], FIRST_PAUSE * 2);
        assert_eq!(pauses[11], MAX_PAUSE);
        queue.take(at);
        queue.done(&1, false, at);
        assert_eq!((queue.keys().count(), queue.next_due()), (0, None));
        queue.add(1, at);
        queue.take(at);
        queue.done(&1, true, at);
        assert_eq!(queue.next_due(), Some(at + FIRST_PAUSE));
    }

    #[test]
    fn events_of_failing_key_cause_one_retry() {
        let (mut queue, start) = (Queue::new(8), Instant::now());
        queue.add(1, start);
        for _ in 0..12 {
            let at = queue.next_due().unwrap_or(start);
            assert_eq!(queue.take(at), Some(1));
            queue.add(1, at);
            queue.done(&1, true, at);
            queue.add(1, at);
            assert_eq!(queue.take(at), None);
            assert_eq!(queue.keys().count(), 1);
            assert!(queue.next_due().unwrap() <= at + EVENT_PAUSE);
        }
    }

    /// A queue of keys that all failed now.
    fn failed(max_running: usize, keys: i32) -> (Queue<i32>, Instant) {
        let (mut queue, now) = (Queue::new(max_running), Instant::now());
        for key in 0..keys {
            queue.add(key, now);
            queue.take(now);
        }
        for key in 0..keys {
            queue.done(&key, true, now);
        }
        (queue, now)
    }

    #[test]
    fn pauses_end_when_what_caused_them_may_be_over() {
        let (mut queue, start) = failed(8, 3);
        queue.hasten(start);
        assert_eq!(queue.keys().count(), 3);
        assert_eq!(queue.take(start), Some(0));
        assert_eq!(queue.take(start), Some(1));
    }

    #[test]
    fn failing_keys_leave_capacity_for_others() {
        let (mut queue, start) = failed(4, 4);
        let later = start + MAX_PAUSE;
        assert_eq!([queue.take(later), queue.take(later)], [Some(0), Some(1)]);
        assert_eq!(queue.take(later), None);
        assert!(!queue.ready());
        queue.add(9, later);
        assert!(queue.ready());
        assert_eq!(queue.take(later), Some(9));
    }
}
