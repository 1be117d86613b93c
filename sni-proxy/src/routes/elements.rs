//! The fast way through a routing file as programs write it: JSON, clusters first, then routes.
//!
//! ```text
//!     {"clusters":[ {…}, {…}, … ],"routes":[ {…}, … ]}
//!                    │    └─ of the length and hash of the last file's next element? it is that one,
//!                    │       and stays
//!                    └─ else it is read, and added
//! ```
//!
//! A file of very many elements mostly differs in one. Of the last good file a hash of each element is
//! kept, so that what did not change is neither parsed, checked nor made again. The hashes are of 64
//! bits and another process has others: that a changed element has the hash it had is left to chance.
//! Whatever is not so simple, or wrong, is left to the YAML reader, which says why: there is no error
//! here.

mod form;
mod window;
mod words;

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::path::Path;

use foldhash::quality::RandomState;
use route::{Builder, ClusterSpec, RouteMatch, RouteSpec, RoutesBuilder, Snapshot};
use serde::Deserialize;
use settings::ConfigErrors;

use self::form::{Form, Texts};
use self::window::{Window, space};
use self::words::Words;
use super::{ClusterFile, RouteFile, SharedOptions};

/// How many elements after the expected one are looked at before what was read counts as new.
const NEAR: usize = 8;

/// After how many new elements of a list those of the last file are looked up by their hashes.
const MANY: usize = 32;

/// What is remembered of the last good file.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The number of the snapshot that has it.
    generation: u64,
    hasher: RandomState,
    /// Of all of it, when somebody else read it.
    whole: Option<u64>,
    clusters: Vec<Element>,
    /// Where in the snapshot each cluster is; the routes are in the order of the file.
    places: Vec<u32>,
    routes: Vec<Element>,
}

/// What tells an element of a file from others.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Element {
    hash: u64,
    len: u32,
}

impl Memory {
    /// Returns what is remembered after a file that somebody else read.
    pub(super) fn of(&self, text: &[u8], generation: u64) -> Self {
        Self {
            generation,
            hasher: self.hasher.clone(),
            whole: Some(self.hasher.hash_one(text)),
            ..Self::default()
        }
    }

    /// Tells whether a file that somebody else read says what `previous` does.
    pub(super) fn is_still(&self, text: &[u8], previous: Option<&Snapshot>) -> bool {
        self.belongs_to(previous) && self.whole == Some(self.hasher.hash_one(text))
    }

    fn belongs_to(&self, previous: Option<&Snapshot>) -> bool {
        previous.is_some_and(|previous| self.generation == previous.generation())
    }
}

/// What a file says.
pub(super) enum Found {
    /// What the last one did.
    Same,
    /// Something else.
    New(Box<Snapshot>, Memory),
}

/// Opens the file at `path`; `None` when it is nothing to read, which another reader says.
pub(super) fn open(path: &Path) -> Option<File> {
    // To open a pipe would be to wait for a writer.
    fs::metadata(path).ok()?.is_file().then_some(())?;
    File::open(path).ok()
}

/// Reads `file` and builds the snapshot that follows `previous`; `memory` is what this returned with
/// `previous`, or something else, which is then of no use. `None` when the file is for another reader.
pub(super) fn read(
    file: impl io::Read,
    options: &mut SharedOptions<'_>,
    memory: &Memory,
    previous: Option<&Snapshot>,
    generation: u64,
) -> Option<Found> {
    let nothing = Memory {
        hasher: memory.hasher.clone(),
        ..Memory::default()
    };
    let known = memory.belongs_to(previous);
    let memory = if known { memory } else { &nothing };
    let mut window = Window::new(file);
    window.expect(b'{')?;
    window.expect_key("clusters")?;
    let mut clusters = Clusters {
        builder: Builder::new(previous),
        places: &memory.places,
        spec: ClusterSpec::new(""),
        options,
        errors: ConfigErrors::new(),
    };
    let cluster_list = List::new(&memory.hasher, &memory.clusters);
    let cluster_list = cluster_list.read(&mut window, &mut clusters)?;
    let mut routes = Routes {
        builder: clusters.builder.routes(),
        spec: RouteSpec::new(RouteMatch::ServerNames(Vec::new()), ""),
        errors: clusters.errors,
    };
    let places = routes.builder.cluster_places().to_vec();
    let mut route_list = List::new(&memory.hasher, &memory.routes);
    if window.expect(b',').is_some() {
        window.expect_key("routes")?;
        route_list = route_list.read(&mut window, &mut routes)?;
    }
    window.expect(b'}')?;
    if !window.at_end() || !routes.errors.is_empty() {
        return None;
    }
    if known && memory.whole.is_none() && cluster_list.is_same() && route_list.is_same() {
        return Some(Found::Same);
    }
    let snapshot = routes.builder.build(generation).ok()?;
    let memory = Memory {
        generation,
        hasher: memory.hasher.clone(),
        whole: None,
        clusters: cluster_list.read,
        places,
        routes: route_list.read,
    };
    Some(Found::New(Box::new(snapshot), memory))
}

/// What is done with the elements of a list.
trait Elements {
    /// One of them, with texts of the file.
    type Element<'t>: Deserialize<'t> + Texts<'t>;

    /// Keeps the one at a place of the last file's list.
    fn keep(&mut self, old: usize);

    /// Adds one that was not there, at a place of the list.
    fn add(&mut self, element: &Self::Element<'_>, at: usize);
}

struct Clusters<'r, 'o, 'p> {
    builder: Builder<'p>,
    places: &'r [u32],
    spec: ClusterSpec,
    options: &'r mut SharedOptions<'o>,
    errors: ConfigErrors,
}

impl Elements for Clusters<'_, '_, '_> {
    type Element<'t> = ClusterFile<Words<'t>>;

    fn keep(&mut self, old: usize) {
        let place = self.places.get(old).copied().unwrap_or(u32::MAX);
        self.builder.keep_cluster(place as usize);
    }

    fn add(&mut self, element: &Self::Element<'_>, at: usize) {
        element.fill(&mut self.spec, at, self.options, &mut self.errors);
        self.builder.add_cluster(&self.spec);
    }
}

struct Routes<'p> {
    builder: RoutesBuilder<'p>,
    spec: RouteSpec,
    errors: ConfigErrors,
}

impl Elements for Routes<'_> {
    type Element<'t> = RouteFile<Words<'t>>;

    fn keep(&mut self, old: usize) {
        self.builder.keep_route(old);
    }

    fn add(&mut self, element: &Self::Element<'_>, at: usize) {
        if element.fill(&mut self.spec, at, &mut self.errors) {
            self.builder.add_route(&self.spec);
        }
    }
}

/// A list of elements while it is read.
struct List<'m> {
    hasher: &'m RandomState,
    old: &'m [Element],
    /// The old one that is expected.
    next: usize,
    /// How many were new.
    new: usize,
    /// Whether all were the expected ones.
    in_order: bool,
    /// The old ones; made when many are new.
    places: Option<HashMap<Element, usize>>,
    read: Vec<Element>,
    /// Whether an element was read, and no comma behind it.
    behind: bool,
}

/// How far a list was read.
enum Progress {
    /// To its end.
    Ended,
    /// To what is not whole.
    Cut,
    /// To what is for another reader.
    Wrong,
}

impl<'m> List<'m> {
    fn new(hasher: &'m RandomState, old: &'m [Element]) -> Self {
        Self {
            hasher,
            old,
            next: 0,
            new: 0,
            in_order: true,
            places: None,
            read: Vec::with_capacity(old.len() + 1),
            behind: false,
        }
    }

    /// Tells whether the list is the last file's.
    fn is_same(&self) -> bool {
        self.in_order && self.read.len() == self.old.len()
    }

    /// Takes the list from a window.
    fn read(mut self, window: &mut Window<impl io::Read>, to: &mut impl Elements) -> Option<Self> {
        window.expect(b'[')?;
        if window.expect(b']').is_some() {
            return Some(self);
        }
        loop {
            let (taken, progress) = self.read_whole(window.rest(), to);
            window.take(taken);
            match progress {
                Progress::Ended => return Some(self),
                Progress::Cut if window.fill() => {}
                Progress::Cut | Progress::Wrong => return None,
            }
        }
    }

    /// Takes what is whole from the beginning of `text`, and returns how much that is.
    fn read_whole<E: Elements>(&mut self, text: &[u8], to: &mut E) -> (usize, Progress) {
        let mut form = Form::default();
        let mut at = 0;
        loop {
            let rest = text.get(at..).unwrap_or_default();
            let begin = space(rest);
            match rest.get(begin) {
                Some(b']') if self.behind => return (at + begin + 1, Progress::Ended),
                Some(b',') if self.behind => {
                    at += begin + 1;
                    self.behind = false;
                }
                Some(_) if !self.behind => {
                    let rest = rest.get(begin..).unwrap_or_default();
                    match self.element(rest, &mut form, to) {
                        Ok(len) => at += begin + len,
                        Err(why) => return (at, why),
                    }
                    self.behind = true;
                }
                Some(_) => return (at, Progress::Wrong),
                None => return (at, Progress::Cut),
            }
        }
    }

    /// Reads the element that `rest` begins with, and returns its length.
    fn element<'t, E: Elements>(
        &mut self,
        rest: &'t [u8],
        form: &mut Form<'t, E::Element<'t>>,
        to: &mut E,
    ) -> Result<usize, Progress> {
        // A JSON object ends where it ends: a text that begins with one is that one.
        if let Some(expected) = self.old.get(self.next)
            && let Some(text) = rest.get(..expected.len as usize)
            && self.hasher.hash_one(text) == expected.hash
        {
            self.keep(self.next, *expected, to);
            return Ok(text.len());
        }
        let text = form.read(rest)?;
        let element = Element {
            hash: self.hasher.hash_one(text),
            len: u32::try_from(text.len()).map_err(|_| Progress::Wrong)?,
        };
        let near = self.next..self.old.len().min(self.next + NEAR);
        let mut near = near.filter(|place| self.old.get(*place) == Some(&element));
        if let Some(place) = near.next().or_else(|| self.elsewhere(&element)) {
            self.keep(place, element, to);
        } else {
            self.new += 1;
            self.in_order = false;
            if let Some(last) = form.last() {
                to.add(last, self.read.len());
            }
            self.read.push(element);
        }
        Ok(text.len())
    }

    fn keep(&mut self, place: usize, element: Element, to: &mut impl Elements) {
        self.in_order &= place == self.read.len();
        self.next = place + 1;
        to.keep(place);
        self.read.push(element);
    }

    fn elsewhere(&mut self, element: &Element) -> Option<usize> {
        if self.new < MANY || self.old.is_empty() {
            return None;
        }
        let places = self
            .places
            .get_or_insert_with(|| self.old.iter().copied().zip(0..).collect());
        places.get(element).copied()
    }
}

#[cfg(test)]
mod tests;
