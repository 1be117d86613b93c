//! gRPC's framing of packets over HTTP/2, by hand: two methods with one message type need no more.
//!
//! ```text
//!   h2 RecvStream ──▶ PacketReceiver ──▶ Packet          head, payload ──▶ PacketSender ──▶ h2 SendStream
//! ```
//!
//! A packet's payload goes out from where it lies, together with its head in one DATA frame; small
//! packets are gathered into one. What packets mean, and who may open a stream, is decided
//! elsewhere.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker, ready};

use bytes::buf::Chain;
use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request};
use http2_proto::{ErrorCode, StreamEnd};
use knp_proto::frame::{Deframer, FrameError, HEAD};
use knp_proto::{Packet, PacketError, PacketKind, Transmit};

use crate::metrics::GrpcCode;

/// The path of API servers' streams.
pub(crate) const PROXY_PATH: &str = "/ProxyService/Proxy";
/// The path of agents' streams.
pub(crate) const CONNECT_PATH: &str = "/AgentService/Connect";
/// The one content type of gRPC that is needed.
pub(crate) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Stream window offered to peers. What tunnels may hold is bounded by credit and by budgets; the
/// stream itself must not become the bottleneck at some hundred megabytes per second.
pub(crate) const STREAM_WINDOW: u32 = knp_proto::STREAM_WINDOW as u32;
/// Connection window offered to agents and servers, which use one stream.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Frames accepted, and sent to those who accept as much: a DATA packet of 64 KiB and its heads.
pub(crate) const MAX_FRAME: u32 = 68 << 10;
/// Bytes that may wait in HTTP/2 for a connection. More would only make others wait longer.
pub(crate) const SEND_BUFFER: usize = 192 << 10;
/// Bytes of a link that may wait in the kernel, on either side: packets of other tunnels wait behind them.
pub(crate) const NOTSENT_LOWAT: u32 = 128 << 10;
/// Streams of one connection at a time: API servers may share one among their dials.
pub(crate) const MAX_STREAMS: u32 = 1_000;
/// Streams of an agent's connection, those that have ended included: agents open one.
pub(crate) const MAX_AGENT_STREAMS: u32 = 16;
/// What small frames that are not read may cost beyond their bytes: a stream of single bytes,
/// each with its heads, must be able to fill a window without ending the connection.
const FRAME_BUDGET: usize = 64 << 20;
/// Heads of requests and responses, bytes.
pub(crate) const MAX_HEADERS: u32 = 64 << 10;

/// Makes the settings of a connection with an agent.
pub(crate) fn server_builder(stream_window: u32, connection_window: u32) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(stream_window)
        .initial_connection_window_size(connection_window)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(MAX_AGENT_STREAMS)
        .data_frame_budget(FRAME_BUDGET)
        .max_send_buffer_size(SEND_BUFFER);
    builder
}

/// Makes the settings of a client's connection.
pub(crate) fn client_builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(FRAME_BUDGET)
        .enable_push(false);
    builder
}

/// Makes a client's request for a stream at `path`, to be given its metadata.
///
/// # Errors
/// When `authority` is none.
pub(crate) fn request(path: &str, authority: &str) -> Result<Request<()>, http::Error> {
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(authority)
        .path_and_query(path)
        .build()?;
    Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(http::header::CONTENT_TYPE, CONTENT_TYPE)
        .header(http::header::TE, "trailers")
        .body(())
}

/// Checks that a request is gRPC's for `path`.
///
/// # Errors
/// The text for a status UNIMPLEMENTED.
pub(crate) fn check_request<B>(request: &Request<B>, path: &str) -> Result<(), String> {
    let content_type = request.headers().get(http::header::CONTENT_TYPE);
    let content_type = content_type.map(HeaderValue::as_bytes);
    let method = request.method().as_str().as_bytes();
    check_call(method, request.uri().path(), content_type, path)
}

/// The same for what a request consists of.
///
/// # Errors
/// As [`check_request`].
pub(crate) fn check_call(
    method: &[u8],
    asked: &str,
    content_type: Option<&[u8]>,
    path: &str,
) -> Result<(), String> {
    let is_grpc = content_type.is_some_and(|value| value.starts_with(b"application/grpc"));
    if method != b"POST" || !is_grpc {
        return Err("this is no gRPC request".to_owned());
    }
    if asked != path {
        return Err(format!("unknown method {asked}"));
    }
    Ok(())
}

/// What is sent as one DATA frame: some bytes, and some more from elsewhere.
pub(crate) type Message = Chain<Bytes, Bytes>;

/// Why a stream of packets cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StreamError {
    #[error("the HTTP/2 stream")]
    End(#[from] StreamEnd),
    #[error("reading a message")]
    Frame(#[from] FrameError),
    /// HTTP/2 says so.
    #[error("the HTTP/2 stream")]
    Http2(#[from] h2::Error),
    #[error("no dial in time")]
    Idle,
    #[error("no memory for so large a message")]
    Memory,
    #[error("reading a packet")]
    Packet(#[from] PacketError),
    #[error("the stream ended within a message")]
    Truncated,
}

impl StreamError {
    /// Returns the gRPC status that stands for it, as in upstream's metrics.
    pub(crate) fn code(&self) -> GrpcCode {
        match self {
            Self::Frame(_) | Self::Packet(_) | Self::Truncated => GrpcCode::INTERNAL,
            Self::Idle => GrpcCode::DEADLINE_EXCEEDED,
            Self::Memory => GrpcCode::RESOURCE_EXHAUSTED,
            Self::End(StreamEnd::Reset(code) | StreamEnd::Broken(code)) => code_of_reset(*code),
            Self::Http2(error) => match error.reason() {
                Some(reason) => code_of_reset(ErrorCode(reason.into())),
                None => GrpcCode::UNAVAILABLE,
            },
            Self::End(_) => GrpcCode::UNAVAILABLE,
        }
    }
}

fn code_of_reset(code: ErrorCode) -> GrpcCode {
    match code {
        ErrorCode::CANCEL => GrpcCode::CANCELED,
        ErrorCode::ENHANCE_YOUR_CALM => GrpcCode::RESOURCE_EXHAUSTED,
        ErrorCode::REFUSED_STREAM => GrpcCode::UNAVAILABLE,
        _ => GrpcCode::INTERNAL,
    }
}

/// Who opened a stream, and who was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Opened it.
    Client,
    /// Was asked, and says at the end how it went.
    Server,
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct PacketSender {
    stream: SendStream<Message>,
    side: Side,
    /// Heads and small packets, to be sent before anything else.
    gathered: BytesMut,
}

impl PacketSender {
    pub(crate) fn new(stream: SendStream<Message>, side: Side) -> Self {
        Self {
            stream,
            side,
            gathered: BytesMut::new(),
        }
    }

    /// Waits until the stream takes more. Cancel-safe.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        loop {
            if self.stream.capacity() > self.gathered.len() {
                return Poll::Ready(Ok(()));
            }
            // No more than makes it wake up: what is kept in reserve is taken from the other
            // streams of the connection. A packet may be larger; HTTP/2 then holds the rest.
            self.stream.reserve_capacity(self.gathered.len() + 1);
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => {
                    let closed = h2::Error::from(h2::Reason::CANCEL);
                    return Poll::Ready(Err(closed.into()));
                }
            }
        }
    }

    /// Adds what `transmit` takes to the buffer before the next packet: five bytes are left for
    /// the head of its message. Small packets wait for [`PacketSender::flush`].
    ///
    /// # Errors
    /// When the stream has ended.
    pub(crate) fn transmit(
        &mut self,
        transmit: impl FnOnce(&mut BytesMut) -> Option<Transmit>,
    ) -> Result<Option<PacketKind>, StreamError> {
        let start = self.gathered.len();
        self.gathered.extend_from_slice(&[0; HEAD]);
        let Some(Transmit { kind, payload }) = transmit(&mut self.gathered) else {
            self.gathered.truncate(start);
            return Ok(None);
        };
        let payload = payload.unwrap_or_default();
        let len = self.gathered.len() - start - HEAD + payload.len();
        let len = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
        if let Some(head) = self.gathered.get_mut(start + 1..start + HEAD) {
            head.copy_from_slice(&len);
        }
        if payload.len() <= GATHER_BELOW {
            self.gathered.extend_from_slice(&payload);
            if self.gathered.len() >= GATHER {
                self.flush()?;
            }
        } else {
            self.send(payload)?;
        }
        Ok(Some(kind))
    }

    /// Hands over what was gathered.
    ///
    /// # Errors
    /// As [`PacketSender::transmit`].
    pub(crate) fn flush(&mut self) -> Result<(), StreamError> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        self.send(Bytes::new())
    }

    fn send(&mut self, payload: Bytes) -> Result<(), StreamError> {
        let head = self.gathered.split().freeze();
        Ok(self.stream.send_data(head.chain(payload), false)?)
    }

    /// Ends the stream in order: a server's with a gRPC status.
    pub(crate) fn end(mut self, status: GrpcCode, message: &str) {
        if self.flush().is_err() {
            return; // A stream that is gone already needs no end.
        }
        drop(match self.side {
            Side::Client => self
                .stream
                .send_data(Bytes::new().chain(Bytes::new()), true),
            Side::Server => self.stream.send_trailers(trailers(status, message)),
        });
    }

    /// Resets the stream.
    pub(crate) fn reset(mut self) {
        self.stream.send_reset(h2::Reason::CANCEL);
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct PacketReceiver {
    stream: RecvStream,
    deframer: Deframer,
}

impl PacketReceiver {
    /// Accepts messages of at most `max` bytes.
    pub(crate) fn new(stream: RecvStream, max: usize) -> Self {
        Self {
            stream,
            deframer: Deframer::new(max),
        }
    }

    /// Waits for bytes, reads the packets that are complete with them into `packets`, and returns
    /// how many bytes came, to be [released](PacketReceiver::release); nothing at the end of the
    /// stream. Cancel-safe.
    pub(crate) fn poll_packets(
        &mut self,
        cx: &mut Context<'_>,
        packets: &mut VecDeque<Packet>,
    ) -> Poll<Result<Option<usize>, StreamError>> {
        let piece = match ready!(self.stream.poll_data(cx)) {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Poll::Ready(Err(error.into())),
            None if self.deframer.is_empty() => return Poll::Ready(Ok(None)),
            None => return Poll::Ready(Err(StreamError::Truncated)),
        };
        let len = piece.len();
        self.deframer.push(piece);
        while let Some(message) = self.deframer.next_message()? {
            packets.push_back(Packet::decode(message)?);
        }
        Poll::Ready(Ok(Some(len)))
    }

    /// Lets the peer send `bytes` more, no more than came.
    ///
    /// # Errors
    /// When the stream has ended.
    pub(crate) fn release(&mut self, bytes: usize) -> Result<(), StreamError> {
        Ok(self.stream.flow_control().release_capacity(bytes)?)
    }

    /// Returns the status and text with which a server ended the stream, once
    /// [`PacketReceiver::poll_packets`] has said that it does not go on.
    pub(crate) fn status(&mut self) -> Option<String> {
        let mut cx = Context::from_waker(Waker::noop());
        // Trailers come with the end or not at all.
        match self.stream.poll_trailers(&mut cx) {
            Poll::Ready(Ok(Some(trailers))) => {
                status_of(&trailers).map(|(status, text)| format!("{status} {text}"))
            }
            Poll::Ready(Ok(None) | Err(_)) | Poll::Pending => None,
        }
    }
}

/// Returns the status and text in trailers, or in the head of a response without a body.
pub(crate) fn status_of(headers: &HeaderMap) -> Option<(String, String)> {
    let text = |name| {
        let value: &HeaderValue = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    Some((
        text("grpc-status")?,
        text("grpc-message").unwrap_or_default(),
    ))
}

/// Returns trailers that say `status`; `message` is cut to what a header may hold.
pub(crate) fn trailers(status: GrpcCode, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert("grpc-status", HeaderValue::from(status.number()));
    if !message.is_empty()
        && let Ok(value) = HeaderValue::from_str(&percent_encoded(message))
    {
        trailers.insert("grpc-message", value);
    }
    trailers
}

/// Returns a status and its text as headers have them.
pub(crate) fn status(status: GrpcCode, message: &str) -> (String, String) {
    (status.number().to_string(), percent_encoded(message))
}

/// Returns a response that says `status` and nothing else (gRPC's "Trailers-Only").
pub(crate) fn refusal(status: GrpcCode, message: &str) -> http::Response<()> {
    let mut response = http::Response::new(());
    *response.headers_mut() = trailers(status, message);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// Printable ASCII but the percent sign stands for itself.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes().take(MAX_MESSAGE) {
        match byte {
            b' '..=b'$' | b'&'..=b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Payloads up to this are copied behind their head: one frame less costs more than that.
const GATHER_BELOW: usize = 1024;
/// Gathered bytes that are worth a frame.
const GATHER: usize = 16 << 10;
/// Bytes of an error text that travel.
const MAX_MESSAGE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_as_a_header() {
        let trailers = trailers(GrpcCode::UNKNOWN, "50% of \"ünknown\"\n");
        assert_eq!(trailers["grpc-status"], "2");
        assert_eq!(trailers["grpc-message"], "50%25 of \"%C3%BCnknown\"%0A");
    }

    #[test]
    fn a_refusal_is_a_response_without_a_body() {
        let response = refusal(GrpcCode::UNIMPLEMENTED, "");
        let status = status_of(response.headers()).unwrap();
        assert_eq!(status, ("12".to_owned(), String::new()));
        assert_eq!(response.headers()["content-type"], "application/grpc");
    }
}
