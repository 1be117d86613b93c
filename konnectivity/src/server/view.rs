//! What a server shows of itself to probes and operators.
//!
//! Looks and changes nothing, but for the drain it may be asked to begin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use knp_proto::ClusterId;
use serde_json::{Value, json};
use serve::Phase;
use telemetry::{ClusterStatus, EndpointStatus, Fact, Status};

use super::cluster::Cluster;
use super::context::Context;
use super::health::{Agents, ClusterState, ServerView, State};
use crate::flags::{ClusterSource, ServerConfig};

/// A server's face.
pub(crate) struct View {
    cx: Arc<Context>,
    /// Whether there is one cluster, which then is what readiness is about.
    single: bool,
    config: Value,
    runtime: tokio::runtime::Handle,
}

impl View {
    /// Makes it on the control runtime, where a drain is to run.
    pub(crate) fn new(cx: Arc<Context>, config: &ServerConfig) -> Self {
        Self {
            cx,
            single: matches!(config.clusters, ClusterSource::Single { .. }),
            config: config.effective.clone(),
            runtime: tokio::runtime::Handle::current(),
        }
    }
}

impl ServerView for View {
    fn state(&self) -> State {
        let clusters = self.cx.clusters();
        let connected = clusters.iter().any(|cluster| cluster.is_ready());
        State {
            started: true,
            draining: self.cx.drain.phase() >= Phase::Unready,
            agents: match (self.single, connected) {
                (false, _) => Agents::NotRequired,
                (true, true) => Agents::Connected,
                (true, false) => Agents::Missing,
            },
        }
    }

    fn cluster(&self, id: &str) -> Option<ClusterState> {
        let clusters = self.cx.clusters();
        let cluster = clusters
            .iter()
            .find(|cluster| cluster.id().as_str() == id)?;
        Some(ClusterState {
            ready: cluster.is_ready(),
            frontends: cluster.accepted_frontends(),
        })
    }

    fn config(&self) -> Value {
        self.config.clone()
    }

    fn snapshot(&self) -> Value {
        let broken: Vec<Value> = self
            .cx
            .registry
            .broken()
            .into_iter()
            .map(|(cluster, why)| json!({ "cluster": cluster.as_str(), "reason": why }))
            .collect();
        let clusters: Vec<Value> = self
            .cx
            .clusters()
            .iter()
            .map(|own| described(own))
            .collect();
        json!({
            "serverId": self.cx.server_id,
            "clusters": clusters,
            "refusedFiles": broken,
            "bufferedBytes": self.cx.budget.used(),
            "tunnels": self.cx.tunnels.len(),
        })
    }

    fn connections(&self, limit: usize) -> Pin<Box<dyn Future<Output = Value> + Send + '_>> {
        let list = self.cx.tunnels.list(limit);
        Box::pin(std::future::ready(list))
    }

    fn drain(&self) {
        let _entered = self.runtime.enter();
        self.cx.drain.begin();
    }

    fn status(&self) -> Status {
        self.page(|_| true)
    }

    fn status_of(&self, filter: &str) -> Status {
        self.page(|id| id.as_str().contains(filter))
    }
}

impl View {
    fn page(&self, wanted: impl Fn(&ClusterId) -> bool) -> Status {
        let mut clusters = self.cx.clusters();
        clusters.retain(|cluster| wanted(cluster.id()));
        let total = clusters.len();
        // Those in trouble first.
        clusters.sort_by_key(|cluster| cluster.is_ready());
        clusters.truncate(SHOWN);
        Status {
            facts: vec![
                fact("server id", self.cx.server_id.clone()),
                fact("tunnels", self.cx.tunnels.len().to_string()),
                fact("buffered bytes", self.cx.budget.used().to_string()),
            ],
            clusters: clusters.iter().map(|cluster| row(cluster)).collect(),
            clusters_total: total,
            ..Status::default()
        }
    }
}

fn fact(name: &str, value: String) -> Fact {
    let name = name.to_owned();
    Fact { name, value }
}

fn row(cluster: &Cluster) -> ClusterStatus {
    ClusterStatus {
        name: cluster.id().to_string(),
        endpoints: Vec::<EndpointStatus>::new(),
        ..ClusterStatus::default()
    }
}

fn described(cluster: &Cluster) -> Value {
    let (spec, limits) = (cluster.spec(), cluster.limits());
    let agents: Vec<Value> = cluster
        .links()
        .into_iter()
        .map(|(agent, link)| {
            let stats = link.stats();
            json!({
                "agent": agent.as_str(),
                "stream": link.stream().0,
                "tunnels": link.tunnels(),
                "violations": stats.violations,
                "unknownConnections": stats.unknown_connections,
            })
        })
        .collect();
    json!({
        "id": cluster.id().as_str(),
        "ready": cluster.is_ready(),
        "serverNames": spec.server_names,
        "strategies": spec.strategies.iter().map(|own| own.as_str()).collect::<Vec<_>>(),
        "agents": agents,
        "acceptedFrontends": cluster.accepted_frontends(),
        "tunnels": limits.tunnels(),
        "pendingDials": limits.pending_dials(),
        "bufferedBytes": limits.buffered_bytes(),
    })
}

/// Clusters on the page.
const SHOWN: usize = 200;
