//! The resources of the client, and whether they form a table.
//!
//! ```text
//!   updates ──▶ a copy of the state ──complete?──▶ table ──▶ sink ──applied─▶ becomes the state
//!                                                              └─refused──▶ dropped
//! ```
//!
//! It outlives streams: a reconnect loses nothing. Time and streams are the callers'.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use prost::Message;
use telemetry::lock;

use super::Sink;
use super::secrets::{HeldSecrets, is_secret};
use super::update::Update;
use crate::cache::{CacheFault, Entry};
use crate::decode::{OwnListener, Received, State, Table, TableError, decode, decode_for};
use crate::proto::discovery::NameOnly;
use crate::resource::ResourceType;

/// Resources that others refer to and that are not there.
type Missing = BTreeSet<(ResourceType, Arc<str>)>;

/// The resources of a client, and whether they are in effect.
pub(super) struct HeldResources {
    pub(super) own: Vec<OwnListener>,
    pub(super) state: State,
    pub(super) unsaved: Unsaved,
    pub(super) secrets: HeldSecrets,
    /// Types that were answered since the process began.
    received: [bool; ResourceType::ALL.len()],
    /// Whether the sink has a table, and it is of this state.
    applied: bool,
    /// Referenced resources that are missing.
    pub(super) missing: Missing,
    /// Whether the server announced more of the last update.
    pub(super) more_follows: bool,
}

/// What the cache does not have yet. Clones are the same.
pub(super) type Unsaved = Arc<Mutex<ForCache>>;

/// What the cache is to have.
#[derive(Default)]
pub(super) struct ForCache {
    /// The last good state that the sink accepted.
    pub(super) state: Option<State>,
    /// Whether the server confirmed what is in effect.
    pub(super) confirmed: bool,
}

/// Returns what the cache keeps of a state.
pub(super) fn entries(state: &State) -> Vec<Entry> {
    let entries = ResourceType::ALL.into_iter().flat_map(|kind| {
        state.received(kind).map(move |(name, received)| Entry {
            type_url: kind.type_url().to_owned(),
            name: name.to_string(),
            version: received.version.clone(),
            body: received.body.clone(),
        })
    });
    entries.collect()
}

impl HeldResources {
    pub(super) fn new(start: State, own: Vec<OwnListener>) -> Self {
        Self {
            own,
            state: start,
            unsaved: Unsaved::default(),
            secrets: HeldSecrets::default(),
            received: Default::default(),
            applied: false,
            missing: BTreeSet::new(),
            more_follows: false,
        }
    }

    /// Loads the cache's resources, so that the server need not send them again.
    pub(super) fn prime(&mut self, entries: Vec<Entry>) -> Result<(), CacheFault> {
        let mut state = self.state.clone();
        for entry in entries {
            let kind = ResourceType::from_type_url(&entry.type_url);
            let kind = kind.filter(|kind| *kind != ResourceType::Secret);
            let kind = kind.ok_or(CacheFault::Foreign)?;
            let mut decoded = decode_for(&self.own, kind, &entry.name, &entry.body)?;
            decoded.received = Some(Received {
                version: entry.version,
                body: entry.body,
            });
            state.set(entry.name, decoded);
        }
        self.state = state;
        Ok(())
    }

    pub(super) fn table(&self) -> Result<Table, TableError> {
        self.state.table(&self.own)
    }

    /// Whether the sink has the last accepted resources.
    pub(super) fn is_current(&self) -> bool {
        self.applied && self.missing.is_empty() && !self.more_follows
    }

    /// Whether referenced resources are missing.
    pub(super) fn waits_for_missing(&self) -> bool {
        self.rooted() && !self.missing.is_empty() && !self.more_follows
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
            .filter(|update| update.fault.is_none() && !is_secret(update))
            .collect();
        let together = self.take(&good, sink);
        let subscribed = self.state.wanted(ResourceType::Secret);
        let verdicts = updates
            .iter()
            .map(|update| match (&update.fault, &together) {
                (Some(fault), _) => Err(fault.clone()),
                (None, _) if is_secret(update) => self.secrets.take(update, &subscribed),
                (None, Ok(())) => Ok(()),
                (None, Err(why)) if good.len() == 1 => Err(why.clone()),
                (None, Err(_)) => self.take(&[update], sink),
            });
        let verdicts = verdicts.collect();
        self.secrets
            .retain(&self.state.wanted(ResourceType::Secret));
        if let Some((all, complete)) = self.secrets.changed() {
            sink.secrets(all, complete);
        }
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
        self.commit(state, BTreeSet::new());
        Ok(())
    }

    /// Applies what has arrived, although the server announced more. Called when it has
    /// not arrived in time.
    pub(super) fn apply_without_more(&mut self, sink: &mut impl Sink) -> Result<(), String> {
        self.more_follows = false;
        if self.applied || !self.rooted() || !self.missing.is_empty() {
            return Ok(());
        }
        self.apply_without_missing(sink)
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
        for kind in NAMED {
            let wanted = state.wanted(kind);
            state.retain(kind, |name| wanted.contains(name));
        }
        let missing = state.missing();
        let taken = self.judge(&state, &missing, sink);
        match taken {
            Ok(()) => self.commit(state, missing),
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

    fn commit(&mut self, state: State, missing: Missing) {
        self.missing = missing;
        // Until an incomplete one is in effect, the one before is what a restart is to find.
        if self.applied && self.missing.is_empty() {
            lock(&self.unsaved).state = Some(state.clone());
        }
        self.state = state;
    }

    /// Whether the roots of the configuration were received.
    fn rooted(&self) -> bool {
        self.received[ResourceType::Cluster as usize]
            && self.received[ResourceType::Listener as usize]
    }

    /// Whether an update makes a difference.
    fn changes(&self, update: &Update) -> bool {
        let items = self.state.of(update.kind);
        let mut removed = update.removed.iter().filter_map(|name| items.get(name));
        !update.set.is_empty()
            || (update.listed && !items.is_empty())
            || removed.any(|item| item.received.is_some())
            || (!update.removed.is_empty() && !self.missing.is_empty())
    }

    fn put(&self, state: &mut State, update: &Update) {
        if update.listed {
            let listed: BTreeSet<&str> = update.set.iter().map(|(name, _)| &**name).collect();
            state.retain(update.kind, |name| listed.contains(name));
        }
        for (name, decoded) in &update.set {
            state.set(name.clone(), decoded.clone());
        }
        for name in &update.removed {
            state.remove(update.kind, name);
            // The server has none: resources that refer to it continue without.
            if NAMED.contains(&update.kind) && state.wanted(update.kind).contains(name) {
                set_empty(state, update.kind, name);
            }
        }
    }
}

/// The types of the state that are asked for by name.
pub(super) const NAMED: [ResourceType; 2] = [
    ResourceType::ClusterLoadAssignment,
    ResourceType::RouteConfiguration,
];

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
