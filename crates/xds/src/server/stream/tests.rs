//! Streams of both variants against a store, without sockets and with a clock that is a field.

use std::time::Duration;

use super::*;
use crate::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, RpcStatus,
};
use crate::resource::ResourceType::{Cluster, ClusterLoadAssignment, Listener};
use crate::resource::{Audience, Resource};
use crate::scenario::{change, commands, kind_of, resource};
use crate::server::delta::Delta;
use crate::server::full::Full;
use crate::server::store::MAX_CHANGES;
use crate::server::stream_task::Variant;

mod delta;
mod full;
mod model;
mod order;

/// A store, a stream of either variant and a clock.
struct Bench {
    store: Store,
    stream: Stream,
    now: Instant,
    /// Whether the stream is of the state-of-the-world variant.
    full: bool,
    /// Types and nonces of responses that were not answered, oldest first.
    unanswered: VecDeque<(ResourceType, String)>,
    /// State of the world: the names of the last request of a type.
    names: BTreeMap<ResourceType, Vec<String>>,
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
            stream: Stream::new(audience, true, limits),
            now: Instant::now(),
            full: false,
            unanswered: VecDeque::new(),
            names: BTreeMap::new(),
        }
    }

    /// The same store, another stream.
    fn reconnect(&mut self) {
        *self = Self::with_store(self.stream.audience, std::mem::take(&mut self.store));
    }

    /// Runs the commands of a scenario, see [`Self::step`].
    fn run(&mut self, script: &str) {
        for command in commands(script) {
            self.step(&command.at, command.verb, &command.words);
            self.stream.pull(&self.store, self.now);
        }
    }

    /// Runs one command. Types are named by their first letters, `A` is an assignment.
    ///
    /// ```text
    ///   change C/a=1 whole:L/b=2 -R/c   sets and removes in one change
    ///   ask A a b with a=1 c=?          subscribes (incremental), and has versions from before
    ///   drop A a                        unsubscribes
    ///   want A a b                      asks (state of the world)
    ///   sends C +a=1 +b -c              the next response, here with what `a` holds
    ///   lists C 1 2                     the next response with these bodies
    ///   idle                            there is no response to be sent
    ///   more yes                        whether the latest response says that more follows
    ///   secrets no                      whether the store has all secrets
    ///   ack, nack                       answers the oldest response; `ack a b` asks for names
    ///   acks C +a                       sends and ack
    /// ```
    fn step(&mut self, at: &str, verb: &str, words: &[&str]) {
        match (verb, words) {
            ("ack", names) => self.answer(at, names, None),
            ("acks", words) => {
                self.step(at, "sends", words);
                self.step(at, "ack", &[]);
            }
            ("ask", [kind, words @ ..]) => {
                let mut parts = words.split(|word| *word == "with");
                let names = parts.next().unwrap_or_default();
                let had = parts.next().unwrap_or_default().iter().map(|item| {
                    let (name, body) = item.split_once('=').unwrap();
                    let version = Version::of(body.as_bytes()).to_string();
                    let foreign = "from another server".to_owned();
                    (name.to_owned(), if body == "?" { foreign } else { version })
                });
                self.ask(DeltaDiscoveryRequest {
                    resource_names_subscribe: strings(names),
                    initial_resource_versions: had.collect(),
                    ..delta(kind_of(kind))
                });
            }
            ("change", words) => {
                let (set, removed) = change(words);
                self.update(set, removed);
            }
            ("complete", []) => self.store.complete(),
            ("drop", [kind, names @ ..]) => {
                self.ask(DeltaDiscoveryRequest {
                    resource_names_unsubscribe: strings(names),
                    ..delta(kind_of(kind))
                });
            }
            ("due", []) => assert_eq!(self.stream.timeout(), Some(self.now + WAIT), "{at}"),
            ("idle", []) if self.full => assert_eq!(self.next_full(), None, "{at}"),
            ("idle", []) => assert_eq!(self.next(), None, "{at}"),
            ("limit", [bytes]) => self.stream.limits.response_bytes = bytes.parse().unwrap(),
            ("lists", [kind, bodies @ ..]) => {
                let listed = self.next_full().unwrap_or_else(|| panic!("{at}: nothing"));
                assert_eq!(listed.kind, kind_of(kind), "{at}");
                assert_eq!(listed.bodies, bodies, "{at}");
                self.unanswered.push_back((listed.kind, listed.nonce));
            }
            ("more", [more]) => {
                let (_, nonce) = self.unanswered.back().unwrap();
                assert_eq!(nonce.ends_with(MORE_FOLLOWS), *more == "yes", "{at}");
            }
            ("nack", []) => self.answer(at, &[], Some(refusal())),
            ("reconnect", []) => self.reconnect(),
            ("secrets", [there]) => self.store.complete_secrets(*there == "yes"),
            ("sends", [kind, items @ ..]) => {
                let sent = self.next().unwrap_or_else(|| panic!("{at}: nothing"));
                let name = |item: &&str| item.split('=').next().unwrap().to_owned();
                let names: Vec<_> = items.iter().map(name).collect();
                assert_eq!((sent.kind, sent.names()), (kind_of(kind), names), "{at}");
                for (name, body) in items.iter().filter_map(|item| item.split_once('=')) {
                    let version = Version::of(body.as_bytes()).to_string();
                    assert_eq!(sent.versions[&name[1..]], version, "{at}");
                }
                self.unanswered.push_back((sent.kind, sent.nonce));
            }
            ("wait", []) => self.now += WAIT,
            ("want", [kind, names @ ..]) => {
                self.full = true;
                let kind = kind_of(kind);
                self.names.insert(kind, strings(names));
                self.ask_full(DiscoveryRequest {
                    resource_names: strings(names),
                    ..full(kind)
                });
            }
            ("whole", [there]) => self.store.whole_complete(*there == "yes"),
            _ => panic!("{at}: no such command"),
        }
    }

    fn update(&mut self, set: Vec<Resource>, removed: Vec<(ResourceType, Audience, Arc<str>)>) {
        self.store.update(set, removed);
        self.stream.pull(&self.store, self.now);
    }

    /// Accepts or refuses the oldest response, with other names from now on if there are any; `()`
    /// is none.
    fn answer(&mut self, at: &str, names: &[&str], error: Option<RpcStatus>) {
        let (kind, nonce) = self.unanswered.pop_front().expect(at);
        if !names.is_empty() {
            let names = names.iter().copied().filter(|name| *name != "()");
            self.names.insert(kind, names.map(str::to_owned).collect());
        }
        let before = self.stream.progress(kind).clone();
        let handled = if self.full {
            self.ask_full(DiscoveryRequest {
                resource_names: self.names[&kind].clone(),
                response_nonce: nonce,
                error_detail: error.clone(),
                ..full(kind)
            })
        } else {
            self.ask(DeltaDiscoveryRequest {
                response_nonce: nonce,
                error_detail: error.clone(),
                ..delta(kind)
            })
        };
        let progress = self.stream.progress(kind);
        match error {
            Some(error) => {
                assert_eq!(
                    handled,
                    Handled::Nacked(kind, error.message.clone()),
                    "{at}"
                );
                assert_eq!(progress.nack, Some(error.message), "{at}");
                assert_eq!(progress.acked, before.acked, "{at}");
            }
            None => assert_eq!(handled, Handled::Acked(kind), "{at}"),
        }
    }

    fn set(&mut self, kind: ResourceType, name: &str, body: &str) {
        self.update(vec![resource(Audience::All, kind, name, body)], vec![]);
    }

    fn ask(&mut self, request: DeltaDiscoveryRequest) -> Handled {
        let now = self.now;
        Delta::on_request(&mut self.stream, &self.store, now, request).unwrap()
    }

    fn next(&mut self) -> Option<Sent> {
        let next = Delta::next_response(&mut self.stream, &self.store, self.now);
        next.map(|(kind, response)| Sent::of(kind, &response))
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

    fn next_full(&mut self) -> Option<Listed> {
        let next = Full::next_response(&mut self.stream, &self.store, self.now);
        next.map(|(kind, response)| Listed::of(kind, &response))
    }
}

/// A response of the incremental variant.
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

    /// Names that are set with `+`, names that are removed with `-`.
    fn names(&self) -> Vec<String> {
        let set = self.set.iter().map(|name| format!("+{name}"));
        let removed = self.removed.iter().map(|name| format!("-{name}"));
        set.chain(removed).collect()
    }
}

/// A response of the other variant.
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
