//! What the process reports to probes and operators.
//!
//! ```text
//!   drain, Status of the tunnels ─▶ /readyz     Status ─▶ /tunnels, /snapshot, the page
//! ```
//!
//! Only reads, except that it can begin a drain.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};
use serve::{Admission, Asker, Metrics, ProcessInfo};
use telemetry::admin::Extra;
use telemetry::{ClusterStatus, EndpointStatus, ListenerStatus, Process};
use tokio::sync::watch;
use tunnel::{PeerStatus, Status, transport_name};

use crate::proxy::{LISTENER, PROTOCOL};

/// Answers probes and operators.
pub(crate) struct View {
    pub(crate) info: ProcessInfo,
    /// The configuration in effect, without secrets.
    pub(crate) config: Value,
    /// Where the proxy listens.
    pub(crate) proxy: SocketAddr,
    pub(crate) admission: Arc<Admission>,
    pub(crate) listeners: Metrics,
    pub(crate) asker: Asker,
    pub(crate) status: watch::Receiver<Arc<Status>>,
}

impl View {
    fn tunnels(&self) -> Arc<Status> {
        Arc::clone(&self.status.borrow())
    }
}

impl Process for View {
    fn binary(&self) -> &'static str {
        self.info.binary()
    }

    fn ready(&self) -> Result<(), String> {
        self.info.serving()?;
        self.healthy()?;
        ready(&self.tunnels())
    }

    fn healthy(&self) -> Result<(), String> {
        // Their thread has ended when it no longer writes its status.
        match self.status.has_changed() {
            Ok(_) => Ok(()),
            Err(_) => Err("the tunnels have ended".to_owned()),
        }
    }

    fn config(&self) -> Value {
        self.config.clone()
    }

    fn snapshot(&self) -> Value {
        tunnels_json(&self.tunnels())
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        Box::pin(async move {
            let open = self.asker.connections(limit).await;
            json!({
                "open": self.admission.connections(),
                "connections": open,
            })
        })
    }

    fn drain(&self) {
        self.info.begin_drain();
    }

    fn status(&self) -> telemetry::Status {
        let totals = self.listeners.totals(LISTENER);
        let clusters: Vec<_> = self.tunnels().peers.iter().map(peer_status).collect();
        telemetry::Status {
            listeners: vec![ListenerStatus {
                name: LISTENER.to_owned(),
                address: self.proxy.to_string(),
                protocol: PROTOCOL.to_owned(),
                active: totals.active,
                total: totals.connections,
                rx_bytes: totals.rx_bytes,
                tx_bytes: totals.tx_bytes,
            }],
            clusters_total: clusters.len(),
            clusters,
            ..self.info.status()
        }
    }

    fn extra_admin(&self, method: &str, path: &str, _query: Option<&str>) -> Option<Extra> {
        (method == "GET" && path == "/tunnels").then(|| {
            let body = format!("{}\n", tunnels_json(&self.tunnels()));
            (200, "application/json", body)
        })
    }
}

/// Returns whether connections can be made: through a client that answers and accepts new ones.
fn ready(status: &Status) -> Result<(), String> {
    let mut peers = status.peers.iter();
    if peers.any(|peer| peer.healthy && !peer.draining) {
        return Ok(());
    }
    Err(match status.is_healthy() {
        true => "every client that can be reached is draining".to_owned(),
        false => "no tunnel: no probe came back from any client".to_owned(),
    })
}

fn peer_status(peer: &PeerStatus) -> ClusterStatus {
    let state = match (peer.healthy, peer.draining, peer.unsettled) {
        (true, false, false) => "up",
        (true, true, _) => "draining",
        (true, false, true) => "unsettled",
        (false, ..) => "down",
    };
    let links = peer.links.iter().map(|link| EndpointStatus {
        address: format!("{} {}", transport_name(link.transport), link.remote),
        zone: None,
        state: if link.active { state } else { "standby" },
        active: u64::from(link.active),
    });
    let mut endpoints: Vec<_> = links.collect();
    if endpoints.is_empty() {
        endpoints.push(EndpointStatus {
            address: "no link".to_owned(),
            zone: None,
            state,
            active: 0,
        });
    }
    ClusterStatus {
        name: peer.name.clone(),
        active: u64::from(peer.flows),
        failures: 0,
        endpoints,
    }
}

fn tunnels_json(status: &Status) -> Value {
    json!({
        "draining": status.draining,
        "peers": status.peers,
    })
}
