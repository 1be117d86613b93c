//! A part of a file that moves on as it is read, so that a large one needs no memory for all of it.
//!
//! ```text
//!     file ──fill──▶ [ taken … | rest ]     what was taken makes room for what follows
//! ```
//!
//! Knows the few signs around lists of JSON, and nothing of what lists are of.

use std::io::Read;

use settings::yaml::MAX_FILE_BYTES;

/// Octets that are read between two looks. Pages of memory that are used again are in the processor's cache, and
/// the kernel need not find others.
const BLOCK: usize = 128 * 1024;

/// A text, and how far it was read.
pub(super) struct Window<R> {
    source: R,
    octets: Vec<u8>,
    /// How many of them were taken.
    at: usize,
    /// How many more the file may have.
    left: u64,
    /// Whether it could not be read to its end, or is too large.
    failed: bool,
}

impl<R: Read> Window<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            octets: Vec::new(),
            at: 0,
            left: MAX_FILE_BYTES,
            failed: false,
        }
    }

    /// Returns what was read and not taken.
    pub(super) fn rest(&self) -> &[u8] {
        self.octets.get(self.at..).unwrap_or_default()
    }

    /// Takes octets from the beginning of the rest.
    pub(super) fn take(&mut self, count: usize) {
        self.at = self.octets.len().min(self.at + count);
    }

    /// Reads more, and tells whether there was more: at least as much as is left, so that one element
    /// of any length is whole after a few times. Nothing more comes of a file that is too large, or
    /// cannot be read.
    pub(super) fn fill(&mut self) -> bool {
        self.octets.drain(..self.at);
        self.at = 0;
        // One more than it may have, which tells one that has just as many from a larger one.
        let most = (self.left + 1).min(self.octets.len().max(BLOCK) as u64);
        self.octets.reserve(usize::try_from(most).unwrap_or(0));
        let read = self
            .source
            .by_ref()
            .take(most)
            .read_to_end(&mut self.octets);
        let left = read.map_or(None, |read| {
            self.left.checked_sub(read as u64).zip(Some(read))
        });
        let Some((left, read)) = left.filter(|_| !self.failed) else {
            self.failed = true;
            return false;
        };
        self.left = left;
        read > 0
    }

    /// Takes `wanted` if it is next.
    fn expect_text(&mut self, wanted: &[u8]) -> Option<()> {
        while self.rest().len() < wanted.len() && self.fill() {}
        let next = self.rest().starts_with(wanted);
        next.then(|| self.take(wanted.len()))
    }

    /// Takes an octet, with the white space before it, if it is the next.
    pub(super) fn expect(&mut self, wanted: u8) -> Option<()> {
        self.skip_space();
        self.expect_text(&[wanted])
    }

    /// Takes a key, written without escapes, and its colon.
    pub(super) fn expect_key(&mut self, key: &str) -> Option<()> {
        self.expect(b'"')?;
        self.expect_text(key.as_bytes())?;
        self.expect_text(b"\"")?;
        self.expect(b':')
    }

    /// Tells whether nothing but white space follows; never of a file that is too large, or could not be
    /// read to its end.
    pub(super) fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty() && !self.failed
    }

    fn skip_space(&mut self) {
        loop {
            self.take(space(self.rest()));
            if !self.rest().is_empty() || !self.fill() {
                return;
            }
        }
    }
}

/// Returns how many octets of white space a text begins with (RFC 8259 §2).
pub(super) fn space(text: &[u8]) -> usize {
    let is_space = |octet: &&u8| matches!(**octet, b' ' | b'\t' | b'\n' | b'\r');
    text.iter().take_while(is_space).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_found_wherever_a_read_ends() {
        let file = [
            " ".repeat(BLOCK - 1).as_bytes(),
            b"{\n\"clus",
            b"ters\" :",
            " ".repeat(2 * BLOCK).as_bytes(),
            b"] ",
        ]
        .concat();
        let mut window = Window::new(&file[..]);
        window.expect(b'{').unwrap();
        assert!(window.expect(b'[').is_none());
        window.expect_key("clusters").unwrap();
        window.expect(b']').unwrap();
        assert!(window.at_end());
    }

    #[test]
    fn what_is_longer_than_a_block_is_whole_after_a_few_times() {
        let file = vec![b'x'; 5 * BLOCK + 1];
        let mut window = Window::new(&file[..]);
        let mut times = 0;
        while window.fill() {
            times += 1;
        }
        assert_eq!((window.rest().len(), times), (file.len(), 4));
    }

    #[test]
    fn a_file_that_is_too_large_does_not_end() {
        let ends = |len: u64| Window::new(std::io::repeat(b' ').take(len)).at_end();
        assert!(ends(MAX_FILE_BYTES));
        assert!(!ends(MAX_FILE_BYTES + 1));
    }

    /// Says the end of a file that cannot be read further.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::Other.into())
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_to_its_end_does_not_end() {
        let mut window = Window::new((&b"{}"[..]).chain(Broken));
        window.expect(b'{').unwrap();
        assert!(!window.at_end());
    }
}
