//! Values at small numbers that are used again, told apart by how often.

/// A table of at most `u32::MAX` values; insert, look up and remove in constant time.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    /// Where a new slot's generations start.
    floor: u32,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            floor: 0,
        }
    }

    /// Puts `value` into a free slot; returns slot and generation, or nothing when there is none.
    pub(crate) fn insert(&mut self, value: T) -> Option<(u32, u32)> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(Entry {
                    generation: self.floor,
                    value: None,
                });
                slot
            }
        };
        let entry = self.entries.get_mut(slot as usize)?;
        entry.value = Some(value);
        Some((slot, entry.generation))
    }

    pub(crate) fn at(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.value.as_ref()
    }

    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.value.as_mut()
    }

    /// Returns which of its values a slot holds; counts removals.
    pub(crate) fn generation(&self, slot: u32) -> Option<u32> {
        let entry = self.entries.get(slot as usize)?;
        entry.value.is_some().then_some(entry.generation)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.entries.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        if self.free.len() == self.entries.len() && self.entries.len() > KEPT {
            self.shrink();
        }
        Some(value)
    }

    /// Gives memory back once all is empty. What a slot counted goes with it, so a new one starts
    /// where none has been.
    fn shrink(&mut self) {
        let highest = self.entries.iter().map(|entry| entry.generation).max();
        self.floor = highest.unwrap_or_default();
        self.entries.truncate(KEPT);
        self.entries.shrink_to_fit();
        self.free = (0..u32::try_from(self.entries.len()).unwrap_or_default()).collect();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the slots in use, ascending.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let used = self.entries.iter().zip(0u32..);
        used.filter(|(entry, _)| entry.value.is_some())
            .map(|(_, slot)| slot)
            .collect()
    }
}

/// Slots whose memory is kept for good.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_has_another_generation() {
        let mut slab = Slab::new();
        let (slot, generation) = slab.insert('a').unwrap();
        assert_eq!(slab.remove(slot), Some('a'));
        assert_eq!(slab.generation(slot), None);
        let (again, next) = slab.insert('b').unwrap();
        assert_eq!(slot, again);
        assert_ne!(generation, next);
        assert_eq!(slab.at(slot), Some(&'b'));
    }

    #[test]
    fn memory_comes_back_and_handles_stay_unique() {
        let mut slab = Slab::new();
        let count = KEPT * 4;
        let first: Vec<_> = (0..count).map(|i| slab.insert(i).unwrap()).collect();
        for (slot, _) in &first {
            slab.remove(*slot);
        }
        assert_eq!(slab.entries.len(), KEPT);
        let second: Vec<_> = (0..count).map(|i| slab.insert(i).unwrap()).collect();
        assert!(second.iter().all(|handle| !first.contains(handle)));
        assert_eq!(slab.len(), count);
        assert_eq!(slab.slots().len(), count);
    }
}
