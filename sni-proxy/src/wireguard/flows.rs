//! Clients heard from lately, with their state: a table of flows, bounded in age.
//!
//! ```text
//!     client address ─▶ its flows                   one for each route a client uses
//!     fresh:   oldest ─▶ … ─▶ newest                not proven by a server; the oldest is out first
//!     proven:  oldest ─▶ … ─▶ newest                their server spoke to them
//! ```
//!
//! Any host can invent addresses and so make flows; therefore those that a server has answered with
//! data are kept apart, and only the others are evicted. A datagram only sets a flow's time: its place by
//! age is brought up to date when it is looked at. Knows neither sockets nor routes, and time is an
//! argument.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slab::Slab;

/// The place of a flow, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId(usize);

/// Whether a flow is more than a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Heard from, and no more.
    Fresh = 0,
    /// Its server has sent it data.
    Proven,
}

/// All flows of one worker.
#[derive(Debug)]
pub(super) struct FlowTable<T> {
    slots: Slab<Slot<T>>,
    by_client: HashMap<SocketAddr, Vec<FlowId>>,
    /// The flows of each standing, by [`Slot::sorted`].
    by_age: [BTreeSet<(Instant, FlowId)>; 2],
}

#[derive(Debug)]
struct Slot<T> {
    client: SocketAddr,
    heard: Instant,
    /// The time it is sorted by: not after `heard`.
    sorted: Instant,
    standing: Standing,
    value: T,
}

impl<T> FlowTable<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            by_client: HashMap::new(),
            by_age: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    /// Returns all flows, in no particular order.
    pub(super) fn ids(&self) -> Vec<FlowId> {
        self.slots.iter().map(|(at, _)| FlowId(at)).collect()
    }

    /// Returns the flows of a client, the latest made first.
    pub(super) fn of(&self, client: SocketAddr) -> impl Iterator<Item = (FlowId, &T)> {
        let ids = self.by_client.get(&client).into_iter().flatten().rev();
        ids.filter_map(|id| Some((*id, &self.slot(*id)?.value)))
    }

    /// Returns what belongs to a flow.
    pub(super) fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        self.slots.get_mut(id.0).map(|slot| &mut slot.value)
    }

    /// Returns the client of a flow.
    pub(super) fn client(&self, id: FlowId) -> Option<SocketAddr> {
        self.slot(id).map(|slot| slot.client)
    }

    /// Returns when the flow's client was heard last.
    pub(super) fn heard(&self, id: FlowId) -> Option<Instant> {
        self.slot(id).map(|slot| slot.heard)
    }

    /// Returns how much the flow is to be trusted.
    pub(super) fn standing(&self, id: FlowId) -> Option<Standing> {
        self.slot(id).map(|slot| slot.standing)
    }

    /// Makes a flow, as one that was heard just now.
    pub(super) fn insert(&mut self, now: Instant, client: SocketAddr, value: T) -> FlowId {
        let (heard, sorted, standing) = (now, now, Standing::Fresh);
        let id = FlowId(self.slots.insert(Slot {
            client,
            heard,
            sorted,
            standing,
            value,
        }));
        self.by_client.entry(client).or_default().push(id);
        self.by_age[standing as usize].insert((sorted, id));
        id
    }

    /// Notes that the flow's client was heard.
    pub(super) fn touch(&mut self, now: Instant, id: FlowId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.heard = slot.heard.max(now);
        }
    }

    /// Notes that the flow's server has sent it data. That is no word of the client: its age stays.
    pub(super) fn prove(&mut self, id: FlowId) {
        self.sort(id, Standing::Proven);
    }

    /// Sorts a flow by when it was heard, among those of a standing.
    fn sort(&mut self, id: FlowId, standing: Standing) {
        let Some(slot) = self.slots.get_mut(id.0) else {
            return;
        };
        self.by_age[slot.standing as usize].remove(&(slot.sorted, id));
        (slot.sorted, slot.standing) = (slot.heard, standing);
        self.by_age[standing as usize].insert((slot.sorted, id));
    }

    /// Returns the flow whose client was silent longest among those of one standing.
    pub(super) fn oldest(&mut self, standing: Standing) -> Option<FlowId> {
        loop {
            let (sorted, id) = *self.by_age[standing as usize].first()?;
            if self.heard(id) == Some(sorted) {
                return Some(id);
            }
            self.sort(id, standing);
        }
    }

    /// Returns a flow that has been silent for `idle` or longer.
    pub(super) fn expired(&mut self, now: Instant, idle: Duration) -> Option<FlowId> {
        let is_due = |sorted| now.saturating_duration_since(sorted) >= idle;
        for standing in [Standing::Fresh, Standing::Proven] {
            while let Some((sorted, id)) = self.by_age[standing as usize].first().copied()
                && is_due(sorted)
            {
                if self.heard(id) == Some(sorted) {
                    return Some(id);
                }
                self.sort(id, standing);
            }
        }
        None
    }

    /// Returns for how long the flow's client has been silent.
    pub(super) fn silent(&self, now: Instant, id: FlowId) -> Duration {
        let heard = self.heard(id).unwrap_or(now);
        now.saturating_duration_since(heard)
    }

    /// Ends a flow and returns what belonged to it.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<T> {
        let slot = self.slots.try_remove(id.0)?;
        self.by_age[slot.standing as usize].remove(&(slot.sorted, id));
        if let Some(ids) = self.by_client.get_mut(&slot.client) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_client.remove(&slot.client);
            }
        }
        if self.slots.is_empty() {
            // The memory of a burst is given back.
            *self = Self::new();
        }
        Some(slot.value)
    }

    fn slot(&self, id: FlowId) -> Option<&Slot<T>> {
        self.slots.get(id.0)
    }
}

#[cfg(test)]
mod tests;
