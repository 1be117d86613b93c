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

use crate::{Params, Request, forward};

/// What a client sent first, or next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A CONNECT.
    Connect(Box<Request>),
    /// A request in absolute form, and the head that its target is sent.
    Forward(Box<Request>, String),
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
        Ok(Progress::Done { value, consumed }) => {
            let new = |target: &str| Request::new(target, value.version(), params.target_bytes);
            let head = if value.is_connect() {
                new(value.target()).map(|request| Head::Connect(Box::new(request)))
            } else if let Some((target, head)) = forward::to_origin(&value) {
                new(&target).map(|request| Head::Forward(Box::new(request), head))
            } else {
                Some(Head::Other(Other::new(&value)))
            };
            Some((head.unwrap_or(Head::Malformed), consumed))
        }
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
        let close = forward::options(head).any(|option| option.eq_ignore_ascii_case("close"));
        let may_last = head.version() == HttpVersion::Http11 && !head.announces_body();
        Self {
            version: head.version(),
            is_head: head.method() == "HEAD",
            keep_alive: may_last && !close,
        }
    }
}

/// Asked of a stream at once: a usual head is smaller.
const READ_BYTES: usize = 1024;
/// How a client of HTTP/2 begins (RFC 9113 §3.4), up to the version; the reference proxy server
/// takes it for a request with the method PRI, and for the last one.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
