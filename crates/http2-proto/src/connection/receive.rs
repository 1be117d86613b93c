//! What each frame of a client does (RFC 9113 sections 5 and 6).
//!
//! ```text
//!   Frame ──▶ handle_frame ──▶ Stream, Event, answers, or an error for the whole connection
//! ```
//!
//! Cutting input into frames was done before.

use bytes::Bytes;

use super::{Connection, Ended, Event};
use crate::error::{ConnectionError, ErrorCode, StreamEnd};
use crate::flow::widen;
use crate::hpack;
use crate::reader::{self, Frame};
use crate::request::{BadRequest, Builder};
use crate::stream::{Stream, StreamId};

/// A block of headers that has not ended.
#[derive(Debug)]
pub(super) struct Block {
    stream: StreamId,
    end_stream: bool,
    bytes: Vec<u8>,
    frames: u32,
}

impl Connection {
    pub(super) fn handle_frame(&mut self, frame: Frame) -> Result<(), ConnectionError> {
        match frame {
            Frame::Continuation { block, end } => self.on_continuation(&block, end),
            Frame::Data {
                stream,
                len,
                padding,
            } => self.on_data(stream, len, padding),
            Frame::Headers {
                stream,
                block,
                end,
                end_stream,
            } => self.on_headers(stream, &block, end, end_stream),
            Frame::Bytes {
                stream,
                bytes,
                end_stream,
            } => {
                self.on_bytes(stream, bytes, end_stream);
                Ok(())
            }
            Frame::Ping(bytes) => {
                self.answer(reader::PING, reader::ACK, StreamId(0), &bytes);
                Ok(())
            }
            Frame::Pong(bytes) => {
                match &bytes {
                    super::OPAQUE => self.events.push_back(Event::Pong),
                    super::LEAVING => self.go_away(),
                    _ => {}
                }
                Ok(())
            }
            Frame::Reset { stream, code } => self.on_reset(stream, code),
            Frame::Settings(payload) => self.on_settings(&payload),
            Frame::SettingsAck => self.on_settings_ack(),
            Frame::WindowUpdate { stream, increment } => self.on_window(stream, increment),
        }
    }

    fn on_data(&mut self, id: StreamId, len: u32, padding: u32) -> Result<(), ConnectionError> {
        self.check_begun(id)?;
        self.window.take(len).ok_or(TOO_MUCH)?;
        let payload = len.saturating_sub(padding);
        let code = match self.stream(id) {
            Some(stream) if stream.end.is_some() => None,
            Some(stream) if stream.remote_ended => Some(ErrorCode::STREAM_CLOSED),
            Some(stream) if stream.missing.is_some_and(|own| own < payload.into()) => {
                Some(ErrorCode::PROTOCOL_ERROR)
            }
            Some(stream) => match stream.window.take(len) {
                Some(()) => {
                    if let Some(missing) = &mut stream.missing {
                        *missing -= u64::from(payload);
                    }
                    if padding > 0 {
                        self.consumed(id, padding as usize);
                    }
                    return Ok(());
                }
                None => Some(ErrorCode::FLOW_CONTROL_ERROR),
            },
            // Of those that are over it is not known any more who has ended them.
            None => Some(ErrorCode::STREAM_CLOSED),
        };
        self.reader.skip();
        self.give_back(len);
        if let Some(code) = code {
            self.reset(id, code);
        }
        Ok(())
    }

    fn on_bytes(&mut self, id: StreamId, bytes: Bytes, end_stream: bool) {
        let max_copied = self.params.max_copied;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.empty = match len {
            0 => self.empty.saturating_add(u32::from(!end_stream)),
            _ => self.empty.saturating_sub(1),
        };
        match self.stream(id) {
            Some(stream) if end_stream && !stream.is_whole() && stream.end.is_none() => {
                self.give_back(len);
                self.reset(id, ErrorCode::PROTOCOL_ERROR);
            }
            Some(stream) if stream.end.is_none() => {
                if !stream.unread {
                    stream.received.push(bytes, max_copied);
                }
                let unwanted = stream.unread && len > 0;
                stream.remote_ended |= end_stream;
                if unwanted {
                    // The stream's own window stays: a peer must not send what is not read.
                    self.give_back(len);
                } else if len > 0 || end_stream {
                    self.note(id);
                }
                self.remove_if_over(id);
            }
            Some(_) | None => self.give_back(len),
        }
    }

    fn on_headers(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        end: bool,
        end_stream: bool,
    ) -> Result<(), ConnectionError> {
        if id.0.is_multiple_of(2) {
            return Err(ConnectionError::protocol("a client's streams are odd"));
        }
        if end {
            return self.on_block(id, end_stream, bytes);
        }
        self.block = Some(Box::new(Block {
            stream: id,
            end_stream,
            bytes: bytes.to_vec(),
            frames: 1,
        }));
        self.check_block()
    }

    fn on_continuation(&mut self, bytes: &[u8], end: bool) -> Result<(), ConnectionError> {
        // There is one: the reader lets none come otherwise.
        let Some(block) = &mut self.block else {
            return Ok(());
        };
        block.bytes.extend_from_slice(bytes);
        block.frames += 1;
        self.check_block()?;
        if end && let Some(block) = self.block.take() {
            return self.on_block(block.stream, block.end_stream, &block.bytes);
        }
        Ok(())
    }

    fn check_block(&self) -> Result<(), ConnectionError> {
        let Some(block) = &self.block else {
            return Ok(());
        };
        if block.bytes.len() > self.params.max_head as usize || block.frames > MAX_BLOCK_FRAMES {
            return Err(ConnectionError::calm(
                "a block of headers that does not end",
            ));
        }
        Ok(())
    }

    /// Handles a whole block, which begins a stream or ends what a client sends on one.
    fn on_block(
        &mut self,
        id: StreamId,
        end_stream: bool,
        block: &[u8],
    ) -> Result<(), ConnectionError> {
        let mut builder = Builder::new(self.params.max_head);
        // Also of refused requests: the table goes on behind them.
        self.decoder.decode(block, |name, value| {
            builder.field(name, value);
            match builder.is_absurd() {
                true => Err(ConnectionError::calm("a head that unpacks to far too much")),
                false => Ok(()),
            }
        })?;
        if id <= self.last {
            self.on_trailers(id, end_stream, builder);
            return Ok(());
        }
        self.last = id;
        let open = self.streams.iter().filter(|stream| stream.is_open());
        let accepts = matches!(self.ended, Ended::No | Ended::Leaving);
        if !accepts || open.count() >= self.params.max_streams as usize {
            self.reset(id, ErrorCode::REFUSED_STREAM);
            return Ok(());
        }
        match builder.request() {
            Ok(request) if end_stream && request.content_length().is_some_and(|own| own > 0) => {
                self.reset(id, ErrorCode::PROTOCOL_ERROR);
            }
            Ok(request) => {
                let (receive, send) = (self.params.stream_window, self.peer.stream_window);
                let mut stream = Box::new(Stream::new(id, receive, send));
                stream.remote_ended = end_stream;
                stream.missing = request.content_length();
                self.streams.push(stream);
                self.events.push_back(Event::Request(id, request));
            }
            Err(BadRequest::Malformed) => self.reset(id, ErrorCode::PROTOCOL_ERROR),
            Err(BadRequest::TooLarge) => self.refuse_head(id, end_stream),
        }
        Ok(())
    }

    /// Answers that a request's head is too large.
    fn refuse_head(&mut self, id: StreamId, end_stream: bool) {
        let mut block = Vec::new();
        if std::mem::take(&mut self.fresh) {
            hpack::encode_no_table(&mut block);
        }
        hpack::encode(b":status", b"431", &mut block);
        let flags = reader::END_HEADERS | reader::END_STREAM;
        self.answer(reader::HEADERS, flags, id, &block);
        if !end_stream {
            self.reset(id, ErrorCode::NO_ERROR);
        }
    }

    fn on_trailers(&mut self, id: StreamId, end_stream: bool, builder: Builder) {
        let code = match self.stream(id) {
            Some(stream) if stream.end.is_some() => return,
            Some(stream) if stream.remote_ended => ErrorCode::STREAM_CLOSED,
            Some(stream) if end_stream && stream.is_whole() => match builder.trailers() {
                Ok(trailers) => {
                    if !stream.unread && !trailers.is_empty() {
                        stream.trailers = Some(Box::new(trailers));
                    }
                    stream.remote_ended = true;
                    self.note(id);
                    self.remove_if_over(id);
                    return;
                }
                Err(_) => ErrorCode::PROTOCOL_ERROR,
            },
            Some(_) => ErrorCode::PROTOCOL_ERROR,
            None => ErrorCode::STREAM_CLOSED,
        };
        self.reset(id, code);
    }

    fn on_reset(&mut self, id: StreamId, code: ErrorCode) -> Result<(), ConnectionError> {
        self.check_begun(id)?;
        if let Some(stream) = self.stream(id)
            && stream.end.is_none()
        {
            if !stream.seen {
                self.hasty += 1;
            }
            self.cut(id, StreamEnd::Reset(code));
        }
        Ok(())
    }

    fn on_settings(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        self.changes += 1;
        if self.changes > MAX_CHANGES {
            return Err(ConnectionError::calm("settings change all the time"));
        }
        let before = i64::from(self.peer.stream_window);
        self.peer.apply(payload)?;
        let change = i64::from(self.peer.stream_window) - before;
        if change != 0 {
            for stream in &mut self.streams {
                stream.send_window = widen(stream.send_window, change).ok_or(TOO_WIDE)?;
            }
            let ids: Vec<StreamId> = self.streams.iter().map(|stream| stream.id).collect();
            for id in ids {
                self.on_room(id);
            }
        }
        self.answer(reader::SETTINGS, reader::ACK, StreamId(0), &[]);
        Ok(())
    }

    fn on_settings_ack(&mut self) -> Result<(), ConnectionError> {
        if std::mem::replace(&mut self.settled, true) {
            let text = "settings were acknowledged that were not sent";
            return Err(ConnectionError::protocol(text));
        }
        self.decoder.set_limit(self.params.header_table as usize);
        Ok(())
    }

    fn on_window(&mut self, id: u32, increment: u32) -> Result<(), ConnectionError> {
        if id == 0 {
            if increment == 0 {
                return Err(ConnectionError::protocol("a window is widened by nothing"));
            }
            let wider = widen(self.send_window, i64::from(increment));
            self.send_window = wider.ok_or(TOO_WIDE)?;
            if self.send_window > 0 && !self.blocked.is_empty() {
                let mut blocked = std::mem::take(&mut self.blocked);
                blocked.append(&mut self.queue);
                self.queue = blocked;
            }
            self.wake_crowd();
            return Ok(());
        }
        let id = StreamId(id);
        self.check_begun(id)?;
        let Some(stream) = self.stream(id) else {
            // What was under way when the stream ended.
            return Ok(());
        };
        if stream.end.is_some() {
            return Ok(());
        }
        match widen(stream.send_window, i64::from(increment)) {
            _ if increment == 0 => self.reset(id, ErrorCode::PROTOCOL_ERROR),
            None => self.reset(id, ErrorCode::FLOW_CONTROL_ERROR),
            Some(wider) => {
                stream.send_window = wider;
                self.on_room(id);
            }
        }
        Ok(())
    }

    /// Refuses frames of streams that no request has begun.
    fn check_begun(&self, id: StreamId) -> Result<(), ConnectionError> {
        if id > self.last || id.0.is_multiple_of(2) {
            return Err(ConnectionError::protocol(
                "a frame of a stream that is not begun",
            ));
        }
        Ok(())
    }
}

const TOO_MUCH: ConnectionError = ConnectionError::new(
    ErrorCode::FLOW_CONTROL_ERROR,
    "more data than the window allows",
);
const TOO_WIDE: ConnectionError =
    ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, "a window wider than 2^31-1");
/// Frames of one block of headers: clients cut theirs at 16 KiB.
const MAX_BLOCK_FRAMES: u32 = 64;
/// SETTINGS in the life of a connection. Each may concern all streams; Go's gRPC sends a dozen, to
/// make its windows larger.
const MAX_CHANGES: u32 = 1000;
