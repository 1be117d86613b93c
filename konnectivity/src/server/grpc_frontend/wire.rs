//! Packets of one API server's stream, in gRPC's framing.
//!
//! ```text
//!   Stream ──▶ Deframer ──▶ Packet          head, payload ──▶ Stream
//! ```
//!
//! A packet's payload goes out from where it lies. What packets mean is not known here.

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http2_proto::{ErrorCode, Read};
use http2_server::Stream;
use knp_proto::frame::{Deframer, HEAD};
use knp_proto::{ConnectId, Packet};

use crate::grpc::{self, StreamError};
use crate::metrics::GrpcCode;

/// Both halves of a stream.
pub(super) struct Wire {
    stream: Stream,
    deframer: Deframer,
}

impl Wire {
    /// Accepts the call, with messages of at most `max` bytes.
    pub(super) fn accept(stream: Stream, max: usize) -> Self {
        stream.respond(&[STATUS, CONTENT_TYPE], false);
        Self {
            stream,
            deframer: Deframer::new(max),
        }
    }

    /// Refuses a call.
    pub(super) fn refuse(stream: &Stream, status: GrpcCode, message: &str) {
        let (number, message) = grpc::status(status, message);
        let fields = [
            STATUS,
            CONTENT_TYPE,
            (b"grpc-status", number.as_bytes()),
            (b"grpc-message", message.as_bytes()),
        ];
        stream.respond(&fields, true);
    }

    /// Waits until the stream takes more. Cancel-safe.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(ready!(self.stream.poll_ready(cx))?))
    }

    /// Waits until the stream is over before its time; it never is otherwise. Cancel-safe.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<StreamError> {
        self.stream.poll_end(cx).map(StreamError::from)
    }

    /// Returns the next packet, if it is complete.
    pub(super) fn next_packet(&mut self) -> Result<Option<Packet>, StreamError> {
        let message = self.deframer.next_message()?;
        Ok(message.map(Packet::decode).transpose()?)
    }

    /// Waits for bytes, once no packet is complete, and returns whether the client may send more.
    /// Cancel-safe.
    pub(super) fn poll_read(&mut self, cx: &Context<'_>) -> Poll<Result<bool, StreamError>> {
        let bytes = match ready!(self.stream.poll_read(cx))? {
            Read::Data(bytes) => bytes,
            // None of a request is of any meaning; the end comes behind them.
            Read::Trailers(_) => return self.poll_read(cx),
            Read::End if self.deframer.is_empty() => return Poll::Ready(Ok(false)),
            Read::End => return Poll::Ready(Err(StreamError::Truncated)),
        };
        // Also of messages that are refused.
        self.stream.consumed(bytes.len());
        self.deframer.push(bytes);
        Poll::Ready(Ok(true))
    }

    /// Returns how many bytes were read and are not yet packets.
    pub(super) fn buffered(&self) -> usize {
        self.deframer.len()
    }

    /// Sends a packet that is not DATA.
    pub(super) fn packet(&self, packet: Packet) -> Result<(), StreamError> {
        let mut message = BytesMut::new();
        message.extend_from_slice(&[0; HEAD]);
        packet.encode(&mut message);
        self.message(message, Bytes::new())
    }

    /// Sends DATA.
    pub(super) fn data(&self, id: ConnectId, data: Bytes) -> Result<(), StreamError> {
        let mut message = BytesMut::with_capacity(DATA_HEAD);
        message.extend_from_slice(&[0; HEAD]);
        knp_proto::packet::encode_data_head(id, data.len(), &mut message);
        self.message(message, data)
    }

    /// Sends a message, of which `head` begins with space for its length.
    fn message(&self, mut head: BytesMut, payload: Bytes) -> Result<(), StreamError> {
        let len = head.len() + payload.len() - HEAD;
        let len = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
        if let Some(space) = head.get_mut(1..HEAD) {
            space.copy_from_slice(&len);
        }
        Ok(self.stream.send(&head, payload)?)
    }

    /// Ends the stream in order, with a status.
    pub(super) fn end(self, status: GrpcCode, message: &str) {
        let (number, message) = grpc::status(status, message);
        let fields: [(&[u8], &[u8]); 2] = [
            (b"grpc-status", number.as_bytes()),
            (b"grpc-message", message.as_bytes()),
        ];
        // No text, no field.
        let count = if message.is_empty() { 1 } else { 2 };
        self.stream.end(fields.get(..count).unwrap_or_default());
    }

    /// Resets the stream.
    pub(super) fn reset(self) {
        self.stream.reset(ErrorCode::CANCEL);
    }
}

const STATUS: (&[u8], &[u8]) = (b":status", b"200");
const CONTENT_TYPE: (&[u8], &[u8]) = (b"content-type", b"application/grpc");
/// Bytes before the payload of DATA, at most.
const DATA_HEAD: usize = 32;
