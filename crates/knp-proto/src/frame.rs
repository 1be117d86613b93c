//! Messages on a gRPC stream: one byte of flags, the length in four, the message.
//!
//! ```text
//! DATA frames of HTTP/2 ──▶ Deframer ──▶ messages        message length ──▶ put_head ──▶ five bytes
//! ```
//!
//! Knows nothing of HTTP/2, nor of what the messages say.

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

/// Cuts a stream into messages. One that lies within one piece of the stream is not copied; the start of one that
/// does not is, at once: it would keep the whole buffer that it is a slice of.
#[derive(Debug)]
pub struct Deframer {
    /// The start of a message that is not complete, with room for no more than that message.
    start: Vec<u8>,
    /// What came last.
    piece: Bytes,
    max: usize,
}

impl Deframer {
    /// Accepts messages of at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            start: Vec::new(),
            piece: Bytes::new(),
            max,
        }
    }

    /// Adds the next piece of the stream. Take all messages before the next piece, then no more
    /// than one message and one piece are ever held.
    pub fn push(&mut self, piece: Bytes) {
        self.piece = if self.piece.is_empty() {
            piece
        } else {
            [&*self.piece, &piece].concat().into()
        };
    }

    /// Returns how many bytes are held of a message that is not complete.
    #[must_use]
    pub fn len(&self) -> usize {
        self.start.len() + self.piece.len()
    }

    /// Returns whether the stream may end here: not within a message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next message, if it is complete.
    ///
    /// # Errors
    /// [`FrameError`], as soon as the head of a message is there, and again each time.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        let len = self.message_len()?;
        let whole = len.map_or(HEAD, |len| HEAD + len);
        let mut message = if self.start.is_empty() && self.piece.len() >= whole {
            self.piece.split_to(whole)
        } else {
            let wanted = (whole - self.start.len()).min(self.piece.len());
            self.copy(wanted, whole);
            if len.is_none() || self.start.len() < whole {
                return Ok(None);
            }
            std::mem::take(&mut self.start).into()
        };
        message.advance(HEAD);
        Ok(Some(message))
    }

    /// Returns how long the next message is, if its head is there.
    fn message_len(&self) -> Result<Option<usize>, FrameError> {
        let mut bytes = self.start.iter().chain(&self.piece);
        let mut head = [0; HEAD];
        for byte in &mut head {
            let Some(next) = bytes.next() else {
                return Ok(None);
            };
            *byte = *next;
        }
        let [flags, len @ ..] = head;
        let len = u32::from_be_bytes(len) as usize;
        if flags != 0 {
            return Err(FrameError::Flags(flags));
        }
        if len > self.max {
            return Err(FrameError::TooLong { len, max: self.max });
        }
        Ok(Some(len))
    }

    /// Copies `len` bytes more of a message that takes `whole`, of which a peer may never send the rest.
    fn copy(&mut self, len: usize, whole: usize) {
        let held = self.start.len() + len;
        if held > self.start.capacity() {
            let room = whole.min(ROOM.max(2 * held));
            self.start.reserve_exact(room - self.start.len());
        }
        self.start.extend_from_slice(&self.piece.split_to(len));
    }
}

/// Room for the start of a message, or for twice that.
const ROOM: usize = 8 << 10;
