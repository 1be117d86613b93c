//! Names and values of headers or trailers, one behind the other in one piece of memory.
//!
//! What they mean, and which may occur, is not known here.

use bytes::Bytes;

/// Fields in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    bytes: Bytes,
    /// Where the first name begins.
    begin: usize,
    /// Where each name ends, and its value behind it.
    ends: Vec<(u32, u32)>,
}

impl Fields {
    /// Takes parts of `bytes`: a name follows the value before it.
    pub(crate) fn new(bytes: Bytes, begin: usize, ends: Vec<(u32, u32)>) -> Self {
        Self { bytes, begin, ends }
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns each name, in lower case, with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut begin = self.begin;
        self.ends.iter().map(move |&(name, value)| {
            let (from, name, value) = (begin, name as usize, value as usize);
            begin = value;
            let part = |range| self.bytes.get(range).unwrap_or_default();
            (part(from..name), part(name..value))
        })
    }

    /// Returns a part that [`Fields::iter`] has returned, without a copy: it keeps all of them.
    ///
    /// # Panics
    /// When `part` lies elsewhere.
    #[must_use]
    pub fn share(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }
}
