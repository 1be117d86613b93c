//! What probes and operators see of the client.
//!
//! ```text
//!   Tunnel::status, at most 250 ms old ─▶ /readyz, /tunnels, /status
//! ```
//!
//! Only reads, except that it can begin a drain.

use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use serve::ProcessInfo;
use telemetry::{ClusterStatus, EndpointStatus, Fact, Process, Status};
use tunnel::{PeerStatus, Tunnel, transport_name};

use crate::network::Network;

/// What the endpoints ask.
pub(crate) struct Answers {
    pub(crate) tunnel: Tunnel,
    pub(crate) network: Arc<Network>,
    pub(crate) info: ProcessInfo,
    pub(crate) config: Arc<ArcSwap<Value>>,
}

impl Process for Answers {
    fn binary(&self) -> &'static str {
        self.info.binary()
    }

    fn ready(&self) -> Result<(), String> {
        self.info.serving()?;
        if !self.network.settled() {
            return Err("forwarding or masquerading is not in place".to_owned());
        }
        self.healthy()?;
        if !self.tunnel.status().is_healthy() {
            return Err("no probe came back through a tunnel lately".to_owned());
        }
        Ok(())
    }

    fn healthy(&self) -> Result<(), String> {
        // It has ended when its status is no longer written.
        match self.tunnel.watch().has_changed() {
            Ok(_) => Ok(()),
            Err(_) => Err("the tunnels' thread has ended".to_owned()),
        }
    }

    fn config(&self) -> Value {
        Value::clone(&self.config.load())
    }

    fn snapshot(&self) -> Value {
        tunnels(&self.tunnel.status())
    }

    fn drain(&self) {
        self.info.begin_drain();
    }

    fn status(&self) -> Status {
        let status = self.tunnel.status();
        let clusters: Vec<_> = status.peers.iter().map(cluster).collect();
        Status {
            facts: status.peers.iter().map(fact).collect(),
            clusters_total: clusters.len(),
            clusters,
            ..self.info.status()
        }
    }

    fn extra_admin(
        &self,
        method: &str,
        path: &str,
        _query: Option<&str>,
    ) -> Option<(u16, &'static str, String)> {
        if method != "GET" || path != "/tunnels" {
            return None;
        }
        let text = format!("{:#}\n", self.snapshot());
        Some((200, "application/json", text))
    }
}

/// Returns what is known of all tunnels, as `/tunnels` shows it.
fn tunnels(status: &tunnel::Status) -> Value {
    json!({
        "draining": status.draining,
        "tunnels": status.peers,
    })
}

fn cluster(peer: &PeerStatus) -> ClusterStatus {
    let endpoints = peer.links.iter().map(|link| EndpointStatus {
        address: format!("{} by {}", link.remote, transport_name(link.transport)),
        zone: None,
        state: match (link.active && peer.healthy, link.proven) {
            (true, _) => "up",
            (false, true) => "standby",
            (false, false) => "down",
        },
        active: u64::from(link.active),
    });
    ClusterStatus {
        name: peer.name.clone(),
        active: u64::from(peer.flows),
        failures: 0,
        endpoints: endpoints.collect(),
    }
}

fn fact(peer: &PeerStatus) -> Fact {
    let state = match (peer.healthy, peer.draining) {
        (false, _) => "down",
        (true, true) => "up, draining",
        (true, false) => "up",
    };
    let by = peer.transport.map_or("nothing", transport_name);
    let rtt = peer.rtt.map(|rtt| format!(", round trip {rtt:.1?}"));
    let rtt = rtt.unwrap_or_default();
    Fact {
        name: format!("tunnel to {}", peer.name),
        value: format!("{state}, by {by}{rtt}, MTU {}", peer.mtu),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tunnel::{LinkStatus, Transport};

    use super::*;

    #[test]
    fn tunnel_is_shown_with_its_links() {
        let link = LinkStatus {
            transport: Transport::Tcp,
            remote: "192.0.2.1:8132".to_owned(),
            active: true,
            proven: true,
            rtt: Some(Duration::from_millis(20)),
        };
        let peer = PeerStatus {
            name: "vpn-seed-server-0".to_owned(),
            healthy: true,
            transport: Some(Transport::Tcp),
            remote: Some("192.0.2.1:8132".to_owned()),
            mtu: 1420,
            flows: 3,
            links: vec![link],
            ..PeerStatus::default()
        };
        let shown = tunnels(&tunnel::Status {
            peers: vec![peer.clone()],
            ..tunnel::Status::default()
        });
        assert_eq!(shown["draining"], false);
        let first = &shown["tunnels"][0];
        assert_eq!(first["transport"], "tcp");
        assert_eq!(first["rttSeconds"], Value::Null);
        assert_eq!(first["links"][0]["rttSeconds"], 0.02);
        assert_eq!(cluster(&peer).endpoints[0].state, "up");
        assert_eq!(fact(&peer).value, "up, by tcp, MTU 1420");
    }
}
