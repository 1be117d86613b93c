//! One stream: what has come and was not read, and what waits to be sent.
//!
//! ```text
//!   Bytes ──▶ Received ──▶ read            send ──▶ out ──▶ frames, as windows allow
//! ```
//!
//! Frames, windows of the connection, and the order of streams are `Connection`'s.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::error::StreamEnd;
use crate::fields::Fields;
use crate::flow::Window;
use crate::send_buffer::SendBuffer;

/// The number of a stream, unique on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u32);

/// What a stream has for its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes, at most those of a frame; say with [`Connection::consumed`](crate::Connection::consumed)
    /// when they are no longer held.
    Data(Bytes),
    /// Trailers, behind which there is only the end.
    Trailers(Fields),
    /// The client has sent all it had.
    End,
}

/// A stream that was begun, until both its end and its owner's word have come.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) window: Window,
    pub(crate) received: Received,
    /// Of the length that the client has said, what has not come.
    pub(crate) missing: Option<u64>,
    pub(crate) trailers: Option<Box<Fields>>,
    /// The client sends no more.
    pub(crate) remote_ended: bool,
    /// What comes is not read.
    pub(crate) unread: bool,
    pub(crate) local: Local,
    /// The block of an answer's headers, until it is sent.
    pub(crate) head: Vec<u8>,
    /// What may be sent; less than nothing after the client has made its windows smaller.
    pub(crate) send_window: i64,
    pub(crate) out: SendBuffer,
    /// Set once the stream is over before its time.
    pub(crate) end: Option<StreamEnd>,
    /// The owner has seen the request.
    pub(crate) seen: bool,
    /// The owner has let go of it.
    pub(crate) released: bool,
    /// It is in the list of those with something to send.
    pub(crate) queued: bool,
    /// The owner has been told that something changed, and has not asked since.
    pub(crate) noted: bool,
    /// The owner waits for capacity, or until all is sent.
    pub(crate) waits: bool,
    pub(crate) waits_sent: bool,
    /// It waits in the list of those for whom there is none on the connection.
    pub(crate) crowded: bool,
}

/// How far this side is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// Has not answered yet.
    Asked,
    /// Has answered, and may send.
    Open,
    /// Sends what waits, then this block of trailers, or of an answer's headers that nothing follows.
    Ending(Vec<u8>),
    /// Has sent everything.
    Ended,
}

impl Stream {
    pub(crate) fn new(id: StreamId, receive_window: u32, send_window: u32) -> Self {
        Self {
            id,
            window: Window::new(receive_window),
            received: Received::default(),
            missing: None,
            trailers: None,
            remote_ended: false,
            unread: false,
            local: Local::Asked,
            head: Vec::new(),
            send_window: i64::from(send_window),
            out: SendBuffer::default(),
            end: None,
            seen: false,
            released: false,
            queued: false,
            noted: false,
            waits: false,
            waits_sent: false,
            crowded: false,
        }
    }

    /// Returns whether it counts among those that a client may have.
    pub(crate) fn is_open(&self) -> bool {
        self.end.is_none() && !(self.remote_ended && self.local == Local::Ended)
    }

    /// Returns whether as much has come as the client has said, if it has.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing.is_none_or(|missing| missing == 0)
    }

    /// Returns what the stream's own window leaves for what is not sent yet.
    pub(crate) fn capacity(&self) -> usize {
        let waiting = i64::try_from(self.out.len()).unwrap_or(i64::MAX);
        usize::try_from(self.send_window.saturating_sub(waiting)).unwrap_or(0)
    }

    /// Returns whether frames can be made of it, as far as it is concerned.
    pub(crate) fn is_sendable(&self) -> bool {
        !self.head.is_empty()
            || match self.out.is_empty() {
                true => matches!(self.local, Local::Ending(_)),
                false => self.send_window > 0,
            }
    }
}

/// Bytes that were not read. Small ones are put together, and so are those behind a few large ones: each would keep
/// the whole buffer that it came in.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pieces: VecDeque<Bytes>,
    /// Behind them.
    small: BytesMut,
}

impl Received {
    /// Adds bytes; up to `max_copied` of them are copied, and more behind large ones.
    pub(crate) fn push(&mut self, bytes: Bytes, max_copied: usize) {
        if bytes.len() <= max_copied || self.pieces.len() >= AS_THEY_CAME {
            self.small.extend_from_slice(&bytes);
            return;
        }
        self.settle();
        self.pieces.push_back(bytes);
    }

    /// Returns the next bytes, at most `max`: what is not taken stays within the window.
    pub(crate) fn pop(&mut self, max: usize) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.settle();
        }
        let piece = match self.pieces.front_mut() {
            Some(first) if first.len() > max => Some(first.split_to(max)),
            _ => self.pieces.pop_front(),
        };
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        piece
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.small.is_empty()
    }

    fn settle(&mut self) {
        if !self.small.is_empty() {
            let small = std::mem::take(&mut self.small);
            self.pieces.push_back(small.freeze());
        }
    }

    /// Drops everything, and returns how much it was.
    pub(crate) fn clear(&mut self) -> usize {
        let pieces: usize = self.pieces.iter().map(Bytes::len).sum();
        let len = pieces + self.small.len();
        *self = Self::default();
        len
    }
}

/// Large pieces that may wait as they came: the frames of one read. Those behind them wait for a reader that is slow.
const AS_THEY_CAME: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_bytes_are_put_together() {
        let mut received = Received::default();
        for byte in 0..100 {
            received.push(Bytes::from(vec![byte]), 99);
        }
        let large = Bytes::from(vec![7; 100]);
        received.push(large.clone(), 99);
        received.push(Bytes::from_static(b"end"), 99);
        assert_eq!(received.pop(70).unwrap().len(), 70);
        assert_eq!(received.pop(70).unwrap().len(), 30);
        assert_eq!(received.pop(100).unwrap().as_ptr(), large.as_ptr());
        assert_eq!(received.pop(100).unwrap(), "end");
        assert_eq!(received.pop(100), None);
        assert_eq!(received.pieces.capacity(), 0);
    }

    #[test]
    fn pieces_that_wait_keep_few_buffers() {
        let mut received = Received::default();
        let buffers: Vec<_> = (0..32).map(|at| Bytes::from(vec![at; 64 << 10])).collect();
        for buffer in &buffers {
            received.push(buffer.slice(..4096), 4095);
        }
        let kept = buffers.iter().filter(|buffer| !buffer.is_unique());
        assert_eq!(kept.count(), AS_THEY_CAME);
        let mut all = Vec::new();
        while let Some(piece) = received.pop(16_384) {
            all.extend_from_slice(&piece);
        }
        assert!(
            all.chunks(4096)
                .eq(buffers.iter().map(|buffer| &buffer[..4096]))
        );
    }
}
