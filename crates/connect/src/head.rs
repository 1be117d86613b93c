//! Reads one request head and classifies it.
//!
//! ```text
//! stream ──read──▶ buf ──judge──▶ Head        what lies behind the head stays in buf
//! ```
//!
//! Answers nothing and dials nothing.

use bytes::{Buf, BufMut, BytesMut};
use preamble::http_connect::worth_parsing;
use preamble::{HeadError, HttpVersion, Progress, RequestHead};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::{Params, Request};

/// What a client sent first, or next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A CONNECT.
    Connect(Box<Request>),
    /// The client ended the stream between two heads, or it broke.
    Gone,
    /// Bytes that are no usable head.
    Malformed,
    /// A well-formed request for something else.
    Other(Other),
    /// No whole head in time.
    TimedOut,
    /// Larger than its bound.
    TooLarge,
}

/// What matters of a request that is not CONNECT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) version: HttpVersion,
    /// Its answer has no body.
    pub(crate) is_head: bool,
    /// Another request may follow: it was not to be the last, and there is no body that could be
    /// taken for one.
    pub(crate) keep_alive: bool,
}

/// Reads a head and removes it from `buf`, which may hold its start already.
pub(crate) async fn read<S>(stream: &mut S, buf: &mut BytesMut, params: &Params) -> Head
where
    S: AsyncRead + Unpin,
{
    let whole = async {
        let mut seen = 0;
        loop {
            if worth_parsing(buf, seen, params.head_bytes)
                && let Some((head, consumed)) = judge(buf, params)
            {
                buf.advance(consumed);
                return head;
            }
            seen = buf.len();
            let capacity = params.head_bytes.saturating_sub(buf.len());
            buf.reserve(READ_BYTES.min(capacity));
            match stream.read_buf(&mut (&mut *buf).limit(capacity)).await {
                Ok(0) if buf.is_empty() => return Head::Gone,
                // The stream may be open the other way, so this still gets its answer.
                Ok(0) => return Head::Malformed,
                Ok(_) => {}
                Err(_) => return Head::Gone,
            }
        }
    };
    timeout(params.head_limit, whole)
        .await
        .unwrap_or(Head::TimedOut)
}

/// Returns what `input` starts with and how many bytes that took; `None` when more are needed.
fn judge(input: &[u8], params: &Params) -> Option<(Head, usize)> {
    match RequestHead::parse_host_optional(input, params.head_bytes) {
        Ok(Progress::Done { value, consumed }) if value.is_connect() => {
            let head = match Request::new(&value, params.target_bytes) {
                Some(request) => Head::Connect(Box::new(request)),
                None => Head::Malformed,
            };
            Some((head, consumed))
        }
        Ok(Progress::Done { value, consumed }) => Some((Head::Other(Other::new(&value)), consumed)),
        Ok(Progress::Need { .. }) => None,
        Err(_) if input.starts_with(HTTP2_PREFACE) => {
            let preface = Other {
                version: HttpVersion::Http11,
                is_head: false,
                keep_alive: false,
            };
            Some((Head::Other(preface), HTTP2_PREFACE.len()))
        }
        Err(HeadError::TooLong) => Some((Head::TooLarge, 0)),
        Err(_) => Some((Head::Malformed, 0)),
    }
}

impl Other {
    fn new(head: &RequestHead<'_>) -> Self {
        let has_body = head.header_values("transfer-encoding").next().is_some()
            || head
                .header_values("content-length")
                .any(|length| length != "0");
        let close = head
            .header_values("connection")
            .flat_map(|value| value.split(','))
            .any(|option| option.trim().eq_ignore_ascii_case("close"));
        Self {
            version: head.version(),
            is_head: head.method() == "HEAD",
            keep_alive: head.version() == HttpVersion::Http11 && !has_body && !close,
        }
    }
}

/// Asked of a stream at once: a usual head is smaller.
const READ_BYTES: usize = 1024;
/// How a client of HTTP/2 begins (RFC 9113 §3.4), up to the version; the reference proxy server
/// takes it for a request with the method PRI, and for the last one.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
