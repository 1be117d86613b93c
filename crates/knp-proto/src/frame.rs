//! Messages on a gRPC stream: one byte of flags, the length in four, the message.
//!
//! ```text
//! DATA frames of HTTP/2 ──▶ Deframer ──▶ messages        message length ──▶ put_head ──▶ five bytes
//! ```
//!
//! Knows nothing of HTTP/2, nor of what the messages say.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes before each message.
pub const HEAD: usize = 5;

/// Why a stream is no sequence of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Flags other than none: compression was not agreed on.
    #[error("a message with flags {0:#04x}, though compression was not agreed on")]
    Flags(u8),
    /// A message longer than accepted.
    #[error("a message of {len} bytes, more than {max}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The longest accepted.
        max: usize,
    },
}

/// Writes what goes before a message of `len` bytes, less than 4 GiB.
pub fn put_head(len: usize, buf: &mut BytesMut) {
    buf.put_u8(0);
    buf.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// Cuts a stream into messages. One that lies within one piece of the stream is not copied.
#[derive(Debug)]
pub struct Deframer {
    /// As they came.
    pieces: VecDeque<Bytes>,
    /// What came after all of `pieces`, copied.
    tail: BytesMut,
    /// Messages were taken of `tail` since it was made, and keep it in memory, as it keeps them.
    cut: bool,
    len: usize,
    max: usize,
}

impl Deframer {
    /// Accepts messages of at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            tail: BytesMut::new(),
            cut: false,
            len: 0,
            max,
        }
    }

    /// Adds the next piece of the stream. Take all messages before the next piece, then no more
    /// than one message and one piece are ever held.
    pub fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        // With nothing before it, it may be whole messages.
        let whole = self.len == 0 || piece.len() >= COPY_BELOW;
        self.len += piece.len();
        if whole {
            if !self.tail.is_empty() {
                let tail = std::mem::take(&mut self.tail);
                self.pieces.push_back(tail.freeze());
            }
            self.pieces.push_back(piece);
        } else {
            self.tail.extend_from_slice(&piece);
        }
    }

    /// Returns how many bytes are held of a message that is not complete.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the stream may end here: not within a message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the next message, if it is complete.
    ///
    /// # Errors
    /// [`FrameError`], as soon as the head of a message is there, and again each time.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some([flags, length @ ..]) = self.head() else {
            self.copy_rest();
            return Ok(None);
        };
        let len = u32::from_be_bytes(length) as usize;
        if flags != 0 {
            return Err(FrameError::Flags(flags));
        }
        if len > self.max {
            return Err(FrameError::TooLong { len, max: self.max });
        }
        if self.len < HEAD + len {
            self.copy_rest();
            return Ok(None);
        }
        self.take(HEAD);
        Ok(Some(self.take(len)))
    }

    fn head(&self) -> Option<[u8; HEAD]> {
        let mut bytes = self.pieces.iter().flatten().chain(&self.tail);
        let mut head = [0; HEAD];
        for byte in &mut head {
            *byte = *bytes.next()?;
        }
        Some(head)
    }

    /// Copies what is left once all messages are taken, if it is little: it would keep the whole buffer that
    /// it is a slice of.
    fn copy_rest(&mut self) {
        if std::mem::take(&mut self.cut) {
            self.tail = BytesMut::from(&*self.tail);
        }
        if self.tail.is_empty() && self.pieces.iter().all(|piece| piece.len() < COPY_BELOW) {
            for piece in self.pieces.drain(..) {
                self.tail.extend_from_slice(&piece);
            }
        }
    }

    /// Takes `len` bytes, which must be there.
    fn take(&mut self, len: usize) -> Bytes {
        self.len -= len;
        if let Some(front) = self.pieces.front_mut()
            && front.len() >= len
        {
            let taken = front.split_to(len);
            if front.is_empty() {
                self.pieces.pop_front();
            }
            return taken;
        }
        if self.pieces.is_empty() {
            self.cut = true;
            return self.tail.split_to(len.min(self.tail.len())).freeze();
        }
        let mut gathered = BytesMut::with_capacity(len);
        while gathered.len() < len {
            let Some(front) = self.pieces.front_mut() else {
                break;
            };
            let part = front.len().min(len - gathered.len());
            gathered.put((&mut *front).take(part));
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
        let rest = (len - gathered.len()).min(self.tail.len());
        self.cut |= rest > 0;
        gathered.put(self.tail.split_to(rest));
        gathered.freeze()
    }
}

/// Pieces of an incomplete message below this are copied, as [`ByteQueue`](crate::queue::ByteQueue) does.
const COPY_BELOW: usize = 32 << 10;
