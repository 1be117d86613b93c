//! The answers that are not an implementation's, and writing one so that it arrives.
//!
//! The words are those of Go's HTTP server, which the reference proxy server is built on; its
//! `Date` field is left out, since a proxy's errors need none (RFC 9110 §6.6.1).
//!
//! Does not decide which answer is due.

use std::time::Duration;

use preamble::HttpVersion;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::{End, Params};

/// The tunnel is open. Clients of HTTP/1.0 get the same bytes, as upstream has it.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// The head was not well-formed.
pub(crate) const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request";

/// The head was too large.
pub(crate) const TOO_LARGE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\
    Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    431 Request Header Fields Too Large";

/// What a request other than CONNECT is told; `HEAD` gets no body (RFC 9110 §9.3.2).
pub(crate) fn method_not_allowed(version: HttpVersion, is_head: bool, close: bool) -> Vec<u8> {
    let version = match version {
        HttpVersion::Http10 => "HTTP/1.0",
        HttpVersion::Http11 => "HTTP/1.1",
    };
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

/// Writes the last answer and closes politely; whether the client took it changes nothing anymore.
pub(crate) async fn write_and_linger<S>(stream: &mut S, answer: &[u8], params: &Params)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if write(stream, answer, params.answer_limit).await.is_ok() {
        relay::linger(stream, params.linger_limit, LINGER_BYTES).await;
    }
}

/// 45 bytes with the line's end.
const CONNECT_ONLY: &str = "this proxy only supports CONNECT passthrough\n";
/// Bytes of the client that are discarded at most while it reads the answer.
pub(crate) const LINGER_BYTES: usize = 256 * 1024;
