//! Bounds and times of a link, and which end it is.
//!
//! Plain values: they know nothing of links, tunnels or packets.

use std::time::Duration;

/// Which end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens connections.
    Agent,
    /// Asks for them.
    Server,
}

/// What happens when a socket does not take its data and the peer knows no credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The stream is not read until half of what waits is gone, and all its tunnels stand still:
    /// upstream's behavior.
    Block,
    /// As [`Overflow::Block`], but a tunnel whose socket takes nothing at all for
    /// [`LinkConfig::patience`] is closed. Who reads slowly is waited for, who has stopped is not.
    #[default]
    Close,
}

/// Bounds and times of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// How long CLOSE_RSP is waited for; upstream's clients wait as long for theirs.
    pub close_timeout: Duration,
    /// How long a dial may take, on either end; a server allows more than its agents.
    pub dial_timeout: Duration,
    /// How long what is left of a closed tunnel may wait without any of it being taken.
    pub linger_timeout: Duration,
    /// Bytes of one DATA at most; upstream's receivers take messages up to 4 MiB.
    pub max_data_bytes: usize,
    /// Bytes from a socket that may wait for the stream.
    pub outbox_bytes: usize,
    /// See [`Overflow`].
    pub overflow: Overflow,
    /// See [`Overflow::Close`].
    pub patience: Duration,
    /// Bytes of one tunnel that are sent while others wait.
    pub quantum_bytes: usize,
    /// Bytes that may wait for a socket: the largest window, and with a peer that knows no
    /// credit the point at which [`Overflow`] applies.
    pub tunnel_bytes: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            close_timeout: Duration::from_secs(10),
            dial_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(60),
            max_data_bytes: 64 << 10,
            outbox_bytes: 256 << 10,
            overflow: Overflow::Close,
            patience: Duration::from_secs(1),
            quantum_bytes: 64 << 10,
            tunnel_bytes: 4 << 20,
        }
    }
}
