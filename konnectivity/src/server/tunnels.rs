//! The open tunnels, for operators to look at.
//!
//! Nothing works from here; it is written when a tunnel opens and ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use knp_proto::{AgentId, ConnectId, TenantId};
use serde_json::json;
use telemetry::metrics::Histogram;
use tokio::time::Instant;

use crate::metrics::Held;

/// All open tunnels of the process. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Tunnels(Arc<Mutex<Table>>);

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
    tunnels: Tunnels,
    number: u64,
    since: Instant,
    duration: Histogram,
    _held: Held,
}

impl Tunnels {
    /// Records a tunnel; `held` and `duration` see its end.
    pub(crate) fn open(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        connect_id: ConnectId,
        held: Held,
        duration: Histogram,
    ) -> Open {
        let since = Instant::now();
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        let entry = Entry {
            tenant: tenant.clone(),
            agent: agent.clone(),
            connect_id,
            since,
        };
        table.open.insert(number, entry);
        Open {
            tunnels: self.clone(),
            number,
            since,
            duration,
            _held: held,
        }
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Returns up to `limit` of them, the oldest first.
    pub(crate) fn list(&self, limit: usize) -> serde_json::Value {
        let table = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.tunnels.lock().open.remove(&self.number);
        self.duration.observe(self.since.elapsed().as_secs_f64());
    }
}
