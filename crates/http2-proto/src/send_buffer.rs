//! Bytes that wait to be sent: small ones side by side, large ones where they are.
//!
//! ```text
//!   put, push ──▶ SendBuffer of a stream ──move_to──▶ SendBuffer of the connection ──slices──▶ writev
//! ```
//!
//! An empty buffer holds no memory. Knows nothing of what the bytes mean.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// Bytes in order.
#[derive(Debug, Default)]
pub struct SendBuffer {
    /// All the small ones, of which the first `taken` are gone.
    small: Vec<u8>,
    taken: usize,
    parts: VecDeque<Part>,
    /// Small bytes behind the last part.
    tail: usize,
    len: usize,
}

/// So many of the small bytes, and a payload behind them.
#[derive(Debug)]
struct Part {
    small: usize,
    payload: Bytes,
}

impl SendBuffer {
    /// Returns how many bytes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether none wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a copy of `bytes`.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if self.small.capacity() == 0 && !bytes.is_empty() {
            // Some heads come together, as a rule.
            self.small.reserve(HEADS.max(bytes.len()));
        }
        self.small.extend_from_slice(bytes);
        self.tail += bytes.len();
        self.len += bytes.len();
    }

    /// Adds `payload`, of which a copy is made only if it is short.
    pub(crate) fn push(&mut self, payload: Bytes) {
        if payload.len() <= MAX_COPIED {
            return self.put(&payload);
        }
        self.len += payload.len();
        let small = std::mem::take(&mut self.tail);
        self.parts.push_back(Part { small, payload });
    }

    /// Moves the first `len` bytes behind those of `to`.
    pub(crate) fn move_to(&mut self, len: usize, to: &mut Self) {
        self.take(len, Some(to));
    }

    /// Removes the first `len` bytes.
    pub(crate) fn advance(&mut self, len: usize) {
        self.take(len, None);
    }

    fn take(&mut self, len: usize, mut to: Option<&mut Self>) {
        let mut left = len.min(self.len);
        self.len -= left;
        while left > 0 {
            let mut part = self.parts.front_mut();
            let small = match &mut part {
                Some(part) => &mut part.small,
                None => &mut self.tail,
            };
            let taken = left.min(*small);
            *small -= taken;
            let end = self.taken + taken;
            if let Some(to) = &mut to {
                to.put(self.small.get(self.taken..end).unwrap_or_default());
            }
            self.taken = end;
            left -= taken;
            let Some(part) = part else { break };
            let payload = part.payload.split_to(left.min(part.payload.len()));
            left -= payload.len();
            if let Some(to) = &mut to {
                to.push(payload);
            }
            if part.small == 0 && part.payload.is_empty() {
                self.parts.pop_front();
            }
        }
        self.release();
    }

    /// Fills `slices` with what comes first, and returns how many of them.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut small = self.small.get(self.taken..).unwrap_or_default();
        let parts = self.parts.iter().flat_map(|part| {
            let (head, rest) = small.split_at_checked(part.small).unwrap_or_default();
            small = rest;
            [head, &part.payload]
        });
        let tail = self.small.len().saturating_sub(self.tail);
        let tail = self.small.get(tail..).unwrap_or_default();
        let pieces = parts.chain([tail]).filter(|bytes| !bytes.is_empty());
        let filled = slices.iter_mut().zip(pieces);
        filled
            .map(|(slice, bytes)| *slice = IoSlice::new(bytes))
            .count()
    }

    /// Keeps no memory for bytes that are gone, without moving the rest too often.
    fn release(&mut self) {
        if self.len == 0 {
            *self = Self::default();
        } else if self.taken > MAX_CONSUMED {
            self.small.drain(..self.taken);
            self.taken = 0;
        }
    }
}

/// Payloads up to this are copied: a slice more in a write costs more than that.
const MAX_COPIED: usize = 1024;
/// Bytes of the heads before a packet's frames.
const HEADS: usize = 128;
/// Consumed small bytes that may still be held.
const MAX_CONSUMED: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &SendBuffer) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let count = pieces.slices(&mut slices);
        slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect()
    }

    #[test]
    fn large_payload_is_not_copied() {
        let payload = Bytes::from(vec![7; 5000]);
        let (mut first, mut second) = (SendBuffer::default(), SendBuffer::default());
        first.put(b"head");
        first.push(payload.clone());
        first.move_to(4100, &mut second);
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(second.slices(&mut slices), 2);
        assert_eq!(slices[1].as_ptr(), payload.as_ptr());
        assert_eq!((slices[1].len(), first.len()), (4096, 904));
    }

    #[test]
    fn empty_buffer_holds_no_memory() {
        let mut pieces = SendBuffer::default();
        pieces.put(&[0; 100]);
        pieces.push(Bytes::from(vec![0; 5000]));
        pieces.advance(5100);
        assert_eq!((pieces.small.capacity(), pieces.parts.capacity()), (0, 0));
    }

    #[test]
    fn slices_beyond_the_array_come_later() {
        let mut pieces = SendBuffer::default();
        for byte in 0..4 {
            pieces.put(&[byte; 9]);
            pieces.push(Bytes::from(vec![byte; 2000]));
        }
        let mut slices = [IoSlice::new(&[]); 3];
        assert_eq!(pieces.slices(&mut slices), 3);
        let len = slices.iter().map(|slice| slice.len()).sum();
        assert_eq!(len, 9 + 2000 + 9);
        pieces.advance(len);
        assert_eq!(all(&pieces).len(), 2009 * 4 - len);
    }

    proptest! {
        #[test]
        fn bytes_stay_in_order(
            pieces in prop::collection::vec((0usize..3000, any::<bool>()), 0..20),
            moves in prop::collection::vec((0usize..4000, 0usize..4000), 1..20),
        ) {
            let (mut first, mut second, mut expected) = (SendBuffer::default(), SendBuffer::default(), Vec::new());
            for (len, copied) in pieces {
                let bytes: Vec<u8> = (expected.len()..expected.len() + len).map(|at| at as u8).collect();
                expected.extend_from_slice(&bytes);
                if copied { first.put(&bytes) } else { first.push(bytes.into()) }
            }
            let mut got = Vec::new();
            for (len, taken) in moves.into_iter().cycle() {
                if first.is_empty() && second.is_empty() {
                    break;
                }
                first.move_to(len + 1, &mut second);
                let taken = (taken + 1).min(second.len());
                got.extend_from_slice(&all(&second)[..taken]);
                second.advance(taken);
            }
            prop_assert_eq!(got, expected);
        }
    }
}
