//! What a socket's side is told: what there is to read, why not to write, why it is over.

use bytes::Bytes;

use crate::credit::CreditError;

/// What a tunnel has for its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes to write to the socket; report them with [`Link::consumed`](crate::Link::consumed).
    Data(Bytes),
    /// The peer will send no more: shut the socket's writing side down. The other direction goes
    /// on until [`Event::Ended`](crate::Event::Ended).
    End,
    /// Nothing now; [`Event::Readable`](crate::Event::Readable) tells when there is.
    Pending,
}

/// The tunnel has ended, was closed, or never was of this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tunnel is gone")]
pub struct Gone;

/// Why bytes were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// This direction is closed; stop reading from the socket.
    #[error("the tunnel takes no more data")]
    Closed,
    /// There is no connection yet.
    #[error("the tunnel is still being dialed")]
    Dialing,
    /// More than [`Link::write_capacity`](crate::Link::write_capacity) allowed.
    #[error("more data than the tunnel has space for")]
    Full,
    /// The tunnel has ended.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Why a tunnel is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// The dial was called off: by [`Link::close`](crate::Link::close) while dialing, or by the
    /// server. The label is "cancelled".
    Canceled,
    /// The agent did not answer CLOSE_REQ in time.
    CloseTimeout,
    /// The agent could not connect, and says why.
    DialFailed {
        /// The agent's text.
        error: String,
    },
    /// No connection within the time for dialing.
    DialTimeout,
    /// Both directions came to their end.
    Finished,
    /// Data waited too long for the socket, or for the link, to take it.
    LingerTimeout,
    /// The stream to the peer ended first.
    LinkLost,
    /// This side closed it.
    LocalClosed,
    /// More data came than there is memory for.
    OverBudget,
    /// The peer closed it, after all that was to come had come.
    PeerClosed {
        /// Its text, empty when nothing was wrong.
        error: String,
    },
    /// The peer closed it before all had come: reset the socket.
    PeerReset {
        /// Its text, or empty.
        error: String,
    },
    /// The socket took nothing for long, and the peer could not be told to wait for it alone.
    SlowConsumer,
    /// The peer broke the protocol.
    Violation(Violation),
}

impl EndReason {
    /// Returns the label for metrics and logs, and what a gRPC client is told of an unclean end.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Canceled => "cancelled",
            Self::CloseTimeout => "close_timeout",
            Self::DialFailed { .. } => "dial_failed",
            Self::DialTimeout => "dial_timeout",
            Self::Finished => "finished",
            Self::LingerTimeout => "linger_timeout",
            Self::LinkLost => "link_lost",
            Self::LocalClosed => "local_closed",
            Self::OverBudget => "over_budget",
            Self::PeerClosed { .. } => "peer_closed",
            Self::PeerReset { .. } => "peer_reset",
            Self::SlowConsumer => "slow_consumer",
            Self::Violation(_) => "violation",
        }
    }

    /// Returns whether all that was sent toward the socket before the end was delivered in full, or
    /// it is not wanted: if not, the socket is better reset than closed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        matches!(
            self,
            Self::Finished | Self::LocalClosed | Self::PeerClosed { .. }
        )
    }

    /// Returns what the peer said about it, if it was the peer that ended the tunnel.
    #[must_use]
    pub fn peer_text(&self) -> Option<&str> {
        if let Self::DialFailed { error } | Self::PeerClosed { error } | Self::PeerReset { error } =
            self
        {
            return Some(error);
        }
        None
    }

    /// Returns the error text of CLOSE_RSP.
    pub(super) fn told_to_peer(&self) -> &'static str {
        match self {
            Self::OverBudget => "no memory for more data",
            Self::SlowConsumer => "the destination takes no data",
            Self::Violation(_) => "protocol violation",
            Self::LingerTimeout => "data was not taken in time",
            Self::Canceled
            | Self::CloseTimeout
            | Self::DialFailed { .. }
            | Self::DialTimeout
            | Self::Finished
            | Self::LinkLost
            | Self::LocalClosed
            | Self::PeerClosed { .. }
            | Self::PeerReset { .. } => "",
        }
    }
}

/// The error of CLOSE_RSP for a socket whose peer reset the connection: Go's text.
pub(crate) const RESET_BY_PEER: &str = "connection reset by peer";

/// How a peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Credit exceeded or out of bounds.
    #[error(transparent)]
    Credit(#[from] CreditError),
    /// DATA behind FIN.
    #[error("DATA after FIN")]
    DataAfterFin,
    /// A connection id that is in use.
    #[error("a connection id was given twice")]
    DuplicateConnectId,
    /// A successful answer to a dial without a connection id.
    #[error("a dial was answered without a connection id")]
    NoConnectId,
}
