//! Streams of both variants against a store, without sockets and with a clock that is a field.

use std::time::Duration;

use super::*;
use crate::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, RpcStatus,
};
use crate::resource::ResourceType::{
    Cluster, ClusterLoadAssignment, Listener, RouteConfiguration, WireGuardRoute,
};
use crate::resource::{Audience, Resource};
use crate::server::delta::Delta;
use crate::server::full::Full;
use crate::server::store::MAX_CHANGES;
use crate::server::stream_task::Variant;

mod delta;
mod full;
mod model;
mod order;

/// A store, a stream and a clock.
struct Bench {
    store: Store,
    stream: Stream,
    now: Instant,
}

const WAIT: Duration = Duration::from_secs(5);

impl Bench {
    fn new(audience: Audience) -> Self {
        let mut store = Store::default();
        store.complete();
        store.whole_complete(true);
        Self::with_store(audience, store)
    }

    fn with_store(audience: Audience, store: Store) -> Self {
        let limits = ServerLimits {
            names: 1000,
            name_bytes: 10_000,
            order_wait: WAIT,
            ..ServerLimits::default()
        };
        Self {
            store,
            stream: Stream::new(audience, limits),
            now: Instant::now(),
        }
    }

    /// The same store, another stream.
    fn reconnect(self) -> Self {
        Self::with_store(self.stream.audience, self.store)
    }

    fn set(&mut self, kind: ResourceType, name: &str, body: &str) {
        self.set_for(Audience::All, kind, name, body);
    }

    fn set_for(&mut self, audience: Audience, kind: ResourceType, name: &str, body: &str) {
        let set = vec![resource(audience, kind, name, body)];
        self.store.update(set, vec![]);
        self.stream.pull(&self.store, self.now);
    }

    fn set_all(&mut self, list: &[(ResourceType, &str, &str)]) {
        let set = list
            .iter()
            .map(|(kind, name, body)| resource(Audience::All, *kind, name, body));
        self.store.update(set.collect(), vec![]);
        self.stream.pull(&self.store, self.now);
    }

    fn remove(&mut self, list: &[(ResourceType, &str)]) {
        let removed = list
            .iter()
            .map(|(kind, name)| (*kind, Audience::All, Arc::from(*name)));
        self.store.update(vec![], removed.collect());
        self.stream.pull(&self.store, self.now);
    }

    fn ask(&mut self, request: DeltaDiscoveryRequest) -> Handled {
        let now = self.now;
        Delta::on_request(&mut self.stream, &self.store, now, request).unwrap()
    }

    fn subscribe(&mut self, kind: ResourceType, names: &[&str]) {
        self.ask(DeltaDiscoveryRequest {
            resource_names_subscribe: strings(names),
            ..delta(kind)
        });
    }

    fn unsubscribe(&mut self, kind: ResourceType, names: &[&str]) {
        self.ask(DeltaDiscoveryRequest {
            resource_names_unsubscribe: strings(names),
            ..delta(kind)
        });
    }

    fn subscribe_all(&mut self) {
        for kind in [Cluster, Listener, WireGuardRoute] {
            self.subscribe(kind, &[]);
        }
    }

    fn next(&mut self) -> Option<Sent> {
        let next = Delta::next_response(&mut self.stream, &self.store, self.now);
        next.map(|(kind, response)| Sent::of(kind, &response))
    }

    /// Returns the next response, which says this.
    fn sends(&mut self, said: &str) -> Sent {
        let sent = self.next().unwrap();
        assert_eq!(sent.said(), said);
        sent
    }

    /// Acknowledges the next response, which says this.
    fn acks(&mut self, said: &str) {
        let sent = self.sends(said);
        self.ack(&sent);
    }

    fn ack(&mut self, sent: &Sent) -> Handled {
        self.ask(DeltaDiscoveryRequest {
            response_nonce: sent.nonce.clone(),
            ..delta(sent.kind)
        })
    }

    fn nack(&mut self, sent: &Sent) -> Handled {
        self.ask(DeltaDiscoveryRequest {
            response_nonce: sent.nonce.clone(),
            error_detail: Some(refusal()),
            ..delta(sent.kind)
        })
    }

    /// Acknowledges everything until there is nothing more, and returns it.
    fn drain(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Some(sent) = self.next() {
            self.ack(&sent);
            all.push(sent);
        }
        all
    }

    fn ask_full(&mut self, request: DiscoveryRequest) -> Handled {
        let now = self.now;
        Full::on_request(&mut self.stream, &self.store, now, request).unwrap()
    }

    fn want(&mut self, kind: ResourceType, names: &[&str]) {
        self.ask_full(DiscoveryRequest {
            resource_names: strings(names),
            ..full(kind)
        });
    }

    fn next_full(&mut self) -> Option<Listed> {
        let next = Full::next_response(&mut self.stream, &self.store, self.now);
        next.map(|(kind, response)| Listed::of(kind, &response))
    }

    fn ack_full(&mut self, listed: &Listed, names: &[&str]) -> Handled {
        self.ask_full(DiscoveryRequest {
            version_info: listed.version.clone(),
            resource_names: strings(names),
            response_nonce: listed.nonce.clone(),
            ..full(listed.kind)
        })
    }
}

/// What a response of the incremental variant says.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Sent {
    kind: ResourceType,
    nonce: String,
    set: Vec<String>,
    removed: Vec<String>,
    versions: BTreeMap<String, String>,
}

impl Sent {
    fn of(kind: ResourceType, response: &DeltaDiscoveryResponse) -> Self {
        assert_eq!(response.type_url, kind.type_url());
        let resources = response.resources.iter();
        Self {
            kind,
            nonce: response.nonce.clone(),
            set: resources.clone().map(|one| one.name.clone()).collect(),
            removed: response.removed_resources.clone(),
            versions: resources
                .map(|one| (one.name.clone(), one.version.clone()))
                .collect(),
        }
    }

    /// Type, names that are set with `+`, names that are removed with `-`.
    fn said(&self) -> String {
        let set = self.set.iter().map(|name| format!(" +{name}"));
        let removed = self.removed.iter().map(|name| format!(" -{name}"));
        format!("{:?}{}", self.kind, set.chain(removed).collect::<String>())
    }
}

/// What a response of the other variant says.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Listed {
    kind: ResourceType,
    nonce: String,
    version: String,
    bodies: Vec<String>,
}

impl Listed {
    fn of(kind: ResourceType, response: &DiscoveryResponse) -> Self {
        assert_eq!(response.type_url, kind.type_url());
        let bodies = response.resources.iter().map(|any| {
            assert_eq!(any.type_url, kind.type_url());
            String::from_utf8(any.value.to_vec()).unwrap()
        });
        Self {
            kind,
            nonce: response.nonce.clone(),
            version: response.version_info.clone(),
            bodies: bodies.collect(),
        }
    }
}

fn resource(audience: Audience, kind: ResourceType, name: &str, body: &str) -> Resource {
    Resource {
        kind,
        name: name.into(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        audience,
    }
}

fn delta(kind: ResourceType) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: kind.type_url().to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn full(kind: ResourceType) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: kind.type_url().to_owned(),
        ..DiscoveryRequest::default()
    }
}

fn refusal() -> RpcStatus {
    RpcStatus {
        code: 3,
        message: "no good".into(),
    }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}
