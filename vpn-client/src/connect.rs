//! Asks a gateway by HTTP CONNECT for a stream to a server.
//!
//! ```text
//!   CONNECT host:port, `header: value` ──▶ gateway
//!   200, and bytes of the server behind it ◀── gateway          anything else: why not
//! ```
//!
//! Opens no connection and waits without a limit: the caller has one for the whole attempt.

use std::io;

use preamble::{ConnectEncodeError, HeadError, Progress, ResponseHead, encode_connect};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes of all heads of an answer; gateways answer in a line or two.
const ANSWER_BYTES: usize = 8 * 1024;
/// Bytes read at once: as many may come along behind the answer.
const READ_BYTES: usize = 2 * 1024;

/// Why there is no stream to the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ConnectError {
    #[error("the gateway's answer to the CONNECT")]
    Answer(#[source] HeadError),
    #[error("the gateway closed before it had answered the CONNECT")]
    Closed,
    #[error(transparent)]
    Encode(#[from] ConnectEncodeError),
    #[error("asking the gateway")]
    Io(#[from] io::Error),
    #[error("the gateway answered the CONNECT with {status}: {}", explain(*status))]
    Refused { status: u16 },
}

impl ConnectError {
    /// Returns the label for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Answer(_) => "malformed",
            Self::Closed => "closed",
            Self::Encode(_) => "internal",
            Self::Io(_) => "reset",
            Self::Refused { .. } => "refused_by_gateway",
        }
    }
}

/// Requests the stream to `target` with `header: value`. Returns what the server has sent
/// already, at most as much as one read takes.
///
/// Not cancel-safe: a stream that was asked half is of no use.
pub(crate) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    gateway: &mut S,
    target: &str,
    header: &str,
    value: &str,
) -> Result<Vec<u8>, ConnectError> {
    let mut request = Vec::with_capacity(256);
    encode_connect(target, &[(header, value)], &mut request)?;
    gateway.write_all(&request).await?;
    let mut buf = Vec::new();
    loop {
        let mut chunk = [0; READ_BYTES];
        let read = gateway.read(&mut chunk).await?;
        if read == 0 {
            return Err(ConnectError::Closed);
        }
        buf.extend_from_slice(chunk.get(..read).unwrap_or_default());
        match ResponseHead::parse_final(&buf, ANSWER_BYTES).map_err(ConnectError::Answer)? {
            Progress::Need { .. } => {}
            Progress::Done { value, consumed } if value.is_success() => {
                return Ok(buf.split_off(consumed));
            }
            Progress::Done { value, .. } => {
                let status = value.status();
                return Err(ConnectError::Refused { status });
            }
        }
    }
}

/// Returns what an operator should look at.
fn explain(status: u16) -> &'static str {
    match status {
        300..400 => {
            "a redirect: this port takes no CONNECT with this header; look at endpoint.tcpPort and \
             endpoint.header"
        }
        400 => "the gateway does not take the request; look at endpoint.header and the value",
        401 | 407 => "something on the way wants credentials",
        403 => "the gateway does not serve clients of this address",
        404 => "the gateway has no route for the server's value",
        405 | 501 => "what answers there is no gateway for CONNECT; look at endpoint.tcpPort",
        429 => "the gateway limits requests",
        431 => "the request is longer than the gateway takes",
        502 | 503 => "the gateway reaches no server of this value",
        504 => "the server does not answer the gateway",
        500..600 => "the gateway has an internal error",
        _ => "no answer that a CONNECT has",
    }
}

#[cfg(test)]
mod tests;
