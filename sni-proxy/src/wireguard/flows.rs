//! Clients heard from lately, with their state: a table of flows, bounded in age.
//!
//! ```text
//!     client address ─▶ its flows       one for each route a client uses
//!     fresh                             only heard from
//!     proven                            answered by their server
//!        └ counted by route, and by network within it: where there are most, one has to go
//! ```
//!
//! Any host can invent addresses and so make flows; therefore those that a server has answered are
//! kept apart. A client's key makes flows of any number of addresses, but on one route; an address
//! alone, on any number of routes, but in one network. Nothing is sorted by time: a datagram only sets
//! its flow's. Knows neither sockets nor routes, and time is an argument.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slab::Slab;

/// Flows from all over the table that are compared when one has to go. Of a route that has a third
/// of it, there is none among them one time in 600.
const SAMPLE: usize = 16;

/// Calls of [`FlowTable::expired`] until it has looked at every flow of a large table.
const SWEEPS: usize = 16;

/// Flows that a call looks at in any case.
const SWEPT: usize = 1024;

/// The place of a flow, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId(usize);

/// Whether a flow is more than a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// Heard from, and no more.
    Fresh = 0,
    /// Its server has answered: with data, or to a handshake that it accepted.
    Proven,
}

/// What a flow counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) route: u64,
    /// The network of the client.
    pub(super) network: u64,
}

/// All flows of one worker.
#[derive(Debug)]
pub(super) struct FlowTable<T> {
    slots: Slab<Slot<T>>,
    by_client: HashMap<SocketAddr, Vec<FlowId>>,
    by_standing: [Vec<FlowId>; 2],
    /// Flows of a standing on a route, and those of one network.
    sizes: HashMap<(Standing, u64, Option<u64>), usize>,
    /// Where the next comparison begins.
    next_sample: usize,
    /// Where the search for silent ones goes on.
    swept: usize,
}

#[derive(Debug)]
struct Slot<T> {
    client: SocketAddr,
    heard: Instant,
    standing: Standing,
    holder: Holder,
    /// Its place among the flows of its standing.
    place: usize,
    value: T,
}

impl<T> FlowTable<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            by_client: HashMap::new(),
            by_standing: [Vec::new(), Vec::new()],
            sizes: HashMap::new(),
            next_sample: 0,
            swept: 0,
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

    /// Returns the number of flows of a standing.
    pub(super) fn len(&self, standing: Standing) -> usize {
        self.by_standing[standing as usize].len()
    }

    /// Makes a flow, as one that was heard just now.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        client: SocketAddr,
        holder: Holder,
        value: T,
    ) -> FlowId {
        let id = FlowId(self.slots.insert(Slot {
            client,
            heard: now,
            standing: Standing::Fresh,
            holder,
            place: 0,
            value,
        }));
        self.enter(id, Standing::Fresh);
        self.by_client.entry(client).or_default().push(id);
        id
    }

    /// Records that the flow's client was heard.
    pub(super) fn touch(&mut self, now: Instant, id: FlowId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.heard = slot.heard.max(now);
        }
    }

    /// Records that the flow's server has answered; its client was not heard by that.
    pub(super) fn prove(&mut self, id: FlowId) {
        self.leave(id);
        self.enter(id, Standing::Proven);
    }

    fn enter(&mut self, id: FlowId, standing: Standing) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            let all = &mut self.by_standing[standing as usize];
            (slot.standing, slot.place) = (standing, all.len());
            all.push(id);
            for group in groups(standing, slot.holder) {
                *self.sizes.entry(group).or_default() += 1;
            }
        }
    }

    fn leave(&mut self, id: FlowId) {
        let Some(slot) = self.slots.get(id.0) else {
            return;
        };
        for group in groups(slot.standing, slot.holder) {
            let left = self.size(group) - 1;
            self.sizes.insert(group, left);
            if left == 0 {
                self.sizes.remove(&group);
            }
        }
        let (place, all) = (slot.place, &mut self.by_standing[slot.standing as usize]);
        all.swap_remove(place);
        if let Some(moved) = all.get(place).and_then(|id| self.slots.get_mut(id.0)) {
            moved.place = place;
        }
    }

    /// Returns which of some flows of a standing is to go: one silent for `idle` or longer, that of
    /// the route with the most, of the network with the most on it, and silent for longest.
    pub(super) fn victim(
        &mut self,
        standing: Standing,
        now: Instant,
        idle: Duration,
    ) -> Option<FlowId> {
        let all = &self.by_standing[standing as usize];
        let first = self.next_sample;
        self.next_sample = first.wrapping_add(1);
        // Flows that were made together are neighbors.
        let stride = (all.len() / SAMPLE).max(1);
        let places =
            (0..SAMPLE.min(all.len())).map(|at| first.wrapping_add(at * stride) % all.len());
        let sample = places.map(|place| all[place]);
        sample.max_by_key(|id| {
            let slot = self.slot(*id)?;
            let sizes = groups(standing, slot.holder).map(|group| self.size(group));
            Some((self.silent(now, *id) >= idle, sizes, Reverse(slot.heard)))
        })
    }

    /// Tells whether the route of a flow has more proven flows than that of another would with one
    /// more; on one route, the same of their networks.
    pub(super) fn outweighs(&self, id: FlowId, other: FlowId) -> bool {
        let (Some(one), Some(other)) = (self.slot(id), self.slot(other)) else {
            return false;
        };
        let level = usize::from(one.holder.route == other.holder.route);
        let size = |holder| self.size(groups(Standing::Proven, holder)[level]);
        size(one.holder) > size(other.holder) + 1
    }

    fn size(&self, group: (Standing, u64, Option<u64>)) -> usize {
        self.sizes.get(&group).copied().unwrap_or(0)
    }

    /// Returns flows that have been silent for `idle` or longer; looks at a part of the table with
    /// each call, so that a large one does not hold up datagrams.
    pub(super) fn expired(&mut self, now: Instant, idle: Duration) -> Vec<FlowId> {
        let slots = self.slots.capacity();
        let first = if self.swept < slots { self.swept } else { 0 };
        self.swept = first + (slots / SWEEPS).max(SWEPT);
        let part = (first..self.swept).map(FlowId);
        part.filter(|id| self.silent(now, *id) >= idle).collect()
    }

    /// Returns for how long the flow's client has been silent.
    pub(super) fn silent(&self, now: Instant, id: FlowId) -> Duration {
        let heard = self.heard(id).unwrap_or(now);
        now.saturating_duration_since(heard)
    }

    /// Ends a flow and returns what belonged to it.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<T> {
        self.leave(id);
        let slot = self.slots.try_remove(id.0)?;
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

fn groups(standing: Standing, holder: Holder) -> [(Standing, u64, Option<u64>); 2] {
    let Holder { route, network } = holder;
    [None, Some(network)].map(|network| (standing, route, network))
}

#[cfg(test)]
mod tests;
