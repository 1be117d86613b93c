//! A map in parts by the hashes of keys, so that the next table's map shares the parts in which
//! nothing changed.
//!
//! ```text
//! hash ─▶ some bits: the part ─▶ hashbrown's table ─▶ entry
//! ```
//!
//! A look-up takes a few instructions more than in one map; a changed copy takes a copy of one part
//! and of the pointers to the others. Hashes are quick ones that differ from process to process;
//! clients of the gateway only look up, and never add.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

/// Entries of a part on average, at most, when the map is made: as many as mostly fit into a
/// table of 64.
const PART: usize = 48;

/// The same when there are to be more parts.
const CROWDED: usize = 2 * PART;

type Parts<K, V> = Box<[Arc<HashTable<(K, V)>>]>;

/// A map whose parts are shared by its copies until they change.
#[derive(Clone, Debug)]
pub(crate) struct ShardMap<K, V> {
    hasher: RandomState,
    /// As many as a power of two; none before the first entry.
    parts: Parts<K, V>,
    len: usize,
}

impl<K, V> Default for ShardMap<K, V> {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            parts: Box::default(),
            len: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> ShardMap<K, V> {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        let mut map = Self::default();
        if entries > 0 {
            map.parts = parts(entries);
        }
        map
    }

    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if self.parts.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let part = self.parts.get(self.part(hash))?;
        let entry = part.find(hash, |(own, _)| own.borrow() == key)?;
        Some(&entry.1)
    }

    /// Adds an entry, and returns what it replaced.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = self.hasher.hash_one(&key);
        let is = |(own, _): &(K, V)| *own == key;
        let part = self.parts.get_mut(self.part(hash));
        if let Some(part) = part
            && part.find(hash, is).is_some()
        {
            let entry = Arc::make_mut(part).find_mut(hash, is)?;
            return Some(std::mem::replace(&mut entry.1, value));
        }
        if self.len >= self.parts.len() * CROWDED {
            self.grow();
        }
        let at = self.part(hash);
        let part = Arc::make_mut(self.parts.get_mut(at)?);
        let hasher = &self.hasher;
        part.insert_unique(hash, (key, value), |(key, _)| hasher.hash_one(key));
        self.len += 1;
        None
    }

    /// Takes the entry of `key` out if its value is the one wanted, and answers whether it is.
    pub(crate) fn remove_if(&mut self, key: &K, wanted: impl Fn(&V) -> bool) -> bool {
        if !self.get(key).is_some_and(wanted) {
            return false;
        }
        let hash = self.hasher.hash_one(key);
        let at = self.part(hash);
        let part = self.parts.get_mut(at).map(Arc::make_mut);
        let entry = part.and_then(|part| part.find_entry(hash, |(own, _)| own == key).ok());
        let found = entry.map(|entry| drop(entry.remove())).is_some();
        self.len -= usize::from(found);
        found
    }

    fn grow(&mut self) {
        let old = std::mem::replace(&mut self.parts, parts(2 * self.len.max(PART / 2)));
        for part in old {
            for entry in Arc::unwrap_or_clone(part) {
                let hash = self.hasher.hash_one(&entry.0);
                let (at, hasher) = (self.part(hash), &self.hasher);
                if let Some(part) = self.parts.get_mut(at) {
                    Arc::make_mut(part).insert_unique(hash, entry, |(key, _)| hasher.hash_one(key));
                }
            }
        }
    }

    /// Returns the place of the part of a hash, by bits that the part's table does not look at.
    fn part(&self, hash: u64) -> usize {
        // Whatever a 32-bit machine cuts off is not needed.
        (hash >> 32) as u32 as usize & self.parts.len().wrapping_sub(1)
    }
}

fn parts<K, V>(entries: usize) -> Parts<K, V> {
    let count = entries.div_ceil(PART).next_power_of_two();
    let each = entries.div_ceil(count);
    (0..count)
        .map(|_| Arc::new(HashTable::with_capacity(each)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn same(map: &ShardMap<u32, u32>, model: &HashMap<u32, u32>) {
        assert_eq!(map.len, model.len());
        let entries = || map.parts.iter().flat_map(|part| part.iter());
        assert_eq!(entries().count(), model.len());
        assert!(entries().all(|(key, value)| model.get(key) == Some(value)));
        assert!(model.iter().all(|(key, value)| map.get(key) == Some(value)));
    }

    proptest! {
        /// Enough entries for several parts, and copies that must not change with their copies.
        #[test]
        fn it_does_what_a_map_does(
            room in 0..300_usize,
            steps in prop::collection::vec((0..400_u32, 0..4_u32, any::<bool>()), 0..1000),
        ) {
            let mut map = ShardMap::with_capacity(room);
            let mut model = HashMap::new();
            let mut before = (map.clone(), model.clone());
            for (key, value, copy) in steps {
                if value == 0 {
                    let wanted = model.get(&key).is_some_and(|value| value % 2 == 1);
                    prop_assert_eq!(map.remove_if(&key, |value| value % 2 == 1), wanted);
                    if wanted {
                        model.remove(&key);
                    }
                } else {
                    prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                if copy {
                    before = (map.clone(), model.clone());
                }
            }
            same(&map, &model);
            same(&before.0, &before.1);
        }
    }

    #[test]
    fn a_changed_copy_shares_all_but_one_part() {
        let mut map = ShardMap::with_capacity(10_000);
        for key in 0..10_000_u32 {
            map.insert(key, ());
        }
        let before = map.clone();
        map.insert(77_777, ());
        let both = map.parts.iter().zip(&before.parts);
        assert_eq!(both.filter(|(new, old)| !Arc::ptr_eq(new, old)).count(), 1);
    }

    #[test]
    fn a_full_map_does_not_grow_for_a_key_that_it_has() {
        let mut map = ShardMap::default();
        while map.parts.is_empty() || map.len < map.parts.len() * CROWDED {
            map.insert(map.len, ());
        }
        let before = map.clone();
        map.insert(0, ());
        assert_eq!(map.parts.len(), before.parts.len());
        map.insert(map.len, ());
        assert!(map.parts.len() > before.parts.len());
        assert!((0..map.len).all(|key| map.get(&key).is_some()));
    }
}
