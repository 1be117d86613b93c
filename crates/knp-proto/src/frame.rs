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
    pieces: VecDeque<Bytes>,
    len: usize,
    max: usize,
}

impl Deframer {
    /// Accepts messages of at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
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
        self.len += piece.len();
        match self.pieces.pop_back() {
            // What comes byte by byte must not keep a buffer for each.
            Some(last) if piece.len() < GATHER_BELOW => {
                let last = last.try_into_mut();
                let mut last = last.unwrap_or_else(|last| BytesMut::from(&*last));
                last.extend_from_slice(&piece);
                self.pieces.push_back(last.freeze());
            }
            last => self.pieces.extend(last.into_iter().chain([piece])),
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
            return Ok(None);
        }
        self.take(HEAD);
        Ok(Some(self.take(len)))
    }

    fn head(&self) -> Option<[u8; HEAD]> {
        let mut bytes = self.pieces.iter().flatten();
        let mut head = [0; HEAD];
        for byte in &mut head {
            *byte = *bytes.next()?;
        }
        Some(head)
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
        gathered.freeze()
    }
}

/// Pieces of an incomplete message below this are gathered.
const GATHER_BELOW: usize = 4096;
