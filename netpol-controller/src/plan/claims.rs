//! The owner of a policy that several Services ask for.
//!
//! ```text
//!   ServicePlan ──settle──▶ without what an older Service owns, and the Services to plan again
//! ```
//!
//! The Service that was created first owns it, of those created in one second the first by
//! namespace and name. So the owner does not depend on the order of settling. What policies exist,
//! and whose labels they have, counts only for what a Service keeps without asking for it.

use std::collections::{BTreeMap, BTreeSet};

use super::describe::list;
use super::{Problem, Reason, ServicePlan};
use crate::state::{ClusterState, Kind, ObjectKey, ObjectRef};

/// What Services ask for.
#[derive(Debug, Default)]
pub struct Claims {
    /// Who asks for a policy, the owner first.
    claimants: BTreeMap<ObjectKey, BTreeSet<Claimant>>,
    /// What a Service asks for.
    claims: BTreeMap<ObjectKey, (i64, BTreeSet<ObjectKey>)>,
}

/// A Service by its age: when it was created, then its key.
type Claimant = (i64, ObjectKey);

impl Claims {
    /// Replaces a Service's previous claims by those of its plan, and removes from
    /// the plan what another Service owns, with a problem per owner.
    ///
    /// Returns the other Services that gained or lost a policy, to be planned and settled again. A
    /// policy that the plan keeps as it is stays claimed, or is claimed if it is among the
    /// `existing` ones of the Service: a new leader knows no claims of before.
    pub fn settle<'a>(
        &mut self,
        state: &ClusterState,
        service: &ObjectKey,
        existing: impl IntoIterator<Item = &'a ObjectKey>,
        plan: &mut ServicePlan,
    ) -> BTreeSet<ObjectKey> {
        let created = state
            .services
            .get(service)
            .map_or(0, |object| object.created);
        let mut wanted: BTreeSet<_> = plan.policies.iter().map(|one| one.key.clone()).collect();
        let keeps = |key: &&ObjectKey| plan.keeps(key);
        wanted.extend(existing.into_iter().filter(keeps).cloned());
        if let Some((_, before)) = self.claims.get(service) {
            wanted.extend(before.iter().filter(keeps).cloned());
        }
        let moved = self.claim(service, created, wanted);
        let mut lost: BTreeMap<ObjectKey, Vec<ObjectKey>> = BTreeMap::new();
        plan.policies
            .retain(|policy| match self.owner(&policy.key) {
                Some(owner) if owner != service => {
                    lost.entry(owner.clone())
                        .or_default()
                        .push(policy.key.clone());
                    false
                }
                Some(_) | None => true,
            });
        plan.problems.extend(
            lost.iter()
                .map(|(owner, policies)| conflict(service, owner, policies)),
        );
        moved
    }

    /// Claims the policies of a Service that cannot be read. How old it is is not known: it
    /// precedes all others until it is.
    pub fn hold<'a>(
        &mut self,
        service: &ObjectKey,
        existing: impl IntoIterator<Item = &'a ObjectKey>,
    ) {
        self.claim(service, 0, existing.into_iter().cloned().collect());
    }

    /// Returns the Service that owns a policy; `None` when no Service asks for it.
    pub fn owner(&self, policy: &ObjectKey) -> Option<&ObjectKey> {
        let first = self.claimants.get(policy)?.first()?;
        Some(&first.1)
    }

    /// Returns the other Services that gained or lost a policy.
    fn claim(
        &mut self,
        service: &ObjectKey,
        created: i64,
        wanted: BTreeSet<ObjectKey>,
    ) -> BTreeSet<ObjectKey> {
        let (was_created, before) = self.claims.remove(service).unwrap_or_default();
        let mut moved = BTreeSet::new();
        for policy in before.union(&wanted) {
            let owner = self.owner(policy).cloned();
            let claimants = self.claimants.entry(policy.clone()).or_default();
            claimants.remove(&(was_created, service.clone()));
            if wanted.contains(policy) {
                claimants.insert((created, service.clone()));
            }
            if claimants.is_empty() {
                self.claimants.remove(policy);
            }
            let now = self.owner(policy).cloned();
            if owner != now {
                moved.extend(owner);
                moved.extend(now);
            }
        }
        if !wanted.is_empty() {
            self.claims.insert(service.clone(), (created, wanted));
        }
        moved.remove(service);
        moved
    }
}

fn conflict(service: &ObjectKey, owner: &ObjectKey, policies: &[ObjectKey]) -> Problem {
    let names = list(policies.iter().map(ToString::to_string), policies.len());
    let object = ObjectRef::new(Kind::Service, service);
    let message = format!("Service {owner}, which is older, owns NetworkPolicies: {names}");
    Problem::new(object, Reason::PolicyConflict, &message)
}

#[cfg(test)]
mod tests;
