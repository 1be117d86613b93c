//! The resources of the client, and whether they form a table.
//!
//! ```text
//!   updates ──▶ a copy of the state ──complete?──▶ table ──▶ sink ──applied─▶ becomes the state
//!                                                              └─refused──▶ dropped
//! ```
//!
//! It outlives streams: a reconnect loses nothing. Time and streams are the callers'.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message;

use super::Sink;
use super::update::Update;
use crate::cache::{CacheFault, Entry};
use crate::decode::{OwnListener, State, Table, TableError, decode};
use crate::proto::discovery::NameOnly;
use crate::resource::ResourceType;

/// Resources that others refer to and that are not there.
type Missing = BTreeSet<(ResourceType, Arc<str>)>;

/// The resources of a client, and whether they are in effect.
pub(super) struct HeldResources {
    own: Vec<OwnListener>,
    state: State,
    stored: Stored,
    /// Types that were answered since the process began.
    received: [bool; ResourceType::ALL.len()],
    /// Whether the sink has a table, and it is of this state.
    applied: bool,
    /// Referenced resources that are missing.
    missing: Missing,
    /// Whether the server announced more of the last update.
    more_follows: bool,
}

/// The resources as they came, for reconnects and the cache. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Stored {
    inner: Arc<Mutex<Raw>>,
}

/// Resources by type and name.
#[derive(Default)]
pub(super) struct Raw {
    pub(super) types: [BTreeMap<Arc<str>, RawItem>; ResourceType::ALL.len()],
    /// Whether the sink accepted it and the cache does not have it.
    pub(super) unsaved: bool,
    /// Whether the sink accepted it.
    pub(super) good: bool,
}

/// A resource as it came.
#[derive(Clone)]
pub(super) struct RawItem {
    pub(super) version: String,
    pub(super) body: Bytes,
}

impl Stored {
    pub(super) fn lock(&self) -> MutexGuard<'_, Raw> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Raw {
    /// Returns what the cache is to have, if it does not have it.
    pub(super) fn take_unsaved(&mut self) -> Option<Vec<Entry>> {
        let unsaved = self.good && std::mem::replace(&mut self.unsaved, false);
        unsaved.then(|| self.entries())
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        let all = ResourceType::ALL.into_iter().zip(&self.types);
        let entries = all.flat_map(|(kind, items)| {
            items.iter().map(move |(name, item)| Entry {
                type_url: kind.type_url().to_owned(),
                name: name.to_string(),
                version: item.version.clone(),
                body: item.body.clone(),
            })
        });
        entries.collect()
    }
}

impl HeldResources {
    pub(super) fn new(start: State, own: Vec<OwnListener>) -> Self {
        Self {
            own,
            state: start,
            stored: Stored::default(),
            received: Default::default(),
            applied: false,
            missing: BTreeSet::new(),
            more_follows: false,
        }
    }

    /// Loads the cache's resources, so that the server need not send them again.
    pub(super) fn prime(&mut self, entries: Vec<Entry>) -> Result<(), CacheFault> {
        let mut state = self.state.clone();
        let mut types: [BTreeMap<_, _>; ResourceType::ALL.len()] = Default::default();
        for entry in entries {
            let kind = ResourceType::from_type_url(&entry.type_url).ok_or(CacheFault::Foreign)?;
            let decoded = decode(kind, &entry.name, &entry.body)?;
            state.set(&entry.name, decoded);
            let item = RawItem {
                version: entry.version,
                body: entry.body,
            };
            types[kind as usize].insert(entry.name.into(), item);
        }
        self.state = state;
        self.stored.lock().types = types;
        Ok(())
    }

    pub(super) fn table(&self) -> Result<Table, TableError> {
        self.state.table(&self.own)
    }

    pub(super) fn stored(&self) -> &Stored {
        &self.stored
    }

    pub(super) fn wanted(&self, kind: ResourceType) -> BTreeSet<Arc<str>> {
        wanted(&self.state, kind)
    }

    /// Whether the sink has the last accepted resources.
    pub(super) fn is_current(&self) -> bool {
        self.applied && self.missing.is_empty() && !self.more_follows
    }

    /// Whether the server announced more of the last update.
    pub(super) fn more_follows(&self) -> bool {
        self.more_follows
    }

    /// Whether referenced resources are missing.
    pub(super) fn waits_for_missing(&self) -> bool {
        self.rooted() && !self.missing.is_empty() && !self.more_follows
    }

    /// Referenced resources that are missing.
    pub(super) fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Applies updates that arrived together, and returns each one's verdict. When all of them
    /// together are refused, each is tried alone.
    pub(super) fn settle(
        &mut self,
        updates: &[Update],
        sink: &mut impl Sink,
    ) -> Vec<Result<(), String>> {
        if let Some(last) = updates.last() {
            self.more_follows = last.more_follows;
        }
        let good: Vec<&Update> = updates
            .iter()
            .filter(|update| update.fault.is_none())
            .collect();
        let together = self.take(&good, sink);
        let verdicts = updates
            .iter()
            .map(|update| match (&update.fault, &together) {
                (Some(fault), _) => Err(fault.clone()),
                (None, Ok(())) => Ok(()),
                (None, Err(why)) if good.len() == 1 => Err(why.clone()),
                (None, Err(_)) => self.take(&[update], sink),
            });
        let verdicts = verdicts.collect();
        if !self.more_follows
            && let Err(why) = self.apply_without_more(sink)
        {
            // The last update was refused, and the previous ones do not form a valid table.
            tracing::warn!(why, "resources do not form a valid routing table");
        }
        verdicts
    }

    /// Continues without missing resources: a cluster without endpoints, a listener without routes.
    /// Called after a timeout.
    pub(super) fn apply_without_missing(&mut self, sink: &mut impl Sink) -> Result<(), String> {
        let mut state = self.state.clone();
        fill_missing(&mut state, &self.missing);
        self.apply(&state, sink)?;
        self.commit(state, BTreeSet::new(), &[]);
        Ok(())
    }

    /// Applies what has arrived, although the server announced more. Called when it has
    /// not arrived in time.
    pub(super) fn apply_without_more(&mut self, sink: &mut impl Sink) -> Result<(), String> {
        self.more_follows = false;
        if self.applied || !self.rooted() || !self.missing.is_empty() {
            return Ok(());
        }
        let state = self.state.clone();
        self.apply(&state, sink)?;
        self.commit(state, BTreeSet::new(), &[]);
        Ok(())
    }

    fn take(&mut self, updates: &[&Update], sink: &mut impl Sink) -> Result<(), String> {
        if updates.is_empty() {
            return Ok(());
        }
        let before = self.received;
        for update in updates {
            self.received[update.kind as usize] = true;
        }
        let changes = updates.iter().any(|update| self.changes(update));
        if !changes && self.applied {
            return Ok(());
        }
        let mut state = self.state.clone();
        for update in updates {
            self.put(&mut state, update);
        }
        drop_unwanted(&mut state);
        let missing = state.missing();
        let taken = self.judge(&state, &missing, sink);
        match taken {
            Ok(()) => self.commit(state, missing, updates),
            Err(_) => self.received = before,
        }
        taken
    }

    /// Applies the table if the state is complete, and finds contradictions even if not: what
    /// is accepted cannot be refused later.
    fn judge(
        &mut self,
        state: &State,
        missing: &Missing,
        sink: &mut impl Sink,
    ) -> Result<(), String> {
        if self.rooted() && !self.more_follows && missing.is_empty() {
            return self.apply(state, sink);
        }
        let mut state = state.clone();
        fill_missing(&mut state, missing);
        let table = state.table(&self.own);
        table.map_err(|error| telemetry::chain(&error).to_string())?;
        self.applied = false;
        Ok(())
    }

    fn apply(&mut self, state: &State, sink: &mut impl Sink) -> Result<(), String> {
        let table = state
            .table(&self.own)
            .map_err(|error| telemetry::chain(&error).to_string())?;
        sink.apply(table)?;
        self.applied = true;
        Ok(())
    }

    fn commit(&mut self, state: State, missing: Missing, updates: &[&Update]) {
        self.missing = missing;
        let good = self.applied && self.missing.is_empty();
        let mut raw = self.stored.lock();
        for update in updates {
            let items = &mut raw.types[update.kind as usize];
            if update.listed {
                let listed: BTreeSet<_> = update.set.iter().map(|item| &item.name).collect();
                items.retain(|name, _| listed.contains(name));
            }
            for item in &update.set {
                let kept = RawItem {
                    version: item.version.clone(),
                    body: item.body.clone(),
                };
                items.insert(item.name.clone(), kept);
            }
            for name in &update.removed {
                items.remove(name);
            }
        }
        for kind in NAMED {
            let wanted = wanted(&state, kind);
            raw.types[kind as usize].retain(|name, _| wanted.contains(name));
        }
        raw.good = good;
        raw.unsaved = true;
        drop(raw);
        self.state = state;
    }

    /// Whether the roots of the configuration were received.
    fn rooted(&self) -> bool {
        self.received[ResourceType::Cluster as usize]
            && self.received[ResourceType::Listener as usize]
    }

    /// Whether an update makes a difference.
    fn changes(&self, update: &Update) -> bool {
        let raw = self.stored.lock();
        let items = &raw.types[update.kind as usize];
        let removed = update.removed.iter();
        !update.set.is_empty()
            || (update.listed && !items.is_empty())
            || removed.into_iter().any(|name| items.contains_key(name))
            || (!update.removed.is_empty() && !self.missing.is_empty())
    }

    fn put(&self, state: &mut State, update: &Update) {
        if update.listed {
            let listed: BTreeSet<&str> = update.set.iter().map(|item| &*item.name).collect();
            state.retain(update.kind, |name| listed.contains(name));
        }
        for item in &update.set {
            state.set(&item.name, item.decoded.clone());
        }
        for name in &update.removed {
            state.remove(update.kind, name);
            // The server has none: resources that refer to it continue without.
            if NAMED.contains(&update.kind) && wanted(state, update.kind).contains(name) {
                set_empty(state, update.kind, name);
            }
        }
    }
}

/// The types that are asked for by name.
pub(super) const NAMED: [ResourceType; 2] = [
    ResourceType::ClusterLoadAssignment,
    ResourceType::RouteConfiguration,
];

fn wanted(state: &State, kind: ResourceType) -> BTreeSet<Arc<str>> {
    match kind {
        ResourceType::ClusterLoadAssignment => state.wanted_assignments(),
        ResourceType::RouteConfiguration => state.wanted_route_configurations(),
        ResourceType::Cluster | ResourceType::Listener | ResourceType::WireGuardRoute => {
            BTreeSet::new()
        }
    }
}

fn drop_unwanted(state: &mut State) {
    for kind in NAMED {
        let wanted = wanted(state, kind);
        state.retain(kind, |name| wanted.contains(name));
    }
}

/// Adds an empty resource for every missing name that is referenced.
fn fill_missing(state: &mut State, missing: &Missing) {
    for (kind, name) in missing {
        set_empty(state, *kind, name);
    }
}

/// A resource that has a name and nothing else.
fn set_empty(state: &mut State, kind: ResourceType, name: &str) {
    let body = NameOnly {
        name: name.to_owned(),
    };
    // A name that cannot be one is not referred to by anything that was understood.
    if let Ok(decoded) = decode(kind, name, &body.encode_to_vec()) {
        state.set(name, decoded);
    }
}

#[cfg(test)]
mod tests;
