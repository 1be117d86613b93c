//! What a link is told when it is made, and what it tells.

use std::time::Duration;

use bytes::Bytes;

use crate::id::{ConnectId, TunnelId};
use crate::packet::PacketKind;
use crate::tunnel::EndReason;

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

/// Where a dial leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialTarget {
    /// `tcp`, unless a client said otherwise.
    pub protocol: String,
    /// `host:port`.
    pub address: String,
}

/// What the owner of the sockets must know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Open a connection, on an agent, and report to [`Link::dialed`](crate::Link::dialed).
    Dial {
        /// The tunnel that is to lead there.
        tunnel: TunnelId,
        /// Where to.
        target: DialTarget,
    },
    /// The agent prefers not to be dialed.
    Draining,
    /// The tunnel is over: close its socket, or stop dialing. Comes last, and once.
    Ended {
        /// The tunnel that was.
        tunnel: TunnelId,
        /// Why.
        reason: EndReason,
    },
    /// The agent has connected, on a server.
    Established {
        /// The tunnel, now open.
        tunnel: TunnelId,
        /// The agent's id for it, which API servers see.
        connect_id: ConnectId,
    },
    /// There is something to [`read`](crate::Link::read), if only the end.
    Readable {
        /// The tunnel.
        tunnel: TunnelId,
    },
    /// There is space to [`write`](crate::Link::write) again.
    Writable {
        /// The tunnel.
        tunnel: TunnelId,
    },
}

/// A packet to be sent: its head is in the buffer that was passed, its payload here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// What it is, for the metrics.
    pub kind: PacketKind,
    /// What follows the head, of DATA.
    pub payload: Option<Bytes>,
}

/// The stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer asks for much and reads none of the answers.
    #[error("the peer does not read its answers")]
    Backlog,
    /// The stream had ended.
    #[error("a packet after the stream's end")]
    Ended,
}

/// What was odd about a peer, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets of a type or in a direction that means nothing.
    pub ignored: u64,
    /// Answers to dials that were not under way.
    pub unrecognized_responses: u64,
    /// Packets for unknown connections.
    pub unknown_connections: u64,
    /// Tunnels ended, and packets refused, because the peer broke the protocol.
    pub violations: u64,
}
