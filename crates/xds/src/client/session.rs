//! The client's requests on one stream: versions, subscriptions, ACKs and NACKs.
//!
//! Both variants, without sockets: verdicts in, requests out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::held::{HeldResources, NAMED};
use super::update::Update;
use crate::grpc::LISTENER_PARTS;
use crate::proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest, Node, RpcStatus};
use crate::resource::ResourceType;

/// The variant of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Variant {
    Delta,
    Full,
}

/// A request of either variant, in the form of the incremental one. In the state-of-the-world
/// variant the names that it subscribes to are all names.
#[derive(Debug)]
pub(super) struct Request {
    delta: DeltaDiscoveryRequest,
    /// State of the world: of the latest accepted response.
    version: String,
}

impl From<Request> for DeltaDiscoveryRequest {
    fn from(request: Request) -> Self {
        request.delta
    }
}

impl From<Request> for DiscoveryRequest {
    fn from(Request { delta, version }: Request) -> Self {
        Self {
            version_info: version,
            node: delta.node,
            resource_names: delta.resource_names_subscribe,
            type_url: delta.type_url,
            response_nonce: delta.response_nonce,
            error_detail: delta.error_detail,
        }
    }
}

/// One stream.
#[derive(Debug)]
pub(super) struct Session {
    variant: Variant,
    types: [Asked; ResourceType::ALL.len()],
    /// Resources refused on this stream and neither accepted nor removed since.
    refused: BTreeSet<(ResourceType, Arc<str>)>,
}

/// The requests of a type.
#[derive(Debug, Default)]
struct Asked {
    names: BTreeSet<Arc<str>>,
    /// Whether anything was asked at all.
    asked: bool,
    answered: bool,
    /// State of the world: of the latest accepted response.
    version: String,
    /// State of the world: of the latest response.
    nonce: String,
}

impl Session {
    /// Begins a stream. Returns the first requests.
    pub(super) fn begin(
        variant: Variant,
        node: &str,
        cluster: &str,
        held: &HeldResources,
    ) -> (Self, Vec<Request>) {
        let mut session = Self {
            variant,
            types: Default::default(),
            refused: BTreeSet::new(),
        };
        let mut requests: Vec<Request> = [
            ResourceType::Cluster,
            ResourceType::Listener,
            ResourceType::WireGuardRoute,
        ]
        .map(|kind| session.ask_for_all(kind, held))
        .into();
        let named = session.subscribe(held);
        // Assignments before listeners, as they are to be answered.
        requests.splice(1..1, named);
        let node = Node {
            id: node.to_owned(),
            cluster: cluster.to_owned(),
            user_agent_name: "rhizome".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            client_features: vec![LISTENER_PARTS.to_owned()],
        };
        if let Some(first) = requests.first_mut() {
            first.delta.node = Some(node);
        }
        (session, requests)
    }

    /// Returns requests for changed subscriptions.
    pub(super) fn subscribe(&mut self, held: &HeldResources) -> Vec<Request> {
        let secrets = held.secrets.wanted.then_some(ResourceType::Secret);
        let kinds = NAMED.into_iter().chain(secrets);
        let requests = kinds.filter_map(|kind| {
            let wanted = held.state.wanted(kind);
            let asked = &mut self.types[kind as usize];
            if asked.names == wanted {
                return None;
            }
            let old = std::mem::replace(&mut asked.names, wanted);
            let first = !std::mem::replace(&mut asked.asked, true);
            // Resources without a subscription are not sent again, so they would never be accepted.
            self.refused
                .retain(|(of, name)| *of != kind || name.is_empty() || asked.names.contains(name));
            let mut request = self.request(kind);
            if self.variant == Variant::Delta {
                let new = &self.types[kind as usize].names;
                let delta = &mut request.delta;
                delta.resource_names_subscribe = strings(new.difference(&old));
                delta.resource_names_unsubscribe = strings(old.difference(new));
            }
            if first {
                request.delta.initial_resource_versions = versions(kind, held);
            }
            Some(request)
        });
        requests.collect()
    }

    /// Records the verdict on a response and returns the answer for the server.
    pub(super) fn answer(&mut self, update: &Update, verdict: &Result<(), String>) -> Request {
        let asked = &mut self.types[update.kind as usize];
        asked.nonce.clone_from(&update.nonce);
        if verdict.is_ok() {
            asked.version.clone_from(&update.version);
            asked.answered = true;
        }
        self.note_refused(update, verdict.is_err());
        let mut request = self.request(update.kind);
        request.delta.response_nonce.clone_from(&update.nonce);
        request.delta.error_detail = verdict.as_ref().err().map(|text| RpcStatus {
            code: tonic::Code::InvalidArgument as i32,
            message: text.clone(),
        });
        request
    }

    /// Whether the server sent everything, and all of it was accepted.
    pub(super) fn is_current(&self) -> bool {
        let answered = |kind: ResourceType| self.types[kind as usize].answered;
        answered(ResourceType::Cluster)
            && answered(ResourceType::Listener)
            && self.refused.is_empty()
    }

    fn note_refused(&mut self, update: &Update, refused: bool) {
        let kind = update.kind;
        if kind == ResourceType::Secret {
            // Routes are current without it, as long as it was delivered once.
            return;
        }
        if update.listed && !refused {
            self.refused.retain(|(of, _)| *of != kind);
        }
        if !refused {
            // A refused resource without a name may be among the accepted ones now.
            self.refused.remove(&(kind, "".into()));
        }
        let asked = &self.types[kind as usize];
        let wanted = |name: &Arc<str>| {
            name.is_empty() || !NAMED.contains(&kind) || asked.names.contains(name)
        };
        let set = update.set.iter().map(|(name, _)| name);
        for name in set.chain(&update.unread).chain(&update.removed) {
            if !refused {
                self.refused.remove(&(kind, name.clone()));
            } else if wanted(name) && self.refused.len() < MAX_REFUSED {
                self.refused.insert((kind, name.clone()));
            }
        }
    }

    fn ask_for_all(&mut self, kind: ResourceType, held: &HeldResources) -> Request {
        self.types[kind as usize].asked = true;
        let mut request = self.request(kind);
        request.delta.initial_resource_versions = versions(kind, held);
        request
    }

    /// A request that says nothing new; in the state-of-the-world variant it has to repeat what
    /// was asked for and accepted before.
    fn request(&self, kind: ResourceType) -> Request {
        let asked = &self.types[kind as usize];
        let mut delta = DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            ..DeltaDiscoveryRequest::default()
        };
        if self.variant == Variant::Full {
            delta.resource_names_subscribe = strings(asked.names.iter());
            delta.response_nonce.clone_from(&asked.nonce);
        }
        let version = asked.version.clone();
        Request { delta, version }
    }
}

/// Bounds the set: only whether it is empty is ever asked.
const MAX_REFUSED: usize = 10_000;

fn strings<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Vec<String> {
    names.map(ToString::to_string).collect()
}

fn versions(kind: ResourceType, held: &HeldResources) -> BTreeMap<String, String> {
    if kind == ResourceType::Secret {
        return held.secrets.versions();
    }
    let received = held.state.received(kind);
    received
        .map(|(name, received)| (name.to_string(), received.version.clone()))
        .collect()
}
