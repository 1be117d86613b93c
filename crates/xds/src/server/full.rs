//! The state-of-the-world variant: lists of everything, for the types that are lists; what was
//! asked for, for the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::store::{Store, Version};
use super::stream::{
    Excess, Handled, Known, Outstanding, Stream, Subscription, TypeState, check_name, packed,
};
use super::stream_task::Variant;
use crate::proto::discovery::{Any, DiscoveryRequest, DiscoveryResponse, Node};
use crate::resource::ResourceType;

/// The state-of-the-world variant.
pub(super) struct Full;

impl Variant for Full {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;
    const DELTA: bool = false;

    fn node(request: &Self::Request) -> Option<&Node> {
        request.node.as_ref()
    }

    fn on_request(
        stream: &mut Stream,
        store: &Store,
        now: Instant,
        request: DiscoveryRequest,
    ) -> Result<Handled, Excess> {
        let Some(kind) = stream.kind_of(&request.type_url) else {
            return Ok(Handled::Other);
        };
        let state = &mut stream.types[kind as usize];
        let (nonce, latest) = (&request.response_nonce, &state.progress.nonce);
        if !nonce.is_empty() && !latest.is_empty() && nonce != latest {
            // Written before the latest response was read: what it says of names is repeated in
            // the answer to that.
            return Ok(Handled::Other);
        }
        let handled = state.answered(kind, nonce, request.error_detail.as_ref());
        stream.set_names(kind, now, request.resource_names)?;
        stream.pull(store, now);
        Ok(handled)
    }

    fn next_response(
        stream: &mut Stream,
        store: &Store,
        now: Instant,
    ) -> Option<(ResourceType, DiscoveryResponse)> {
        for kind in ResourceType::ALL {
            // One at a time, even of one batch: only the latest nonce counts.
            while stream.types[kind as usize].outstanding.is_empty()
                && stream.ready(kind, store, now)
            {
                let response = if kind.is_root() {
                    stream.build_list(kind, store, now)
                } else {
                    stream.build_subset(kind, store, now)
                };
                if let Some(response) = response {
                    return Some((kind, response));
                }
                stream.types[kind as usize].finish_batch();
            }
        }
        stream.retract_announcement(store, now)
    }
}

impl Stream {
    /// Repeats a list, or says nothing of what is answered in parts, with a nonce that says that
    /// nothing follows.
    fn retract_announcement(
        &mut self,
        store: &Store,
        now: Instant,
    ) -> Option<(ResourceType, DiscoveryResponse)> {
        let kind = self.stale_announcement()?;
        let state = &mut self.types[kind as usize];
        if !state.outstanding.is_empty() {
            return None;
        }
        let response = if kind.is_root() {
            state.owed = true;
            self.build_list(kind, store, now)?
        } else {
            let version = state.listed_version();
            self.send_full(kind, version, Vec::new())
        };
        Some((kind, response))
    }

    fn set_names(
        &mut self,
        kind: ResourceType,
        now: Instant,
        names: Vec<String>,
    ) -> Result<(), Excess> {
        let (seq, limit) = (self.cursor, self.limits.names);
        if names.len() > limit {
            return Err(Excess::Names { kind, limit });
        }
        names.iter().try_for_each(|name| check_name(name))?;
        let state = &mut self.types[kind as usize];
        let first = state.subscription.is_none();
        let was = state.subscription.take().unwrap_or_default();
        let everything = names.is_empty() && kind.is_root() && (first || was.wildcard);
        let wildcard = everything || names.iter().any(|name| name == "*");
        let names: BTreeSet<Arc<str>> = names
            .into_iter()
            .filter(|name| name != "*")
            .map(Arc::from)
            .collect();
        let same = was.wildcard == wildcard && was.names == names;
        let now_there = Subscription {
            bytes: names.iter().map(|name| name.len()).sum(),
            wildcard,
            names,
        };
        if first || (!same && kind.is_root()) {
            state.scan = true;
            state.owed = kind.is_root();
            state.covers = 0;
        }
        for name in &now_there.names {
            if !was.names.contains(name) {
                state.ask(name.clone(), true, seq, now);
            }
        }
        for name in was.names.difference(&now_there.names) {
            if !wildcard {
                state.forget(name);
            }
        }
        if kind == ResourceType::ClusterLoadAssignment {
            self.expected.retain(|name| !now_there.covers(name));
        }
        self.types[kind as usize].subscription = Some(now_there);
        self.check_names(kind)
    }

    /// A list of all that the client subscribes to. Clusters that are gone stay in it while
    /// something may still refer to them.
    fn build_list(
        &mut self,
        kind: ResourceType,
        store: &Store,
        now: Instant,
    ) -> Option<DiscoveryResponse> {
        self.defer_removals(kind, store, now);
        let state = &self.types[kind as usize];
        let mut list: Vec<_> = store
            .all_visible(kind, self.audience)
            .filter(|(name, _)| state.subscribes(name))
            .map(|(name, content)| (name.clone(), content.version, content.body.clone()))
            .collect();
        let going = state.removals.iter().filter_map(|name| {
            let gone = store.visible(kind, self.audience, name).is_none();
            let body = state.bodies.get(name).filter(|_| gone)?.clone();
            Some((name.clone(), Version::of(&body), body))
        });
        list.extend(going);
        list.sort_by(|one, other| one.0.cmp(&other.0));
        let version = Version::of_list(list.iter().map(|(name, version, _)| (&**name, *version)));
        if state.listed == Some(version) && !state.owed {
            return None;
        }
        if kind == ResourceType::Cluster {
            for (name, _, body) in &list {
                let had = self.types[kind as usize].bodies.get(name);
                if had != Some(body) {
                    let had = had.is_some();
                    self.cluster_sent(name, had, store, now);
                }
            }
            let bodies = list
                .iter()
                .map(|(name, _, body)| (name.clone(), body.clone()));
            self.types[kind as usize].bodies = bodies.collect();
        }
        let state = &mut self.types[kind as usize];
        state.listed = Some(version);
        state.known = list
            .iter()
            .map(|(name, version, _)| (name.clone(), Known::Version(*version)))
            .collect();
        let resources = list.into_iter().map(|(_, _, body)| packed(kind, body));
        let resources = resources.collect();
        Some(self.send_full(kind, version, resources))
    }

    /// Moves removed resources from the batch to the waiting removals, and ends the batch.
    fn defer_removals(&mut self, kind: ResourceType, store: &Store, now: Instant) {
        let state = &mut self.types[kind as usize];
        let sending = std::mem::take(&mut state.sending);
        state.removing.clear();
        state.forced.clear();
        if kind != ResourceType::Cluster {
            return;
        }
        for name in sending {
            if store.visible(kind, self.audience, &name).is_none() {
                self.expected.remove(&name);
                if state.bodies.contains_key(&name) {
                    state.removals.push(name, self.cursor, now);
                }
            }
        }
    }

    /// Of what the client subscribes to, what it does not have: these types may be answered in
    /// parts. Missing resources cannot be expressed.
    fn build_subset(
        &mut self,
        kind: ResourceType,
        store: &Store,
        now: Instant,
    ) -> Option<DiscoveryResponse> {
        let resources = self.next_chunk(kind, store, now).resources.into_iter();
        let resources: Vec<_> = resources.filter_map(|one| one.resource).collect();
        let version = self.types[kind as usize].listed_version();
        (!resources.is_empty()).then(|| self.send_full(kind, version, resources))
    }

    fn send_full(
        &mut self,
        kind: ResourceType,
        version: Version,
        resources: Vec<Any>,
    ) -> DiscoveryResponse {
        let nonce = self.next_nonce(kind);
        let state = &mut self.types[kind as usize];
        state.sent(Outstanding {
            nonce: nonce.clone(),
            version: version.to_string(),
            names: Vec::new(),
        });
        DiscoveryResponse {
            version_info: version.to_string(),
            resources,
            type_url: kind.type_url().to_owned(),
            nonce,
        }
    }
}

impl TypeState {
    /// The version of all that the client was sent.
    fn listed_version(&self) -> Version {
        let sent = self.known.iter().filter_map(|(name, known)| match known {
            Known::Version(version) => Some((&**name, *version)),
            Known::Absent | Known::Foreign => None,
        });
        Version::of_list(sent)
    }
}
