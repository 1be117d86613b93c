//! Clients heard from lately, with their state: a table of flows, bounded in age.
//!
//! ```text
//!     client address ─▶ first flow ─▶ its next ─▶ …            one for each route a client uses
//!     fresh:   newest ⇄ … ⇄ oldest ─▶ out first                not proven by a server
//!     proven:  newest ⇄ … ⇄ oldest                             their server spoke to them
//! ```
//!
//! Any host can invent addresses and so make flows; therefore those that a server has answered with
//! data are kept apart, and only the others are evicted. Knows neither sockets nor routes,
//! and time is an argument.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slab::Slab;

/// The place of a flow, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    by_client: HashMap<SocketAddr, FlowId>,
    lists: [List; 2],
}

#[derive(Debug)]
struct Slot<T> {
    client: SocketAddr,
    heard: Instant,
    standing: Standing,
    newer: Option<FlowId>,
    older: Option<FlowId>,
    /// The next flow of the same client.
    sibling: Option<FlowId>,
    value: T,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    newest: Option<FlowId>,
    oldest: Option<FlowId>,
}

impl<T> FlowTable<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            by_client: HashMap::new(),
            lists: [List::default(); 2],
        }
    }

    /// Returns all flows, in no particular order.
    pub(super) fn ids(&self) -> Vec<FlowId> {
        self.slots.iter().map(|(at, _)| FlowId(at)).collect()
    }

    /// Returns the flows of a client, the latest made first.
    pub(super) fn of(&self, client: SocketAddr) -> impl Iterator<Item = (FlowId, &T)> {
        let first = self.by_client.get(&client).copied();
        std::iter::successors(first, |id| self.slot(*id)?.sibling)
            .filter_map(|id| Some((id, &self.slot(id)?.value)))
    }

    /// Returns what belongs to a flow.
    pub(super) fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        self.slot_mut(id).map(|slot| &mut slot.value)
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
        let id = FlowId(self.slots.vacant_key());
        let sibling = self.by_client.insert(client, id);
        self.slots.insert(Slot {
            client,
            heard: now,
            standing: Standing::Fresh,
            newer: None,
            older: None,
            sibling,
            value,
        });
        self.link(id);
        id
    }

    /// Notes that the flow's client was heard.
    pub(super) fn touch(&mut self, now: Instant, id: FlowId) {
        self.unlink(id);
        if let Some(slot) = self.slot_mut(id) {
            slot.heard = slot.heard.max(now);
        }
        self.link(id);
    }

    /// Notes that the flow's server has sent it data. That is no word of the client: its age stays.
    pub(super) fn prove(&mut self, id: FlowId) {
        if self.standing(id) != Some(Standing::Fresh) {
            return;
        }
        self.unlink(id);
        if let Some(slot) = self.slot_mut(id) {
            slot.standing = Standing::Proven;
        }
        self.link(id);
    }

    /// Returns the flow whose client was silent longest among those of one standing.
    pub(super) fn oldest(&self, standing: Standing) -> Option<FlowId> {
        self.lists[standing as usize].oldest
    }

    /// Returns a flow that has been silent for `idle` or longer.
    pub(super) fn expired(&self, now: Instant, idle: Duration) -> Option<FlowId> {
        [Standing::Fresh, Standing::Proven]
            .into_iter()
            .filter_map(|standing| self.oldest(standing))
            .find(|id| self.silent(now, *id) >= idle)
    }

    /// Returns for how long the flow's client has been silent.
    pub(super) fn silent(&self, now: Instant, id: FlowId) -> Duration {
        let heard = self.heard(id).unwrap_or(now);
        now.saturating_duration_since(heard)
    }

    /// Ends a flow and returns what belonged to it.
    pub(super) fn remove(&mut self, id: FlowId) -> Option<T> {
        self.unlink(id);
        let slot = self.slots.try_remove(id.0)?;
        let first = self.by_client.get(&slot.client).copied();
        if first == Some(id) {
            match slot.sibling {
                Some(next) => self.by_client.insert(slot.client, next),
                None => self.by_client.remove(&slot.client),
            };
        } else {
            let mut at = first;
            while let Some(here) = at.and_then(|at| self.slot_mut(at)) {
                if here.sibling == Some(id) {
                    here.sibling = slot.sibling;
                    break;
                }
                at = here.sibling;
            }
        }
        if self.by_client.is_empty() {
            // The memory of a burst is given back.
            *self = Self::new();
        }
        Some(slot.value)
    }

    /// Puts a flow into its list by age: mostly in front, since mostly it was heard just now.
    fn link(&mut self, id: FlowId) {
        let Some(slot) = self.slot(id) else { return };
        let (heard, standing) = (slot.heard, slot.standing);
        let mut newer = None;
        let mut older = self.lists[standing as usize].newest;
        while let Some(at) = older
            && self.heard(at).is_some_and(|other| other > heard)
        {
            newer = Some(at);
            older = self.slot(at).and_then(|slot| slot.older);
        }
        if let Some(slot) = self.slot_mut(id) {
            (slot.newer, slot.older) = (newer, older);
        }
        self.join(newer, Some(id), standing);
        self.join(Some(id), older, standing);
    }

    fn unlink(&mut self, id: FlowId) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let (newer, older, standing) = (slot.newer.take(), slot.older.take(), slot.standing);
        self.join(newer, older, standing);
    }

    /// Makes two flows neighbors; the list's ends where one is missing.
    fn join(&mut self, newer: Option<FlowId>, older: Option<FlowId>, standing: Standing) {
        match newer.and_then(|id| self.slot_mut(id)) {
            Some(slot) => slot.older = older,
            None => self.lists[standing as usize].newest = older,
        }
        match older.and_then(|id| self.slot_mut(id)) {
            Some(slot) => slot.newer = newer,
            None => self.lists[standing as usize].oldest = newer,
        }
    }

    fn slot(&self, id: FlowId) -> Option<&Slot<T>> {
        self.slots.get(id.0)
    }

    fn slot_mut(&mut self, id: FlowId) -> Option<&mut Slot<T>> {
        self.slots.get_mut(id.0)
    }
}

#[cfg(test)]
mod tests;
