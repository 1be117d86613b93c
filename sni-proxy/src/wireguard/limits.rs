//! How many flows a process may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Places for flows, shared by all workers.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    used: Arc<AtomicUsize>,
    limit: usize,
}

impl Places {
    /// Creates `limit` places.
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            used: Arc::default(),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }

    /// Takes a place, and tells whether there was one.
    pub(super) fn take(&self) -> bool {
        let more = |used: usize| (used < self.limit).then_some(used + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used.fetch_update(set, fetch, more).is_ok()
    }

    pub(super) fn give_back(&self) {
        let before = self.used.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a place is given back once");
    }

    /// Tells whether no place is used.
    pub(super) fn is_empty(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let places = Places::new(2);
        let other = places.clone();
        assert!(places.take() && other.take());
        assert!(!places.take());
        other.give_back();
        assert!(places.take());
        assert!(!other.is_empty());
        places.give_back();
        places.give_back();
        assert!(other.is_empty());
    }
}
