//! What a link and its tunnels count, on either end.
//!
//! ```text
//!     link ──▶ received, sent: packets     tunnel ──▶ bytes, stalled, ended
//!        └──▶ links, blocked, liveness failures
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use knp_proto::{Budget, EndReason};
use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily, Gauge, Kind};

use super::tenant::TenantSeries;
use super::{Held, StreamCounters};

telemetry::labels! {
    /// Which way bytes go.
    pub(crate) enum Direction {
        /// From the destination, toward the API server.
        FromDestination = "from_destination",
        /// Toward the destination.
        ToDestination = "to_destination",
    }
}

impl Direction {
    /// Returns the other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::FromDestination => Self::ToDestination,
            Self::ToDestination => Self::FromDestination,
        }
    }
}

telemetry::families! {
    /// The families, once per process.
    #[derive(Debug)]
    pub(super) struct LinkFamilies {
        /// Tunnels whose socket has not taken waiting data for a while; no other tunnel is affected.
        stalled: gauge = "rhizome_konnectivity_stalled_tunnels",
        /// Streams between server and agent.
        links: gauge = "rhizome_konnectivity_links",
        /// Streams held up by slow sockets, with a peer that knows no credit.
        blocked: gauge = "rhizome_konnectivity_blocked_links",
        /// Streams given up because the peer did not answer in time.
        liveness_failures: counter = "rhizome_konnectivity_liveness_failures_total",
    } with {
        /// By [`Direction`].
        bytes: [Counter; 2],
        ended: CounterFamily,
        ended_by: BTreeMap<&'static str, Counter>,
        budget: Arc<OnceLock<Arc<Budget>>>,
    }
}

impl LinkFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        let bytes = registry.counter(
            "rhizome_konnectivity_relayed_bytes_total",
            "Bytes relayed for tunnels, without the overhead of the protocol.",
            &["direction"],
        );
        let bytes = Direction::ALL.map(|way| bytes.with(&[way.as_str()]));
        let ended = registry.counter(
            "rhizome_konnectivity_tunnels_ended_total",
            "Tunnels that ended, dials that led to none included, by reason.",
            &["reason"],
        );
        let ended_by = END_REASONS.map(|reason| (reason, ended.with(&[reason])));
        let budget = Arc::default();
        collect_buffered(registry, &budget);
        Self::register(registry, bytes, ended, ended_by.into(), budget)
    }

    pub(super) fn budget(&self, budget: &Arc<Budget>) {
        // A process has one budget, so a second call says nothing new.
        let _ = self.budget.set(Arc::clone(budget));
    }
}

fn collect_buffered(registry: &Registry, budget: &Arc<OnceLock<Arc<Budget>>>) {
    let budget = Arc::clone(budget);
    registry.collect(move |encoder| {
        let name = "rhizome_konnectivity_buffered_bytes";
        let help = "Bytes held for, or promised to, tunnels.";
        let used = budget.get().map_or(0, |budget| budget.used());
        encoder.value(name, help, Kind::Gauge, used);
    });
}

/// Every [`EndReason::reason`]; one that is missing here is counted all the same, but is not there
/// from the start.
pub(super) const END_REASONS: [&str; 13] = [
    "cancelled",
    "close_timeout",
    "dial_failed",
    "dial_timeout",
    "finished",
    "linger_timeout",
    "link_lost",
    "local_closed",
    "over_budget",
    "peer_closed",
    "peer_reset",
    "slow_consumer",
    "violation",
];

/// Handles for the links of one tenant, or of an agent.
#[derive(Debug)]
pub(crate) struct LinkMetrics {
    /// Packets and errors from the peer.
    pub(crate) received: Arc<StreamCounters>,
    /// Packets and errors toward the peer.
    pub(crate) sent: Arc<StreamCounters>,
    pub(super) families: Arc<LinkFamilies>,
    /// Upstream's gauge of blocked streams, which agents do not have.
    pub(super) full_channels: Option<Gauge>,
    pub(super) tenant: Option<Arc<TenantSeries>>,
}

impl LinkMetrics {
    /// Counts bytes of a tunnel.
    pub(crate) fn bytes(&self, direction: Direction, bytes: u64) {
        self.families.bytes[direction as usize].add(bytes);
        if let Some(tenant) = &self.tenant {
            tenant.bytes[direction as usize].add(bytes);
        }
    }

    /// Counts the end of a tunnel, or of a dial that led to none.
    pub(crate) fn ended(&self, reason: &EndReason) {
        let families = &self.families;
        match families.ended_by.get(reason.reason()) {
            Some(counter) => counter.inc(),
            None => families.ended.with(&[reason.reason()]).inc(),
        }
    }

    /// Counts a tunnel as stalled for as long as what is returned lives.
    pub(crate) fn stalled(&self) -> Held {
        let own = self.tenant.as_ref().map(|tenant| &tenant.stalled);
        Held::new(&self.families.stalled, own)
    }

    /// Counts a link for as long as what is returned lives.
    pub(crate) fn link(&self) -> Held {
        let own = self.tenant.as_ref().map(|tenant| &tenant.links);
        Held::new(&self.families.links, own)
    }

    /// Counts a link as blocked by one of its tunnels for as long as what is returned lives.
    pub(crate) fn blocked(&self) -> Held {
        let full_channels = self.full_channels.as_ref();
        Held::new(&self.families.blocked, full_channels)
    }

    /// Counts a link that was given up because its peer did not answer.
    pub(crate) fn liveness_failure(&self) {
        self.families.liveness_failures.inc();
    }
}
