//! Random clusters: few names and few ports, chosen so that they meet and get in each other's way.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use testkit::netpol::{Labels, NamedPort, Pod, Protocol};

use crate::model::{
    CONTROLLER, Entry, Exposed, GATEWAY, Model, Namespace, Routed, Selector, Service, Target,
};

/// Namespaces; some read like parts of the names of policies, or make the names of labels long.
const NAMESPACES: [&str; 7] = [
    "a",
    "b",
    "a-b",
    "world",
    "istio",
    "ingress-controller",
    "shoot--my-project--my-cluster-with-a-rather-long-name",
];

/// Services; `b-x` in `a` and `x` in `a-b` ask for the same labels, as do `a-x` and `x` of `a`.
const SERVICES: [&str; 5] = [
    "x",
    "b-x",
    "a-x",
    "x-tcp-80",
    "extension-provider-openstack",
];

/// Aliases; the empty one is the plain label.
const ALIASES: [&str; 6] = ["", "all", "m", "m-from-b", "x-tcp-80", "x-from-istio"];

const ROLES: [&str; 2] = ["shoot", "extension"];

/// Numbers of ports, in the order of ranges.
const PORTS: [u16; 4] = [80, 443, 8080, 10250];

const PORT_NAMES: [&str; 2] = ["web", "metrics"];

/// All ports that the comparison tries: those above, and those beside ranges.
pub(crate) fn tried() -> impl Iterator<Item = (Protocol, u16)> {
    let numbers = PORTS.into_iter().chain([79, 81, 442, 9000]);
    numbers.flat_map(|number| PROTOCOLS.map(|protocol| (protocol, number)))
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Mostly TCP.
fn protocol() -> impl Strategy<Value = Protocol> + Clone {
    prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)]
}

/// Mostly the first one.
fn number() -> impl Strategy<Value = u16> + Clone {
    prop_oneof![1 => Just(PORTS[0]), 1 => select(&PORTS[..])]
}

pub(crate) fn model() -> impl Strategy<Value = Model> {
    raw_model().prop_map(|raw| {
        let namespaces = raw.namespaces.iter().zip(&raw.roles);
        let services = raw.services();
        let exposed = |one| exposed(&services, one);
        let mut model = Model {
            namespaces: namespaces
                .map(|(name, raw)| namespace(name, *raw))
                .collect(),
            pods: Vec::new(),
            handled: raw.handled.clone(),
            controller: raw.controller.map(|index| raw.place(index)),
            ingresses: raw.ingresses.iter().copied().map(exposed).collect(),
            routed: Vec::new(),
            services: services.clone(),
        };
        for (at, tiers, one) in &raw.routed {
            model.routed.extend(tiers.iter().map(|tier| Routed {
                namespace: raw.place(*at),
                gateway: labels(GATEWAY.1, *tier),
                exposed: exposed(*one),
            }));
        }
        let pods = raw.pods.iter().enumerate();
        let pods = pods
            .map(|(index, pod)| pod.pod(index, &raw, &model))
            .collect();
        Model { pods, ..model }
    })
}

/// A Service's port, and whether it is named.
type RawExposed = (Index, Index, bool);

/// A cluster before it is known what its indices point at.
#[derive(Clone, Debug)]
struct RawModel {
    namespaces: Vec<&'static str>,
    /// Of each namespace, and whether it is going away.
    roles: Vec<(Option<&'static str>, bool)>,
    pods: Vec<RawPod>,
    services: Vec<(Index, Service)>,
    handled: Vec<Selector>,
    controller: Option<Index>,
    ingresses: Vec<RawExposed>,
    /// Where gateways are, which there are, and what they route to.
    routed: Vec<(Index, Vec<Option<&'static str>>, RawExposed)>,
}

fn raw_model() -> impl Strategy<Value = RawModel> {
    let namespaces = prop_oneof![
        1 => subsequence(NAMESPACES.to_vec(), 1..=4),
        1 => Just(NAMESPACES[..3].to_vec()),
    ];
    let role = (option::of(select(&ROLES[..])), prop::bool::weighted(0.1));
    let exposed = (any::<Index>(), any::<Index>(), any::<bool>());
    let gateways = select(vec![vec![None], vec![Some("1"), Some("2")]]);
    let exposure = (
        option::of(any::<Index>()),
        vec(exposed.clone(), 0..3),
        vec((any::<Index>(), gateways, exposed), 0..3),
    );
    let handled = prop_oneof![4 => Just(Vec::new()), 1 => vec(selector(), 1..3)];
    let (pods, services) = (vec(raw_pod(), 2..7), vec(raw_service(), 1..6));
    let all = (namespaces, vec(role, 4), pods, services, handled, exposure);
    all.prop_map(
        |(namespaces, roles, pods, services, handled, exposure)| RawModel {
            namespaces,
            roles,
            pods,
            services,
            handled,
            controller: exposure.0,
            ingresses: exposure.1,
            routed: exposure.2,
        },
    )
}

impl RawModel {
    fn place(&self, index: Index) -> String {
        (*index.get(&self.namespaces)).to_owned()
    }

    /// Returns the Services in their namespaces, without those that have another's name.
    fn services(&self) -> Vec<Service> {
        let mut keys = BTreeSet::new();
        let placed = self.services.iter().map(|(index, service)| Service {
            namespace: self.place(*index),
            ..service.clone()
        });
        placed
            .filter(|own| keys.insert((own.namespace.clone(), own.name.clone())))
            .collect()
    }
}

fn exposed(services: &[Service], (service, port, by_name): RawExposed) -> Exposed {
    let service = service.index(services.len());
    let port = port.index(services[service].ports.len());
    Exposed {
        service,
        port,
        by_name,
    }
}

fn namespace(name: &str, (role, terminating): (Option<&str>, bool)) -> (String, Namespace) {
    let mut labels = Labels::new();
    labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    labels.extend(role.map(|role| ("role".to_owned(), role.to_owned())));
    (
        name.to_owned(),
        Namespace {
            labels,
            terminating,
        },
    )
}

fn tier() -> impl Strategy<Value = &'static str> + Clone {
    select(&["1", "2"][..])
}

/// Labels that pods have and selectors want.
fn labels(app: &str, tier: Option<&str>) -> Labels {
    let mut labels = Labels::from([("app".to_owned(), app.to_owned())]);
    labels.extend(tier.map(|tier| ("tier".to_owned(), tier.to_owned())));
    labels
}

/// A pod before it is known which labels would be of use.
#[derive(Clone, Debug)]
struct RawPod {
    namespace: Index,
    /// It is behind this Service, if any, wherever that is.
    behind: Option<Index>,
    app: &'static str,
    tier: Option<&'static str>,
    /// Which of the keys it has, whether those of its own namespace or of another, and whether
    /// with the value that counts.
    asks: Vec<(Index, Option<Index>, bool)>,
    ports: BTreeMap<&'static str, (Protocol, u16)>,
}

fn raw_pod() -> impl Strategy<Value = RawPod> {
    let apps = vec!["x", "x", "y", CONTROLLER.1, GATEWAY.1, GATEWAY.1];
    let asks = (
        any::<Index>(),
        option::weighted(0.2, any::<Index>()),
        prop::bool::weighted(0.9),
    );
    let port = (protocol(), number());
    (
        (any::<Index>(), option::of(any::<Index>())),
        select(apps),
        option::of(tier()),
        vec(asks, 0..6),
        btree_map(select(&PORT_NAMES[..]), port, 0..3),
    )
        .prop_map(|((namespace, behind), app, tier, asks, ports)| RawPod {
            namespace,
            behind,
            app,
            tier,
            asks,
            ports,
        })
}

impl RawPod {
    fn pod(&self, index: usize, raw: &RawModel, model: &Model) -> Pod {
        let mut namespace = raw.place(self.namespace);
        let mut labels = labels(self.app, self.tier);
        if let Some(service) = self.behind.map(|index| index.get(&model.services)) {
            namespace.clone_from(&service.namespace);
            labels.extend(service.selector.clone());
        }
        for (key, other, right) in &self.asks {
            let keys = model.keys(&other.map_or_else(|| namespace.clone(), |at| raw.place(at)));
            let value = if *right { "allowed" } else { "true" };
            labels.insert(key.get(&keys).clone(), value.to_owned());
        }
        let ports = self.ports.iter();
        Pod {
            namespace,
            name: format!("pod-{index}"),
            labels,
            ip: [10, 96, 0, u8::try_from(index).unwrap()].into(),
            ports: ports
                .map(|(name, (protocol, number))| NamedPort {
                    name: (*name).to_owned(),
                    protocol: *protocol,
                    number: *number,
                })
                .collect(),
        }
    }
}

/// A Service and where its namespace is among those there are.
fn raw_service() -> impl Strategy<Value = (Index, Service)> {
    let number = number().prop_map(Target::Number);
    let port = (protocol(), prop_oneof![3 => number, 1 => port_name()]);
    let alias = select(&ALIASES[..]).prop_map(str::to_owned);
    let annotations = (
        option::weighted(0.8, vec(selector(), 0..3)),
        option::weighted(
            0.3,
            select(vec!["all", "a", "all-foos"]).prop_map(str::to_owned),
        ),
        btree_map(alias, vec(entry(true), 0..3), 0..3),
        option::weighted(0.3, vec(entry(false), 0..3)),
    );
    (
        any::<Index>(),
        prop_oneof![1 => Just(SERVICES[0]), 2 => select(&SERVICES[..])],
        0_u8..3,
        (
            select(vec!["x", "x", "x", "y"]),
            option::weighted(0.3, tier()),
        ),
        vec(port, 1..3),
        annotations,
    )
        .prop_map(
            |(namespace, name, created, (app, tier), ports, annotations)| {
                let (clients, namespace_alias, aliases, state) = annotations;
                let mut selector = Labels::from([("app".to_owned(), app.to_owned())]);
                selector.extend(tier.map(|tier| ("tier".to_owned(), tier.to_owned())));
                let service = Service {
                    namespace: String::new(),
                    name: name.to_owned(),
                    created,
                    selector,
                    ports,
                    clients,
                    namespace_alias,
                    aliases,
                    state,
                };
                (namespace, service)
            },
        )
}

fn selector() -> impl Strategy<Value = Selector> {
    let role = || select(&ROLES[..]).prop_map(str::to_owned);
    prop_oneof![
        2 => Just(Selector::All),
        1 => Just(Selector::HasRole),
        1 => Just(Selector::NoRole),
        3 => select(&NAMESPACES[..]).prop_map(|name| Selector::Named(name.to_owned())),
        1 => role().prop_map(Selector::NotRole),
        2 => role().prop_map(Selector::Role),
    ]
}

fn port_name() -> BoxedStrategy<Target> {
    let names = select(&PORT_NAMES[..]);
    names.prop_map(|name| Target::Name(name.to_owned())).boxed()
}

/// An element of an annotation's list; some need a port.
fn entry(needs_port: bool) -> impl Strategy<Value = Entry> {
    let number = (
        number(),
        any::<bool>(),
        option::weighted(0.3, select(&PORTS[..])),
    );
    let numbered = number.prop_map(|(port, digits, end)| {
        let target = if digits {
            Target::Digits(port)
        } else {
            Target::Number(port)
        };
        (Some(target), end.map(|end| end.max(port)))
    });
    let named = port_name().prop_map(|name| (Some(name), None));
    let port = match needs_port {
        true => prop_oneof![4 => numbered, 1 => named].boxed(),
        false => prop_oneof![4 => numbered, 1 => named, 1 => Just((None, None))].boxed(),
    };
    (option::of(protocol()), port).prop_map(|(protocol, (port, end))| Entry {
        protocol,
        port,
        end,
    })
}
