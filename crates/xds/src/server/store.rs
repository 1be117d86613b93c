//! The resources of one gateway, in the order in which they changed.
//!
//! ```text
//!   update ──▶ entries by type and name ──▶ visible(audience, name)
//!          └─▶ the latest changes ──▶ changes since a cursor
//! ```
//!
//! A change costs the change: nothing here walks all entries to find one. A bounded number of
//! changes is kept; a stream that lags behind the oldest compares everything instead. Knows no
//! streams.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::resource::{Audience, Resource, ResourceType};

/// A resource's content by its hash, so that it is the same after a restart and on every replica.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Version(u64);

impl Version {
    pub(crate) fn of(body: &[u8]) -> Self {
        Self::from_digest(&ring::digest::digest(&ring::digest::SHA256, body))
    }

    /// The version of a list: of the names and versions in it.
    pub(crate) fn of_list<'a>(list: impl Iterator<Item = (&'a str, Self)>) -> Self {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        for (name, version) in list {
            context.update(name.as_bytes());
            context.update(&[0]);
            context.update(&version.0.to_be_bytes());
        }
        Self::from_digest(&context.finish())
    }

    /// Reads what `Display` wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let own = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        own.then(|| u64::from_str_radix(text, 16).ok().map(Self))
            .flatten()
    }

    fn from_digest(digest: &ring::digest::Digest) -> Self {
        let first = digest.as_ref().first_chunk::<8>();
        Self(first.map_or(0, |bytes| u64::from_be_bytes(*bytes)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// All resources of one gateway.
#[derive(Debug, Default)]
pub(crate) struct Store {
    entries: [BTreeMap<Arc<str>, Slots>; ResourceType::ALL.len()],
    /// The latest changes, oldest first; the last one has the number `seq`.
    changes: VecDeque<Change>,
    seq: u64,
    complete: bool,
    whole_complete: bool,
    /// Secrets that are not here may exist.
    secrets_incomplete: bool,
}

/// A resource for each audience.
type Slots = [Option<Content>; 3];

/// What a resource holds.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) version: Version,
    pub(crate) body: Bytes,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the body, which may be a secret.
        f.debug_tuple("Content").field(&self.version).finish()
    }
}

/// Something that was added, replaced or removed.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) kind: ResourceType,
    pub(crate) name: Arc<str>,
    audience: Audience,
}

impl Change {
    /// Whether clients of an audience see it.
    pub(crate) fn concerns(&self, audience: Audience) -> bool {
        self.audience == Audience::All || self.audience == audience
    }
}

impl Store {
    /// Removes and sets, in this order. Returns whether anything is different now.
    pub(crate) fn update(
        &mut self,
        set: Vec<Resource>,
        removed: Vec<(ResourceType, Audience, Arc<str>)>,
    ) -> bool {
        let before = self.seq;
        for (kind, audience, name) in removed {
            self.remove(kind, audience, name);
        }
        for resource in set {
            self.set(resource);
        }
        self.seq != before
    }

    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    pub(crate) fn whole_complete(&mut self, complete: bool) {
        self.whole_complete = complete;
    }

    pub(crate) fn complete_secrets(&mut self, complete: bool) {
        self.secrets_incomplete = !complete;
    }

    /// Whether a resource of this type that is not here does not exist.
    pub(crate) fn has_all(&self, kind: ResourceType) -> bool {
        kind != ResourceType::Secret || !self.secrets_incomplete
    }

    /// Whether clients of an audience are answered yet.
    pub(crate) fn answers(&self, audience: Audience) -> bool {
        self.complete && (audience == Audience::Parts || self.whole_complete)
    }

    /// The sequence number of the latest change.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    /// What changed after `cursor`, an entry as often as it did; `None` when not everything is
    /// remembered.
    pub(crate) fn changes_since(&self, cursor: u64) -> Option<impl Iterator<Item = &Change>> {
        let count = usize::try_from(self.seq.saturating_sub(cursor)).ok()?;
        let first = self.changes.len().checked_sub(count)?;
        Some(self.changes.range(first..))
    }

    /// What an audience sees under a name. What is addressed to it precedes what is for all
    /// clients.
    pub(crate) fn visible(
        &self,
        kind: ResourceType,
        audience: Audience,
        name: &str,
    ) -> Option<&Content> {
        visible_of(self.entries[kind as usize].get(name)?, audience)
    }

    /// Everything of a type that an audience sees, by name.
    pub(crate) fn all_visible(
        &self,
        kind: ResourceType,
        audience: Audience,
    ) -> impl Iterator<Item = (&Arc<str>, &Content)> {
        self.entries[kind as usize]
            .iter()
            .filter_map(move |(name, slots)| Some((name, visible_of(slots, audience)?)))
    }

    fn set(&mut self, resource: Resource) {
        let (kind, name, body) = (resource.kind, resource.name, resource.body);
        let slots = self.entries[kind as usize].entry(name.clone()).or_default();
        let slot = &mut slots[resource.audience as usize];
        if slot.as_ref().is_some_and(|content| content.body == body) {
            return;
        }
        let version = Version::of(&body);
        *slot = Some(Content { version, body });
        self.changed(kind, name, resource.audience);
    }

    fn remove(&mut self, kind: ResourceType, audience: Audience, name: Arc<str>) {
        let entries = &mut self.entries[kind as usize];
        let Some(slots) = entries.get_mut(&name) else {
            return;
        };
        if slots[audience as usize].take().is_none() {
            return;
        }
        if slots.iter().all(Option::is_none) {
            entries.remove(&name);
        }
        self.changed(kind, name, audience);
    }

    fn changed(&mut self, kind: ResourceType, name: Arc<str>, audience: Audience) {
        self.seq += 1;
        if self.changes.len() == MAX_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(Change {
            kind,
            name,
            audience,
        });
    }
}

fn visible_of(slots: &Slots, audience: Audience) -> Option<&Content> {
    let own = slots[audience as usize].as_ref();
    own.or(slots[Audience::All as usize].as_ref())
}

/// A stream that is this many changes behind compares everything, which costs it milliseconds.
pub(crate) const MAX_CHANGES: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::change;

    /// Applies a change as in scenarios, and returns whether anything is different.
    fn apply(store: &mut Store, words: &str) -> bool {
        let (set, removed) = change(&words.split(' ').collect::<Vec<_>>());
        store.update(set, removed)
    }

    fn changed(store: &Store, cursor: u64) -> Vec<&str> {
        let changes = store.changes_since(cursor).unwrap();
        changes.map(|change| &*change.name).collect()
    }

    #[test]
    fn class_sees_its_own_and_shared_resources() {
        let mut store = Store::default();
        apply(
            &mut store,
            "L/a=all parts:L/b=parts whole:L/b=whole L/c=all whole:L/c=whole",
        );
        for (audience, expected) in [
            (Audience::Parts, ["a=all", "b=parts", "c=all"]),
            (Audience::Whole, ["a=all", "b=whole", "c=whole"]),
        ] {
            let all = store.all_visible(ResourceType::Listener, audience);
            let all = all.map(|(name, content)| {
                format!("{name}={}", std::str::from_utf8(&content.body).unwrap())
            });
            assert_eq!(all.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn every_change_is_listed_in_order() {
        let mut store = Store::default();
        for (words, different) in [
            ("L/a=1", true),
            ("L/a=1", false),
            ("-L/b", false),
            ("parts:-L/a", false),
            ("L/b=1", true),
            ("L/a=2", true),
            ("-L/b", true),
            ("-L/b", false),
            ("L/b=3", true),
        ] {
            assert_eq!(apply(&mut store, words), different, "{words}");
        }
        assert_eq!(store.seq(), 5);
        assert_eq!(changed(&store, 1), ["b", "a", "b", "b"]);
        assert_eq!(changed(&store, 4), ["b"]);
        let latest = store.visible(ResourceType::Listener, Audience::Whole, "b");
        assert_eq!(latest.unwrap().body, "3");
    }

    #[test]
    fn changes_are_remembered_up_to_a_bound() {
        let mut store = Store::default();
        let names = 0..MAX_CHANGES + 10;
        for name in names.clone() {
            apply(&mut store, &format!("L/{name}=x"));
        }
        apply(&mut store, "L/stays=x");
        let seq = store.seq();
        for name in names {
            apply(&mut store, &format!("-L/{name}"));
        }
        assert!(store.changes_since(seq).is_none());
        let since = store.changes_since(seq + 10).unwrap();
        assert_eq!(since.count(), MAX_CHANGES);
        assert_eq!(store.entries[ResourceType::Listener as usize].len(), 1);
        assert_eq!(store.changes.len(), MAX_CHANGES);
    }

    #[test]
    fn version_parses_only_own_format() {
        let version = Version::of(b"body");
        assert_eq!(Version::parse(&version.to_string()), Some(version));
        for foreign in ["", "1", "+123456789abcdef", "not a version at all", "0x1"] {
            assert_eq!(Version::parse(foreign), None, "{foreign}");
        }
        assert_ne!(version, Version::of(b"other"));
        let list = |a, b| Version::of_list([(a, version), (b, version)].into_iter());
        assert_eq!(list("a", "b"), list("a", "b"));
        assert_ne!(list("a", "b"), list("b", "a"));
    }
}
