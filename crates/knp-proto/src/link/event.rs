//! What a link reports to the owner of its sockets and of its stream.

use bytes::Bytes;

use crate::id::{ConnectId, TunnelId};
use crate::packet::PacketKind;
use crate::tunnel::EndReason;

/// Where a dial leads, as the agent is told.
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
    Dial(TunnelId, DialTarget),
    /// The agent prefers not to be dialed, or the server to be replaced.
    Draining,
    /// The tunnel is over: close its socket, or stop dialing. Comes last, and once.
    Ended(TunnelId, EndReason),
    /// The agent has connected, on a server; API servers see its id for the connection.
    Established(TunnelId, ConnectId),
    /// There is something to [`read`](crate::Link::read), if only the end.
    Readable(TunnelId),
    /// There is space to [`write`](crate::Link::write) again.
    Writable(TunnelId),
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
    /// The peer sends far more that means nothing than any race explains.
    #[error("the peer sends packets that mean nothing")]
    Garbage,
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
