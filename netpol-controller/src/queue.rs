//! The work queue: each key once, a limited number running, failed ones retried later.
//!
//! ```text
//!     add ──▶ fresh ───take──▶ running ──done──▶ (forgotten)
//!                                 │ failed: after a pause
//!             again ◀─────────────┘
//! ```
//!
//! Keys that failed have a lane of their own, of which no more than half run at a time: what fails
//! slowly must not hold up what would succeed. Knows no clock: `now` is an argument. As large as
//! there are keys.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// Most keys that are worked on at a time.
    most: usize,
    fresh: VecDeque<K>,
    /// Keys that failed and are due.
    again: VecDeque<K>,
    /// Since when keys of both lanes are to be worked on.
    since: BTreeMap<K, Instant>,
    running: BTreeMap<K, Running>,
    failures: BTreeMap<K, Failures>,
    /// Keys that failed, by when they are due; each once.
    paused: BTreeSet<(Instant, K)>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: Instant,
    /// When something happened to the key meanwhile.
    again: Option<Instant>,
    /// It failed before.
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// Since when it is to be worked on.
    since: Instant,
    /// When it is due, while it is paused.
    due: Option<Instant>,
}

impl<K: Clone + Ord> Queue<K> {
    /// Makes an empty queue of which `most` keys are worked on at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            since: BTreeMap::new(),
            running: BTreeMap::new(),
            failures: BTreeMap::new(),
            paused: BTreeSet::new(),
        }
    }

    /// Adds a key that something happened to at `now`. A key that waits already stays where it is;
    /// one that is paused is due in [`EVENT_PAUSE`] at the latest.
    pub(crate) fn add(&mut self, key: K, now: Instant) {
        if let Some(running) = self.running.get_mut(&key) {
            running.again.get_or_insert(now);
        } else if let Some(due) = self.failures.get(&key).and_then(|own| own.due) {
            self.pause(&key, due.min(now + EVENT_PAUSE));
        } else if !self.since.contains_key(&key) {
            self.since.insert(key.clone(), now);
            self.fresh.push_back(key);
        }
    }

    /// Ends all pauses: what made keys fail may be over.
    pub(crate) fn hasten(&mut self, now: Instant) {
        for (_, key) in std::mem::take(&mut self.paused) {
            self.pause(&key, now);
        }
    }

    fn pause(&mut self, key: &K, due: Instant) {
        if let Some(failures) = self.failures.get_mut(key) {
            if let Some(before) = failures.due.replace(due) {
                self.paused.remove(&(before, key.clone()));
            }
            self.paused.insert((due, key.clone()));
        }
    }

    /// Removes and returns the next key, if the limit allows. It counts as running until
    /// [`Queue::done`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<K> {
        self.wake(now);
        if self.running.len() >= self.most {
            return None;
        }
        let key = match self.fresh.pop_front() {
            Some(key) => key,
            None if self.retries() < self.max_retries() => self.again.pop_front()?,
            None => return None,
        };
        let running = Running {
            since: self.since.remove(&key).unwrap_or(now),
            again: None,
            failed: self.failures.contains_key(&key),
        };
        self.running.insert(key.clone(), running);
        Some(key)
    }

    /// Ends the work on a key. One that failed is due again after a pause; one that something
    /// happened to meanwhile at once. Returns since when it was to be worked on.
    pub(crate) fn done(&mut self, key: &K, failed: bool, now: Instant) -> Option<Instant> {
        let running = self.running.remove(key)?;
        if failed {
            let failures = self.failures.entry(key.clone()).or_insert(Failures {
                count: 0,
                since: running.since,
                due: None,
            });
            let pause = FIRST_PAUSE * 2_u32.saturating_pow(failures.count.min(16));
            failures.count += 1;
            let most = running.again.map_or(MAX_PAUSE, |_| EVENT_PAUSE);
            self.pause(key, now + pause.min(most));
        } else {
            self.failures.remove(key);
            if let Some(again) = running.again {
                self.add(key.clone(), again);
            }
        }
        Some(running.since)
    }

    /// Returns when the next key that failed is due; `None` while the limit is reached.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let room = self.running.len() < self.most && self.retries() < self.max_retries();
        self.paused.first().map(|(due, _)| *due).filter(|_| room)
    }

    /// Returns whether a key could be taken now, those whose pause ends apart.
    pub(crate) fn ready(&self) -> bool {
        let retry = !self.again.is_empty() && self.retries() < self.max_retries();
        self.running.len() < self.most && (!self.fresh.is_empty() || retry)
    }

    /// Returns the keys that wait, those that failed included.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        let paused = self.paused.iter().map(|(_, key)| key);
        self.fresh.iter().chain(&self.again).chain(paused)
    }

    /// Forgets what waits; what is worked on goes on.
    pub(crate) fn clear(&mut self) {
        self.fresh.clear();
        self.again.clear();
        self.since.clear();
        self.paused.clear();
        self.failures.clear();
        for running in self.running.values_mut() {
            running.again = None;
        }
    }

    /// Moves keys whose pause is over to their lane.
    fn wake(&mut self, now: Instant) {
        while let Some((due, _)) = self.paused.first()
            && *due <= now
            && let Some((_, key)) = self.paused.pop_first()
        {
            let since = self.failures.get_mut(&key).map_or(now, |failures| {
                failures.due = None;
                failures.since
            });
            self.since.insert(key.clone(), since);
            self.again.push_back(key);
        }
    }

    fn retries(&self) -> usize {
        self.running.values().filter(|own| own.failed).count()
    }

    fn max_retries(&self) -> usize {
        (self.most / 2).max(1)
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

    #[test]
    fn pauses_end_when_what_caused_them_may_be_over() {
        let (mut queue, start) = (Queue::new(8), Instant::now());
        for key in 0..3 {
            queue.add(key, start);
            queue.take(start);
            queue.done(&key, true, start);
        }
        queue.hasten(start);
        assert_eq!(queue.keys().count(), 3);
        assert_eq!(queue.take(start), Some(0));
        assert_eq!(queue.take(start), Some(1));
    }

    #[test]
    fn failing_keys_leave_capacity_for_others() {
        let (mut queue, start) = (Queue::new(4), Instant::now());
        for key in 0..4 {
            queue.add(key, start);
            queue.take(start);
        }
        for key in 0..4 {
            queue.done(&key, true, start);
        }
        let later = start + MAX_PAUSE;
        assert_eq!([queue.take(later), queue.take(later)], [Some(0), Some(1)]);
        assert_eq!(queue.take(later), None);
        assert!(!queue.ready());
        queue.add(9, later);
        assert!(queue.ready());
        assert_eq!(queue.take(later), Some(9));
    }
}
