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
}

/// A resource for each audience.
type Slots = [Option<Content>; 3];

/// What a resource holds.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) version: Version,
    pub(crate) body: Bytes,
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
        let Resource {
            kind,
            name,
            body,
            audience,
        } = resource;
        let slots = self.entries[kind as usize].entry(name.clone()).or_default();
        let slot = &mut slots[audience as usize];
        if slot.as_ref().is_some_and(|content| content.body == body) {
            return;
        }
        let version = Version::of(&body);
        *slot = Some(Content { version, body });
        self.changed(kind, name, audience);
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

    fn resource(name: &str, body: &str, audience: Audience) -> Resource {
        Resource {
            kind: ResourceType::Listener,
            name: name.into(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            audience,
        }
    }

    fn removal(name: &str, audience: Audience) -> (ResourceType, Audience, Arc<str>) {
        (ResourceType::Listener, audience, name.into())
    }

    fn body(store: &Store, audience: Audience, name: &str) -> Option<Bytes> {
        let content = store.visible(ResourceType::Listener, audience, name)?;
        Some(content.body.clone())
    }

    fn changed(store: &Store, cursor: u64) -> Vec<&str> {
        let changes = store.changes_since(cursor).unwrap();
        changes.map(|change| &*change.name).collect()
    }

    #[test]
    fn class_sees_its_own_and_shared_resources() {
        let mut store = Store::default();
        store.update(
            vec![
                resource("a", "all", Audience::All),
                resource("b", "parts", Audience::Parts),
                resource("b", "whole", Audience::Whole),
                resource("c", "all", Audience::All),
                resource("c", "whole", Audience::Whole),
            ],
            vec![],
        );
        let names = |audience| {
            let all = store.all_visible(ResourceType::Listener, audience);
            all.map(|(name, content)| (name.to_string(), content.body.clone()))
                .collect::<Vec<_>>()
        };
        let pairs = |list: [(&str, &str); 3]| {
            list.map(|(name, body)| (name.to_owned(), Bytes::copy_from_slice(body.as_bytes())))
                .to_vec()
        };
        assert_eq!(
            names(Audience::Parts),
            pairs([("a", "all"), ("b", "parts"), ("c", "all")])
        );
        assert_eq!(
            names(Audience::Whole),
            pairs([("a", "all"), ("b", "whole"), ("c", "whole")])
        );
    }

    #[test]
    fn an_identical_body_is_no_change() {
        let mut store = Store::default();
        assert!(store.update(vec![resource("a", "1", Audience::All)], vec![]));
        let seq = store.seq();
        assert!(!store.update(vec![resource("a", "1", Audience::All)], vec![]));
        assert!(!store.update(vec![], vec![removal("b", Audience::All)]));
        assert!(!store.update(vec![], vec![removal("a", Audience::Parts)]));
        assert_eq!(store.seq(), seq);
        assert!(store.update(vec![resource("a", "2", Audience::All)], vec![]));
        assert_eq!(changed(&store, seq), ["a"]);
    }

    #[test]
    fn every_change_is_listed_in_order() {
        let mut store = Store::default();
        store.update(vec![resource("a", "1", Audience::All)], vec![]);
        store.update(vec![resource("b", "1", Audience::All)], vec![]);
        store.update(vec![resource("a", "2", Audience::All)], vec![]);
        assert_eq!(changed(&store, 1), ["b", "a"]);
        store.update(vec![], vec![removal("b", Audience::All)]);
        assert_eq!(changed(&store, 3), ["b"]);
        assert!(!store.update(vec![], vec![removal("b", Audience::All)]));
        store.update(vec![resource("b", "3", Audience::All)], vec![]);
        assert_eq!(changed(&store, 2), ["a", "b", "b"]);
        assert_eq!(body(&store, Audience::Whole, "b").unwrap(), "3");
    }

    #[test]
    fn changes_are_remembered_up_to_a_bound() {
        let mut store = Store::default();
        let names: Vec<String> = (0..MAX_CHANGES + 10).map(|nth| nth.to_string()).collect();
        let all = |name: &String| resource(name, "x", Audience::All);
        store.update(names.iter().map(all).collect(), vec![]);
        store.update(vec![resource("stays", "x", Audience::All)], vec![]);
        let seq = store.seq();
        let gone = names.iter().map(|name| removal(name, Audience::All));
        store.update(vec![], gone.collect());
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
