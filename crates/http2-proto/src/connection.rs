//! One connection, seen from the server.
//!
//! ```text
//!   handle_input ──▶ receive ──▶ streams ──▶ poll_event, read
//!   output, written ◀── transmit ◀── streams, answers ◀── respond, send, end, reset, consumed
//! ```
//!
//! Streams send one frame each, round robin. Whatever a client does wrong has one of two consequences:
//! its stream is reset, or the connection ends with a GOAWAY that says why.

mod receive;
mod send;

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::{ConnectionError, ErrorCode, StreamEnd};
use crate::flow::{FIRST_WINDOW, Window};
use crate::hpack;
use crate::reader::{self, Reader};
use crate::request::Request;
use crate::send_buffer::SendBuffer;
use crate::settings::{Params, Peer};
use crate::stream::{Local, Read, Stream, StreamId};
use receive::Block;

/// The protocol's state of one connection.
#[derive(Debug)]
pub struct Connection {
    params: Params,
    reader: Reader,
    decoder: hpack::Decoder,
    /// A block of headers of which something is missing.
    block: Option<Box<Block>>,
    /// By number, which only grows.
    #[expect(
        clippy::vec_box,
        reason = "most connections have one stream, and should not hold memory for more"
    )]
    streams: Vec<Box<Stream>>,
    /// The newest stream, and the last one that GOAWAY has named.
    last: StreamId,
    said: Option<StreamId>,
    window: Window,
    send_window: i64,
    peer: Peer,
    /// Frames that go out next: answers, and those that are not subject to flow control.
    control: Vec<u8>,
    /// Frames on their way.
    output: SendBuffer,
    /// Streams with something to send.
    queue: VecDeque<StreamId>,
    /// Those of which the connection's window lets nothing go.
    blocked: VecDeque<StreamId>,
    /// Streams whose owner waits until the connection has capacity.
    crowd: Vec<StreamId>,
    events: VecDeque<Event>,
    /// Streams that were reset before their owner saw them, less those that were answered.
    hasty: u32,
    /// Frames of DATA that have no payload and end no stream, less those with some.
    empty: u32,
    /// SETTINGS of the client so far.
    changes: u32,
    /// SETTINGS of this side have been agreed to.
    settled: bool,
    /// No block of headers was sent.
    fresh: bool,
    ended: Ended,
}

/// Whether frames are still taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    No,
    /// The client has been asked not to begin more streams; those under way are accepted.
    Leaving,
    /// No new streams.
    GoneAway,
    Yes,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something may be read from a stream, or written to again, or it is over.
    Changed(StreamId),
    /// The answer to [`Connection::ping`].
    Pong,
    /// A stream was begun. Its owner must [`Connection::release`] it some time.
    Request(StreamId, Request),
}

impl Connection {
    /// Makes the state of a new connection, whose settings are to be sent at once.
    #[must_use]
    pub fn new(params: Params) -> Self {
        let mut control = Vec::new();
        let settings = params.payload();
        control.extend(reader::head(30, reader::SETTINGS, 0, 0));
        control.extend(settings);
        let more = params.connection_window.saturating_sub(FIRST_WINDOW);
        if more > 0 {
            control.extend(reader::head(4, reader::WINDOW_UPDATE, 0, 0));
            control.extend(more.to_be_bytes());
        }
        Self {
            params,
            reader: Reader::new(params.max_frame),
            decoder: hpack::Decoder::new(),
            block: None,
            streams: Vec::new(),
            last: StreamId(0),
            said: None,
            window: Window::new(params.connection_window.max(FIRST_WINDOW)),
            send_window: i64::from(FIRST_WINDOW),
            peer: Peer::new(),
            control,
            output: SendBuffer::default(),
            queue: VecDeque::new(),
            blocked: VecDeque::new(),
            crowd: Vec::new(),
            events: VecDeque::new(),
            hasty: 0,
            empty: 0,
            changes: 0,
            settled: false,
            fresh: true,
            ended: Ended::No,
        }
    }

    /// Returns whether the client has begun as HTTP/2 does.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.reader.is_begun()
    }

    /// Handles bytes from the client. A few large parts may wait without a copy.
    ///
    /// # Errors
    /// [`ConnectionError`] when the connection is over: send the output and close it.
    pub fn handle_input(&mut self, mut input: Bytes) -> Result<(), ConnectionError> {
        while self.ended != Ended::Yes {
            let handled = match self.reader.next(&mut input) {
                Ok(Some(frame)) => self.handle_frame(frame),
                Ok(None) => return Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = handled.and_then(|()| self.check_backlog()) {
                self.break_off(error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Handles the end of the input, or of the connection.
    pub fn handle_end(&mut self) {
        self.end_all(StreamEnd::Lost);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front();
            if self.events.is_empty() {
                self.events = VecDeque::new();
            }
            match event? {
                Event::Changed(id) => {
                    if let Some(stream) = self.stream(id) {
                        stream.noted = false;
                        return Some(Event::Changed(id));
                    }
                }
                Event::Request(id, request) => {
                    if let Some(stream) = self.stream(id)
                        && stream.end.is_none()
                    {
                        stream.seen = true;
                        return Some(Event::Request(id, request));
                    }
                    // The caller has not seen it, nor needs to.
                    self.release(id);
                }
                Event::Pong => return Some(Event::Pong),
            }
        }
    }

    /// Returns what a stream has for its reader; `None` when nothing is there yet.
    ///
    /// # Errors
    /// [`StreamEnd`] when the stream is over before its time, and all that came before is read.
    pub fn read(&mut self, id: StreamId) -> Result<Option<Read>, StreamEnd> {
        let max = self.params.max_frame as usize;
        let stream = self.stream(id).ok_or(StreamEnd::Lost)?;
        if stream.unread {
            return Err(stream.end.unwrap_or(StreamEnd::Lost));
        }
        if let Some(bytes) = stream.received.pop(max) {
            return Ok(Some(Read::Data(bytes)));
        }
        if let Some(trailers) = stream.trailers.take() {
            return Ok(Some(Read::Trailers(*trailers)));
        }
        match stream.end {
            _ if stream.remote_ended => Ok(Some(Read::End)),
            Some(end) => Err(end),
            None => Ok(None),
        }
    }

    /// Releases bytes that were read: the client may send as many.
    pub fn consumed(&mut self, id: StreamId, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.give_back(bytes);
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.remote_ended || stream.end.is_some() {
            return;
        }
        if let Some(increment) = stream.window.give(bytes) {
            self.answer(reader::WINDOW_UPDATE, 0, id, &increment.to_be_bytes());
        }
    }

    /// Returns whether a stream is over before its time.
    #[must_use]
    pub fn end_of(&self, id: StreamId) -> Option<StreamEnd> {
        match self.find(id) {
            Ok(at) => self.streams.get(at).and_then(|stream| stream.end),
            Err(_) => Some(StreamEnd::Lost),
        }
    }

    /// Returns whether the client has sent all it had, and that is read; not of a stream that is over.
    #[must_use]
    pub fn is_read(&self, id: StreamId) -> bool {
        let at = self.find(id).ok();
        let stream = at.and_then(|at| self.streams.get(at));
        stream.is_some_and(|stream| {
            let rest = !stream.received.is_empty() || stream.trailers.is_some();
            stream.remote_ended && !stream.unread && !rest
        })
    }

    /// Reads no more of a stream: what comes is dropped, and its window stays as it is.
    pub fn stop_reading(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.unread = true;
        stream.trailers = None;
        let unread = stream.received.clear();
        self.give_back(u32::try_from(unread).unwrap_or(u32::MAX));
    }

    /// Lets go of a stream. One that has not been ended is reset; one that was goes out as the client lets it, for
    /// which there is no limit: see [`Connection::is_sent`].
    pub fn release(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.released = true;
        let over = stream.end.is_some();
        let unfinished = matches!(stream.local, Local::Asked | Local::Open);
        self.stop_reading(id);
        if !over && unfinished {
            self.reset(id, ErrorCode::CANCEL);
        }
        self.remove_if_over(id);
    }

    /// Asks the client for a sign of life: [`Event::Pong`].
    pub fn ping(&mut self) {
        self.answer(reader::PING, 0, StreamId(0), OPAQUE);
    }

    /// Asks the client not to begin more streams, and accepts those that it had begun by then; after that none
    /// (RFC 9113 section 6.8).
    pub fn leave(&mut self) {
        if self.ended == Ended::No {
            self.ended = Ended::Leaving;
            self.say_goodbye(MAX_STREAM, ErrorCode::NO_ERROR, "");
            self.answer(reader::PING, 0, StreamId(0), LEAVING);
        }
    }

    /// Sends GOAWAY: no new streams are accepted.
    pub fn go_away(&mut self) {
        if matches!(self.ended, Ended::No | Ended::Leaving) {
            self.ended = Ended::GoneAway;
            self.say_goodbye(self.last, ErrorCode::NO_ERROR, "");
        }
    }

    /// Returns whether the connection has gone away, and all its streams are over and written.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.ended == Ended::GoneAway && self.streams.is_empty() && !self.wants_write()
    }

    /// Returns the number of the block of headers of which the client has sent a part; it wraps.
    #[must_use]
    pub fn unfinished_block(&self) -> Option<u32> {
        self.reader.unfinished_block()
    }

    /// Returns how many streams there are, those included that their owners have not let go of.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    fn find(&self, id: StreamId) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id)
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self.find(id).ok()?;
        self.streams.get_mut(at).map(|stream| &mut **stream)
    }

    /// Queues an event for the owner of a stream.
    fn note(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if !std::mem::replace(&mut stream.noted, true) {
            self.events.push_back(Event::Changed(id));
        }
    }

    fn remove_if_over(&mut self, id: StreamId) {
        let Ok(at) = self.find(id) else { return };
        let over = |stream: &Stream| stream.released && !stream.is_open();
        if self.streams.get(at).is_some_and(|stream| over(stream)) {
            self.forget(id);
            self.streams.remove(at);
            if self.streams.is_empty() {
                self.streams = Vec::new();
            }
        }
    }

    /// Returns bytes to the window of the connection.
    fn give_back(&mut self, bytes: u32) {
        if let Some(increment) = self.window.give_shared(bytes) {
            self.answer(
                reader::WINDOW_UPDATE,
                0,
                StreamId(0),
                &increment.to_be_bytes(),
            );
        }
    }

    /// Takes a stream that sends nothing more out of the lists of those that wait to.
    fn forget(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        let queued = std::mem::take(&mut stream.queued);
        if std::mem::take(&mut stream.crowded) {
            self.crowd.retain(|own| *own != id);
        }
        if queued {
            self.queue.retain(|own| *own != id);
            self.blocked.retain(|own| *own != id);
        }
    }

    /// Ends a stream before its time, and tells its owner.
    fn cut(&mut self, id: StreamId, end: StreamEnd) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.end.is_none() {
            stream.end = Some(end);
            stream.out = SendBuffer::default();
            stream.head = Vec::new();
            self.forget(id);
            self.note(id);
            self.remove_if_over(id);
        }
    }

    fn end_all(&mut self, end: StreamEnd) {
        self.ended = Ended::Yes;
        let ids: Vec<StreamId> = self.streams.iter().map(|stream| stream.id).collect();
        for id in ids {
            self.cut(id, end);
        }
    }

    fn break_off(&mut self, error: ConnectionError) {
        // Who does not begin as HTTP/2 does would not understand it.
        if self.is_begun() {
            self.say_goodbye(self.last, error.code, error.text);
        }
        self.end_all(StreamEnd::Broken(error.code));
    }

    fn say_goodbye(&mut self, last: StreamId, code: ErrorCode, text: &'static str) {
        // It may not grow.
        let last = self.said.map_or(last, |said| said.min(last));
        self.said = Some(last);
        let mut payload = last.0.to_be_bytes().to_vec();
        payload.extend(code.0.to_be_bytes());
        payload.extend(text.as_bytes());
        self.answer(reader::GOAWAY, 0, StreamId(0), &payload);
    }

    /// Appends a frame that is not subject to flow control.
    fn answer(&mut self, kind: u8, flags: u8, id: StreamId, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.control.extend(reader::head(len, kind, flags, id.0));
        self.control.extend_from_slice(payload);
    }

    /// Refuses to pile up answers for a client that does not read them.
    fn check_backlog(&self) -> Result<(), ConnectionError> {
        if self.control.len() > MAX_BACKLOG {
            return Err(ConnectionError::calm("answers are asked for and not read"));
        }
        if self.hasty > MAX_HASTY {
            let text = "streams are begun and reset at once";
            return Err(ConnectionError::calm(text));
        }
        if self.empty > MAX_EMPTY {
            return Err(ConnectionError::calm("frames without payload"));
        }
        Ok(())
    }
}

/// Bytes of answers that may wait: more than two for each of a thousand streams, which is what a
/// client can have earned that does not read for a while.
const MAX_BACKLOG: usize = 64 << 10;
/// Streams that may be reset before their owner has seen them, in excess of those that were answered.
const MAX_HASTY: u32 = 100;
/// Frames of DATA that have no payload and end no stream, in excess of those with some.
const MAX_EMPTY: u32 = 1000;
/// The largest number of a stream.
const MAX_STREAM: StreamId = StreamId((1 << 31) - 1);
/// Eight bytes of no meaning, and those behind which nothing comes that was sent before it was known that the
/// connection is to end.
const OPAQUE: &[u8; 8] = b"rhizome.";
const LEAVING: &[u8; 8] = b"rhizome!";

#[cfg(test)]
mod tests;
