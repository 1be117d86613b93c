//! Cuts what a client sends into frames, and refuses what no frame can be.
//!
//! ```text
//!   preface ──▶ head (9 bytes) ─┬─ DATA ──▶ Data, then Bytes as they come
//!                                ├─ others ──▶ whole, once all of it is there
//!                                └─ unknown, PRIORITY, debug data ──▶ dropped as it comes
//! ```
//!
//! How the input is cut does not matter. Held are at most the head of a frame, or a frame that is
//! not DATA and has come in part. Which streams there are is not known here.

use bytes::{Buf, Bytes};

use crate::error::{ConnectionError, ErrorCode};
use crate::stream::StreamId;

/// Bytes before each frame.
pub(crate) const HEAD: usize = 9;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const WITH_PRIORITY: u8 = 0x20;

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The next part of a block of headers.
    Continuation {
        block: Bytes,
        end: bool,
    },
    /// DATA of `len` bytes has begun, of which `padding` are no payload. [`Frame::Bytes`]
    /// follow, unless [`Reader::skip`] is called.
    Data {
        stream: StreamId,
        len: u32,
        padding: u32,
    },
    /// A block of headers, or the first part of it.
    Headers {
        stream: StreamId,
        block: Bytes,
        end: bool,
        end_stream: bool,
    },
    /// Payload of DATA.
    Bytes {
        stream: StreamId,
        bytes: Bytes,
        end_stream: bool,
    },
    /// Wants an answer.
    Ping([u8; 8]),
    /// Is one.
    Pong([u8; 8]),
    Reset {
        stream: StreamId,
        code: ErrorCode,
    },
    Settings(Bytes),
    SettingsAck,
    WindowUpdate {
        /// 0 is the connection.
        stream: u32,
        increment: u32,
    },
}

/// Where a connection is in its frames.
#[derive(Debug)]
pub(crate) struct Reader {
    state: State,
    max_frame: u32,
    /// SETTINGS came, as they must before anything else.
    settled: bool,
    /// The stream whose block of headers has not ended.
    block: Option<u32>,
    /// Blocks of headers that have ended; wraps.
    blocks: u32,
}

#[derive(Debug)]
enum State {
    /// So many bytes of the preface have come.
    Preface(usize),
    /// So many bytes of a head have come.
    Head([u8; HEAD], usize),
    /// The head of padded DATA has come.
    PaddedData(Head),
    Data(Payload),
    /// A frame that is to be whole.
    Whole(Head, Vec<u8>),
    /// So many bytes are dropped, at most a frame.
    Skip(u32),
}

#[derive(Clone, Copy, Debug)]
struct Head {
    len: u32,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// What is left of a DATA frame.
#[derive(Clone, Copy, Debug)]
struct Payload {
    stream: StreamId,
    left: u32,
    padding: u32,
    end_stream: bool,
}

const NEW_HEAD: State = State::Head([0; HEAD], 0);

impl Reader {
    /// Accepts frames with payloads of at most `max_frame` bytes.
    pub(crate) fn new(max_frame: u32) -> Self {
        Self {
            state: State::Preface(0),
            max_frame,
            settled: false,
            block: None,
            blocks: 0,
        }
    }

    /// Returns the number of the block of headers that has come in part.
    pub(crate) fn unfinished_block(&self) -> Option<u32> {
        let within = match &self.state {
            State::Whole(head, _) => matches!(head.kind, HEADERS | CONTINUATION),
            State::Preface(_)
            | State::Head(..)
            | State::PaddedData(_)
            | State::Data(_)
            | State::Skip(_) => false,
        };
        (within || self.block.is_some()).then_some(self.blocks)
    }

    /// Returns whether a client's preface has come.
    pub(crate) fn is_begun(&self) -> bool {
        !matches!(self.state, State::Preface(_))
    }

    /// Drops the payload of the DATA frame that has just begun.
    pub(crate) fn skip(&mut self) {
        if let State::Data(payload) = self.state {
            self.state = skip(payload.left + payload.padding);
        }
    }

    /// Reads the next frame from `input`; `None` when there is none without more input.
    pub(crate) fn next(&mut self, input: &mut Bytes) -> Result<Option<Frame>, ConnectionError> {
        loop {
            match &mut self.state {
                State::Preface(matched) => {
                    let expected = PREFACE.get(*matched..).unwrap_or_default();
                    let len = expected.len().min(input.len());
                    if input.get(..len) != expected.get(..len) {
                        return Err(ConnectionError::protocol("no preface of HTTP/2"));
                    }
                    input.advance(len);
                    if len < expected.len() {
                        *matched += len;
                        return Ok(None);
                    }
                    self.state = NEW_HEAD;
                }
                State::Head(bytes, have) => {
                    let len = (HEAD - *have).min(input.len());
                    if let Some(space) = bytes.get_mut(*have..*have + len) {
                        input.copy_to_slice(space);
                    }
                    *have += len;
                    if *have < HEAD {
                        return Ok(None);
                    }
                    let head = Head::read(*bytes);
                    self.check(head)?;
                    if let Some(frame) = self.begin(head) {
                        return Ok(Some(frame));
                    }
                }
                State::PaddedData(head) => {
                    let (head, Some(&padding)) = (*head, input.first()) else {
                        return Ok(None);
                    };
                    input.advance(1);
                    let padding = u32::from(padding);
                    let left = head.len.checked_sub(1 + padding);
                    let left = left.ok_or(TOO_MUCH_PADDING)?;
                    return Ok(Some(self.begin_data(head, left, padding, 1 + padding)));
                }
                State::Data(payload) => {
                    let len = in_both(payload.left, input);
                    payload.left -= len;
                    let over = payload.left == 0;
                    if !over && len == 0 {
                        return Ok(None);
                    }
                    let frame = Frame::Bytes {
                        stream: payload.stream,
                        bytes: input.split_to(len as usize),
                        end_stream: over && payload.end_stream,
                    };
                    if over {
                        self.state = skip(payload.padding);
                    }
                    return Ok(Some(frame));
                }
                State::Whole(head, held) => {
                    let head = *head;
                    let missing = (head.len as usize).saturating_sub(held.len());
                    let payload = if held.is_empty() && input.len() >= missing {
                        input.split_to(missing)
                    } else {
                        let part = input.split_to(missing.min(input.len()));
                        held.extend_from_slice(&part);
                        if part.len() < missing {
                            return Ok(None);
                        }
                        std::mem::take(held).into()
                    };
                    self.state = NEW_HEAD;
                    if let Some(frame) = self.whole(head, payload)? {
                        return Ok(Some(frame));
                    }
                }
                State::Skip(left) => {
                    let len = in_both(*left, input);
                    input.advance(len as usize);
                    *left -= len;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = NEW_HEAD;
                }
            }
        }
    }

    /// Refuses what may not come now, and lengths that are wrong whatever is in the frame.
    fn check(&self, head: Head) -> Result<(), ConnectionError> {
        let Head { len, stream, .. } = head;
        if len > self.max_frame {
            return Err(ConnectionError::size("a frame longer than allowed"));
        }
        if !self.settled && (head.kind != SETTINGS || head.flags & ACK != 0) {
            return Err(ConnectionError::protocol("SETTINGS do not come first"));
        }
        let continues = head.kind == CONTINUATION && Some(stream) == self.block;
        if (self.block.is_some() || head.kind == CONTINUATION) && !continues {
            return Err(ConnectionError::protocol(
                "a block of headers is cut by a frame",
            ));
        }
        let (of_stream, right) = match head.kind {
            DATA | HEADERS => (Some(true), true),
            PRIORITY => (Some(true), len == 5),
            RST_STREAM => (Some(true), len == 4),
            SETTINGS if head.flags & ACK != 0 => (Some(false), len == 0),
            SETTINGS => (Some(false), len % 6 == 0),
            PUSH_PROMISE => return Err(ConnectionError::protocol("a client does not push")),
            PING => (Some(false), len == 8),
            GOAWAY => (Some(false), len >= 8),
            WINDOW_UPDATE => (None, len == 4),
            _ => (None, true),
        };
        if of_stream.is_some_and(|of_stream| of_stream == (stream == 0)) {
            return Err(ConnectionError::protocol("a frame of the wrong stream"));
        }
        if !right {
            return Err(ConnectionError::size("a frame of the wrong length"));
        }
        Ok(())
    }

    /// Goes on behind the head of a frame.
    fn begin(&mut self, head: Head) -> Option<Frame> {
        match head.kind {
            DATA if head.flags & PADDED == 0 => Some(self.begin_data(head, head.len, 0, 0)),
            DATA => {
                self.state = State::PaddedData(head);
                None
            }
            HEADERS | RST_STREAM | SETTINGS | PING | WINDOW_UPDATE | CONTINUATION => {
                self.state = State::Whole(head, Vec::new());
                None
            }
            _ => {
                // Priorities, which are out of use; that the client goes, which its end says as
                // well; and what is not known.
                self.state = skip(head.len);
                None
            }
        }
    }

    /// `behind` is what of the padding is still to come, `padding` all that is no payload.
    fn begin_data(&mut self, head: Head, left: u32, behind: u32, padding: u32) -> Frame {
        let stream = StreamId(head.stream);
        self.state = State::Data(Payload {
            stream,
            left,
            padding: behind,
            end_stream: head.flags & END_STREAM != 0,
        });
        Frame::Data {
            stream,
            len: head.len,
            padding,
        }
    }

    /// Reads a frame that is there.
    fn whole(&mut self, head: Head, payload: Bytes) -> Result<Option<Frame>, ConnectionError> {
        let end = head.flags & END_HEADERS != 0;
        Ok(Some(match head.kind {
            HEADERS => {
                self.block = (!end).then_some(head.stream);
                self.blocks = self.blocks.wrapping_add(u32::from(end));
                Frame::Headers {
                    stream: StreamId(head.stream),
                    block: block(head.flags, payload)?,
                    end,
                    end_stream: head.flags & END_STREAM != 0,
                }
            }
            CONTINUATION => {
                self.block = (!end).then_some(head.stream);
                self.blocks = self.blocks.wrapping_add(u32::from(end));
                Frame::Continuation {
                    block: payload,
                    end,
                }
            }
            RST_STREAM => Frame::Reset {
                stream: StreamId(head.stream),
                code: ErrorCode(number(&payload)),
            },
            SETTINGS if head.flags & ACK != 0 => Frame::SettingsAck,
            SETTINGS => {
                self.settled = true;
                Frame::Settings(payload)
            }
            PING => {
                let bytes = payload.first_chunk().copied().unwrap_or_default();
                match head.flags & ACK {
                    0 => Frame::Ping(bytes),
                    _ => Frame::Pong(bytes),
                }
            }
            WINDOW_UPDATE => Frame::WindowUpdate {
                stream: head.stream,
                increment: number(&payload) & !RESERVED,
            },
            _ => return Ok(None),
        }))
    }
}

impl Head {
    fn read(bytes: [u8; HEAD]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        Self {
            len: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & !RESERVED,
        }
    }
}

/// Writes the head of a frame; `len` is less than 2^24.
pub(crate) fn head(len: u32, kind: u8, flags: u8, stream: u32) -> [u8; HEAD] {
    let ([_, a, b, c], [d, e, f, g]) = (len.to_be_bytes(), stream.to_be_bytes());
    [a, b, c, kind, flags, d, e, f, g]
}

/// Returns the block of headers within the payload of HEADERS.
fn block(flags: u8, mut payload: Bytes) -> Result<Bytes, ConnectionError> {
    let mut padding = 0;
    if flags & PADDED != 0 {
        padding = usize::from(payload.first().copied().ok_or(NO_ROOM)?);
        payload.advance(1);
    }
    if flags & WITH_PRIORITY != 0 {
        if payload.len() < 5 {
            return Err(NO_ROOM);
        }
        payload.advance(5);
    }
    let len = payload.len().checked_sub(padding);
    payload.truncate(len.ok_or(TOO_MUCH_PADDING)?);
    Ok(payload)
}

fn skip(bytes: u32) -> State {
    match bytes {
        0 => NEW_HEAD,
        _ => State::Skip(bytes),
    }
}

/// How much of `left` there is in `input`.
fn in_both(left: u32, input: &Bytes) -> u32 {
    u32::try_from(input.len()).map_or(left, |len| len.min(left))
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload.first_chunk().copied().unwrap_or_default())
}

/// What a client sends first (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The highest bit of numbers of 31 bits.
const RESERVED: u32 = 1 << 31;
const TOO_MUCH_PADDING: ConnectionError =
    ConnectionError::protocol("more padding than the frame is long");
const NO_ROOM: ConnectionError = ConnectionError::size("a frame too short for its flags");
