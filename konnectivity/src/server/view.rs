//! What a server shows of itself to probes and operators.
//!
//! Looks and changes nothing, but for the drain it may be asked to begin.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Value, json};
use serve::ProcessInfo;
use telemetry::admin::Extra;
use telemetry::{ClusterStatus, Process, Status};

use super::context::Context;
use super::health::{self, TenantState};
use super::tenant::{Connected, Tenant};
use crate::endpoints::{self, fact};
use crate::registry::TenantSource;

/// A server's face.
pub(crate) struct View {
    pub(crate) cx: Arc<Context>,
    pub(crate) info: ProcessInfo,
}

impl Process for View {
    fn binary(&self) -> &'static str {
        self.info.binary()
    }

    fn ready(&self) -> Result<(), String> {
        health::ready(self.draining(), self.has_agents()).map_err(str::to_owned)
    }

    fn extra(&self, _method: &str, path: &str, query: Option<&str>) -> Option<Extra> {
        health::extra(path, query, self.draining(), self.has_agents(), |id| {
            let tenants = self.cx.tenants();
            let tenant = tenants.iter().find(|tenant| tenant.id().as_str() == id)?;
            Some(TenantState {
                ready: tenant.is_ready(),
                frontends: tenant.accepted_frontends(),
            })
        })
    }

    fn extra_admin(&self, _method: &str, path: &str, _query: Option<&str>) -> Option<Extra> {
        endpoints::profiles(path)
    }

    fn config(&self) -> Value {
        self.cx.config.effective.clone()
    }

    fn snapshot(&self) -> Value {
        let broken: Vec<Value> = self
            .cx
            .registry
            .broken()
            .into_iter()
            .map(|(tenant, why)| json!({ "cluster": tenant.as_str(), "reason": why }))
            .collect();
        let tenants: Vec<Value> = self.cx.tenants().iter().map(|own| described(own)).collect();
        json!({
            "serverId": self.cx.config.id,
            "clusters": tenants,
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
        self.info.begin_drain();
    }

    fn status(&self) -> Status {
        self.status_of("")
    }

    fn status_of(&self, filter: &str) -> Status {
        let mut tenants = self.cx.tenants();
        tenants.retain(|tenant| tenant.id().as_str().contains(filter));
        let total = tenants.len();
        // Those in trouble first.
        tenants.sort_by_key(|tenant| tenant.is_ready());
        tenants.truncate(SHOWN);
        let row = |tenant: &Arc<Tenant>| ClusterStatus {
            name: tenant.id().to_string(),
            ..ClusterStatus::default()
        };
        Status {
            facts: vec![
                fact("server id", self.cx.config.id.clone()),
                fact("tunnels", self.cx.tunnels.len().to_string()),
                fact("buffered bytes", self.cx.budget.used().to_string()),
            ],
            clusters: tenants.iter().map(row).collect(),
            clusters_total: total,
            ..self.info.status()
        }
    }
}

impl View {
    fn draining(&self) -> bool {
        self.info.serving().is_err()
    }

    /// Returns whether agents are connected, where readiness depends on them: with one tenant, as at upstream.
    fn has_agents(&self) -> bool {
        let many = matches!(self.cx.config.tenants, TenantSource::Registry(_));
        many || self
            .cx
            .tenants()
            .iter()
            .any(|tenant| tenant.is_ready_by_first())
    }
}

fn described(tenant: &Tenant) -> Value {
    let (spec, limits) = (tenant.spec(), tenant.limits());
    let agents: Vec<Value> = tenant
        .connected()
        .into_iter()
        .map(|Connected { agent, link }| {
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
        "id": tenant.id().as_str(),
        "ready": tenant.is_ready(),
        "serverNames": spec.server_names,
        "strategies": spec.strategies.iter().map(|own| own.as_str()).collect::<Vec<_>>(),
        "agents": agents,
        "acceptedFrontends": tenant.accepted_frontends(),
        "tunnels": limits.tunnels(),
        "pendingDials": limits.pending_dials(),
        "bufferedBytes": limits.buffered_bytes(),
    })
}

/// Tenants on the page.
const SHOWN: usize = 200;
