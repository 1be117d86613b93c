//! Bytes waiting, in order: large pieces as they came, small ones gathered.
//!
//! A small piece kept as it came would hold on to the whole buffer it is a slice of, as would the
//! rest of one, and a flood of one-byte packets would cost far more memory than it counts for. All
//! are copied; that also turns many small writes into one.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// A first-in, first-out queue of bytes. Empty, it owns no memory to speak of.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    whole: VecDeque<Bytes>,
    /// What came after all of `whole`.
    tail: BytesMut,
    len: usize,
    /// Bytes removed from the piece in front, which keeps them in memory.
    cut: usize,
}

impl ByteQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if piece.len() < COPY_BELOW {
            self.tail.extend_from_slice(&piece);
            if self.tail.len() >= GATHER {
                self.seal();
            }
        } else {
            self.seal();
            self.whole.push_back(piece);
        }
    }

    /// Removes at most `max` contiguous bytes from the front.
    pub(crate) fn pop(&mut self, max: usize) -> Option<Bytes> {
        if self.len == 0 || max == 0 {
            return None;
        }
        if self.whole.is_empty() {
            self.seal();
        }
        let front = self.whole.front_mut()?;
        let piece = if front.len() > max {
            let piece = front.split_to(max);
            self.cut += max;
            if self.cut > front.len() {
                *front = Bytes::copy_from_slice(front);
                self.cut = 0;
            }
            piece
        } else {
            self.cut = 0;
            self.whole.pop_front()?
        };
        self.len -= piece.len();
        if self.len == 0 && self.whole.capacity() > KEPT {
            self.whole = VecDeque::new();
        }
        Some(piece)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.whole
                .push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

/// Pieces below this are copied: half of what ours read at once, so that what is kept as it came
/// fills a good part of its buffer.
const COPY_BELOW: usize = 32 << 10;
/// Gathered pieces are handed out when they reach this.
const GATHER: usize = 32 << 10;
/// Places kept while empty: 4 of 32 bytes.
const KEPT: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn queue_keeps_the_order(
            steps in proptest::collection::vec((0usize..70_000, 0usize..70_000), 0..60),
        ) {
            let mut queue = ByteQueue::default();
            let (mut put, mut got) = (Vec::new(), Vec::new());
            for (number, (push, pop)) in steps.into_iter().enumerate() {
                let piece = vec![(number % 251) as u8; push];
                put.extend_from_slice(&piece);
                queue.push(Bytes::from(piece));
                if let Some(piece) = queue.pop(pop) {
                    prop_assert!(!piece.is_empty() && piece.len() <= pop);
                    got.extend_from_slice(&piece);
                }
                prop_assert_eq!(queue.len(), put.len() - got.len());
            }
            while let Some(piece) = queue.pop(usize::MAX) {
                got.extend_from_slice(&piece);
            }
            prop_assert_eq!(put, got);
            prop_assert!(queue.is_empty());
        }
    }

    #[test]
    fn only_small_pieces_are_copied() {
        let mut queue = ByteQueue::default();
        let large = Bytes::from(vec![1; COPY_BELOW]);
        let small = Bytes::from(vec![2; 10]);
        queue.push(large.clone());
        queue.push(small.clone());
        assert_eq!(queue.pop(usize::MAX).unwrap().as_ptr(), large.as_ptr());
        let copy = queue.pop(usize::MAX).unwrap();
        assert_eq!(copy, small);
        assert_ne!(copy.as_ptr(), small.as_ptr());
    }

    #[test]
    fn a_flood_of_single_bytes_is_few_pieces() {
        let mut queue = ByteQueue::default();
        for _ in 0..GATHER * 2 {
            queue.push(Bytes::from_static(b"x"));
        }
        let pieces = std::iter::from_fn(|| queue.pop(usize::MAX)).count();
        assert_eq!(pieces, 2);
    }
}
