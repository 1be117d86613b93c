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
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = BytesMut::new();
        for message in messages {
            put_head(message.len(), &mut stream);
            stream.put_slice(message);
        }
        stream.to_vec()
    }

    fn all(deframer: &mut Deframer) -> Vec<Vec<u8>> {
        let messages = std::iter::from_fn(|| deframer.next_message().unwrap());
        messages.map(|message| message.to_vec()).collect()
    }

    #[test]
    fn a_message_within_one_piece_is_not_copied() {
        let piece = Bytes::from(framed(&[vec![7; 100]]));
        let mut deframer = Deframer::new(1000);
        deframer.push(piece.clone());
        let message = deframer.next_message().unwrap().unwrap();
        assert_eq!(message.as_ptr(), piece.slice(HEAD..).as_ptr());
        assert!(deframer.is_empty());
    }

    #[test]
    fn refuses_flags_and_lengths() {
        for (head, error) in [
            ([1, 0, 0, 0, 0], FrameError::Flags(1)),
            ([0, 0, 0, 0, 11], FrameError::TooLong { len: 11, max: 10 }),
        ] {
            let mut deframer = Deframer::new(10);
            deframer.push(Bytes::copy_from_slice(&head));
            assert_eq!(deframer.next_message(), Err(error));
        }
    }

    proptest! {
        #[test]
        fn how_the_stream_is_cut_does_not_matter(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10),
            cuts in proptest::collection::vec(1usize..20, 1..20),
        ) {
            let stream = Bytes::from(framed(&messages));
            let mut deframer = Deframer::new(40);
            let (mut rest, mut got) = (stream, Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                deframer.push(rest.split_to((*cut).min(rest.len())));
                got.extend(all(&mut deframer));
            }
            prop_assert_eq!(got, messages);
            prop_assert!(deframer.is_empty());
        }

        #[test]
        fn any_bytes_are_an_answer(bytes: Vec<u8>, max in 0usize..100) {
            let mut deframer = Deframer::new(max);
            deframer.push(Bytes::from(bytes));
            while let Ok(Some(_)) = deframer.next_message() {}
        }
    }
}
