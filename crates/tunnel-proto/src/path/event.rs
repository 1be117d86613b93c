//! What a [`Selector`](super::Selector) asks of its caller, or reports to it.
//!
//! What becomes of a link is decided elsewhere; here are only the names of it.

use super::{LinkId, Transport};

/// What the caller is to do, or to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Close the link and forget it.
    Close {
        /// The link.
        link: LinkId,
        /// Why.
        reason: CloseReason,
    },
    /// Connect; then call [`handle_connected`](super::Selector::handle_connected) or
    /// [`handle_failed`](super::Selector::handle_failed).
    Dial {
        /// What the link will be known as.
        link: LinkId,
        /// By what.
        transport: Transport,
    },
    /// No link works any more.
    Down,
    /// Send a probe; its answer goes to [`handle_pong`](super::Selector::handle_pong).
    Probe {
        /// The link to send it on.
        link: LinkId,
        /// To be found in the answer.
        id: u32,
    },
    /// Send everything by this link from now on; go on receiving from the others.
    Use {
        /// The link.
        link: LinkId,
        /// What it is.
        transport: Transport,
    },
}

/// Why a link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Probes were not answered.
    Dead,
    /// The caller reported a failure, which it counts.
    Failed,
    /// Connecting took too long.
    Timeout,
    /// It does not carry packets of a useful size.
    Unfit,
}

impl CloseReason {
    /// Returns the label for metrics.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Failed => "failed",
            Self::Timeout => "dial_timeout",
            Self::Unfit => "unfit",
        }
    }
}
