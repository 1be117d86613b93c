//! Reads one element after the other, each mostly of the form of the one before.
//!
//! ```text
//!     {"serverNames":["api.a.example.com"],"cluster":"a"}     serde_json reads it, and the texts that it
//!                      ▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲              ▲      borrowed tell where texts are
//!     {"serverNames":["api.b.example.com"],"cluster":"b"}     the same around other texts: these replace
//!                                                             the last one's
//! ```
//!
//! A program writes its elements with one template, so that what is around the texts is compared
//! instead of parsed. Only texts that are taken as they are, [`Words`], may differ: not those that
//! stand for a duration or one of several words. Whatever has another form is parsed.

use std::ops::Range;

use serde::Deserialize;

use super::Progress;
use super::words::Words;
use crate::routes::{ClusterFile, RouteFile};

/// Something with texts.
pub(super) trait Texts<'t> {
    /// Shows each text, always in the same order for elements of one form.
    fn texts(&mut self, each: &mut dyn FnMut(&mut Words<'t>));
}

impl<'t> Texts<'t> for ClusterFile<Words<'t>> {
    fn texts(&mut self, each: &mut dyn FnMut(&mut Words<'t>)) {
        each(&mut self.name);
        for endpoint in &mut self.endpoints {
            each(&mut endpoint.address);
            endpoint.zone.iter_mut().for_each(&mut *each);
        }
    }
}

impl<'t> Texts<'t> for RouteFile<Words<'t>> {
    fn texts(&mut self, each: &mut dyn FnMut(&mut Words<'t>)) {
        let lists = [
            &mut self.server_names,
            &mut self.destinations,
            &mut self.connect_destinations,
        ];
        let lists = lists.into_iter().chain(&mut self.allow_sources);
        lists.flatten().for_each(&mut *each);
        each(&mut self.cluster);
    }
}

/// The last element that was read, and how it was written.
#[derive(Debug)]
pub(super) struct Form<'t, T> {
    last: Option<T>,
    /// Its text; empty when what it borrowed does not tell its form.
    text: &'t [u8],
    /// Where in it its texts are, in the order of the text.
    texts: Vec<Range<usize>>,
    /// Which of them is shown when.
    order: Vec<usize>,
    /// The texts of the element that is read, in the order of the text.
    found: Vec<&'t str>,
}

impl<T> Default for Form<'_, T> {
    fn default() -> Self {
        Self {
            last: None,
            text: &[],
            texts: Vec::new(),
            order: Vec::new(),
            found: Vec::new(),
        }
    }
}

impl<'t, T: Deserialize<'t> + Texts<'t>> Form<'t, T> {
    /// Reads the element that `rest` begins with, and returns its text.
    ///
    /// # Errors
    /// It is not whole, or for another reader.
    pub(super) fn read(&mut self, rest: &'t [u8]) -> Result<&'t [u8], Progress> {
        if let Some(len) = self.alike(rest) {
            let (mut shown, order, found) = (0, &self.order, &self.found);
            let last = self.last.as_mut().ok_or(Progress::Wrong)?;
            last.texts(&mut |words| {
                let text = order.get(shown).and_then(|place| found.get(*place));
                *words = Words::from(text.copied().unwrap_or_default());
                shown += 1;
            });
            return rest.get(..len).ok_or(Progress::Wrong);
        }
        let mut stream = serde_json::Deserializer::from_slice(rest).into_iter::<T>();
        let element = match stream.next() {
            Some(Ok(element)) => element,
            Some(Err(error)) if !error.is_eof() => return Err(Progress::Wrong),
            Some(Err(_)) | None => return Err(Progress::Cut),
        };
        let text = rest.get(..stream.byte_offset()).ok_or(Progress::Wrong)?;
        self.last = Some(element);
        self.learn(text);
        Ok(text)
    }

    /// Returns the element that was read last.
    pub(super) fn last(&self) -> Option<&T> {
        self.last.as_ref()
    }

    /// Finds the texts of an element of the known form, and returns its length.
    fn alike(&mut self, rest: &'t [u8]) -> Option<usize> {
        if self.text.is_empty() {
            return None;
        }
        self.found.clear();
        let (mut rest_of_form, mut at) = (0, 0);
        for text in &self.texts {
            let before = self.text.get(rest_of_form..text.start)?;
            at += rest
                .get(at..)?
                .starts_with(before)
                .then_some(before.len())?;
            let words = plain(rest.get(at..)?)?;
            at += words.len();
            self.found.push(str::from_utf8(words).ok()?);
            rest_of_form = text.end;
        }
        let end = self.text.get(rest_of_form..)?;
        rest.get(at..)?.starts_with(end).then_some(at + end.len())
    }

    /// Learns the form of the element that was read last, from where its texts point to.
    fn learn(&mut self, text: &'t [u8]) {
        self.text = &[];
        self.texts.clear();
        self.order.clear();
        let Some(last) = &mut self.last else {
            return;
        };
        let start = text.as_ptr().addr();
        let mut all_borrowed = true;
        last.texts(&mut |words| match words.borrowed() {
            Some(words) => {
                let begin = words.as_ptr().addr() - start;
                self.texts.push(begin..begin + words.len());
            }
            None => all_borrowed = false,
        });
        let shown = self.texts.clone();
        self.texts.sort_unstable_by_key(|text| text.start);
        let place = |text: &Range<usize>| self.texts.binary_search_by_key(&text.start, |t| t.start);
        self.order.extend(shown.iter().flat_map(place));
        if all_borrowed {
            self.text = text;
        }
    }
}

/// Returns the text, written without escapes, whose end quotation mark follows.
fn plain(rest: &[u8]) -> Option<&[u8]> {
    let text = rest.get(..memchr::memchr(b'"', rest)?)?;
    // All of it, however it begins: without an early end the processor takes many octets at once.
    let escaped = |octet: &u8| *octet < b' ' || *octet == b'\\';
    let any = text.iter().fold(false, |any, octet| any | escaped(octet));
    (!any).then_some(text)
}
