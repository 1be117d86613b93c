//! The fast way through a routing file as programs write it: JSON, clusters first, then routes.
//!
//! ```text
//!     {"clusters":[ {…}, {…}, … ],"routes":[ {…}, … ]}
//!                    │    └─ begins as the next of the last file did? it is that one, and stays
//!                    └─ else serde_json reads it, and it is added
//! ```
//!
//! A file of very many elements mostly differs in one. Of the last good file there is a hash of each
//! element's text, so that what did not change is neither parsed, checked nor made again. The hash
//! is SipHash with the kernel's secret: nobody can make two texts that it does not tell apart. Whatever is not so simple, or wrong, is
//! left to the YAML reader, which says why: there is no error here.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use route::{Builder, Snapshot};
use serde::de::DeserializeOwned;
use settings::ConfigErrors;

use super::{ClusterFile, RouteFile, SharedOptions};

/// The elements of the last good file.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The number of the snapshot that has them.
    generation: u64,
    hasher: RandomState,
    clusters: Vec<Element>,
    routes: Vec<Element>,
}

/// The text of an element, and where what it became is in the snapshot.
#[derive(Clone, Copy, Debug)]
struct Element {
    hash: u64,
    len: u32,
    place: u32,
}

/// Reads `text` and builds the snapshot that follows `previous`; `memory` is what this returned with
/// `previous`, or something else, which is then of no use.
pub(super) fn read(
    text: &str,
    options: &mut SharedOptions<'_>,
    memory: &Memory,
    previous: Option<&Snapshot>,
    generation: u64,
) -> Option<(Snapshot, Memory)> {
    let known = previous.is_some_and(|snapshot| snapshot.generation() == memory.generation);
    let hasher = &memory.hasher;
    let (old_clusters, old_routes) = if known {
        (&memory.clusters[..], &memory.routes[..])
    } else {
        Default::default()
    };
    let mut errors = ConfigErrors::new();
    let mut text = Text { rest: text };
    text.expect('{')?;
    text.expect_key("clusters")?;
    let mut builder = Builder::new(previous);
    let mut list = List::new(hasher, old_clusters);
    text.list(&mut list, |at, found| match found {
        Found::Known(place) => builder.keep_cluster(place),
        Found::New(file) => {
            builder.add_cluster(&ClusterFile::into_spec(file, at, options, &mut errors))
        }
    })?;
    let mut clusters = list.read;
    let mut builder = builder.routes();
    for (element, place) in clusters.iter_mut().zip(builder.cluster_places()) {
        element.place = *place;
    }
    let mut routes = Vec::new();
    if text.expect(',').is_some() {
        text.expect_key("routes")?;
        let mut list = List::new(hasher, old_routes);
        text.list(&mut list, |at, found| match found {
            Found::Known(place) => builder.keep_route(place),
            Found::New(file) => {
                let spec = RouteFile::into_spec(file, at, &mut errors);
                spec.iter().for_each(|spec| builder.add_route(spec));
            }
        })?;
        routes = list.read;
    }
    text.expect('}')?;
    if !text.at_end() || !errors.is_empty() {
        return None;
    }
    let snapshot = builder.build(generation).ok()?;
    let memory = Memory {
        generation,
        hasher: hasher.clone(),
        clusters,
        routes,
    };
    Some((snapshot, memory))
}

/// What an element of the text is.
enum Found<T> {
    /// The one at this place of the last snapshot.
    Known(usize),
    /// One that was not there.
    New(T),
}

/// A list of elements while it is read.
struct List<'m> {
    hasher: &'m RandomState,
    old: &'m [Element],
    /// The old one that is expected.
    next: usize,
    /// The old ones by their hashes; made when one is not the next.
    by_hash: Option<HashMap<u64, usize, RandomState>>,
    read: Vec<Element>,
}

impl<'m> List<'m> {
    fn new(hasher: &'m RandomState, old: &'m [Element]) -> Self {
        Self {
            hasher,
            old,
            next: 0,
            by_hash: None,
            read: Vec::with_capacity(old.len() + 1),
        }
    }

    /// Takes an element from the beginning of `text`.
    fn element<T: DeserializeOwned>(&mut self, text: &mut Text<'_>) -> Option<Found<T>> {
        // A JSON object ends where it ends: a text that begins with one is that one.
        if let Some(old) = self.old.get(self.next)
            && let Some(begin) = text.rest.get(..old.len as usize)
            && self.hasher.hash_one(begin) == old.hash
        {
            let old = *old;
            text.rest = &text.rest[begin.len()..];
            return Some(self.known(old));
        }
        let mut stream = serde_json::Deserializer::from_str(text.rest).into_iter::<T>();
        let file = stream.next()?.ok()?;
        let (element, rest) = text.rest.split_at_checked(stream.byte_offset())?;
        text.rest = rest;
        let hash = self.hasher.hash_one(element);
        let len = u32::try_from(element.len()).ok()?;
        if let Some(place) = self.elsewhere(hash)
            && let Some(old) = self.old.get(place).copied().filter(|old| old.len == len)
        {
            self.next = place;
            return Some(self.known(old));
        }
        let place = u32::try_from(self.read.len()).ok()?;
        self.read.push(Element { hash, len, place });
        Some(Found::New(file))
    }

    fn known<T>(&mut self, old: Element) -> Found<T> {
        self.next += 1;
        let place = u32::try_from(self.read.len()).unwrap_or(u32::MAX);
        self.read.push(Element { place, ..old });
        Found::Known(old.place as usize)
    }

    fn elsewhere(&mut self, hash: u64) -> Option<usize> {
        let old = self.old;
        let places = self.by_hash.get_or_insert_with(|| {
            old.iter()
                .zip(0..)
                .map(|(old, at)| (old.hash, at))
                .collect()
        });
        places.get(&hash).copied()
    }
}

/// What is left of the text.
struct Text<'t> {
    rest: &'t str,
}

impl Text<'_> {
    /// Takes a character, with the white space before it (RFC 8259 §2), if it is the next.
    fn expect(&mut self, wanted: char) -> Option<()> {
        self.skip_space();
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    /// Takes a key, written without escapes, and its colon.
    fn expect_key(&mut self, key: &str) -> Option<()> {
        self.expect('"')?;
        let rest = self.rest.strip_prefix(key)?;
        self.rest = rest.strip_prefix('"')?;
        self.expect(':')
    }

    fn list<T: DeserializeOwned>(
        &mut self,
        list: &mut List<'_>,
        mut each: impl FnMut(usize, Found<T>),
    ) -> Option<()> {
        self.expect('[')?;
        if self.expect(']').is_some() {
            return Some(());
        }
        loop {
            self.skip_space();
            let at = list.read.len();
            let found = list.element(self)?;
            each(at, found);
            if self.expect(',').is_none() {
                return self.expect(']');
            }
        }
    }

    fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }
}

#[cfg(test)]
mod tests;
