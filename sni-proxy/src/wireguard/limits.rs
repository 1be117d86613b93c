//! What bounds the flows of a process, as configured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use udp::BufferSizes;

use super::scanner::ScanBudget;

/// All settings of WireGuard listeners.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    /// Flows of the process.
    pub(crate) flows: usize,
    pub(crate) limits: Limits,
    pub(crate) scan: ScanBudget,
    pub(crate) buffers: BufferSizes,
}

/// What one worker bounds its flows by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Silence of a client after which its flow ends.
    pub(crate) idle: Duration,
    /// Tokens per second of one network of sources.
    pub(crate) source_rate: u32,
    /// Tokens that it may save up.
    pub(crate) source_burst: u32,
    /// Networks told apart.
    pub(crate) source_slots: usize,
}

impl Limits {
    /// Returns the silence after which a proven flow may have to make room for another one: more
    /// than twice what clients behind an address translator let pass between two keepalives.
    pub(super) fn quiet(&self) -> Duration {
        self.idle / 3
    }
}

/// Places for flows, shared by all workers.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    used: Arc<AtomicUsize>,
    limit: usize,
}

impl Places {
    /// Creates `limit` places.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            used: Arc::default(),
            limit,
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

    /// Tells whether nobody has a place.
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
