//! What a relay reports: bytes while it runs, and why it ended.
//!
//! Does not name metrics or log fields; callers map these closed sets to theirs.

use std::io;

/// One of the two ways bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From downstream to upstream.
    Rx,
    /// From upstream to downstream.
    Tx,
}

/// One of the two peers of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The peer that connected to us.
    Downstream,
    /// The peer we connected to.
    Upstream,
}

/// Why a relay ended.
#[derive(Debug)]
pub enum Outcome {
    /// Both peers finished sending and everything was delivered.
    Closed,
    /// Nothing moved either way for the idle limit.
    IdleTimeout,
    /// The connection reached its maximum age.
    MaxAge,
    /// A peer reset the connection or vanished; what could still be delivered was, and closing the
    /// other peer's socket resets its connection.
    Reset {
        /// The peer whose socket failed.
        side: Side,
        /// What the kernel said of that socket.
        error: io::Error,
    },
}

/// Receives the byte counts of a running relay.
pub trait Meter {
    /// Notes `bytes` octets handed to the receiving socket; `copied` tells that they passed
    /// through user space instead of being spliced.
    fn relayed(&self, direction: Direction, bytes: u64, copied: bool);
}
