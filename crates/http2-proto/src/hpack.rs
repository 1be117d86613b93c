//! Header compression (RFC 7541): all of it is read, and next to nothing of it written.
//!
//! ```text
//!   block of a request ──▶ Decoder (static table, dynamic table, Huffman) ──▶ names and values
//!   names and values ──▶ encode (literals) ──▶ block of a response
//! ```
//!
//! What fields mean, and which may occur, is not known here.

mod huffman;
mod statics;

use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::{ConnectionError, ErrorCode};

/// Reads the blocks of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The newest comes first.
    entries: VecDeque<Entry>,
    /// As RFC 7541 section 4.1 counts.
    pub(crate) size: usize,
    max_size: usize,
    /// What the peer may make `max_size`.
    limit: usize,
    /// The limit has come below `max_size`: the next block has to begin with a size.
    owed: bool,
}

/// A name and its value.
type Entry = (Bytes, Bytes);

impl Decoder {
    /// Makes the decoder of a new connection, which may have a table of 4096 bytes.
    pub(crate) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max_size: FIRST_LIMIT,
            limit: FIRST_LIMIT,
            owed: false,
        }
    }

    /// Sets what the peer's table may hold, once it has agreed to that.
    pub(crate) fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes;
        self.owed = bytes < self.max_size;
    }

    /// Reads a whole block, and calls `each` with every name and value in it.
    ///
    /// # Errors
    /// Those of `each`, or when the block is wrong. Later blocks of the connection cannot be read either; some
    /// fields may have been.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        let mut input = Input(block);
        let mut first = true;
        while let Some(byte) = input.peek() {
            if byte & 0xe0 == 0x20 {
                let size = input.integer(5)?;
                if !first || size > self.limit {
                    return Err(TABLE_SIZE);
                }
                self.resize(size);
                continue;
            }
            if self.owed {
                return Err(TABLE_SIZE);
            }
            first = false;
            self.field(byte, &mut input, &mut each)?;
        }
        Ok(())
    }

    fn field(
        &mut self,
        byte: u8,
        input: &mut Input<'_>,
        each: &mut impl FnMut(&[u8], &[u8]) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        if byte & 0x80 != 0 {
            let (name, value) = self.lookup(input.integer(7)?)?;
            return each(name, value);
        }
        let indexed = byte & 0xc0 == 0x40;
        let index = input.integer(if indexed { 6 } else { 4 })?;
        let literal = match index {
            0 => Some(input.string()?),
            _ => None,
        };
        let value = input.string()?;
        let name = match &literal {
            Some(name) => &**name,
            None => self.lookup(index)?.0,
        };
        each(name, &value)?;
        if indexed {
            let name = match &literal {
                Some(name) => Bytes::copy_from_slice(name),
                // Not a copy: two bytes of a block could stand for thousands.
                None => self.name(index)?,
            };
            self.insert((name, Bytes::copy_from_slice(&value)));
        }
        Ok(())
    }

    /// Returns a name of the tables.
    fn name(&self, index: usize) -> Result<Bytes, ConnectionError> {
        if let Some((name, _)) = statics::field(index) {
            return Ok(Bytes::from_static(name.as_bytes()));
        }
        self.entry(index).map(|(name, _)| name.clone())
    }

    fn lookup(&self, index: usize) -> Result<(&[u8], &[u8]), ConnectionError> {
        if let Some((name, value)) = statics::field(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let (name, value) = self.entry(index)?;
        Ok((name, value))
    }

    fn entry(&self, index: usize) -> Result<&Entry, ConnectionError> {
        let dynamic = index.checked_sub(statics::COUNT + 1);
        let entry = dynamic.and_then(|index| self.entries.get(index));
        entry.ok_or(INDEX)
    }

    fn insert(&mut self, entry: Entry) {
        let size = counted(&entry);
        self.shrink(self.max_size.saturating_sub(size));
        // One that is larger than the table leaves it empty.
        if size <= self.max_size {
            self.size += size;
            self.entries.push_front(entry);
        }
    }

    fn resize(&mut self, size: usize) {
        self.max_size = size;
        self.owed = false;
        self.shrink(size);
        if size == 0 {
            self.entries = VecDeque::new();
        }
    }

    fn shrink(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else {
                break;
            };
            self.size -= counted(&entry);
        }
    }
}

/// The size of an entry, as RFC 7541 section 4.1 counts.
fn counted((name, value): &Entry) -> usize {
    name.len() + value.len() + OVERHEAD
}

/// What is left of a block.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn byte(&mut self) -> Result<u8, ConnectionError> {
        let (byte, rest) = self.0.split_first().ok_or(TRUNCATED)?;
        self.0 = rest;
        Ok(*byte)
    }

    /// Reads a number whose first byte has `prefix` bits of it (RFC 7541 section 5.1).
    fn integer(&mut self, prefix: u32) -> Result<usize, ConnectionError> {
        let most = (1_usize << prefix) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Ok(value);
        }
        // Four bytes say more than a block can hold.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(INTEGER)
    }

    /// Reads a string (RFC 7541 section 5.2).
    fn string(&mut self) -> Result<Cow<'a, [u8]>, ConnectionError> {
        let huffman = self.peek().is_some_and(|byte| byte & 0x80 != 0);
        let len = self.integer(7)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(TRUNCATED)?;
        self.0 = rest;
        if !huffman {
            return Ok(Cow::Borrowed(bytes));
        }
        // Codes have five bits at least.
        let mut decoded = Vec::with_capacity(len * 8 / 5);
        huffman::decode(bytes, &mut decoded)?;
        Ok(Cow::Owned(decoded))
    }
}

/// Begins the first block of a connection: the peer need keep no table, however large it may be.
pub(crate) fn encode_no_table(to: &mut Vec<u8>) {
    to.push(0x20);
}

/// Appends a field that no table is to keep. The name is in lower case.
pub(crate) fn encode(name: &[u8], value: &[u8], to: &mut Vec<u8>) {
    match (name, value) {
        (b":status", b"200") => return to.push(0x80 | STATUS_200),
        (b":status", _) => to.push(STATUS_200), // its name
        _ => {
            to.push(0);
            string(name, to);
        }
    }
    string(value, to);
}

fn string(bytes: &[u8], to: &mut Vec<u8>) {
    integer(bytes.len(), 7, to);
    to.extend_from_slice(bytes);
}

/// Writes a number with `prefix` bits in the first byte, the others of which are 0.
fn integer(value: usize, prefix: u32, to: &mut Vec<u8>) {
    let most = (1_usize << prefix) - 1;
    let byte = |value: usize| value.to_le_bytes().first().copied().unwrap_or_default();
    if value < most {
        return to.push(byte(value));
    }
    to.push(byte(most));
    let mut rest = value - most;
    while rest >= 0x80 {
        to.push(byte(rest) | 0x80);
        rest >>= 7;
    }
    to.push(byte(rest));
}

const fn error(text: &'static str) -> ConnectionError {
    ConnectionError::new(ErrorCode::COMPRESSION_ERROR, text)
}

const HUFFMAN: ConnectionError = error("headers: a string is not in the Huffman code");
const INDEX: ConnectionError = error("headers: there is no field with that index");
const INTEGER: ConnectionError = error("headers: a number is too large");
/// A table larger than was agreed on, or its size in a wrong place, or not where it must be.
const TABLE_SIZE: ConnectionError = error("headers: the table's size is not as agreed on");
const TRUNCATED: ConnectionError = error("headers: the block ends within a field");
/// Bytes that each entry of a table counts for, beyond its name and value.
const OVERHEAD: usize = 32;
/// Size of a table until something else is agreed on.
const FIRST_LIMIT: usize = 4096;
/// Where the static table has `:status: 200`.
const STATUS_200: u8 = 8;

#[cfg(test)]
mod tests;
