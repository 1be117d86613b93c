//! Streams under a key, in the order they came.

use crate::id::StreamId;

/// A table of keys in order, each with its streams; no key is without any.
///
/// A sorted vector, since a choice begins at a random place and a dial is far more frequent than
/// the coming and going of an agent.
#[derive(Debug)]
pub(super) struct Slots<K> {
    slots: Vec<(K, Vec<StreamId>)>,
}

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<K: Ord> Slots<K> {
    /// Adds a stream; once under a key, however often it names it.
    pub(super) fn insert(&mut self, key: K, stream: StreamId) {
        match self.slots.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => {
                if let Some((_, streams)) = self.slots.get_mut(at)
                    && let Err(place) = streams.binary_search(&stream)
                {
                    streams.insert(place, stream);
                }
            }
            Err(at) => self.slots.insert(at, (key, vec![stream])),
        }
    }

    pub(super) fn remove(&mut self, key: &K, stream: StreamId) {
        let Ok(at) = self.slots.binary_search_by(|(known, _)| known.cmp(key)) else {
            return;
        };
        if let Some((_, streams)) = self.slots.get_mut(at) {
            streams.retain(|&known| known != stream);
            if streams.is_empty() {
                self.slots.remove(at);
            }
        }
    }

    pub(super) fn find(&self, key: &K) -> Option<&[StreamId]> {
        let at = self.slots.binary_search_by(|(known, _)| known.cmp(key));
        let (_, streams) = self.slots.get(at.ok()?)?;
        Some(streams)
    }

    /// Returns all slots once, in order, from one on that `random` decides.
    pub(super) fn rotated(&self, random: u64) -> impl Iterator<Item = &[StreamId]> {
        // Scales 64 random bits to the number of slots; the bias is below 2^-40.
        let scaled = (u128::from(random) * self.slots.len() as u128) >> 64;
        let start = usize::try_from(scaled).unwrap_or_default();
        let (before, after) = self.slots.split_at(start.min(self.slots.len()));
        after
            .iter()
            .chain(before)
            .map(|(_, streams)| streams.as_slice())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &[StreamId])> {
        self.slots
            .iter()
            .map(|(key, streams)| (key, streams.as_slice()))
    }

    /// Counts the keys with a stream that is `good`.
    pub(super) fn count(&self, good: impl Fn(StreamId) -> bool) -> usize {
        let slots = self.slots.iter();
        slots
            .filter(|(_, streams)| streams.iter().any(|&stream| good(stream)))
            .count()
    }
}
