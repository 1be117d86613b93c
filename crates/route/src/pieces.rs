//! A long list in pieces, so that the next list shares those in which nothing changed.
//!
//! ```text
//! last list   [ a b c … ] [ d e f … ] [ g h … ]
//!                  │           │           │
//! Joiner: keep ────┘   d, new, f copied    └── shared
//! ```
//!
//! A piece that became too long is halved, so that what follows is shared. In a list that is made at
//! once all but the last two are full: to leave room for one more would spare no copy.
//!
//! To change one element of very many costs a copy of its piece and of the pointers to the others,
//! where a copy of the list would count each of its elements in that element's memory.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

/// Elements of a full piece.
const MOST: usize = 128;

/// Fewest elements of a piece that is shared, and of all but the last.
const LEAST: usize = MOST / 4;

/// Elements of which one full piece is made, and as many are left as the next one needs at least.
const TWO: usize = MOST + LEAST;

/// A list whose pieces are shared; it does not change.
#[derive(Debug)]
pub(crate) struct Pieces<T> {
    /// None is empty.
    pieces: Vec<Arc<[T]>>,
    /// The place of each piece's first element.
    starts: Vec<usize>,
    len: usize,
}

impl<T> Pieces<T> {
    const EMPTY: Self = Self {
        pieces: Vec::new(),
        starts: Vec::new(),
        len: 0,
    };

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, place: usize) -> Option<&T> {
        let (piece, start) = self.piece_of(place)?;
        piece.get(place - start)
    }

    /// Finds an element in a sorted list as [`slice::binary_search_by_key`] does: `ord` tells how an
    /// element compares to the one looked for.
    pub(crate) fn search(&self, ord: impl Fn(&T) -> std::cmp::Ordering) -> Result<usize, usize> {
        let behind = self
            .pieces
            .partition_point(|piece| piece.first().is_some_and(|first| ord(first).is_le()));
        let Some(at) = behind.checked_sub(1) else {
            return Err(0);
        };
        let (Some(piece), Some(start)) = (self.pieces.get(at), self.starts.get(at)) else {
            return Err(0);
        };
        match piece.binary_search_by(ord) {
            Ok(place) => Ok(start + place),
            Err(place) => Err(start + place),
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_, T> {
        Iter {
            pieces: self.pieces.iter(),
            piece: [].iter(),
            left: self.len,
        }
    }

    /// Returns the piece that has a place, and the place of its first element.
    fn piece_of(&self, place: usize) -> Option<(&Arc<[T]>, usize)> {
        if place >= self.len {
            return None;
        }
        // Where it is when all pieces before it are full, as in a list that was made at once.
        let full = place / MOST;
        let behind = |at: usize| self.starts.get(at).is_none_or(|start| *start > place);
        let at = if !behind(full) && behind(full + 1) {
            full
        } else {
            let behind = self.starts.partition_point(|start| *start <= place);
            behind.checked_sub(1)?
        };
        Some((self.pieces.get(at)?, *self.starts.get(at)?))
    }

    fn add(&mut self, piece: Arc<[T]>) {
        if !piece.is_empty() {
            self.starts.push(self.len);
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The elements of a list in their order.
#[derive(Debug)]
pub(crate) struct Iter<'p, T> {
    pieces: slice::Iter<'p, Arc<[T]>>,
    piece: slice::Iter<'p, T>,
    left: usize,
}

impl<'p, T> Iterator for Iter<'p, T> {
    type Item = &'p T;

    fn next(&mut self) -> Option<&'p T> {
        let next = self.piece.next().or_else(|| {
            self.piece = self.pieces.next()?.iter();
            self.piece.next()
        })?;
        self.left -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}

/// Puts a list together from elements of the last one and new ones.
#[derive(Debug)]
pub(crate) struct Joiner<'o, T> {
    old: Option<&'o Pieces<T>>,
    done: Pieces<T>,
    /// What follows, not a piece yet; always fewer than [`TWO`].
    open: Vec<T>,
    /// Places of the last list that follow, not looked at yet.
    kept: Range<usize>,
    len: usize,
}

impl<'o, T: Clone> Joiner<'o, T> {
    /// Begins a list that has nothing yet.
    pub(crate) fn new(old: Option<&'o Pieces<T>>) -> Self {
        Self {
            old,
            done: Pieces::default(),
            open: Vec::new(),
            kept: 0..0,
            len: 0,
        }
    }

    /// Returns the number of elements so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the element at a place of the last list, which it must have.
    #[inline]
    pub(crate) fn keep(&mut self, place: usize) {
        debug_assert!(self.old.is_some_and(|old| place < old.len()));
        self.len += 1;
        if place == self.kept.end {
            self.kept.end += 1;
        } else {
            self.take_kept();
            self.kept = place..place + 1;
        }
    }

    /// Adds a new element.
    pub(crate) fn push(&mut self, new: T) {
        self.len += 1;
        self.take_kept();
        self.open(new);
    }

    pub(crate) fn finish(mut self) -> Pieces<T> {
        self.take_kept();
        self.close_all();
        self.done
    }

    fn open(&mut self, element: T) {
        if self.open.capacity() == 0 {
            self.open.reserve_exact(TWO);
        }
        self.open.push(element);
        if self.open.len() == TWO {
            self.close(MOST);
        }
    }

    /// Makes a piece of the first elements that are open.
    fn close(&mut self, count: usize) {
        self.done.add(self.open.drain(..count).collect());
    }

    /// Makes pieces of all that is open.
    fn close_all(&mut self) {
        if self.open.len() > MOST {
            self.close(self.open.len() / 2);
        }
        self.close(self.open.len());
    }

    /// Takes over what was kept: whole pieces as they are, other elements one by one.
    fn take_kept(&mut self) {
        while let Some(old) = self.old
            && let Some((piece, start)) = old.piece_of(self.kept.start)
            && !self.kept.is_empty()
        {
            let end = self.kept.end.min(start + piece.len());
            let whole = start == self.kept.start && end == start + piece.len();
            // Small ones are joined, or a list that grows at its end would have one for each change.
            if whole && piece.len() >= LEAST && (self.open.is_empty() || self.open.len() >= LEAST) {
                self.close_all();
                self.done.add(Arc::clone(piece));
            } else {
                for element in piece
                    .get(self.kept.start - start..end - start)
                    .into_iter()
                    .flatten()
                {
                    self.open(element.clone());
                }
            }
            self.kept.start = end;
        }
        self.kept = 0..0;
    }
}

#[cfg(test)]
mod tests;
