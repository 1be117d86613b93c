//! What waits to be written on a stream, as frames.
//!
//! ```text
//!   slot, control ─▶ buffer with header ─▶ Queue ─ refill ─▶ writing ─▶ with_slices, advance
//!                        ▲                   │ dropped          │ written
//!                        └────── free ◀──────┴──────────────────┘
//! ```
//!
//! Frames in the queue may be dropped, whole. Those being written have left it, few at a time: a
//! socket that stopped in the middle of one goes on there. No sockets and no clock.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

use bytes::BytesMut;
use tunnel_proto::codel::{Band, Params, Queue, Stats};
use tunnel_proto::frame::{self, Control, HEADER_LEN};

/// Frames of one call.
const MAX_SLICES: usize = 64;
/// Bytes of one call where the kernel's buffer has no limit of ours.
const MAX_WRITE: usize = 64 * 1024;
/// Bytes of buffers that are kept for the next frames.
const MAX_FREE: usize = 512 * 1024;

/// The outgoing half of a stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    queue: Queue<Buffer>,
    writing: VecDeque<Buffer>,
    /// Bytes of the first frame being written that are written.
    offset: usize,
    /// Bytes that leave the queue at once.
    quantum: usize,
    free: Free,
}

/// A frame, in memory that may be larger.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    len: usize,
}

impl Buffer {
    fn frame(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Outgoing {
    pub(super) fn new(queue: Params, notsent_lowat: u32) -> Self {
        let mut outgoing = Self {
            queue: Queue::new(queue),
            writing: VecDeque::new(),
            offset: 0,
            quantum: MAX_WRITE,
            free: Free::default(),
        };
        outgoing.set_notsent_lowat(notsent_lowat);
        outgoing
    }

    /// Follows what the kernel's limit is; 0: none.
    pub(super) fn set_notsent_lowat(&mut self, bytes: u32) {
        // The socket becomes writable again when the kernel holds less than half of its limit
        // (tcp_stream_memory_free): what then leaves the queue fits, and waits nowhere else.
        self.quantum = match bytes as usize / 2 {
            0 => MAX_WRITE,
            half => half.min(MAX_WRITE),
        };
    }

    /// Queues a datagram whose bytes, `max` at most, `fill` puts where they are sent from. It
    /// answers how many there are; if none, nothing is queued.
    pub(crate) fn slot(
        &mut self,
        now: Instant,
        band: Band,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let mut bytes = self.free.take();
        let max_len = HEADER_LEN + max;
        if bytes.len() < max_len {
            bytes.resize(max_len, 0);
        }
        let buf = bytes.get_mut(HEADER_LEN..max_len).unwrap_or_default();
        let filled = fill(buf).min(max);
        let Ok(header) = frame::header(filled) else {
            return self.free.put(bytes);
        };
        bytes[..HEADER_LEN].copy_from_slice(&header);
        let len = HEADER_LEN + filled;
        self.push(now, band, Buffer { bytes, len });
    }

    /// Queues a control message, ahead of bulk.
    pub(crate) fn control(&mut self, now: Instant, control: &Control<'_>) {
        let mut encoded = BytesMut::new();
        // Only a message of an unknown type cannot be written; none is made here.
        if frame::put_control(control, &mut encoded).is_err() {
            return;
        }
        let mut bytes = self.free.take();
        let len = encoded.len();
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        bytes[..len].copy_from_slice(&encoded);
        self.push(now, Band::Urgent, Buffer { bytes, len });
    }

    fn push(&mut self, now: Instant, band: Band, buffer: Buffer) {
        let (free, len) = (&mut self.free, buffer.len);
        self.queue
            .push(now, band, buffer, len, |dropped, _| free.put(dropped.bytes));
    }

    /// Moves frames out of the queue once those being written are done.
    pub(super) fn refill(&mut self, now: Instant) {
        if !self.writing.is_empty() {
            return;
        }
        let (free, mut bytes) = (&mut self.free, 0);
        while self.writing.len() < MAX_SLICES && bytes < self.quantum {
            let popped = self.queue.pop(now, |dropped, _| free.put(dropped.bytes));
            let Some(buffer) = popped else {
                break;
            };
            bytes += buffer.len;
            self.writing.push_back(buffer);
        }
    }

    /// Hands out the bytes being written.
    pub(super) fn with_slices<T>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut offset = self.offset;
        for (slice, buffer) in slices.iter_mut().zip(&self.writing) {
            let rest = buffer.frame().get(offset..).unwrap_or_default();
            (*slice, offset) = (IoSlice::new(rest), 0);
        }
        let count = self.writing.len().min(MAX_SLICES);
        write(slices.get(..count).unwrap_or_default())
    }

    /// Records that the first `len` of those bytes are written.
    pub(super) fn advance(&mut self, len: usize) {
        self.offset += len;
        while let Some(buffer) = self.writing.front() {
            if self.offset < buffer.len {
                break;
            }
            self.offset -= buffer.len;
            if let Some(written) = self.writing.pop_front() {
                self.free.put(written.bytes);
            }
        }
    }

    /// Frees the memory of sent frames, after a time without traffic.
    pub(crate) fn shrink(&mut self) {
        self.free = Free::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writing.is_empty() && self.queue.is_empty()
    }

    /// Returns what became of frames in the queue.
    pub(crate) fn stats(&self) -> Stats {
        self.queue.stats()
    }
}

/// Buffers of frames that are gone.
#[derive(Debug, Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Free {
    fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    fn put(&mut self, buffer: Vec<u8>) {
        if self.bytes + buffer.capacity() <= MAX_FREE {
            self.bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }
}
