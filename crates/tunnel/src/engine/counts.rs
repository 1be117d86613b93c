//! What the engine counts, and why it dropped a packet or a datagram.
//!
//! Decides nothing; the words are a contract with dashboards and alerts. Others of that metric:
//! `DatagramError`, `noise::Refused`, `Refusal`, `codel::DropReason`, `Counters::publish`.

use std::collections::BTreeMap;

telemetry::labels! {
    /// Why the engine dropped a packet or a datagram.
    pub(crate) enum Dropped {
        /// From the tunnel: an inner destination that is not behind this end.
        Destination = "destination",
        /// A handshake for no own key, or from no known peer.
        Handshake = "handshake",
        /// From the device: no link to the peer is up.
        NoLink = "no_link",
        /// From the device: for no peer's address.
        NoPeer = "no_peer",
        /// From the device: no session with the peer yet.
        NoSession = "no_session",
        /// From the tunnel: an IP packet only by its looks.
        NotIp = "not_ip",
        /// From the device: the packet does not match the header in front of it.
        Offload = "offload",
        /// From the tunnel: an inner source that the peer may not use.
        Source = "source",
        /// From the device: larger than the path, and may not be answered with an error.
        TooBig = "too_big",
        /// From the tunnel: for a session this end does not have.
        UnknownSession = "unknown_session",
    }
}

/// What the engine counted since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Packets and bytes taken from the device and sealed.
    pub(crate) sealed: Traffic,
    /// Packets and bytes opened and given to the device.
    pub(crate) opened: Traffic,
    /// Handshakes that led to a session, or were answered.
    pub(crate) handshakes: u64,
    /// Times the link in use changed.
    pub(crate) path_changes: u64,
    /// By reason.
    dropped: BTreeMap<&'static str, u64>,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl Counts {
    pub(crate) fn drop(&mut self, reason: &'static str) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// Returns how often each happened that happened at all.
    pub(crate) fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.dropped.iter().map(|(reason, count)| (*reason, *count))
    }
}
