//! What goes out, and when more may be sent.
//!
//! ```text
//!   send ──▶ Stream::out ─┐
//!   respond, answers ──▶ control ─┴─ transmit ──▶ output ──▶ slices, written
//! ```
//!
//! Frames are made when they can be written, no sooner: what has to wait does so in its stream,
//! and not before the others.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Connection, Ended};
use crate::error::{ErrorCode, StreamEnd};
use crate::hpack;
use crate::reader;
use crate::send_buffer::SendBuffer;
use crate::stream::{Local, StreamId};

impl Connection {
    /// Answers a request with the fields of a head, in which `:status` comes first; `end` says that
    /// nothing follows. Only the first answer counts.
    pub fn respond(&mut self, id: StreamId, fields: &[(&[u8], &[u8])], end: bool) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.end.is_some() || stream.local != Local::Asked {
            return;
        }
        let block = encoded(fields);
        match end {
            true => stream.local = Local::Ending(block),
            false => (stream.local, stream.head) = (Local::Open, block),
        }
        self.hasty = self.hasty.saturating_sub(1);
        self.enqueue(id);
    }

    /// Returns how many bytes may be sent now. When there is none, [`Event::Changed`] tells
    /// of it later. More may be sent; it waits.
    ///
    /// # Errors
    /// [`StreamEnd`] when the stream is over.
    ///
    /// [`Event::Changed`]: super::Event::Changed
    pub fn capacity(&mut self, id: StreamId) -> Result<usize, StreamEnd> {
        let shared = self.shared_room();
        let stream = self.stream(id).ok_or(StreamEnd::Lost)?;
        if let Some(end) = stream.end {
            return Err(end);
        }
        let own = stream.capacity();
        let capacity = own.min(shared.saturating_sub(stream.out.len()));
        stream.waits = capacity == 0;
        if capacity == 0 && own > 0 && !std::mem::replace(&mut stream.crowded, true) {
            self.crowd.push(id);
        }
        Ok(capacity)
    }

    /// Sends `head`, which is copied, and `payload` behind it, which is not if it is worth it.
    ///
    /// # Errors
    /// [`StreamEnd`] when the stream is over.
    pub fn send(&mut self, id: StreamId, head: &[u8], payload: Bytes) -> Result<(), StreamEnd> {
        let stream = self.stream(id).ok_or(StreamEnd::Lost)?;
        if let Some(end) = stream.end {
            return Err(end);
        }
        stream.out.put(head);
        stream.out.push(payload);
        self.enqueue(id);
        Ok(())
    }

    /// Ends a stream in order: trailers, if there are any, go out behind all that was sent.
    pub fn end(&mut self, id: StreamId, trailers: &[(&[u8], &[u8])]) {
        let block = encoded(trailers);
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.end.is_none() && stream.local == Local::Open {
            stream.local = Local::Ending(block);
            self.enqueue(id);
        }
    }

    /// Returns whether a stream was ended in order and is on its way as a whole. When it is not,
    /// [`Event::Changed`] tells of it later.
    ///
    /// # Errors
    /// [`StreamEnd`] when the stream is over before its time.
    ///
    /// [`Event::Changed`]: super::Event::Changed
    pub fn is_sent(&mut self, id: StreamId) -> Result<bool, StreamEnd> {
        // Frames are made now, as far as there is room: it need not be asked twice.
        self.transmit();
        let stream = self.stream(id).ok_or(StreamEnd::Lost)?;
        let sent = stream.local == Local::Ended;
        stream.waits_sent = !sent;
        match stream.end {
            Some(end) if !sent => Err(end),
            _ => Ok(sent),
        }
    }

    /// Ends a stream now; what was not sent is dropped.
    pub fn reset(&mut self, id: StreamId, code: ErrorCode) {
        let over = self.stream(id).is_some_and(|stream| stream.end.is_some());
        if over || self.ended == Ended::Yes {
            return;
        }
        self.answer(reader::RST_STREAM, 0, id, &code.0.to_be_bytes());
        self.cut(id, StreamEnd::Reset(code));
    }

    /// Makes frames of what may be sent now, and returns what is to be written. Say with
    /// [`Connection::written`] how much was.
    pub fn transmit(&mut self) -> &SendBuffer {
        if self.output.len() < self.params.send_buffer {
            self.output.put(&std::mem::take(&mut self.control));
        }
        while self.output.len() < self.params.send_buffer
            && let Some(id) = self.queue.pop_front()
        {
            if !self.frame_of(id) {
                self.blocked.push_back(id);
            }
        }
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        &self.output
    }

    /// Makes a frame of the next stream; false when the connection's window is closed.
    fn frame_of(&mut self, id: StreamId) -> bool {
        let largest = self.peer.max_frame.min(self.params.max_frame);
        let most = usize::try_from(self.send_window.min(i64::from(largest))).unwrap_or(0);
        let (output, fresh) = (&mut self.output, &mut self.fresh);
        let Ok(at) = (self.streams).binary_search_by_key(&id, |stream| stream.id) else {
            return true;
        };
        let Some(stream) = self.streams.get_mut(at) else {
            return true;
        };
        stream.queued = false;
        if !stream.head.is_empty() {
            let head = std::mem::take(&mut stream.head);
            put_block(output, fresh, id, head, 0);
        }
        let mut ended = false;
        if !stream.out.is_empty() {
            let window = usize::try_from(stream.send_window).unwrap_or(0);
            let len = stream.out.len().min(window).min(most);
            if len == 0 {
                stream.queued = most == 0 && window > 0;
                return !stream.queued;
            }
            let bytes = u32::try_from(len).unwrap_or(u32::MAX);
            let last = len == stream.out.len();
            ended = last && matches!(&stream.local, Local::Ending(block) if block.is_empty());
            let flags = if ended { reader::END_STREAM } else { 0 };
            output.put(&reader::head(bytes, reader::DATA, flags, id.0));
            stream.out.move_to(len, output);
            stream.send_window -= i64::from(bytes);
            self.send_window -= i64::from(bytes);
        }
        if !stream.out.is_empty() || !matches!(stream.local, Local::Ending(_)) {
            self.enqueue(id);
            return true;
        }
        if let Local::Ending(block) = std::mem::replace(&mut stream.local, Local::Ended)
            && !ended
        {
            match block.is_empty() {
                true => output.put(&reader::head(0, reader::DATA, reader::END_STREAM, id.0)),
                false => put_block(output, fresh, id, block, reader::END_STREAM),
            }
        }
        if std::mem::take(&mut stream.waits_sent) && stream.remote_ended {
            self.note(id);
            self.remove_if_over(id);
            return true;
        }
        if !stream.remote_ended {
            // What it would still send is not wanted.
            let code = ErrorCode::NO_ERROR;
            output.put(&reader::head(4, reader::RST_STREAM, 0, id.0));
            output.put(&code.0.to_be_bytes());
            self.cut(id, StreamEnd::Reset(code));
        }
        self.remove_if_over(id);
        true
    }

    /// Removes what was written from the output.
    pub fn written(&mut self, bytes: usize) {
        self.output.advance(bytes);
        self.wake_crowd();
    }

    /// Returns whether something waits to be written that can be.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.output.is_empty() || !self.control.is_empty()
    }

    /// Returns whether something waits to be sent that can be, or could be when it was queued.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.wants_write() || !self.queue.is_empty()
    }

    /// Puts a stream in the queue, once and if there is something that it may send.
    pub(super) fn enqueue(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.end.is_none() && stream.is_sendable() && !stream.queued {
            stream.queued = true;
            self.queue.push_back(id);
        }
    }

    /// Goes on with a stream whose window may have become wider.
    pub(super) fn on_room(&mut self, id: StreamId) {
        self.enqueue(id);
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.waits && stream.capacity() > 0 {
            stream.waits = false;
            self.note(id);
        }
    }

    /// Queues events for streams that wait for the connection.
    pub(super) fn wake_crowd(&mut self) {
        // Not for every byte that was written.
        let full = self.output.len() > self.params.send_buffer / 2 || self.send_window <= 0;
        if full || self.crowd.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.crowd) {
            if let Some(stream) = self.stream(id) {
                stream.crowded = false;
                self.note(id);
            }
        }
    }

    /// Returns how much the connection may still queue.
    fn shared_room(&self) -> usize {
        let window = usize::try_from(self.send_window).unwrap_or(0);
        window.min(self.params.send_buffer.saturating_sub(self.output.len()))
    }
}

/// Writes a block of headers in as many frames as it needs.
fn put_block(output: &mut SendBuffer, fresh: &mut bool, id: StreamId, block: Vec<u8>, flags: u8) {
    let mut block = block;
    if std::mem::take(fresh) {
        let mut first = Vec::with_capacity(1 + block.len());
        hpack::encode_no_table(&mut first);
        first.append(&mut block);
        block = first;
    }
    let (mut kind, mut flags, mut rest) = (reader::HEADERS, flags, &block[..]);
    loop {
        let (now, later) = rest.split_at(rest.len().min(BLOCK_FRAME));
        let last = if later.is_empty() {
            reader::END_HEADERS
        } else {
            0
        };
        let len = u32::try_from(now.len()).unwrap_or(u32::MAX);
        output.put(&reader::head(len, kind, flags | last, id.0));
        output.put(now);
        if later.is_empty() {
            return;
        }
        (kind, flags, rest) = (reader::CONTINUATION, 0, later);
    }
}

fn encoded(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        hpack::encode(name, value, &mut block);
    }
    block
}

/// Bytes of a block of headers in one frame, which every client accepts (RFC 9113 section 6.5.2).
const BLOCK_FRAME: usize = 16_384;
