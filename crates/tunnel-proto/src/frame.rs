//! Frames on a TCP stream: datagrams, and control messages between the two ends.
//!
//! ```text
//!  15 14 13                     0
//! ┌─────┬────────────────────────┬─────────────┐
//! │kind │ length, 1 to 16383     │ that many   │   big-endian
//! └─────┴────────────────────────┴─────────────┘
//!   0  a WireGuard datagram          1  a control message (see `Control`)
//!   2, 3  reserved: the stream cannot be understood any further and is closed
//! ```
//!
//! Kind 0 is the framing of plain WireGuard-over-TCP relays. There is no way to find the next
//! frame behind a broken one, so every error ends the stream; a control message of an unknown type
//! is no error. Nothing is authenticated here: what is in a datagram is WireGuard's matter, and
//! control messages are only ever hints.

mod control;

use bytes::{BufMut, BytesMut};

pub use control::{Control, Identity, MAX_CONTROL_LEN, MAX_IDENTITY_LEN};

use crate::wire::array;

/// Bytes of the header of a frame.
pub const HEADER_LEN: usize = 2;
/// The most bytes a frame can hold.
pub const MAX_LEN: u16 = 0x3fff;

/// A frame, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A control message.
    Control(Control<'a>),
    /// A WireGuard datagram, at least one byte; not looked into.
    Datagram(&'a [u8]),
}

/// Returns the header for a datagram, to be sent in front of it.
///
/// # Errors
///
/// [`FrameError::Empty`] and [`FrameError::TooLong`].
pub fn header(len: usize) -> Result<[u8; HEADER_LEN], FrameError> {
    encode_header(DATAGRAM, len)
}

/// Appends a control message with its header.
///
/// # Errors
///
/// [`FrameError::Control`] for [`Control::Unknown`], which cannot be sent.
pub fn put_control(control: &Control<'_>, out: &mut BytesMut) -> Result<(), FrameError> {
    let start = out.len();
    out.put_bytes(0, HEADER_LEN);
    let written = control.encode(out).and_then(|()| {
        let header = encode_header(CONTROL, out.len() - start - HEADER_LEN)?;
        crate::wire::put(out, start, &header);
        Ok(())
    });
    if written.is_err() {
        out.truncate(start);
    }
    written
}

fn encode_header(kind: u16, len: usize) -> Result<[u8; HEADER_LEN], FrameError> {
    match u16::try_from(len) {
        Ok(0) => Err(FrameError::Empty),
        Ok(len) if len <= MAX_LEN => Ok((kind << KIND_SHIFT | len).to_be_bytes()),
        _ => Err(FrameError::TooLong { len, max: MAX_LEN }),
    }
}

/// Takes a stream apart that arrives in chunks.
///
/// The frames do not depend on where the chunks end. A frame that lies whole in a chunk is
/// answered from there, without copying; of one that does not, at most its own length is held.
#[derive(Debug)]
pub struct Decoder {
    max: u16,
    /// The beginning of a frame, or the whole frame last answered.
    held: BytesMut,
    answered: bool,
    broken: Option<FrameError>,
}

impl Decoder {
    /// Returns a decoder that refuses datagrams of more than `max` bytes.
    #[must_use]
    pub fn new(max: u16) -> Self {
        Self {
            max: max.min(MAX_LEN),
            held: BytesMut::new(),
            answered: false,
            broken: None,
        }
    }

    /// Takes bytes off the front of `input` and answers the next frame, or `None` when all of
    /// `input` is taken and the frame is still incomplete. Call it until it returns `None`.
    ///
    /// # Errors
    ///
    /// Any [`FrameError`]; every later call answers the same.
    pub fn next<'x, 'a: 'x>(
        &'x mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Frame<'x>>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        if std::mem::take(&mut self.answered) {
            self.held.clear();
        }
        let complete = match self.advance(input) {
            Ok(complete) => complete,
            Err(error) => return Err(*self.broken.insert(error)),
        };
        let frame = match complete {
            None => return Ok(None),
            Some(Complete::Input(kind, body)) => read(kind, body),
            Some(Complete::Held(kind)) => {
                self.answered = true;
                read(kind, self.held.get(HEADER_LEN..).unwrap_or_default())
            }
        };
        match frame {
            Ok(frame) => Ok(Some(frame)),
            Err(error) => Err(*self.broken.insert(error)),
        }
    }

    /// Returns the bytes held of a frame that is not complete.
    #[must_use]
    pub fn pending(&self) -> usize {
        if self.answered { 0 } else { self.held.len() }
    }

    fn advance<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Complete<'a>>, FrameError> {
        if self.held.is_empty()
            && let Some((kind, len)) = self.header_of(input)?
            && let Some((frame, rest)) = input.split_at_checked(HEADER_LEN + len)
        {
            *input = rest;
            let body = frame.get(HEADER_LEN..).unwrap_or_default();
            return Ok(Some(Complete::Input(kind, body)));
        }
        self.hold(input, HEADER_LEN);
        let Some((kind, len)) = self.header_of(&self.held)? else {
            return Ok(None);
        };
        self.hold(input, HEADER_LEN + len);
        Ok((self.held.len() == HEADER_LEN + len).then_some(Complete::Held(kind)))
    }

    /// Moves bytes from `input` until `wanted` are held.
    fn hold(&mut self, input: &mut &[u8], wanted: usize) {
        let missing = wanted.saturating_sub(self.held.len());
        let (taken, rest) = input.split_at_checked(missing).unwrap_or((input, &[]));
        self.held.extend_from_slice(taken);
        *input = rest;
    }

    fn header_of(&self, bytes: &[u8]) -> Result<Option<(u16, usize)>, FrameError> {
        let Some(header) = array(bytes, 0).map(u16::from_be_bytes) else {
            return Ok(None);
        };
        let (kind, len) = (header >> KIND_SHIFT, header & MAX_LEN);
        let max = match kind {
            DATAGRAM => self.max,
            CONTROL => MAX_CONTROL_LEN,
            reserved => return Err(FrameError::Kind(reserved)),
        };
        match len {
            0 => Err(FrameError::Empty),
            len if len > max => Err(FrameError::TooLong {
                len: usize::from(len),
                max,
            }),
            len => Ok(Some((kind, usize::from(len)))),
        }
    }
}

/// A whole frame: its kind, and its body or where that is.
enum Complete<'a> {
    Held(u16),
    Input(u16, &'a [u8]),
}

fn read(kind: u16, body: &[u8]) -> Result<Frame<'_>, FrameError> {
    if kind == DATAGRAM {
        return Ok(Frame::Datagram(body));
    }
    Control::decode(body).map(Frame::Control)
}

const KIND_SHIFT: u32 = 14;
const DATAGRAM: u16 = 0;
const CONTROL: u16 = 1;

/// Why a stream of frames cannot go on, or a frame cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A control message of a known type is cut short or holds what it must not.
    #[error("malformed control message of type {0}")]
    Control(u8),
    /// The frame is empty.
    #[error("empty frame")]
    Empty,
    /// The kind is reserved.
    #[error("frame of reserved kind {0}")]
    Kind(u16),
    /// The frame is longer than allowed.
    #[error("frame of {len} bytes, {max} are allowed")]
    TooLong {
        /// Bytes of the frame.
        len: usize,
        /// Bytes allowed.
        max: u16,
    },
}

impl FrameError {
    /// Returns the label for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Control(_) => "frame_control",
            Self::Empty => "frame_empty",
            Self::Kind(_) => "frame_kind",
            Self::TooLong { .. } => "frame_too_long",
        }
    }
}
