//! What became of a connection.

use crate::Request;

/// What an access log and metrics want to know about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The CONNECT, when there was one.
    pub request: Option<Box<Request>>,
    /// The status of the last answer, whether or not it could be written.
    pub status: Option<u16>,
    /// Requests that were not CONNECT.
    pub other_requests: u32,
    /// Bytes that came from the client and were meant for the tunnel.
    pub received: u64,
    /// Bytes that went from the tunnel to the client.
    pub sent: u64,
    /// Why the connection ended.
    pub end: End,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client did not take the answer 200 in time.
    AnswerTimeout,
    /// The client went away before it had an answer.
    ClientGone,
    /// The dial took longer than its backstop.
    DialTimeout,
    /// No whole head came in time.
    HeadTimeout,
    /// The head was not well-formed, or its target no authority.
    Malformed,
    /// The client asked for something that is not a tunnel, and for no tunnel after it.
    MethodNotAllowed,
    /// The dial was refused, for the reason of [`Refusal`](crate::Refusal).
    Refused(&'static str),
    /// The tunnel was open and ended, for the reason of [`Ended`](crate::Ended).
    Relayed(&'static str),
    /// The head was larger than its bound.
    TooLarge,
}

impl End {
    /// Returns a word from a closed set: this enum's, and those of the `Dial` implementation.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::AnswerTimeout => "answer_timeout",
            Self::ClientGone => "client_gone",
            Self::DialTimeout => "dial_timeout",
            Self::HeadTimeout => "head_timeout",
            Self::Malformed => "malformed",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Refused(reason) | Self::Relayed(reason) => reason,
            Self::TooLarge => "too_large",
        }
    }
}
