//! Clusters for the planners' tests, made of objects as the API server returns them.

use std::collections::BTreeSet;

use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::{Compatibility, Policy, PolicySettings, Problem, Reason, ServicePlan, service};
use crate::state::{ClusterState, Kind, ObjectKey};

/// Prefix of the annotations and labels.
pub(super) const PREFIX: &str = "networking.resources.gardener.cloud/";

/// Both modes.
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
    state.apply(kind, object).unwrap();
}

pub(super) fn remove(state: &mut ClusterState, object: &Value) {
    let (kind, object) = parsed(object);
    state.remove(kind, &ObjectKey::of(&object));
}

fn parsed(object: &Value) -> (Kind, DynamicObject) {
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

/// A namespace that is going away.
pub(super) fn terminating(name: &str) -> Value {
    let mut object = namespace(name);
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

pub(super) fn pod(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: Map<_, _> = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    let metadata = json!({"namespace": namespace, "name": name, "labels": labels});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
}

/// The Service of the document: `app: gardener-resource-manager`, port 443 to 10250, with
/// annotations whose keys lack the prefix.
pub(super) fn grm(annotations: &[(&str, &str)]) -> Value {
    named("a", "gardener-resource-manager", annotations)
}

/// One like it of another name.
pub(super) fn named(namespace: &str, name: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: Map<_, _> = annotations
        .iter()
        .map(|(key, value)| (format!("{PREFIX}{key}"), json!(value)))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": annotations,
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

/// The plan of the document's Service.
pub(super) fn plan(state: &ClusterState, compatibility: Compatibility) -> ServicePlan {
    let key = ObjectKey::new("a", "gardener-resource-manager");
    service(state, &settings(compatibility), &[], &key)
}

/// `namespace/name` of all policies.
pub(super) fn keys(plan: &ServicePlan) -> Vec<String> {
    plan.policies
        .iter()
        .map(|policy| policy.key.to_string())
        .collect()
}

/// The policy of this namespace and name.
pub(super) fn find<'a>(plan: &'a ServicePlan, key: &str) -> &'a Policy {
    let mut all = plan.policies.iter();
    let found = all.find(|policy| policy.key.to_string() == key);
    found.unwrap_or_else(|| panic!("{key} is not among {:#?}", keys(plan)))
}

pub(super) fn spec(plan: &ServicePlan, key: &str) -> Value {
    serde_json::to_value(&find(plan, key).spec).unwrap()
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

/// The messages with a reason.
pub(super) fn messages(problems: &[Problem], reason: Reason) -> Vec<&str> {
    let with = problems.iter().filter(|problem| problem.reason == reason);
    with.map(|problem| problem.message.as_str()).collect()
}

pub(super) fn set(keys: &[(&str, &str)]) -> BTreeSet<ObjectKey> {
    keys.iter()
        .map(|(namespace, name)| ObjectKey::new(namespace, name))
        .collect()
}
