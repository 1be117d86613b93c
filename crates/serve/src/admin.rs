//! What a process that routes connections reports to probes and operators.
//!
//! Only reads, except that it can begin a drain.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use route::{Cluster, Endpoint, EndpointState, Route};
use serde_json::{Value, json};
use telemetry::admin::Extra;
use telemetry::{ClusterStatus, EndpointStatus, ListenerStatus, Process, Status};
use tokio::time::Instant;

use crate::admission::Admission;
use crate::metrics::{CurrentSnapshot, Metrics};
use crate::process::ProcessInfo;
use crate::worker::Asker;

/// Clusters the page shows at most; `/snapshot` has them all.
const SHOWN_CLUSTERS: usize = 200;

/// Conditions of being ready besides not draining; `Err` is the reason why not.
pub type Readiness = dyn Fn() -> Result<(), String> + Send + Sync;

/// Answers a GET request to a path of the program's own, with its query; `None` for any other path.
pub type AdminPaths = dyn Fn(&str, Option<&str>) -> Option<Extra> + Send + Sync;

/// A listener as operators see it.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Name in logs and metrics.
    pub name: String,
    /// Address it is bound to.
    pub address: SocketAddr,
    /// Protocol as the configuration names it.
    pub protocol: &'static str,
    /// Whether it receives datagrams, whose flows no limit of connections counts.
    pub datagrams: bool,
}

/// Answers probes and operators, from what it is made of.
pub struct Admin {
    /// The process.
    pub info: ProcessInfo,
    /// The configuration in effect, without secrets.
    pub config: Value,
    /// Every listener.
    pub listeners: Vec<ListenerInfo>,
    /// Counts connections.
    pub admission: Arc<Admission>,
    /// Counts everything else.
    pub metrics: Metrics,
    /// Lists connections.
    pub asker: Asker,
    /// The routing snapshot in effect.
    pub snapshot: Arc<CurrentSnapshot>,
    /// Further conditions of being ready.
    pub ready: Box<Readiness>,
    /// Paths of the program's own on the admin address.
    pub paths: Option<Box<AdminPaths>>,
}

impl Admin {
    fn status_where(&self, wanted: impl Fn(&ClusterStatus) -> bool) -> Status {
        let (snapshot, confirmed) = (self.snapshot)();
        let now = Instant::now();
        let mut clusters_total = 0;
        let mut clusters = Vec::new();
        // Those in trouble first, since not all may be shown.
        for troubled in [true, false] {
            let of_this_kind = |cluster: &&Arc<Cluster>| in_trouble(cluster, now) == troubled;
            for cluster in snapshot.clusters().filter(of_this_kind) {
                let status = cluster_status(cluster, now);
                if wanted(&status) {
                    clusters_total += 1;
                    if clusters.len() < SHOWN_CLUSTERS {
                        clusters.push(status);
                    }
                }
            }
        }
        Status {
            generation: Some(snapshot.generation()),
            generation_age: Some(now.saturating_duration_since(confirmed)),
            listeners: { self.listeners.iter() }
                .map(|listener| self.listener_status(listener))
                .collect(),
            clusters,
            clusters_total,
            ..self.info.status()
        }
    }

    /// Returns the open flows of datagrams, which no admission counts.
    fn flows(&self) -> u64 {
        let datagrams = |listener: &&ListenerInfo| listener.datagrams;
        let listeners = self.listeners.iter().filter(datagrams);
        listeners
            .map(|listener| self.metrics.totals(&listener.name).active)
            .sum()
    }

    fn listener_status(&self, listener: &ListenerInfo) -> ListenerStatus {
        let totals = self.metrics.totals(&listener.name);
        ListenerStatus {
            name: listener.name.clone(),
            address: listener.address.to_string(),
            protocol: listener.protocol.to_owned(),
            active: totals.active,
            total: totals.connections,
            rx_bytes: totals.rx_bytes,
            tx_bytes: totals.tx_bytes,
        }
    }
}

impl Process for Admin {
    fn binary(&self) -> &'static str {
        self.info.binary()
    }

    fn ready(&self) -> Result<(), String> {
        self.info.serving()?;
        (self.ready)()
    }

    fn config(&self) -> Value {
        self.config.clone()
    }

    fn snapshot(&self) -> Value {
        let (snapshot, _) = (self.snapshot)();
        let now = Instant::now();
        json!({
            "generation": snapshot.generation(),
            "clusters": snapshot.clusters().map(|c| cluster_json(c, now)).collect::<Vec<_>>(),
            "routes": snapshot.routes().map(|route| route_json(route)).collect::<Vec<_>>(),
        })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        Box::pin(async move {
            let open = self.asker.connections(limit).await;
            json!({
                "open": self.admission.connections() + self.flows(),
                "connections": open,
            })
        })
    }

    fn drain(&self) {
        self.info.begin_drain();
    }

    fn status(&self) -> Status {
        self.status_where(|_| true)
    }

    fn status_of(&self, filter: &str) -> Status {
        self.status_where(|cluster| cluster.matches(filter))
    }

    fn extra_admin(&self, method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        let paths = self.paths.as_ref().filter(|_| method == "GET")?;
        paths(path, query)
    }
}

fn in_trouble(cluster: &Cluster, now: Instant) -> bool {
    let healthy =
        |endpoint: &Arc<Endpoint>| endpoint.state(now.into_std()) == EndpointState::Healthy;
    !cluster.endpoints().iter().all(healthy)
}

fn cluster_status(cluster: &Cluster, now: Instant) -> ClusterStatus {
    let failures = route::ConnectFailure::ALL.into_iter();
    ClusterStatus {
        name: cluster.name().to_string(),
        active: u64::from(cluster.active()),
        failures: failures
            .map(|failure| cluster.connect_failures(failure))
            .sum(),
        endpoints: cluster
            .endpoints()
            .iter()
            .map(|e| endpoint_status(e, now))
            .collect(),
    }
}

fn endpoint_status(endpoint: &Endpoint, now: Instant) -> EndpointStatus {
    EndpointStatus {
        address: endpoint.address().to_string(),
        zone: endpoint.zone().map(Into::into),
        state: endpoint.state(now.into_std()).as_str(),
        active: u64::from(endpoint.active()),
    }
}

fn cluster_json(cluster: &Cluster, now: Instant) -> Value {
    let endpoints = cluster.endpoints().iter().map(|endpoint| {
        json!({
            "address": endpoint.address().to_string(),
            "zone": endpoint.zone(),
            "weight": endpoint.weight(),
            "priority": endpoint.priority(),
            "state": endpoint.state(now.into_std()).as_str(),
            "active": endpoint.active(),
        })
    });
    json!({
        "name": cluster.name().as_ref(),
        "active": cluster.active(),
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

fn route_json(route: &Route) -> Value {
    let sources: Vec<String> = route
        .allow_sources()
        .iter()
        .map(ToString::to_string)
        .collect();
    json!({
        "matches": route.matches().to_string(),
        "cluster": route.cluster().name().as_ref(),
        "allowSources": sources,
    })
}
