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

impl Direction {
    pub(crate) fn read_failed(self, error: io::Error) -> Failure {
        let (source, _) = self.sides();
        Failure {
            side: source,
            reading: true,
            error,
        }
    }

    pub(crate) fn write_failed(self, error: io::Error) -> Failure {
        let (_, sink) = self.sides();
        Failure {
            side: sink,
            reading: false,
            error,
        }
    }

    fn sides(self) -> (Side, Side) {
        match self {
            Self::Rx => (Side::Downstream, Side::Upstream),
            Self::Tx => (Side::Upstream, Side::Downstream),
        }
    }
}

/// A direction failed: which peer, and what the kernel reported.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) side: Side,
    pub(crate) reading: bool,
    pub(crate) error: io::Error,
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
        /// The kernel's error for that socket.
        error: io::Error,
    },
}

/// Receives the byte counts of a running relay.
pub trait Meter {
    /// Counts `bytes` bytes handed to the receiving socket; `copied` means that they passed
    /// through user space instead of being spliced.
    fn relayed(&self, direction: Direction, bytes: u64, copied: bool);
}
