//! What can be wrong with a connection or a stream, and how HTTP/2 calls it.
//!
//! Nothing here says what to do about it: that is for `Connection` and its owner.

use std::fmt;

/// Why a stream or a connection ends (RFC 9113 section 7). A peer may send any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0);
    /// The peer broke the protocol in a way that has no code of its own.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// Something broke that was no fault of the peer's.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// More came than was allowed to.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame for a stream that is over.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame of a wrong length.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not begun.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not wanted any more.
    pub const CANCEL: Self = Self(8);
    /// Header compression is out of step.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The peer asks for too much work.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_ERROR => "NO_ERROR",
            Self::PROTOCOL_ERROR => "PROTOCOL_ERROR",
            Self::INTERNAL_ERROR => "INTERNAL_ERROR",
            Self::FLOW_CONTROL_ERROR => "FLOW_CONTROL_ERROR",
            Self::STREAM_CLOSED => "STREAM_CLOSED",
            Self::FRAME_SIZE_ERROR => "FRAME_SIZE_ERROR",
            Self::REFUSED_STREAM => "REFUSED_STREAM",
            Self::CANCEL => "CANCEL",
            Self::COMPRESSION_ERROR => "COMPRESSION_ERROR",
            Self::ENHANCE_YOUR_CALM => "ENHANCE_YOUR_CALM",
            Self(code) => return write!(f, "error {code}"),
        })
    }
}

/// The peer broke the protocol: the connection is of no more use, once it has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct ConnectionError {
    /// What the peer is told.
    pub code: ErrorCode,
    /// What was wrong, for people.
    pub text: &'static str,
}

impl ConnectionError {
    pub(crate) const fn new(code: ErrorCode, text: &'static str) -> Self {
        Self { code, text }
    }

    pub(crate) const fn protocol(text: &'static str) -> Self {
        Self::new(ErrorCode::PROTOCOL_ERROR, text)
    }

    pub(crate) const fn size(text: &'static str) -> Self {
        Self::new(ErrorCode::FRAME_SIZE_ERROR, text)
    }

    pub(crate) const fn calm(text: &'static str) -> Self {
        Self::new(ErrorCode::ENHANCE_YOUR_CALM, text)
    }
}

/// Why a stream can neither be read nor written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamEnd {
    /// The connection broke the protocol and ended.
    #[error("the connection ended with {0}")]
    Broken(ErrorCode),
    /// The connection is gone.
    #[error("the connection is gone")]
    Lost,
    /// One of the two sides has reset the stream.
    #[error("the stream was reset with {0}")]
    Reset(ErrorCode),
}
