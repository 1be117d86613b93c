//! HTTP/1 heads as far as CONNECT needs them: requests from a downstream, our own requests to an
//! upstream, and the answers to those (RFC 9112, RFC 9110 §9.3.6).
//!
//! ```text
//! input ──▶ RequestHead   method, target, version, fields ─▶ consumed; the tunnel's bytes follow
//! target, fields ──encode_connect──▶ head to send ─▶ … ─▶ ResponseHead   status, fields
//! ```
//!
//! Where RFC 9112 lets a recipient be lenient, this one is not, because two readers that disagree
//! about where a head ends are a way to smuggle: a line ends with CRLF and nothing else, folded
//! lines, whitespace before a colon, control characters and empty lines ahead of the request are
//! refused. Knows no bodies, no keep-alive, and nothing of what a target or a field value means.
//!
//! A parse allocates nothing and scans the input once, then again for each field asked for. A
//! caller that parses anew after every segment scans `limit²/2` bytes in the worst case, of a
//! peer that sends byte by byte; [`worth_parsing`] brings that down to about a hundred scans.

mod encode;
mod head;
mod request;
mod response;

use thiserror::Error;

pub use encode::{ConnectEncodeError, encode_connect};
pub use head::{MAX_FIELDS, is_host, worth_parsing};
pub use request::{RequestHead, looks_like_connect};
pub use response::ResponseHead;

/// The HTTP version a head names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl HttpVersion {
    /// Returns the version as heads spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }

    /// Other versions, HTTP/2's preface among them, do not belong on these connections.
    fn new(word: &str) -> Result<Self, HeadError> {
        match word {
            "HTTP/1.0" => Ok(Self::Http10),
            "HTTP/1.1" => Ok(Self::Http11),
            _ => Err(HeadError::Malformed("HTTP version is neither 1.0 nor 1.1")),
        }
    }
}

/// Why the start of a stream is not a usable head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeadError {
    /// HTTP, but not a well-formed head; the text says what is wrong with it. Answered with 400.
    #[error("HTTP head is malformed: {0}")]
    Malformed(&'static str),
    /// The first bytes cannot be those of an HTTP head, so an answer would not be understood.
    #[error("peer does not speak HTTP")]
    NotHttp,
    /// The head exceeds the limit or has more than [`MAX_FIELDS`] fields. Answered with 431.
    #[error("HTTP head exceeds the preamble limit")]
    TooLong,
}
