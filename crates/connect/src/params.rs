//! The bounds of one connection.

use std::time::Duration;

/// How long each step of a connection may take, and how much it may hold.
///
/// A connection that never gets a tunnel ends within `other_requests` × (`head_limit` +
/// `answer_limit`) + `dial_limit` + `answer_limit` + `linger_limit`; how long a tunnel may live
/// is the caller's decision.
#[derive(Clone, Debug)]
pub struct Params {
    /// Longest time for a request head to arrive whole, counted from the end of the answer before
    /// it; past it the connection is closed without an answer. Default 60 s.
    pub head_limit: Duration,
    /// Most bytes of a request head. Default 64 KiB.
    pub head_bytes: usize,
    /// Most bytes of a CONNECT target; a longer one is answered like a malformed head. Default
    /// 1024: a host name has at most 255.
    pub target_bytes: usize,
    /// Bytes kept, at least, that a client sends before the answer. No more is read then, so that a
    /// client that leaves is no longer noticed before the dial ends. What came in one read with the
    /// head does not count. Default 64 KiB.
    pub early_bytes: usize,
    /// Longest time for a dial: a backstop, since only the dial itself can report what went wrong;
    /// answered with 504. Default 60 s.
    pub dial_limit: Duration,
    /// Longest time for one answer to be written.
    /// Default 10 s.
    pub answer_limit: Duration,
    /// Longest time an answered connection is kept to shut it down and let the client read. Default
    /// 1 s.
    pub linger_limit: Duration,
    /// Most requests that are not CONNECT on one connection; the last is answered with
    /// `Connection: close`. Default 16.
    pub other_requests: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            head_limit: Duration::from_secs(60),
            head_bytes: 64 * 1024,
            target_bytes: 1024,
            early_bytes: 64 * 1024,
            dial_limit: Duration::from_secs(60),
            answer_limit: Duration::from_secs(10),
            linger_limit: Duration::from_secs(1),
            other_requests: 16,
        }
    }
}
