//! Permits for strangers that a single source cannot take all of.
//!
//! Bounds how many there are at a time, not how long one is held. Knows nothing of connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::lock;

/// Permits of which each source has at most as many as are left: half of what the others do not have.
/// So a second source finds half of the rest, and it takes one source more than the binary logarithm
/// of the count to exhaust them.
#[derive(Debug)]
pub struct FairPermits {
    count: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Sources that have any.
    by_source: HashMap<IpAddr, usize>,
}

/// One permit; returned when dropped.
#[derive(Debug)]
pub struct FairPermit {
    permits: Arc<FairPermits>,
    source: IpAddr,
}

impl FairPermits {
    /// Makes `count` permits.
    pub fn new(count: usize) -> Arc<Self> {
        let taken = Mutex::default();
        Arc::new(Self { count, taken })
    }

    /// Takes one; `None` when `source` has as many as are left.
    #[must_use]
    pub fn take(self: &Arc<Self>, source: IpAddr) -> Option<FairPermit> {
        let mut taken = lock(&self.taken);
        let own = taken.by_source.get(&source).copied().unwrap_or(0);
        if own >= self.count - taken.all {
            return None;
        }
        taken.all += 1;
        taken.by_source.insert(source, own + 1);
        let permits = Arc::clone(self);
        Some(FairPermit { permits, source })
    }

    /// Returns how many are left.
    pub fn left(&self) -> usize {
        self.count - lock(&self.taken).all
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.permits.taken);
        taken.all -= 1;
        let own = taken.by_source.get(&self.source).copied().unwrap_or(0);
        if own > 1 {
            taken.by_source.insert(self.source, own - 1);
        } else {
            taken.by_source.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_has_as_many_permits_as_are_left() {
        let permits = FairPermits::new(9);
        let source = |last: u8| IpAddr::from([10, 0, 0, last]);
        let all = |last| std::iter::from_fn(|| permits.take(source(last))).collect::<Vec<_>>();
        let alone = all(1);
        assert_eq!(alone.len(), 5, "0 < 9, 1 < 8, 2 < 7, 3 < 6, 4 < 5");
        let (second, third) = (all(2), all(3));
        assert_eq!((second.len(), third.len(), permits.left()), (2, 1, 1));
        assert!(all(1).is_empty(), "later sources keep theirs");
        drop((alone, second, third));
        assert_eq!(permits.left(), 9);
        assert!(lock(&permits.taken).by_source.is_empty());
    }
}
