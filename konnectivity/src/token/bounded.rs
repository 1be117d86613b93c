//! A table of bounded size: a new one takes the place of the oldest.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Entries by key, and the order in which they came.
#[derive(Debug)]
pub(super) struct Bounded<K, V> {
    entries: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    next: u64,
    limit: usize,
}

impl<K: Clone + Eq + Hash, V> Bounded<K, V> {
    /// Makes a table for `limit` entries, at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            limit: limit.max(1),
        }
    }

    /// Returns an entry, which grows no younger by it.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Puts an entry in, as the youngest; the oldest goes when it is full.
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        if self.entries.len() >= self.limit
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.order.insert(self.next, key.clone());
        self.entries.insert(key, (self.next, value));
        self.next += 1;
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (place, value) = self.entries.remove(key)?;
        self.order.remove(&place);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_goes_first() {
        let mut table = Bounded::new(2);
        table.insert("a", 1);
        table.insert("b", 2);
        table.insert("a", 3);
        table.insert("c", 4);
        assert_eq!(table.get(&"a"), Some(&3));
        assert_eq!(table.get(&"b"), None);
        assert_eq!(table.get(&"c"), Some(&4));
        assert_eq!(table.entries.len(), table.order.len());
    }

    #[test]
    fn a_removed_entry_leaves_room() {
        let mut table = Bounded::new(2);
        table.insert("a", 1);
        table.insert("b", 2);
        assert_eq!(table.remove(&"b"), Some(2));
        assert_eq!(table.remove(&"b"), None);
        table.insert("c", 3);
        assert_eq!(table.get(&"a"), Some(&1));
        assert_eq!(table.order.len(), 2);
    }
}
