//! What the data thread lets others see: the servers that are connected, and how many there are.
//!
//! ```text
//! worker ──opened, lost, counts──▶ Board ──▶ probes, /status, /connections
//! ```
//!
//! Touched when a stream begins or ends, never per packet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use knp_proto::Extensions;
use telemetry::lock;
use tokio::time::Instant;

use crate::link::LinkHandle;

/// The state of an agent, for those who look in. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Board(Arc<Mutex<View>>);

/// What is to be seen.
#[derive(Default)]
pub(super) struct View {
    /// The servers that are connected, by their ids; at most as many as the agent seeks.
    pub(super) links: BTreeMap<String, LinkInfo>,
    /// How many servers there are thought to be.
    pub(super) servers: u32,
    /// Why the last attempt to connect failed, if it did.
    pub(super) last_failure: Option<String>,
}

/// One link.
pub(super) struct LinkInfo {
    pub(super) extensions: Extensions,
    pub(super) since: Instant,
    pub(super) link: LinkHandle,
}

impl Board {
    /// Returns what is to be seen; do not hold it across an await.
    pub(super) fn view(&self) -> MutexGuard<'_, View> {
        // What is told is whole after each change.
        lock(&self.0)
    }
}

impl View {
    /// Returns the number of tunnels, those being dialed or closed included.
    pub(super) fn tunnels(&self) -> usize {
        let links = self.links.values().map(|info| &info.link);
        links.map(LinkHandle::tunnels).sum()
    }
}
