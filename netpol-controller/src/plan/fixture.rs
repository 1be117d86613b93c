//! Clusters for the planners' tests, made of objects as the API server returns them.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::{
    Compatibility, IngressController, Policy, PolicySettings, Problem, Reason, RoutedPort,
    ServicePlan, service,
};
use crate::state::{ClusterState, Kind, ObjectKey, Protocol, TargetPort};

/// Prefix of the annotations and labels.
pub(super) const PREFIX: &str = "networking.resources.gardener.cloud/";

pub(super) const MODES: [Compatibility; 2] = [Compatibility::Document, Compatibility::Upstream];

pub(super) fn state(objects: &[Value]) -> ClusterState {
    let mut state = ClusterState::default();
    for object in objects {
        apply(&mut state, object);
    }
    state
}

pub(super) fn apply(state: &mut ClusterState, object: &Value) {
    let (kind, object) = parsed(object);
    state.apply(kind, object, |_| ()).unwrap();
}

pub(super) fn remove(state: &mut ClusterState, object: &Value) {
    let (kind, object) = parsed(object);
    state.remove(kind, &ObjectKey::of(&object));
}

pub(super) fn parsed(object: &Value) -> (Kind, DynamicObject) {
    let (name, version) = (&object["kind"], object["apiVersion"].as_str().unwrap());
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let mut kinds = Kind::ALL.into_iter();
    let kind = kinds.find(|kind| name == kind.name() && group == kind.group());
    (
        kind.unwrap(),
        serde_json::from_value(object.clone()).unwrap(),
    )
}

/// A namespace with the label every namespace has.
pub(super) fn namespace(name: &str) -> Value {
    let labels = json!({"kubernetes.io/metadata.name": name});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

pub(super) fn terminating(name: &str) -> Value {
    let mut object = namespace(name);
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

pub(super) fn pod(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Value {
    let metadata = json!({"namespace": namespace, "name": name, "labels": map("", labels)});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
}

/// Labels or annotations whose keys lack the prefix.
fn map(prefix: &str, all: &[(&str, &str)]) -> Map<String, Value> {
    let all = all.iter();
    all.map(|(key, value)| (format!("{prefix}{key}"), json!(value)))
        .collect()
}

/// The Service `s` of most tests.
pub(super) fn example(annotations: &[(&str, &str)]) -> Value {
    named("a", "s", annotations)
}

/// A Service `app: <name>`, port 443 to 10250, with annotations whose keys lack the prefix.
pub(super) fn named(namespace: &str, name: &str, annotations: &[(&str, &str)]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": map(PREFIX, annotations),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": "server", "port": 443, "protocol": "TCP", "targetPort": 10250}],
        },
    })
}

pub(super) fn settings(compatibility: Compatibility) -> PolicySettings {
    PolicySettings {
        compatibility,
        ..PolicySettings::default()
    }
}

pub(super) fn plan(state: &ClusterState, compatibility: Compatibility) -> ServicePlan {
    plan_routed(state, compatibility, &[])
}

/// The same with what gateways route to it.
pub(super) fn plan_routed(
    state: &ClusterState,
    compatibility: Compatibility,
    routed: &[RoutedPort],
) -> ServicePlan {
    service(
        state,
        &settings(compatibility),
        routed,
        &ObjectKey::new("a", "s"),
    )
}

/// A port to which a gateway with this value of the label `istio` leads.
pub(super) fn routed(namespace: &str, gateway: &str, port: u16) -> RoutedPort {
    RoutedPort {
        gateway_namespace: namespace.into(),
        gateway_selector: [("istio".to_owned(), gateway.to_owned())].into(),
        protocol: Protocol::Tcp,
        target: TargetPort::Number(port),
    }
}

/// An Ingress of paths to these ports of Services.
pub(super) fn ingress(namespace: &str, backends: &[(&str, Value)]) -> Value {
    let paths = backends
        .iter()
        .map(|(name, port)| json!({"backend": {"service": {"name": name, "port": port}}}));
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {
            "defaultBackend": {"service": {"name": "s", "port": {"number": 444}}},
            "rules": [{"host": "none.example.com"}, {"http": {"paths": paths.collect::<Vec<_>>()}}],
        },
    })
}

pub(super) fn with_controller(
    compatibility: Compatibility,
    namespace: &str,
    pods: Value,
) -> PolicySettings {
    PolicySettings {
        ingress_controller_selector: Some(IngressController {
            namespace: namespace.to_owned(),
            pod_selector: serde_json::from_value(pods).unwrap(),
        }),
        ..settings(compatibility)
    }
}

/// `namespace/name` of all policies.
pub(super) fn keys(plan: &ServicePlan) -> Vec<String> {
    plan.policies
        .iter()
        .map(|policy| policy.key.to_string())
        .collect()
}

pub(super) fn find<'a>(plan: &'a ServicePlan, key: &str) -> &'a Policy {
    let mut all = plan.policies.iter();
    let found = all.find(|policy| policy.key.to_string() == key);
    found.unwrap_or_else(|| panic!("{key} is not among {:#?}", keys(plan)))
}

pub(super) fn spec(plan: &ServicePlan, key: &str) -> Value {
    find(plan, key).spec.clone()
}

/// A policy as an object, without its labels.
pub(super) fn object(policy: &Policy) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {"gardener.cloud/description": policy.description},
            "name": &*policy.key.name,
            "namespace": &*policy.key.namespace,
        },
        "spec": policy.spec,
    })
}

pub(super) fn messages(problems: &[Problem], reason: Reason) -> Vec<&str> {
    let with = problems.iter().filter(|problem| problem.reason == reason);
    with.map(|problem| problem.message.as_str()).collect()
}

pub(super) fn set(keys: &[(&str, &str)]) -> BTreeSet<ObjectKey> {
    keys.iter()
        .map(|(namespace, name)| ObjectKey::new(namespace, name))
        .collect()
}
