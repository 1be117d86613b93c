//! Pods' labels, kept as little as the planners need.
//!
//! One entry for each distinct set of labels in a namespace, with how many pods have it: replicas
//! of one workload cost one entry. Nothing else of a pod is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::core::DynamicObject;

use super::catalog::Objects;
use super::meta::Parse;
use super::{Kind, LabelSelector, Labels, ObjectKey};

/// Labels that change with every rollout and select nothing: kept out, so that sets stay few.
const TRANSIENT: [&str; 4] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
];

/// The labels of all pods.
#[derive(Debug, Default)]
pub struct Pods {
    sets: BTreeMap<Arc<str>, BTreeMap<Arc<Labels>, usize>>,
    of_pod: BTreeMap<ObjectKey, Arc<Labels>>,
}

impl Pods {
    /// Returns the distinct sets of labels in a namespace.
    pub fn labels_in(&self, namespace: &str) -> impl Iterator<Item = &Labels> {
        let sets = self.sets.get(namespace).into_iter();
        sets.flat_map(|sets| sets.keys().map(AsRef::as_ref))
    }

    /// Returns a pod's labels as far as they are kept.
    pub fn labels_of(&self, pod: &ObjectKey) -> Option<&Arc<Labels>> {
        self.of_pod.get(pod)
    }

    /// Returns how many pods in a namespace have exactly these labels.
    pub fn count(&self, namespace: &str, labels: &Labels) -> usize {
        let sets = self.sets.get(namespace);
        sets.and_then(|sets| sets.get(labels).copied())
            .unwrap_or_default()
    }

    /// Returns the namespaces that have a pod which the selector selects.
    pub fn namespaces_of(&self, selector: &LabelSelector) -> BTreeSet<Arc<str>> {
        let has =
            |sets: &BTreeMap<Arc<Labels>, usize>| sets.keys().any(|own| selector.matches(own));
        let all = self.sets.iter();
        all.filter(|(_, sets)| has(sets))
            .map(|(name, _)| Arc::clone(name))
            .collect()
    }

    /// Returns the keys of all pods.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &ObjectKey> {
        self.of_pod.keys()
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        let Some(labels) = self.of_pod.remove(key) else {
            return;
        };
        let Some(sets) = self.sets.get_mut(&key.namespace) else {
            return;
        };
        if let Some(count) = sets.get_mut(&labels) {
            *count -= 1;
            if *count == 0 {
                sets.remove(&labels);
            }
        }
        if sets.is_empty() {
            self.sets.remove(&key.namespace);
        }
    }
}

/// What is kept of a pod.
impl Parse for Arc<Labels> {
    fn parse(_: Kind, object: DynamicObject) -> Result<Self, serde_json::Error> {
        let mut labels: Labels = object.metadata.labels.unwrap_or_default();
        labels.retain(|label, _| !TRANSIENT.contains(&label.as_str()));
        Ok(Self::new(labels))
    }
}

impl Objects<Arc<Labels>> for Pods {
    fn find(&self, key: &ObjectKey) -> Option<&Arc<Labels>> {
        self.labels_of(key)
    }

    fn put(&mut self, key: ObjectKey, labels: Arc<Labels>) {
        self.remove(&key);
        let sets = self.sets.entry(Arc::clone(&key.namespace)).or_default();
        let known = sets.get_key_value(&labels).map(|(own, _)| Arc::clone(own));
        let labels = known.unwrap_or(labels);
        *sets.entry(Arc::clone(&labels)).or_default() += 1;
        self.of_pod.insert(key, labels);
    }
}
