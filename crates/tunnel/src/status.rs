//! What is known of the tunnels of a process, for probes, metrics and the admin page.
//!
//! ```text
//!   Engine ── every 250 ms ──▶ Arc<Status> ──▶ Tunnel::status, watch
//! ```
//!
//! Plain values, which the admin page shows as JSON; decides nothing.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tunnel_proto::path::Transport;

/// All tunnels of this end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// One for each configured peer, in the order of the configuration.
    pub peers: Vec<PeerStatus>,
    /// Whether this end has asked its peers to choose another one.
    pub draining: bool,
    /// Server: streams by which nothing authentic came yet.
    pub strangers: usize,
}

impl Status {
    /// Returns whether a probe came back through some tunnel lately.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.peers.iter().any(|peer| peer.healthy)
    }
}

/// The tunnel to one peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerStatus {
    /// The name it has in the configuration.
    pub name: String,
    /// Whether probes through the tunnel come back.
    pub healthy: bool,
    /// Whether it asked to be given no new flows.
    pub draining: bool,
    /// Whether it reported that it cannot forward.
    pub unsettled: bool,
    /// What carries packets at present.
    #[serde(serialize_with = "optional_name")]
    pub transport: Option<Transport>,
    /// Where packets are sent to: an address, or what stands for one.
    pub remote: Option<String>,
    /// Smoothed round trip through the tunnel.
    #[serde(rename = "rttSeconds", serialize_with = "seconds")]
    pub rtt: Option<Duration>,
    /// Probes that went unanswered, of the last 128: 0 to 1.
    pub loss: f64,
    /// Since when the session in use exists.
    #[serde(rename = "handshakeAgeSeconds", serialize_with = "seconds")]
    pub handshake_age: Option<Duration>,
    /// Bytes of the largest inner packet.
    pub mtu: u16,
    /// Open TCP connections that go by this peer: a server's own count, at a client what the server
    /// reported within the last 30 s.
    pub flows: u32,
    /// All links to it.
    pub links: Vec<LinkStatus>,
}

/// One link of a tunnel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkStatus {
    /// What it is.
    #[serde(serialize_with = "name")]
    pub transport: Transport,
    /// Where it leads.
    pub remote: String,
    /// Whether packets are sent by it.
    pub active: bool,
    /// Whether an authentic packet came by it.
    pub proven: bool,
    /// Smoothed round trip.
    #[serde(rename = "rttSeconds", serialize_with = "seconds")]
    pub rtt: Option<Duration>,
}

/// Returns how metrics and the admin address call a transport.
#[must_use]
pub const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}

fn name<S: Serializer>(transport: &Transport, serializer: S) -> Result<S::Ok, S::Error> {
    transport_name(*transport).serialize(serializer)
}

fn optional_name<S: Serializer>(
    transport: &Option<Transport>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    transport.map(transport_name).serialize(serializer)
}

fn seconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let seconds = duration.map(|duration| duration.as_secs_f64());
    seconds.serialize(serializer)
}
