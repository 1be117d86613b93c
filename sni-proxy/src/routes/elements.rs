//! The fast way through a routing file as programs write it: JSON, clusters first, then routes.
//!
//! ```text
//!     {"clusters":[ {…}, {…}, … ],"routes":[ {…}, … ]}
//!                    │    └─ goes on as the last file does from its next element? as far as they
//!                    │       agree, all are those, and stay
//!                    └─ else serde_json reads it, and it is added
//! ```
//!
//! A file of very many elements mostly differs in one. The text of the last good file is kept, so that
//! what did not change is compared, and neither parsed, checked nor made again. Whatever is not so
//! simple, or wrong, is left to the YAML reader, which says why: there is no error here.

mod words;

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use route::{Builder, ClusterSpec, RouteMatch, RouteSpec, Snapshot};
use serde::Deserialize;
use settings::ConfigErrors;

use self::words::Words;
use super::{ClusterFile, RouteFile, SharedOptions};

/// How many elements after the expected one are looked at before what was read counts as new.
const NEAR: usize = 8;

/// After how many new elements of a list those of the last file are looked up by their texts.
const MANY: usize = 32;

/// The last good file.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The number of the snapshot that has it.
    generation: u64,
    text: String,
    clusters: Vec<Element>,
    /// Where in the snapshot each cluster is; the routes are in the order of the file.
    places: Vec<u32>,
    routes: Vec<Element>,
}

/// Where an element is in the text.
#[derive(Clone, Copy, Debug)]
struct Element {
    start: u32,
    end: u32,
}

impl Memory {
    /// Remembers a file that somebody else read.
    pub(super) fn of(text: String, generation: u64) -> Self {
        Self {
            generation,
            text,
            ..Self::default()
        }
    }

    /// Tells whether the file at `path` says what `previous` does. One that cannot be read does not:
    /// who reads it next tells why.
    pub(super) fn is_still(&self, path: &Path, previous: &Snapshot) -> bool {
        let same_size = |found: Metadata| found.is_file() && found.len() == self.text.len() as u64;
        self.belongs_to(previous)
            && fs::metadata(path).is_ok_and(same_size)
            && File::open(path).is_ok_and(|file| says(file, self.text.as_bytes()).unwrap_or(false))
    }

    fn belongs_to(&self, previous: &Snapshot) -> bool {
        self.generation == previous.generation()
    }
}

/// Tells whether a file has just these octets, without memory for as many.
fn says(mut file: impl Read, mut text: &[u8]) -> io::Result<bool> {
    let mut block = [0; 16 * 1024];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(text.is_empty()),
            Ok(len) => match text.split_at_checked(len) {
                Some((begin, rest)) if *begin == block[..len] => text = rest,
                Some(_) | None => return Ok(false),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads `text` and builds the snapshot that follows `previous`; `memory` is what this returned with
/// `previous`, or something else, which is then of no use.
///
/// # Errors
/// The text, when it is for another reader.
pub(super) fn read(
    text: String,
    options: &mut SharedOptions<'_>,
    memory: &Memory,
    previous: Option<&Snapshot>,
    generation: u64,
) -> Result<(Snapshot, Memory), String> {
    let nothing = Memory::default();
    let known = previous.is_some_and(|previous| memory.belongs_to(previous));
    let memory = if known { memory } else { &nothing };
    match read_lists(&text, options, memory, previous, generation) {
        Some((snapshot, lists)) => Ok((snapshot, Memory { text, ..lists })),
        None => Err(text),
    }
}

/// As [`read`]; the memory that it returns lacks the text.
fn read_lists(
    text: &str,
    options: &mut SharedOptions<'_>,
    memory: &Memory,
    previous: Option<&Snapshot>,
    generation: u64,
) -> Option<(Snapshot, Memory)> {
    // What is further behind has no place that 32 bits hold.
    u32::try_from(text.len()).ok()?;
    let mut errors = ConfigErrors::new();
    let mut text = Text { all: text, at: 0 };
    text.expect('{')?;
    text.expect_key("clusters")?;
    let mut builder = Builder::new(previous);
    let mut spec = ClusterSpec::new("");
    let mut list = List::new(&memory.text, &memory.clusters);
    text.list(&mut list, |at, found| match found {
        Found::Known(old) => {
            let place = memory.places.get(old).copied().unwrap_or(u32::MAX);
            builder.keep_cluster(place as usize);
        }
        Found::New(file) => {
            ClusterFile::<Words<'_>>::fill(&file, &mut spec, at, options, &mut errors);
            builder.add_cluster(&spec);
        }
    })?;
    let clusters = list.read;
    let mut builder = builder.routes();
    let places = builder.cluster_places().to_vec();
    let mut routes = Vec::new();
    if text.expect(',').is_some() {
        text.expect_key("routes")?;
        let mut spec = RouteSpec::new(RouteMatch::ServerNames(Vec::new()), "");
        let mut list = List::new(&memory.text, &memory.routes);
        text.list(&mut list, |at, found| match found {
            Found::Known(old) => builder.keep_route(old),
            Found::New(file) => {
                if RouteFile::<Words<'_>>::fill(&file, &mut spec, at, &mut errors) {
                    builder.add_route(&spec);
                }
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
        text: String::new(),
        clusters,
        places,
        routes,
    };
    Some((snapshot, memory))
}

/// What an element of the text is.
enum Found<T> {
    /// The one at this place of the last file's list.
    Known(usize),
    /// One that was not there.
    New(T),
}

/// A list of elements while it is read.
struct List<'m> {
    old_text: &'m str,
    old: &'m [Element],
    /// The old one that is expected.
    next: usize,
    /// How many were new.
    new: usize,
    /// The old ones by their texts; made when many are new.
    by_text: Option<HashMap<&'m str, usize>>,
    read: Vec<Element>,
}

impl<'m> List<'m> {
    fn new(old_text: &'m str, old: &'m [Element]) -> Self {
        Self {
            old_text,
            old,
            next: 0,
            new: 0,
            by_text: None,
            read: Vec::with_capacity(old.len() + 1),
        }
    }

    /// Takes all elements at the beginning of `text` that the last file has from the expected one
    /// on, with what is between them, and answers whether there was one.
    fn take_known<T>(
        &mut self,
        text: &mut Text<'_>,
        each: &mut impl FnMut(usize, Found<T>),
    ) -> bool {
        let Some(first) = self.old.get(self.next).copied() else {
            return false;
        };
        // A JSON object ends where it ends: a text that begins with one is that one.
        let old = self.old_text.as_bytes().get(first.start as usize..);
        let same = agreement(old.unwrap_or_default(), text.rest().as_bytes());
        let begin = text.at;
        let here = |old: u32| begin + (old - first.start) as usize;
        let before = self.next;
        while let Some(old) = self.old.get(self.next)
            && here(old.end) <= begin + same
        {
            // What separates it from the one before is the same, too.
            text.at = here(old.end);
            each(self.read.len(), Found::Known(self.next));
            self.read(here(old.start), text.at);
            self.next += 1;
        }
        self.next > before
    }

    /// Takes an element from the beginning of `text`.
    fn element<'t, T: Deserialize<'t>>(&mut self, text: &mut Text<'t>) -> Option<Found<T>> {
        let mut stream = serde_json::Deserializer::from_str(text.rest()).into_iter::<T>();
        let file = stream.next()?.ok()?;
        let len = stream.byte_offset();
        let element = text.rest().get(..len)?;
        let begin = text.at;
        text.at += len;
        self.read(begin, text.at);
        let near = self.next..self.old.len().min(self.next + NEAR);
        let mut near = near.filter(|place| self.old_element(*place) == Some(element));
        if let Some(place) = near.next().or_else(|| self.elsewhere(element)) {
            self.next = place + 1;
            return Some(Found::Known(place));
        }
        self.new += 1;
        Some(Found::New(file))
    }

    /// Notes where an element is.
    fn read(&mut self, start: usize, end: usize) {
        let [start, end] = [start, end].map(|at| u32::try_from(at).unwrap_or(u32::MAX));
        self.read.push(Element { start, end });
    }

    fn elsewhere(&mut self, element: &str) -> Option<usize> {
        if self.new < MANY {
            return None;
        }
        if self.by_text.is_none() {
            let places = 0..self.old.len();
            let by_text = places.filter_map(|place| Some((self.old_element(place)?, place)));
            self.by_text = Some(by_text.collect());
        }
        self.by_text.as_ref()?.get(element).copied()
    }

    fn old_element(&self, place: usize) -> Option<&'m str> {
        let old = self.old.get(place)?;
        self.old_text.get(old.start as usize..old.end as usize)
    }
}

/// Returns how many octets two texts begin with alike.
fn agreement(left: &[u8], right: &[u8]) -> usize {
    let mut same = 0;
    // Whole blocks are compared by what the machine has for it.
    for block in [4096, 64, 1] {
        while let (Some(a), Some(b)) = (left.get(same..same + block), right.get(same..same + block))
            && a == b
        {
            same += block;
        }
    }
    same
}

/// A text, and how far it was read.
struct Text<'t> {
    all: &'t str,
    at: usize,
}

impl<'t> Text<'t> {
    fn rest(&self) -> &'t str {
        self.all.get(self.at..).unwrap_or_default()
    }

    /// Takes `wanted` if it is next.
    fn take(&mut self, wanted: &str) -> Option<()> {
        self.rest()
            .starts_with(wanted)
            .then(|| self.at += wanted.len())
    }

    /// Takes a character, with the white space before it (RFC 8259 §2), if it is the next.
    fn expect(&mut self, wanted: char) -> Option<()> {
        self.skip_space();
        self.take(wanted.encode_utf8(&mut [0; 4]))
    }

    /// Takes a key, written without escapes, and its colon.
    fn expect_key(&mut self, key: &str) -> Option<()> {
        self.expect('"')?;
        self.take(key)?;
        self.take("\"")?;
        self.expect(':')
    }

    fn list<T: Deserialize<'t>>(
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
            if !list.take_known(self, &mut each) {
                let at = list.read.len();
                let found = list.element(self)?;
                each(at, found);
            }
            if self.expect(',').is_none() {
                return self.expect(']');
            }
        }
    }

    fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        let text = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.at += rest.len() - text.len();
    }
}

#[cfg(test)]
mod tests;
