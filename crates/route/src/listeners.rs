//! Which listeners of the caller a route is for.

use std::fmt;

/// A set of the caller's listeners, by their place in its list, from 0.
///
/// It tells the first [`MOST`](Self::MOST) apart; only [`ALL`](Self::ALL) has later ones.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ListenerSet(u64);

impl ListenerSet {
    /// Listeners that a set tells apart.
    pub const MOST: usize = u64::BITS as usize;

    /// Every listener; what a route is for unless said otherwise.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the set of the listener at `index` alone; empty when that is not below
    /// [`MOST`](Self::MOST).
    #[must_use]
    pub fn only(index: usize) -> Self {
        Self(bit(index))
    }

    /// Tells whether the listener at `index` is in the set.
    #[must_use]
    pub fn contains(self, index: usize) -> bool {
        self == Self::ALL || self.0 & bit(index) != 0
    }

    /// Returns the set of those that are in either.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Tells whether some listener is in both.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

fn bit(index: usize) -> u64 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1_u64.checked_shl(index))
        .unwrap_or(0)
}

impl Default for ListenerSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Debug for ListenerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("ListenerSet::ALL");
        }
        let indices = (0..Self::MOST).filter(|index| self.contains(*index));
        f.write_str("ListenerSet")?;
        f.debug_set().entries(indices).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let set = ListenerSet::only(0).union(ListenerSet::only(63));
        let of = |set: ListenerSet| -> Vec<usize> {
            (0..130).filter(|index| set.contains(*index)).collect()
        };
        assert_eq!(of(set), [0, 63]);
        assert_eq!(of(ListenerSet::ALL).len(), 130);
        assert_eq!(of(ListenerSet::only(64)), [0_usize; 0]);
        assert!(set.intersects(ListenerSet::only(63)) && !set.intersects(ListenerSet::only(1)));
        assert_eq!(format!("{set:?}"), "ListenerSet{0, 63}");
    }
}
