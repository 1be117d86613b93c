//! What one client is sent next: subscriptions, due names, and what they wait for.
//!
//! ```text
//!   requests ──delta, full──▶ subscriptions, acknowledgements
//!   store ──pull──▶ due names per type ──gate──▶ batch ──▶ one response after the other
//! ```
//!
//! Only names wait here; a response is built from the store when it can be sent, so a client that
//! is slow gets the latest state and costs no more than the names. Order, so that nothing refers
//! to what is not there: clusters and assignments, then what routes to them once these are
//! acknowledged, then the removals of clusters and assignments once that is. No sockets; time is
//! passed in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::ServerLimits;
use super::clients::{TypeStatus, cut};
use super::lane::{Gate, Lane};
use super::store::{Store, Version};
use crate::decode::MAX_NAME_BYTES;
use crate::grpc::MORE_FOLLOWS;
use crate::proto::discovery::{Any, RpcStatus};
use crate::resource::{Audience, ResourceType};

/// One client's stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) audience: Audience,
    /// Whether secrets are sent: to peers whose certificate was verified.
    pub(super) secrets: bool,
    pub(super) limits: ServerLimits,
    pub(super) types: [TypeState; ResourceType::ALL.len()],
    /// Changes up to here are among what is due.
    pub(super) cursor: u64,
    /// Assignments of clusters that were sent, which the client is going to ask for.
    pub(super) expected: BTreeSet<Arc<str>>,
    /// Whether secrets were asked for of which it is not known yet whether they exist.
    pub(super) secrets_awaited: bool,
    nonces: u64,
    /// Of which type the latest response was, when it said that more follows.
    announced: Option<ResourceType>,
    /// Whether the store has ever answered.
    live: bool,
}

/// One type on a stream.
#[derive(Debug, Default)]
pub(super) struct TypeState {
    /// `None` until the client asks for the type.
    pub(super) subscription: Option<Subscription>,
    /// Whether all resources are compared, not only changed ones.
    pub(super) scan: bool,
    /// What the client was sent last, by name.
    pub(super) known: BTreeMap<Arc<str>, Known>,
    /// To be sent even when the client has it.
    pub(super) forced: BTreeSet<Arc<str>>,
    pub(super) due: Lane,
    /// Removals that wait until nothing refers to them.
    pub(super) removals: Lane,
    /// What of a batch is left to be sent.
    pub(super) sending: BTreeSet<Arc<str>>,
    pub(super) removing: BTreeSet<Arc<str>>,
    /// Halves of refused responses, to find the refused resource.
    pub(super) isolate: VecDeque<BTreeSet<Arc<str>>>,
    /// Resources that were refused and neither accepted nor removed since; the empty name is for a list.
    refused: BTreeSet<Arc<str>>,
    pub(super) outstanding: VecDeque<Outstanding>,
    /// Whether the initial state has been sent.
    pub(super) synced: bool,
    /// Whether a response is due even if it is empty.
    pub(super) owed: bool,
    /// Everything up to here was acknowledged.
    pub(super) covers: u64,
    /// What `covers` becomes once the batch is acknowledged.
    pub(super) pending: u64,
    /// State of the world: the version of the list that was sent last.
    pub(super) listed: Option<Version>,
    /// State of the world: bodies of what was listed, of types whose removals wait.
    pub(super) bodies: BTreeMap<Arc<str>, Bytes>,
    pub(super) progress: TypeStatus,
}

/// What a client has subscribed to.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    pub(super) wildcard: bool,
    pub(super) names: BTreeSet<Arc<str>>,
    /// Bytes of the names.
    pub(super) bytes: usize,
}

impl Subscription {
    pub(super) fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }
}

/// What a client has under a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Known {
    /// It was sent the removal.
    Absent,
    /// Something of another server.
    Foreign,
    /// This version, or it refused it.
    Version(Version),
}

/// A response that was sent and not answered.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) nonce: String,
    pub(super) version: String,
    /// The resources and removals in it.
    pub(super) names: Vec<Arc<str>>,
}

/// What a request was about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Handled {
    /// It acknowledged a response of this type.
    Acked(ResourceType),
    /// It asked for something, or is of an unknown type or an earlier response.
    Other,
    /// It refused a response of this type, for this reason.
    Nacked(ResourceType, String),
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Excess {
    /// A name is longer than any resource's.
    #[error("a name of more than {MAX_NAME_BYTES} bytes")]
    Name,
    /// The names that it subscribes to are too long together.
    #[error("more than {limit} bytes of names")]
    NameBytes { limit: usize },
    /// It subscribes to too many names.
    #[error("more than {limit} names of type {}", kind.type_url())]
    Names { kind: ResourceType, limit: usize },
}

/// Checks a name in a request.
pub(super) fn check_name(name: &str) -> Result<(), Excess> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Excess::Name);
    }
    Ok(())
}

/// Puts a resource's body into an `Any`.
pub(super) fn packed(kind: ResourceType, value: Bytes) -> Any {
    Any {
        type_url: kind.type_url().to_owned(),
        value,
    }
}

/// Bytes that are kept of a NACK's text.
const MAX_NACK_BYTES: usize = 1024;

impl TypeState {
    pub(super) fn subscribes(&self, name: &str) -> bool {
        self.subscription
            .as_ref()
            .is_some_and(|subscription| subscription.covers(name))
    }

    /// Whether no batch is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.is_sent()
    }

    fn is_sent(&self) -> bool {
        self.sending.is_empty() && self.removing.is_empty()
    }

    /// The sequence number up to which the client has acknowledged this type.
    fn settled(&self, cursor: u64) -> u64 {
        let nothing_left =
            self.is_idle() && self.due.is_empty() && self.isolate.is_empty() && !self.scan;
        if self.subscription.is_none() {
            u64::MAX
        } else if nothing_left {
            cursor
        } else {
            self.covers
        }
    }

    /// Makes a subscribed name due.
    pub(super) fn ask(&mut self, name: Arc<str>, forced: bool, seq: u64, now: Instant) {
        if forced {
            self.forced.insert(name.clone());
        }
        self.covers = 0;
        self.due.push(name, seq, now);
    }

    /// Drops all that is kept for a name.
    pub(super) fn forget(&mut self, name: &str) {
        self.known.remove(name);
        self.forced.remove(name);
        self.refused.remove(name);
        self.due.forget(name);
        self.removals.forget(name);
        self.sending.remove(name);
        self.removing.remove(name);
    }

    /// Ends the batch when nothing of it is left. Resources of a refused response belong to it
    /// until they were sent in halves: the client does not have them before.
    pub(super) fn finish_batch(&mut self) {
        if self.is_sent() {
            self.synced = true;
        }
        if self.is_idle() && self.isolate.is_empty() {
            self.covers = self.pending;
        }
    }

    /// Whether resources of this type are still to be sent for a complete state.
    fn more_follows(&self) -> bool {
        let due = self.owed || self.scan || !self.due.is_empty();
        let first = self.subscription.is_some() && !self.synced && due;
        first || !self.is_sent() || !self.isolate.is_empty()
    }

    /// Records an answer to the response with this nonce, if there is such a response.
    pub(super) fn answered(
        &mut self,
        kind: ResourceType,
        nonce: &str,
        error: Option<&RpcStatus>,
    ) -> Handled {
        let mut all = self.outstanding.iter();
        let at = all.position(|outstanding| outstanding.nonce == nonce);
        let Some(outstanding) = at.and_then(|at| self.outstanding.remove(at)) else {
            return Handled::Other;
        };
        let handled = if let Some(error) = error {
            let text = cut(&error.message, MAX_NACK_BYTES);
            self.progress.nack = Some(text.clone());
            match &outstanding.names[..] {
                [] => drop(self.refused.insert("".into())),
                [name] => drop(self.refused.insert(name.clone())),
                names => self.isolate_refused(names),
            }
            Handled::Nacked(kind, text)
        } else {
            self.refused.remove("");
            for name in &outstanding.names {
                self.refused.remove(name);
            }
            self.progress.acked = Some(outstanding.version);
            Handled::Acked(kind)
        };
        self.finish_batch();
        handled
    }

    /// Records a response that is sent.
    pub(super) fn sent(&mut self, outstanding: Outstanding) {
        self.owed = false;
        self.progress.version.clone_from(&outstanding.version);
        self.progress.nonce.clone_from(&outstanding.nonce);
        self.outstanding.push_back(outstanding);
    }
}

impl Stream {
    pub(super) fn new(audience: Audience, secrets: bool, limits: ServerLimits) -> Self {
        Self {
            audience,
            secrets,
            limits,
            types: Default::default(),
            cursor: 0,
            expected: BTreeSet::new(),
            secrets_awaited: false,
            nonces: 0,
            announced: None,
            live: false,
        }
    }

    /// Returns the type of a request, if it is answered.
    pub(super) fn kind_of(&self, type_url: &str) -> Option<ResourceType> {
        let kind = ResourceType::from_type_url(type_url)?;
        (kind != ResourceType::Secret || self.secrets).then_some(kind)
    }

    /// Checks what a client subscribes to.
    pub(super) fn check_names(&self, kind: ResourceType) -> Result<(), Excess> {
        let (names, bytes) = (self.limits.names, self.limits.name_bytes);
        let of = |state: &TypeState| state.subscription.as_ref().map_or(0, |one| one.bytes);
        let subscription = self.types[kind as usize].subscription.as_ref();
        if subscription.is_some_and(|one| one.names.len() > names) {
            return Err(Excess::Names { kind, limit: names });
        }
        if self.types.iter().map(of).sum::<usize>() > bytes {
            return Err(Excess::NameBytes { limit: bytes });
        }
        Ok(())
    }

    pub(super) fn progress(&self, kind: ResourceType) -> &TypeStatus {
        &self.types[kind as usize].progress
    }

    /// Whether the client refuses what it was last sent of something.
    pub(super) fn refuses(&self, kind: ResourceType) -> bool {
        !self.types[kind as usize].refused.is_empty()
    }

    /// Records what changed in the store.
    pub(super) fn pull(&mut self, store: &Store, now: Instant) {
        if !store.answers(self.audience) {
            return;
        }
        let (seq, audience) = (store.seq(), self.audience);
        if !self.live {
            self.live = true;
            self.cursor = seq;
            for state in &mut self.types {
                state.due.gate_anew(seq, now);
            }
        }
        let mut lagging = true;
        if let Some(changes) = store.changes_since(self.cursor) {
            lagging = false;
            for change in changes.filter(|change| change.concerns(audience)) {
                let state = &mut self.types[change.kind as usize];
                if state.subscribes(&change.name) {
                    state.due.push(change.name.clone(), seq, now);
                }
            }
        }
        self.cursor = seq;
        if self.secrets_awaited && store.has_all(ResourceType::Secret) {
            self.secrets_awaited = false;
            self.types[ResourceType::Secret as usize].scan = true;
        }
        for kind in ResourceType::ALL {
            if lagging || self.types[kind as usize].scan {
                self.scan(kind, store, now);
            }
        }
    }

    /// When a waiting batch is sent without its gate.
    pub(super) fn timeout(&self) -> Option<Instant> {
        let waiting = ResourceType::ALL.into_iter().filter_map(|kind| {
            let state = &self.types[kind as usize];
            let gate = if leads(kind) {
                state.removals.gate()
            } else {
                state.due.gate()
            };
            gate.filter(|_| state.is_idle())
        });
        waiting
            .map(|gate| gate.deadline(self.limits.order_wait))
            .min()
    }

    /// Finds the type of which a response can be built now. What is to be in it is then in
    /// `sending` and `removing`.
    pub(super) fn ready(&mut self, kind: ResourceType, store: &Store, now: Instant) -> bool {
        if !self.live || !store.answers(self.audience) {
            return false;
        }
        let state = &self.types[kind as usize];
        if state.subscription.is_none() {
            return false;
        }
        if state.is_idle() {
            return self.begin_batch(kind, now);
        }
        !state.is_sent()
    }

    /// The nonce of a response of this type whose resources were taken out of the batch.
    pub(super) fn next_nonce(&mut self, kind: ResourceType) -> String {
        self.nonces += 1;
        let state = &mut self.types[kind as usize];
        state.owed = false;
        state.synced |= state.is_sent();
        self.announced = (self.audience == Audience::Parts && self.more_follows()).then_some(kind);
        let mark = self.announced.map_or("", |_| MORE_FOLLOWS);
        format!("{}{mark}", self.nonces)
    }

    fn more_follows(&self) -> bool {
        self.types.iter().any(TypeState::more_follows)
    }

    /// The type of an empty response that retracts the announcement of more, because what
    /// was to follow is no longer subscribed or known already.
    pub(super) fn stale_announcement(&self) -> Option<ResourceType> {
        self.announced.filter(|_| !self.more_follows())
    }

    /// Schedules the assignment of a sent cluster: the client needs it, and Envoy
    /// needs it again when the cluster is one that it had.
    pub(super) fn cluster_sent(&mut self, name: &Arc<str>, had: bool, store: &Store, now: Instant) {
        let kind = ResourceType::ClusterLoadAssignment;
        let there = store.visible(kind, self.audience, name).is_some();
        let assignments = &mut self.types[kind as usize];
        if !assignments.subscribes(name) {
            if there {
                self.expected.insert(name.clone());
            }
        } else if had && there && self.audience == Audience::Whole {
            assignments.ask(name.clone(), true, self.cursor, now);
        }
    }

    fn begin_batch(&mut self, kind: ResourceType, now: Instant) -> bool {
        let seq = self.cursor;
        let due = self.types[kind as usize].due.gate();
        let removals = self.types[kind as usize].removals.gate();
        let due_open = leads(kind) || due.is_some_and(|gate| self.opens(gate, &LEADING, now));
        let removals_open = removals.is_some_and(|gate| self.opens(gate, &FOLLOWING, now));
        if due_open && !leads(kind) {
            self.expected.clear();
        }
        let state = &mut self.types[kind as usize];
        if let Some(group) = state.isolate.pop_front() {
            state.forced.extend(group.iter().cloned());
            state.sending = group;
            return true;
        }
        let nothing_to_say = state.owed && !state.scan && state.due.is_empty();
        state.pending = state.covers;
        if due_open {
            state.pending = seq;
            state.sending = if leads(kind) {
                state.due.take_all()
            } else {
                state.due.take(seq, now)
            };
        }
        if removals_open {
            state.removing = state.removals.take(seq, now);
        }
        !state.is_sent() || nothing_to_say
    }

    /// Whether what a gate waits for was acknowledged, or the wait is over.
    fn opens(&self, gate: Gate, before: &[ResourceType], now: Instant) -> bool {
        let settled = before
            .iter()
            .all(|&kind| self.types[kind as usize].settled(self.cursor) >= gate.seq);
        let asked = !before.contains(&ResourceType::Cluster) || self.expected.is_empty();
        (settled && asked) || now >= gate.deadline(self.limits.order_wait)
    }

    /// Compares all that the client has with all that there is.
    fn scan(&mut self, kind: ResourceType, store: &Store, now: Instant) {
        let (seq, audience) = (self.cursor, self.audience);
        let state = &mut self.types[kind as usize];
        state.scan = false;
        let Some(subscription) = &state.subscription else {
            return;
        };
        let (known, due) = (&state.known, &mut state.due);
        for (name, content) in store.all_visible(kind, audience) {
            if subscription.covers(name)
                && known.get(name) != Some(&Known::Version(content.version))
            {
                due.push(name.clone(), seq, now);
            }
        }
        let had = known
            .iter()
            .filter(|(_, known)| **known != Known::Absent)
            .map(|(name, _)| name);
        for name in had.chain(state.bodies.keys()).chain(&subscription.names) {
            if store.visible(kind, audience, name).is_none()
                && known.get(name) != Some(&Known::Absent)
            {
                due.push(name.clone(), seq, now);
            }
        }
    }
}

/// Whether a type goes before what refers to it.
pub(super) fn leads(kind: ResourceType) -> bool {
    LEADING.contains(&kind)
}

const LEADING: [ResourceType; 3] = [
    ResourceType::Cluster,
    ResourceType::ClusterLoadAssignment,
    ResourceType::Secret,
];

const FOLLOWING: [ResourceType; 3] = [
    ResourceType::Listener,
    ResourceType::RouteConfiguration,
    ResourceType::WireGuardRoute,
];

#[cfg(test)]
mod tests;
