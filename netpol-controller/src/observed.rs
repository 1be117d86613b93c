//! The controller's NetworkPolicies as observed in the cluster: fingerprints, by owner.
//!
//! A policy is kept as the digest of what is ours in it, not as the object: that is enough to see
//! that it is right, and 20,000 of them cost a few megabytes. Writes are noted here when they are
//! answered, so that the watch's echo of them calls for nothing.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::DynamicObject;
use serde_json::Value;

use crate::affected::Affected;
use crate::plan::{self, Policy};
use crate::state::{Labels, ObjectKey};

/// A digest of what is ours in a policy: its specification, its description and its owner's labels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Fingerprint([u8; 16]);

impl Fingerprint {
    pub(crate) fn wanted(policy: &Policy) -> Self {
        let (description, labels) = (Some(&policy.description), Some(&policy.labels));
        Self::of(&policy.spec, description, labels)
    }

    /// Maps of JSON values are sorted, so equal contents have equal texts.
    fn of(spec: &Value, description: Option<&String>, labels: Option<&Labels>) -> Self {
        let label = |key| labels.and_then(|own| own.get(key));
        let owner = (label(plan::SERVICE_NAMESPACE), label(plan::SERVICE_NAME));
        let text = serde_json::to_vec(&(spec, description, owner.0, owner.1)).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        let mut short = [0; 16];
        short.copy_from_slice(&digest.as_ref()[..16]);
        Self(short)
    }
}

#[derive(Debug)]
struct Known {
    /// As it was last written or seen.
    last: Answer,
    /// The version of a write of ours whose event has not come yet: older events are late.
    awaited: Option<u64>,
    /// What was asked for, when the API server keeps it in another form.
    kept_for: Option<Fingerprint>,
    /// A delete was answered, and its event has not come yet.
    deleting: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ObservedPolicies {
    policies: BTreeMap<ObjectKey, Known>,
    by_service: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// Policies that went while writes were under way: the answer to one of these may be older.
    gone: BTreeSet<ObjectKey>,
}

impl ObservedPolicies {
    pub(crate) fn len(&self) -> usize {
        self.policies.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.policies.keys()
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.by_service.keys()
    }

    pub(crate) fn of_service(&self, service: &ObjectKey) -> impl Iterator<Item = &ObjectKey> {
        let keys = self.by_service.get(service).into_iter().flatten();
        keys.filter(|key| self.contains(key))
    }

    pub(crate) fn contains(&self, key: &ObjectKey) -> bool {
        self.find(key).is_some()
    }

    pub(crate) fn described(&self, key: &ObjectKey) -> bool {
        self.find(key).is_some_and(|own| own.last.described)
    }

    pub(crate) fn is(&self, key: &ObjectKey, wanted: Fingerprint) -> bool {
        let known = self.find(key);
        known.is_some_and(|own| own.last.fingerprint == wanted || own.kept_for == Some(wanted))
    }

    fn find(&self, key: &ObjectKey) -> Option<&Known> {
        self.policies.get(key).filter(|own| !own.deleting)
    }

    /// Records a policy from a watch event. Returns what the change affects, if there is one.
    pub(crate) fn seen(&mut self, key: ObjectKey, object: &DynamicObject) -> Option<Affected> {
        let last = Answer::new(object);
        let known = self.policies.get(&key);
        let awaited = known.and_then(|own| own.awaited);
        if awaited.is_some_and(|awaited| last.version != 0 && last.version < awaited) {
            return None;
        }
        self.gone.remove(&key);
        if last.service.is_none() && !plan::NAMES.contains(&&*key.name) {
            return self.gone(&key);
        }
        let same = |own: &&Known| own.last.fingerprint == last.fingerprint && !own.deleting;
        let same = known.filter(same);
        let changed = same.is_none();
        let fresh = Known {
            kept_for: same.and_then(|own| own.kept_for),
            last,
            awaited: None,
            deleting: false,
        };
        let affected = self.put(key, fresh);
        changed.then_some(affected)
    }

    /// Forgets a policy that a watch says is gone. Returns what that affects.
    pub(crate) fn gone(&mut self, key: &ObjectKey) -> Option<Affected> {
        self.gone.insert(key.clone());
        let known = self.take(key)?;
        Some(affected(key, known.last.service))
    }

    /// Records a write that succeeded: `last` is the object the API server returned.
    pub(crate) fn written(&mut self, key: &ObjectKey, wanted: Fingerprint, last: Answer) {
        // For one that was deleted since, the watch reports whether it is back.
        if self.version(key) <= last.version && !self.gone.contains(key) {
            let fresh = Known {
                awaited: Some(last.version),
                kept_for: (last.fingerprint != wanted).then_some(wanted),
                last,
                deleting: false,
            };
            self.put(key.clone(), fresh);
        }
    }

    /// Records a delete that succeeded, of the policy as it was in `version`.
    pub(crate) fn deleted(&mut self, key: &ObjectKey, version: u64) {
        if let Some(known) = self.policies.get_mut(key)
            && known.last.version == version
        {
            known.deleting = true;
        }
    }

    /// Records that all policies are listed again. Whatever is listed then counts, older versions
    /// too: the API server's store may have been put back to an earlier state. That alone asks for
    /// no list, since watches go on from where they were: `docs/operations.md` says what does.
    pub(crate) fn relist(&mut self) {
        for known in self.policies.values_mut() {
            known.awaited = None;
        }
    }

    /// Returns the version of a policy; 0 when it is not known.
    pub(crate) fn version(&self, key: &ObjectKey) -> u64 {
        self.policies.get(key).map_or(0, |own| own.last.version)
    }

    /// Records that no write is under way: no answer can be older than what was seen.
    pub(crate) fn settle(&mut self) {
        self.gone.clear();
    }

    fn put(&mut self, key: ObjectKey, fresh: Known) -> Affected {
        let before = self.take(&key).and_then(|before| before.last.service);
        let affected = affected(&key, before.into_iter().chain(fresh.last.service.clone()));
        if let Some(service) = &fresh.last.service {
            let keys = self.by_service.entry(service.clone()).or_default();
            keys.insert(key.clone());
        }
        self.policies.insert(key, fresh);
        affected
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Known> {
        let known = self.policies.remove(key)?;
        if let Some(service) = &known.last.service
            && let Some(keys) = self.by_service.get_mut(service)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_service.remove(service);
            }
        }
        Some(known)
    }
}

/// Returns what a change of a policy affects: the Services that its labels name or named, and its
/// namespace, if it has the name of one of a namespace's policies.
fn affected(key: &ObjectKey, services: impl IntoIterator<Item = ObjectKey>) -> Affected {
    let general = plan::NAMES.contains(&&*key.name);
    Affected {
        services: services.into_iter().collect(),
        namespaces: general.then(|| key.namespace.clone()).into_iter().collect(),
        ..Affected::default()
    }
}

/// What counts of a policy as the API server has it: a write's answer, or what a watch says.
#[derive(Debug)]
pub(crate) struct Answer {
    fingerprint: Fingerprint,
    /// The Service that its labels name; both must be there.
    service: Option<ObjectKey>,
    /// It says what it is for, as all of Gardener's and ours do.
    described: bool,
    /// Counts up where versions are numbers, as those of every API server over etcd are; else 0.
    version: u64,
}

impl Answer {
    pub(crate) fn new(object: &DynamicObject) -> Self {
        let spec = object.data.get("spec").unwrap_or(&Value::Null);
        let meta = &object.metadata;
        let (labels, annotations) = (meta.labels.as_ref(), meta.annotations.as_ref());
        let description = annotations.and_then(|own| own.get(plan::DESCRIPTION));
        let label = |key| labels.and_then(|own| own.get(key));
        let owner = label(plan::SERVICE_NAMESPACE).zip(label(plan::SERVICE_NAME));
        let version = meta.resource_version.as_deref().unwrap_or_default();
        Self {
            fingerprint: Fingerprint::of(spec, description, labels),
            service: owner.map(|(namespace, name)| ObjectKey::new(namespace, name)),
            described: description.is_some(),
            version: version.parse().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("a", "ingress-to-x-tcp-1")
    }

    fn object(version: u64, port: u16) -> DynamicObject {
        let value = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "namespace": "a",
                "name": "ingress-to-x-tcp-1",
                "resourceVersion": version.to_string(),
                "labels": { plan::SERVICE_NAMESPACE: "a", plan::SERVICE_NAME: "x" },
            },
            "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": port }] }] },
        });
        serde_json::from_value(value).unwrap()
    }

    fn of(port: u16) -> Fingerprint {
        Answer::new(&object(0, port)).fingerprint
    }

    #[test]
    fn event_older_than_own_write_is_ignored() {
        let mut observed = ObservedPolicies::default();
        observed.seen(key(), &object(5, 1));
        observed.written(&key(), of(2), Answer::new(&object(7, 2)));
        assert_eq!(observed.seen(key(), &object(6, 3)), None);
        assert!(observed.is(&key(), of(2)));
        assert_eq!(observed.seen(key(), &object(7, 2)), None);
        assert!(observed.seen(key(), &object(8, 3)).is_some());
    }

    #[test]
    fn restored_store_is_accepted() {
        let mut observed = ObservedPolicies::default();
        observed.written(&key(), of(2), Answer::new(&object(900, 2)));
        observed.relist();
        assert!(observed.seen(key(), &object(300, 1)).is_some());
        observed.written(&key(), of(2), Answer::new(&object(501, 2)));
        assert!(observed.is(&key(), of(2)));
    }

    #[test]
    fn list_older_than_delete_repeats_the_delete() {
        let mut observed = ObservedPolicies::default();
        observed.seen(key(), &object(5, 1));
        observed.deleted(&key(), 5);
        observed.relist();
        assert!(observed.seen(key(), &object(5, 1)).is_some());
        assert!(observed.contains(&key()));
        observed.deleted(&key(), 5);
        assert!(!observed.contains(&key()));
    }

    #[test]
    fn normalized_policy_is_not_rewritten() {
        let mut observed = ObservedPolicies::default();
        observed.written(&key(), of(2), Answer::new(&object(3, 22)));
        assert!(observed.is(&key(), of(2)));
        observed.seen(key(), &object(3, 22));
        assert!(observed.is(&key(), of(2)));
        observed.seen(key(), &object(4, 9));
        assert!(!observed.is(&key(), of(2)));
    }

    #[test]
    fn stale_write_answer_keeps_policy_deleted() {
        let mut observed = ObservedPolicies::default();
        observed.seen(key(), &object(5, 1));
        observed.gone(&key());
        observed.written(&key(), of(2), Answer::new(&object(6, 2)));
        assert!(!observed.contains(&key()));
    }

    #[test]
    fn late_delete_answer_keeps_recreated_policy() {
        let mut observed = ObservedPolicies::default();
        observed.seen(key(), &object(5, 1));
        observed.deleted(&key(), 5);
        assert!(!observed.contains(&key()));
        observed.gone(&key());
        observed.seen(key(), &object(9, 1));
        observed.deleted(&key(), 5);
        assert!(observed.contains(&key()));
        let service = ObjectKey::new("a", "x");
        assert_eq!(observed.of_service(&service).count(), 1);
    }
}
