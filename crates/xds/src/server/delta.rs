//! The incremental variant: only what changed, and what is gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::store::{Content, Store, Version};
use super::stream::{
    Excess, Handled, Known, Outstanding, Stream, Subscription, TypeState, check_name, leads, packed,
};
use super::stream_task::Variant;
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, NamedResource, Node};
use crate::resource::ResourceType;

/// The incremental variant.
pub(super) struct Delta;

impl Variant for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;
    const DELTA: bool = true;

    fn node(request: &Self::Request) -> Option<&Node> {
        request.node.as_ref()
    }

    fn on_request(
        stream: &mut Stream,
        store: &Store,
        now: Instant,
        request: DeltaDiscoveryRequest,
    ) -> Result<Handled, Excess> {
        let Some(kind) = stream.kind_of(&request.type_url) else {
            return Ok(Handled::Other);
        };
        let state = &mut stream.types[kind as usize];
        let (nonce, error) = (&request.response_nonce, request.error_detail.as_ref());
        let handled = state.answered(kind, nonce, error);
        stream.subscribe(kind, now, request)?;
        stream.pull(store, now);
        Ok(handled)
    }

    fn next_response(
        stream: &mut Stream,
        store: &Store,
        now: Instant,
    ) -> Option<(ResourceType, DeltaDiscoveryResponse)> {
        for kind in ResourceType::ALL {
            while stream.ready(kind, store, now) {
                let chunk = stream.next_chunk(kind, store, now);
                let state = &mut stream.types[kind as usize];
                if !chunk.is_empty() || state.owed {
                    return Some((kind, stream.send_delta(kind, chunk)));
                }
                state.finish_batch();
            }
        }
        let kind = stream.stale_announcement()?;
        Some((kind, stream.send_delta(kind, Chunk::default())))
    }
}

impl Stream {
    fn subscribe(
        &mut self,
        kind: ResourceType,
        now: Instant,
        request: DeltaDiscoveryRequest,
    ) -> Result<(), Excess> {
        let (seq, limit) = (self.cursor, self.limits.names);
        let state = &mut self.types[kind as usize];
        let mut initial = BTreeSet::new();
        if state.subscription.is_none() {
            state.subscription = Some(Subscription::default());
            if request.resource_names_subscribe.is_empty() && kind.is_root() {
                state.set_wildcard(true);
            }
            for (name, version) in request.initial_resource_versions.into_iter().take(limit) {
                check_name(&name)?;
                let name: Arc<str> = name.into();
                let version = Version::parse(&version).map_or(Known::Foreign, Known::Version);
                state.known.insert(name.clone(), version);
                initial.insert(name);
            }
        }
        for name in request.resource_names_subscribe {
            if name == "*" {
                state.set_wildcard(true);
                continue;
            }
            check_name(&name)?;
            let name: Arc<str> = name.into();
            if kind == ResourceType::ClusterLoadAssignment {
                self.expected.remove(&name);
            }
            let forced = !initial.contains(&name);
            let subscription = state.subscription.get_or_insert_default();
            if subscription.names.insert(name.clone()) {
                subscription.bytes += name.len();
            }
            state.ask(name, forced, seq, now);
        }
        for name in request.resource_names_unsubscribe {
            state.unsubscribe(&name, seq, now);
        }
        // What the client has and does not ask for.
        for name in initial {
            if !state.subscribes(&name) {
                state.known.remove(&name);
            }
        }
        self.check_names(kind)
    }

    /// Takes what fits into one response out of the batch.
    pub(super) fn next_chunk(&mut self, kind: ResourceType, store: &Store, now: Instant) -> Chunk {
        let mut chunk = Chunk::default();
        while let Some((name, may_remove)) = self.types[kind as usize].pop() {
            let content = store.visible(kind, self.audience, &name);
            let state = &mut self.types[kind as usize];
            if !state.subscribes(&name) {
                state.forget(&name);
                continue;
            }
            match content {
                Some(content) if state.has(&name, content) => {}
                Some(content) if !chunk.has_room(&name, content, self.limits.response_bytes) => {
                    state.sending.insert(name);
                    break;
                }
                Some(content) => {
                    state.forced.remove(&name);
                    let version = Known::Version(content.version);
                    let had = state.known.insert(name.clone(), version);
                    if kind == ResourceType::Cluster {
                        let had = had.is_some_and(|had| had != Known::Absent);
                        self.cluster_sent(&name, had, store, now);
                    }
                    chunk.add(kind, name, content);
                }
                // Without an answer the client waits for it.
                None if !store.has_all(kind) => self.secrets_awaited = true,
                None => self.remove(kind, name, may_remove, now, &mut chunk),
            }
            if chunk.bytes >= self.limits.response_bytes {
                break;
            }
        }
        chunk
    }

    /// Handles a name without a resource.
    fn remove(
        &mut self,
        kind: ResourceType,
        name: Arc<str>,
        may_remove: bool,
        now: Instant,
        chunk: &mut Chunk,
    ) {
        if kind == ResourceType::Cluster {
            self.expected.remove(&name);
        }
        let state = &mut self.types[kind as usize];
        let forced = state.forced.remove(&name);
        let named = state
            .subscription
            .as_ref()
            .is_some_and(|subscription| subscription.names.contains(&name));
        match state.known.get(&name) {
            Some(Known::Absent) if !forced => return,
            None if !named => return,
            Some(Known::Foreign | Known::Version(_)) if leads(kind) && !may_remove => {
                state.removals.push(name, self.cursor, now);
                return;
            }
            Some(Known::Absent | Known::Foreign | Known::Version(_)) | None => {}
        }
        if named {
            state.known.insert(name.clone(), Known::Absent);
        } else {
            state.known.remove(&name);
        }
        chunk.bytes += name.len() + OVERHEAD;
        chunk.removed.push(name);
    }

    fn send_delta(&mut self, kind: ResourceType, chunk: Chunk) -> DeltaDiscoveryResponse {
        let nonce = self.next_nonce(kind);
        let version = self.cursor.to_string();
        let state = &mut self.types[kind as usize];
        let removed_resources = chunk.removed.iter().map(ToString::to_string).collect();
        state.sent(Outstanding {
            nonce: nonce.clone(),
            version: version.clone(),
            names: [chunk.names, chunk.removed].concat(),
        });
        DeltaDiscoveryResponse {
            system_version_info: version,
            resources: chunk.resources,
            type_url: kind.type_url().to_owned(),
            nonce,
            removed_resources,
        }
    }
}

impl TypeState {
    /// A response is refused whole. A refused response is sent again in
    /// two halves, so that one bad resource does not keep the others from the client; one that
    /// was alone is not sent again until it changes.
    pub(super) fn isolate_refused(&mut self, names: &[Arc<str>]) {
        for name in names {
            // What it had before, or nothing.
            self.known.insert(name.clone(), Known::Foreign);
        }
        let (first, second) = names.split_at(names.len() / 2);
        for half in [second, first] {
            self.isolate.push_front(half.iter().cloned().collect());
        }
    }

    fn set_wildcard(&mut self, wildcard: bool) {
        if let Some(subscription) = &mut self.subscription {
            subscription.wildcard = wildcard;
        }
        if wildcard {
            self.scan = true;
            self.owed = true;
            self.covers = 0;
        }
    }

    fn unsubscribe(&mut self, name: &str, seq: u64, now: Instant) {
        if name == "*" {
            self.set_wildcard(false);
            let known: Vec<_> = self.known.keys().cloned().collect();
            for name in known {
                if !self.subscribes(&name) {
                    self.forget(&name);
                }
            }
            return;
        }
        let Some(subscription) = &mut self.subscription else {
            return;
        };
        if !subscription.names.remove(name) {
            return;
        }
        subscription.bytes -= name.len();
        if subscription.wildcard {
            // The wildcard still covers it, so the client gets its current state.
            self.ask(name.into(), true, seq, now);
        } else {
            self.forget(name);
        }
    }

    /// The next name of the batch, and whether it may be removed now.
    fn pop(&mut self) -> Option<(Arc<str>, bool)> {
        let changed = self.sending.pop_first().map(|name| (name, false));
        changed.or_else(|| self.removing.pop_first().map(|name| (name, true)))
    }

    /// Whether the client has this content and does not want it again.
    fn has(&self, name: &Arc<str>, content: &Content) -> bool {
        self.known.get(name) == Some(&Known::Version(content.version))
            && !self.forced.contains(name)
    }
}

/// A response while it is built.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) resources: Vec<NamedResource>,
    names: Vec<Arc<str>>,
    removed: Vec<Arc<str>>,
    bytes: usize,
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty()
    }

    fn has_room(&self, name: &str, content: &Content, limit: usize) -> bool {
        self.is_empty() || self.bytes + name.len() + content.body.len() + OVERHEAD <= limit
    }

    fn add(&mut self, kind: ResourceType, name: Arc<str>, content: &Content) {
        self.bytes += name.len() + content.body.len() + OVERHEAD;
        self.resources.push(NamedResource {
            version: content.version.to_string(),
            resource: Some(packed(kind, content.body.clone())),
            name: name.to_string(),
        });
        self.names.push(name);
    }
}

/// What a resource costs beside its name and body: type URL, version, tags and lengths.
const OVERHEAD: usize = 112;
