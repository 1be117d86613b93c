//! What the two sides of a connection let each other do (RFC 9113 section 6.5).
//!
//! ```text
//!   Params ──▶ SETTINGS ──▶ peer          peer ──▶ SETTINGS ──▶ Peer
//! ```
//!
//! When settings take effect is for `Connection`.

use crate::error::{ConnectionError, ErrorCode};
use crate::flow::{FIRST_WINDOW, MAX_WINDOW};

/// What a server lets its peer do, and holds for it at most.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Bytes that may wait on a stream to be read.
    pub stream_window: u32,
    /// Bytes that may wait on all streams to be read; at least 65,535.
    pub connection_window: u32,
    /// Bytes of a frame's payload, in both directions; 16,384 to 16,777,215.
    pub max_frame: u32,
    /// Streams at a time.
    pub max_streams: u32,
    /// Bytes of a request's head: as it is sent, and as RFC 9113 section 10.5.1 counts it.
    pub max_head: u32,
    /// Bytes of a piece of DATA that is copied while it waits to be read; a larger one keeps all that was read with
    /// it.
    pub max_copied: usize,
    /// Bytes of the table of headers that a client may have us keep, at most 4096; 0 costs no memory while a
    /// connection is idle, and the client sends the same headers again and again.
    pub header_table: u32,
    /// Bytes that may wait to be written, beyond the end of one packet for each stream.
    pub send_buffer: usize,
}

/// What the peer lets this side do.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream_window: u32,
    pub(crate) max_frame: u32,
}

impl Peer {
    /// Makes what holds until the peer says otherwise.
    pub(crate) fn new() -> Self {
        Self {
            stream_window: FIRST_WINDOW,
            max_frame: SMALLEST_MAX_FRAME,
        }
    }

    /// Applies the payload of a SETTINGS frame.
    pub(crate) fn apply(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        let (settings, _) = payload.as_chunks::<6>();
        for [high, low, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*high, *low]) {
                ENABLE_PUSH if value > 1 => {
                    return Err(ConnectionError::protocol("ENABLE_PUSH is a flag"));
                }
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                    let text = "INITIAL_WINDOW_SIZE is too large";
                    return Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, text));
                }
                INITIAL_WINDOW_SIZE => self.stream_window = value,
                MAX_FRAME_SIZE if !(SMALLEST_MAX_FRAME..=LARGEST_MAX_FRAME).contains(&value) => {
                    return Err(ConnectionError::protocol("MAX_FRAME_SIZE is out of range"));
                }
                MAX_FRAME_SIZE => self.max_frame = value,
                // What this side sends depends on no other, and unknown ones mean nothing.
                _ => {}
            }
        }
        Ok(())
    }
}

impl Params {
    /// Returns the payload of a server's SETTINGS.
    pub(crate) fn payload(&self) -> [u8; 30] {
        let settings = [
            (HEADER_TABLE_SIZE, self.header_table),
            (MAX_CONCURRENT_STREAMS, self.max_streams),
            (INITIAL_WINDOW_SIZE, self.stream_window),
            (MAX_FRAME_SIZE, self.max_frame),
            (MAX_HEADER_LIST_SIZE, self.max_head),
        ];
        let mut payload = [0; 30];
        let (chunks, _) = payload.as_chunks_mut::<6>();
        for (chunk, (id, value)) in chunks.iter_mut().zip(settings) {
            let ([high, low], [a, b, c, d]) = (id.to_be_bytes(), value.to_be_bytes());
            *chunk = [high, low, a, b, c, d];
        }
        payload
    }
}

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const SMALLEST_MAX_FRAME: u32 = 1 << 14;
const LARGEST_MAX_FRAME: u32 = (1 << 24) - 1;
