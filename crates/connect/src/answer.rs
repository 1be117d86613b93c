//! The answers to clients, and writing one so that it arrives.
//!
//! The texts of our own answers are those of Go's HTTP server, which the reference proxy server is
//! built on; its `Date` field is left out, since a proxy's errors need none (RFC 9110 §6.6.1).
//!
//! Does not decide which answer is due.

use std::time::Duration;

use http::StatusCode;
use preamble::HttpVersion;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::End;

/// The tunnel is open. Clients of HTTP/1.0 get the same bytes, as upstream has it.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// The head was not well-formed.
pub(crate) const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request";

/// The head was too large.
pub(crate) const TOO_LARGE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\
    Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    431 Request Header Fields Too Large";

/// Returns the answer to a request other than CONNECT; `HEAD` gets no body (RFC 9110 §9.3.2).
pub(crate) fn method_not_allowed(version: HttpVersion, is_head: bool, close: bool) -> Vec<u8> {
    let version = version.as_str();
    let length = CONNECT_ONLY.len();
    let close = if close { "Connection: close\r\n" } else { "" };
    let body = if is_head { "" } else { CONNECT_ONLY };
    format!(
        "{version} 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Length: {length}\r\n{close}\r\n{body}"
    )
    .into_bytes()
}

/// Writes and flushes an answer.
///
/// # Errors
/// [`End::AnswerTimeout`] and [`End::ClientGone`].
pub(crate) async fn write<S>(stream: &mut S, answer: &[u8], limit: Duration) -> Result<(), End>
where
    S: AsyncWrite + Unpin,
{
    let all = async {
        stream.write_all(answer).await?;
        stream.flush().await
    };
    match timeout(limit, all).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::ClientGone),
        Err(_) => Err(End::AnswerTimeout),
    }
}

/// Why a CONNECT gets no tunnel, and the answer that reports it.
///
/// Written as status line, the fields of [`RefusalHeaders`], an empty line and the body, without a
/// `Content-Length`: the connection's end is the body's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The label for logs and metrics, from a closed set of the caller's.
    pub reason: &'static str,
    /// The body, written as it is.
    pub body: String,
    /// The header fields.
    pub headers: RefusalHeaders,
}

/// The header fields of a [`Refusal`]; the reference proxy server has three variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalHeaders {
    /// `Content-Type: text/plain` alone: there was no agent to ask.
    Bare,
    /// `Connection: close` and `Content-Type: text/plain; charset=utf-8`: the dial failed.
    Closing,
    /// `Content-Type: text/plain; charset=utf-8` alone: the dial could not be sent or was not
    /// answered.
    Typed,
}

impl Refusal {
    /// Makes a refusal with [`RefusalHeaders::Closing`].
    pub fn new(status: u16, reason: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            body: body.into(),
            headers: RefusalHeaders::Closing,
        }
    }

    /// Changes the header fields.
    #[must_use]
    pub fn with_headers(mut self, headers: RefusalHeaders) -> Self {
        self.headers = headers;
        self
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Self { status, body, .. } = self;
        let fields = match self.headers {
            RefusalHeaders::Bare => "Content-Type: text/plain\r\n",
            RefusalHeaders::Closing => {
                "Connection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
            }
            RefusalHeaders::Typed => "Content-Type: text/plain; charset=utf-8\r\n",
        };
        let phrase = phrase(*status);
        format!("HTTP/1.1 {status} {phrase}\r\n{fields}\r\n{body}").into_bytes()
    }
}

/// Returns the reason phrase of a status, for the statuses in use that of Go's HTTP library; clients
/// must not rely on a phrase anyway (RFC 9112 §4).
fn phrase(status: u16) -> &'static str {
    let status = StatusCode::from_u16(status).ok();
    status
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Refused")
}

/// 45 bytes with the line's end.
const CONNECT_ONLY: &str = "this proxy only supports CONNECT passthrough\n";
/// Bytes of the client that are discarded at most while it reads the answer.
pub(crate) const LINGER_BYTES: usize = 256 * 1024;
