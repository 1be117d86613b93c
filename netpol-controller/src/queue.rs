//! What is to be brought in line: each key once, several at a time, failed ones later again.
//!
//! ```text
//!     add ──▶ waiting ──take──▶ running ──done──▶ (forgotten)
//!                ▲                 │ added meanwhile, or failed: after a pause
//!                └─────────────────┘
//! ```
//!
//! Knows no clock: `now` is an argument. As large as there are keys.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// The pause after the first failure; it doubles with each one in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Keys that are to be worked on.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    waiting: VecDeque<K>,
    /// Keys in `waiting`, with the time since when they are to be worked on.
    since: BTreeMap<K, Instant>,
    /// Keys that are worked on, and whether they were added since.
    running: BTreeMap<K, Option<Instant>>,
    failures: BTreeMap<K, u32>,
    /// Keys that failed, by when they are due.
    paused: BTreeSet<(Instant, K)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            since: BTreeMap::new(),
            running: BTreeMap::new(),
            failures: BTreeMap::new(),
            paused: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Ord> Queue<K> {
    /// Adds a key that something happened to at `now`. A key that waits already stays where it is.
    pub(crate) fn add(&mut self, key: K, now: Instant) {
        if let Some(again) = self.running.get_mut(&key) {
            again.get_or_insert(now);
        } else if !self.since.contains_key(&key) {
            self.since.insert(key.clone(), now);
            self.waiting.push_back(key);
        }
    }

    /// Takes the next key, with since when it waits. It counts as worked on until
    /// [`Queue::done`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<(K, Instant)> {
        while let Some((due, key)) = self.paused.first() {
            if *due > now {
                break;
            }
            let key = key.clone();
            self.paused.pop_first();
            self.add(key, now);
        }
        let key = self.waiting.pop_front()?;
        let since = self.since.remove(&key).unwrap_or(now);
        self.running.insert(key.clone(), None);
        Some((key, since))
    }

    /// Ends the work on a key. One that failed is due again after a pause; one that something
    /// happened to meanwhile at once.
    pub(crate) fn done(&mut self, key: K, failed: bool, now: Instant) {
        let again = self.running.remove(&key).flatten();
        if failed {
            let failures = self.failures.entry(key.clone()).or_default();
            let pause = FIRST_PAUSE * 2_u32.saturating_pow((*failures).min(16));
            *failures += 1;
            self.paused.insert((now + pause.min(LONGEST_PAUSE), key.clone()));
        } else {
            self.failures.remove(&key);
        }
        if let Some(since) = again {
            self.add(key, since);
        }
    }

    /// Returns when the next key that failed is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.paused.first().map(|(due, _)| *due)
    }

    /// Returns how many keys wait, those that failed included.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.paused.len()
    }

    /// Returns how many keys could be taken at once.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the keys that wait, those that failed included.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        let paused = self.paused.iter().map(|(_, key)| key);
        self.waiting.iter().chain(paused)
    }

    /// Returns how many keys are worked on.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Forgets what waits; what is worked on goes on.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.since.clear();
        self.paused.clear();
        self.failures.clear();
        for again in self.running.values_mut() {
            *again = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_key_waits_once_since_its_first_event() {
        let (mut queue, start) = (Queue::default(), now());
        queue.add(1, start);
        queue.add(2, start);
        queue.add(1, start + Duration::from_secs(1));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.take(start), Some((1, start)));
        assert_eq!(queue.take(start).map(|(key, _)| key), Some(2));
        assert_eq!(queue.take(start), None);
    }

    #[test]
    fn what_happens_while_it_runs_is_worked_on_afterwards() {
        let (mut queue, start) = (Queue::default(), now());
        queue.add(1, start);
        queue.take(start);
        let later = start + Duration::from_secs(1);
        queue.add(1, later);
        assert_eq!(queue.take(later), None);
        queue.done(1, false, later);
        assert_eq!(queue.take(later), Some((1, later)));
    }

    #[test]
    fn pauses_grow_up_to_a_limit_and_are_forgotten_with_success() {
        let (mut queue, mut at) = (Queue::default(), now());
        queue.add(1, at);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(queue.take(at).is_some());
            queue.done(1, true, at);
            let due = queue.next_due().unwrap();
            assert_eq!(queue.take(due - Duration::from_millis(1)), None);
            pauses.push(due - at);
            at = due;
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert_eq!(pauses[1], FIRST_PAUSE * 2);
        assert_eq!(pauses[11], LONGEST_PAUSE);
        queue.take(at);
        queue.done(1, false, at);
        assert_eq!((queue.len(), queue.next_due()), (0, None));
        queue.add(1, at);
        queue.take(at);
        queue.done(1, true, at);
        assert_eq!(queue.next_due(), Some(at + FIRST_PAUSE));
    }
}
