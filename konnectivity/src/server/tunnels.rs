//! The open tunnels, for operators to look at.
//!
//! Nothing works from here; it is written when a tunnel opens and ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use knp_proto::{AgentId, ConnectId, TenantId};
use serde_json::json;
use telemetry::lock;
use tokio::time::Instant;

use super::context::Context;
use super::tenant::{Dialed, Tenant};
use crate::metrics::Held;

/// All open tunnels of the process.
#[derive(Default)]
pub(crate) struct Tunnels(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Entry>,
}

struct Entry {
    tenant: TenantId,
    agent: AgentId,
    connect_id: ConnectId,
    since: Instant,
}

/// A tunnel that is open. Dropping it ends the record.
pub(crate) struct Open {
    cx: Arc<Context>,
    number: u64,
    _held: Held,
}

impl Open {
    /// Records a tunnel of `tenant`.
    pub(crate) fn new(cx: &Arc<Context>, tenant: &Tenant, dialed: &Dialed) -> Self {
        let entry = Entry {
            tenant: tenant.id().clone(),
            agent: dialed.agent.clone(),
            connect_id: dialed.tunnel.connect_id(),
            since: Instant::now(),
        };
        let mut table = lock(&cx.tunnels.0);
        let number = table.next;
        table.next += 1;
        table.open.insert(number, entry);
        Self {
            cx: Arc::clone(cx),
            number,
            _held: tenant.metrics().established(),
        }
    }
}

impl Tunnels {
    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).open.len()
    }

    /// Returns up to `limit` of them, the oldest first.
    pub(crate) fn list(&self, limit: usize) -> serde_json::Value {
        let table = lock(&self.0);
        let shown = table.open.iter().take(limit).map(|(number, entry)| {
            json!({
                "number": number,
                "cluster": entry.tenant.as_str(),
                "agent": entry.agent.as_str(),
                "connectId": entry.connect_id.0,
                "seconds": entry.since.elapsed().as_secs(),
            })
        });
        let shown: Vec<_> = shown.collect();
        json!({ "total": table.open.len(), "connections": shown })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let entry = lock(&self.cx.tunnels.0).open.remove(&self.number);
        let lived = entry.map(|entry| entry.since.elapsed());
        let duration = &self.cx.metrics.connection_duration;
        duration.observe_duration(lived.unwrap_or_default());
    }
}
