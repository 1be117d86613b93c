//! A cursor over a handshake message that never leaves the window it was given.
//!
//! Knows TLS's presentation language (RFC 8446 §3: big-endian numbers, length-prefixed vectors),
//! nothing of what the bytes mean.

use std::ops::Range;

/// A window of a message and a position in it. Positions count from the start of the message.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    message: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self {
            message,
            at: 0,
            end: message.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    /// Bytes left in the window.
    pub(super) fn len(&self) -> usize {
        self.end.saturating_sub(self.at)
    }

    /// What is left of the window, as positions in the message.
    pub(super) fn range(&self) -> Range<usize> {
        self.at..self.end
    }

    /// What is left of the window.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.message.get(self.range()).unwrap_or_default()
    }

    /// Splits off the next `len` bytes as a window of their own.
    pub(super) fn split(&mut self, len: usize) -> Option<Self> {
        if len > self.len() {
            return None;
        }
        let window = Self {
            message: self.message,
            at: self.at,
            end: self.at + len,
        };
        self.at += len;
        Some(window)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.split(1)?.bytes().first().copied()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.split(2)?
            .bytes()
            .first_chunk()
            .map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// A vector with a length of one byte.
    pub(super) fn vector8(&mut self) -> Option<Self> {
        let len = self.u8()?;
        self.split(usize::from(len))
    }

    /// A vector with a length of two bytes.
    pub(super) fn vector16(&mut self) -> Option<Self> {
        let len = self.u16()?;
        self.split(usize::from(len))
    }
}
