//! From a [`Model`] to objects, to the controller's policies, to a cluster that has them.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use netpol_controller::plan::{
    Claims, Compatibility, IngressController, Policy, PolicySettings, Reason, RoutedPort, service,
};
use netpol_controller::state::{
    ClusterState, Kind, LabelSelector, ObjectKey, Protocol as OurProtocol, TargetPort,
};
use serde_json::{Map, Value, json};
use testkit::netpol::{Blocks, Cluster, Labels, Protocol};

use crate::model::{CONTROLLER, Entry, Model, PREFIX, Routed, Selector, Service, Target};
use crate::promised::name;

/// The first of a Service's own ports.
const FIRST_PORT: usize = 1000;

/// The policies of all Services, and the Services that did not get all of theirs.
pub(crate) struct Planned {
    pub(crate) policies: Vec<Policy>,
    pub(crate) deprived: BTreeSet<usize>,
}

/// Plans all Services, as often as it takes until all of their claims are known.
pub(crate) fn plan(model: &Model, compatibility: Compatibility) -> Planned {
    let state = state(model);
    let settings = PolicySettings {
        compatibility,
        namespace_selectors: model.handled.iter().map(Selector::parsed).collect(),
        ingress_controller_selector: model
            .controller
            .as_ref()
            .map(|namespace| IngressController {
                namespace: namespace.clone(),
                pod_selector: LabelSelector::of_labels([(
                    CONTROLLER.0.to_owned(),
                    CONTROLLER.1.to_owned(),
                )]),
            }),
        ..PolicySettings::default()
    };
    let mut claims = Claims::default();
    let mut planned = Planned {
        policies: Vec::new(),
        deprived: BTreeSet::new(),
    };
    for last in [false, true] {
        for (index, object) in model.services.iter().enumerate() {
            let key = object.key_of();
            let mut plan = service(&state, &settings, &model.routed_to(index), &key);
            let moved = claims.settle(&state, &key, [], &mut plan);
            if last {
                assert!(
                    moved.is_empty(),
                    "{key} takes policies from {moved:?} again"
                );
                let conflict = |reason| reason == Reason::PolicyConflict;
                if plan.problems.iter().any(|own| conflict(own.reason)) {
                    planned.deprived.insert(index);
                }
                planned.policies.extend(plan.policies);
            }
        }
    }
    planned
}

/// Returns a cluster with these policies, and one that denies everything in every namespace.
pub(crate) fn cluster(
    namespaces: BTreeMap<String, Labels>,
    policies: &[Policy],
    blocks: Blocks,
) -> Cluster {
    let deny = |namespace: &String| {
        json!({
            "metadata": { "namespace": namespace, "name": "deny-all" },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
        })
    };
    let objects: Vec<_> = policies
        .iter()
        .map(object)
        .chain(namespaces.keys().map(deny))
        .collect();
    Cluster::new(namespaces, &objects, blocks).unwrap()
}

/// Returns a policy as an API server would return it.
pub(crate) fn object(policy: &Policy) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "namespace": &*policy.key.namespace,
            "name": &*policy.key.name,
            "labels": policy.labels,
            "annotations": { "gardener.cloud/description": policy.description },
        },
        "spec": policy.spec,
    })
}

/// Applies an object to the state.
pub(crate) fn apply(state: &mut ClusterState, kind: Kind, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    state.apply(kind, object, |_| ()).unwrap();
}

fn state(model: &Model) -> ClusterState {
    let mut state = ClusterState::default();
    for (name, namespace) in &model.namespaces {
        let mut metadata = json!({ "name": name, "labels": namespace.labels });
        if namespace.terminating {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        apply(&mut state, Kind::Namespace, json!({ "metadata": metadata }));
    }
    for pod in &model.pods {
        let metadata =
            json!({ "namespace": pod.namespace, "name": pod.name, "labels": pod.labels });
        apply(&mut state, Kind::Pod, json!({ "metadata": metadata }));
    }
    for service in &model.services {
        apply(&mut state, Kind::Service, service.object());
    }
    for (index, exposed) in model.ingresses.iter().enumerate() {
        let service = &model.services[exposed.service];
        let port = match exposed.by_name {
            true => json!({ "name": format!("p{}", exposed.port) }),
            false => json!({ "number": FIRST_PORT + exposed.port }),
        };
        let backend = json!({ "service": { "name": service.name, "port": port } });
        let rule = json!({ "http": { "paths": [{ "backend": backend }] } });
        let metadata = json!({ "namespace": service.namespace, "name": format!("i{index}") });
        let object = json!({ "metadata": metadata, "spec": { "rules": [rule] } });
        apply(&mut state, Kind::Ingress, object);
    }
    state
}

impl Model {
    fn routed_to(&self, service: usize) -> Vec<RoutedPort> {
        let own = |routed: &&Routed| routed.exposed.service == service;
        let routed = self.routed.iter().filter(own);
        let port = |routed: &Routed| {
            let (protocol, target) = &self.services[service].ports[routed.exposed.port];
            RoutedPort {
                gateway_namespace: routed.namespace.as_str().into(),
                gateway_selector: routed.gateway.clone(),
                protocol: match protocol {
                    Protocol::Sctp => OurProtocol::Sctp,
                    Protocol::Tcp => OurProtocol::Tcp,
                    Protocol::Udp => OurProtocol::Udp,
                },
                target: match target {
                    Target::Digits(number) | Target::Number(number) => TargetPort::Number(*number),
                    Target::Name(name) => TargetPort::Name(name.clone()),
                },
            }
        };
        routed.map(port).collect()
    }
}

impl Service {
    pub(crate) fn key_of(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    fn object(&self) -> Value {
        let ports = self.ports.iter().enumerate();
        let ports: Vec<_> = ports
            .map(|(index, (protocol, target))| {
                json!({
                    "name": format!("p{index}"),
                    "port": FIRST_PORT + index,
                    "protocol": name(*protocol),
                    "targetPort": target.value(),
                })
            })
            .collect();
        json!({
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", self.created),
                "annotations": self.annotations(),
            },
            "spec": { "selector": self.selector, "ports": ports },
        })
    }

    fn annotations(&self) -> Map<String, Value> {
        let mut annotations = Map::new();
        let mut add = |key: &str, value: &Value| {
            annotations.insert(format!("{PREFIX}{key}"), value.to_string().into());
        };
        let list = |entries: &[Entry]| entries.iter().map(Entry::value).collect::<Value>();
        if let Some(selectors) = &self.clients {
            let selectors = selectors.iter().map(Selector::value).collect();
            add("namespace-selectors", &selectors);
        }
        if let Some(entries) = &self.state {
            add("from-world-to-ports", &list(entries));
        }
        for (alias, entries) in &self.aliases {
            add(&format!("from-{alias}-allowed-ports"), &list(entries));
        }
        if let Some(alias) = &self.namespace_alias {
            let key = format!("{PREFIX}pod-label-selector-namespace-alias");
            annotations.insert(key, alias.as_str().into());
        }
        annotations
    }
}

impl Selector {
    fn value(&self) -> Value {
        let role = |operator: &str| json!({ "key": "role", "operator": operator });
        match self {
            Self::All => json!({}),
            Self::HasRole => json!({ "matchExpressions": [role("Exists")] }),
            Self::NoRole => json!({ "matchExpressions": [role("DoesNotExist")] }),
            Self::Named(name) => json!({ "matchLabels": { "kubernetes.io/metadata.name": name } }),
            Self::NotRole(own) => {
                let mut one = role("NotIn");
                one["values"] = json!([own]);
                json!({ "matchExpressions": [one] })
            }
            Self::Role(own) => json!({ "matchLabels": { "role": own } }),
        }
    }

    fn parsed(&self) -> LabelSelector {
        serde_json::from_value(self.value()).unwrap()
    }
}

impl Target {
    fn value(&self) -> Value {
        match self {
            Self::Digits(number) => number.to_string().into(),
            Self::Name(name) => name.as_str().into(),
            Self::Number(number) => (*number).into(),
        }
    }
}

impl Entry {
    fn value(&self) -> Value {
        let mut value = json!({});
        if let Some(protocol) = self.protocol {
            value["protocol"] = name(protocol).into();
        }
        if let Some(port) = &self.port {
            value["port"] = port.value();
        }
        if let Some(end) = self.end {
            value["endPort"] = end.into();
        }
        value
    }
}
