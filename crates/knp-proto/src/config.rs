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

/// Receive window of a stream, bytes: what a peer that knows no credit may send ahead of the
/// sockets of all its tunnels together.
pub const STREAM_WINDOW: usize = 8 << 20;

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
    /// Bytes of one tunnel that are sent while others wait.
    pub quantum_bytes: usize,
    /// How long a socket may take nothing while its data holds up others, as the peer knows no
    /// credit. A slow reader is served, a stopped one is closed.
    pub stall_timeout: Duration,
    /// Bytes that may wait for a socket: the largest window of credit.
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
            quantum_bytes: 64 << 10,
            stall_timeout: Duration::from_secs(30),
            tunnel_bytes: 4 << 20,
        }
    }
}
