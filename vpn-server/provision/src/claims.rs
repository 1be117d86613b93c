//! Route ids, of which each server in a seed has its own.
//!
//! ```text
//!   ids in annotations and claims ─▶ free ones ─ create ConfigMap rhizome-route-id-17 ─▶ ours
//!                                       ▲                      └── there already: the next one
//! ```
//!
//! A claim is a ConfigMap named by the id, all of them in one namespace: of two that create the same
//! one the API server refuses the second, so no two runs can have the same id.
//! It belongs to the control plane's Namespace and goes with that. A run that was stopped half way
//! finds its claims again. Services that were annotated by hand, without a claim, are gone round.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::ObjectMeta;
use tunnel::RouteId;

use super::cluster::{Cluster, answered, failed};
use super::manifest::{MANAGED_BY, MANAGER};
use super::render::{ROUTE_ID, server_name};
use super::store::StoreError;
use crate::config::Wanted;

/// Ids that are tried until one is free; each that is not was taken within the last second.
const ATTEMPTS: usize = 64;

/// Services in one answer of the API server.
const PAGE: u32 = 500;

/// Claims ids for the servers of one control plane.
pub(super) struct Claims {
    client: Client,
    /// Where claims are.
    namespace: String,
    /// The control plane.
    owner: String,
    /// What ids are chosen from.
    range: RangeInclusive<u32>,
    /// The Namespace of the control plane, once it was asked for.
    uid: Option<String>,
    /// Ids that this run has claimed.
    made: BTreeSet<u32>,
}

impl Claims {
    pub(super) fn new(cluster: &Cluster, wanted: &Wanted) -> Self {
        let [first, last] = wanted.file.route_id_range;
        Self {
            client: cluster.client(),
            namespace: wanted.file.claims_namespace.clone(),
            owner: wanted.file.namespace.clone(),
            range: first..=last,
            uid: None,
            made: BTreeSet::new(),
        }
    }

    /// Returns an id for each of `servers`, beginning to look at `start`.
    pub(super) async fn claim(
        &mut self,
        servers: &[usize],
        start: u32,
    ) -> Result<Vec<RouteId>, StoreError> {
        if servers.is_empty() {
            return Ok(Vec::new());
        }
        let there = self.there().await?;
        let mut taken = self.annotated().await?;
        taken.extend(there.keys());
        let mut ids = Vec::new();
        for server in servers {
            let owner = self.holder(*server);
            let found = there.iter().find(|(_, holder)| **holder == owner);
            let id = match found {
                Some((id, _)) => *id,
                None => self.take_free(&owner, start, &mut taken).await?,
            };
            ids.extend(RouteId::new(id));
        }
        Ok(ids)
    }

    /// Makes sure that `ids` are these servers', by number: puts back what is missing.
    ///
    /// # Errors
    /// [`StoreError::Taken`] when another server has one.
    pub(super) async fn confirm(&mut self, ids: &[u32]) -> Result<(), StoreError> {
        for (server, id) in ids.iter().enumerate() {
            let (owner, name) = (self.holder(server), name(*id));
            let what = format!("ConfigMap {}/{name}", self.namespace);
            let mut there = self.find(&name).await?;
            if there.is_none() && !self.create(*id, &owner).await? {
                there = self.find(&name).await?;
            }
            let Some(there) = there else { continue };
            let holder = holder(&there);
            if holder != owner {
                return Err(StoreError::Taken {
                    id: *id,
                    owner: holder,
                    claim: what,
                });
            }
            self.adopt(there, &what).await?;
        }
        Ok(())
    }

    /// Has a claim go with the control plane of now, not with one of that name that is gone.
    async fn adopt(&mut self, mut claim: ConfigMap, what: &str) -> Result<(), StoreError> {
        let owners = Some(vec![self.reference().await?]);
        if claim.metadata.owner_references == owners {
            return Ok(());
        }
        claim.metadata.owner_references = owners;
        let name = claim.metadata.name.clone().unwrap_or_default();
        let (api, params) = (self.claims(), PostParams::default());
        let written = api.replace(&name, &params, &claim).await;
        written.map_err(failed(format_args!("writing {what}")))?;
        Ok(())
    }

    /// Gives back what this run has claimed and `used` has not: another run was faster.
    pub(super) async fn give_back(&mut self, used: &[u32]) -> Result<(), StoreError> {
        let spare: Vec<u32> = self.made.iter().copied().collect();
        for id in spare.into_iter().filter(|id| !used.contains(id)) {
            let name = name(id);
            let Some(there) = self.find(&name).await? else {
                continue;
            };
            let params = DeleteParams {
                // Not one that was created since.
                preconditions: Some(Preconditions {
                    uid: there.metadata.uid,
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match self.claims().delete(&name, &params).await {
                Err(error) if !(answered(&error, 404) || answered(&error, 409)) => {
                    let what = format_args!("deleting ConfigMap {}/{name}", self.namespace);
                    return Err(failed(what)(error));
                }
                _ => {}
            }
            self.made.remove(&id);
        }
        Ok(())
    }

    async fn take_free(
        &mut self,
        owner: &str,
        start: u32,
        taken: &mut BTreeSet<u32>,
    ) -> Result<u32, StoreError> {
        for _ in 0..ATTEMPTS {
            let id = free(start, &self.range, taken).ok_or(StoreError::NoRouteId)?;
            // Taken now, by us or by another run a moment before.
            taken.insert(id);
            if self.create(id, owner).await? {
                return Ok(id);
            }
        }
        Err(StoreError::NoRouteId)
    }

    /// Creates a claim; tells whether there was none.
    async fn create(&mut self, id: u32, owner: &str) -> Result<bool, StoreError> {
        let claim = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name(id)),
                labels: Some(BTreeMap::from([(
                    MANAGED_BY.to_owned(),
                    MANAGER.to_owned(),
                )])),
                owner_references: Some(vec![self.reference().await?]),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(HOLDER.to_owned(), owner.to_owned())])),
            ..ConfigMap::default()
        };
        match self.claims().create(&PostParams::default(), &claim).await {
            Ok(_) => {
                self.made.insert(id);
                Ok(true)
            }
            Err(error) if answered(&error, 409) => Ok(false),
            Err(error) => {
                let name = name(id);
                let what = format_args!("creating ConfigMap {}/{name}", self.namespace);
                Err(failed(what)(error))
            }
        }
    }

    /// Returns what makes a claim go with its control plane.
    async fn reference(&mut self) -> Result<OwnerReference, StoreError> {
        let uid = match &self.uid {
            Some(uid) => uid.clone(),
            None => {
                let namespaces: Api<Namespace> = Api::all(self.client.clone());
                let read = namespaces.get_metadata(&self.owner).await;
                let what = format_args!("reading Namespace {}", self.owner);
                let uid = read.map_err(failed(what))?.metadata.uid;
                self.uid.insert(uid.unwrap_or_default()).clone()
            }
        };
        Ok(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            name: self.owner.clone(),
            uid,
            ..OwnerReference::default()
        })
    }

    async fn find(&self, name: &str) -> Result<Option<ConfigMap>, StoreError> {
        let there = self.claims().get_opt(name).await;
        let what = format_args!("reading ConfigMap {}/{name}", self.namespace);
        there.map_err(failed(what))
    }

    /// Returns every claim with who has it.
    async fn there(&self) -> Result<BTreeMap<u32, String>, StoreError> {
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let list = self.claims().list(&ours).await;
        let what = format_args!("listing ConfigMaps of {}", self.namespace);
        let list = list.map_err(failed(what))?;
        let claim = |one: &ConfigMap| {
            let name = one.metadata.name.as_deref()?;
            let id = name.strip_prefix(CLAIM)?.parse().ok()?;
            Some((id, holder(one)))
        };
        Ok(list.items.iter().filter_map(claim).collect())
    }

    /// Returns the ids that annotations name, of Services of other control planes.
    async fn annotated(&self) -> Result<BTreeSet<u32>, StoreError> {
        let services: Api<Service> = Api::all(self.client.clone());
        let mut ids = BTreeSet::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = services.list_metadata(&params).await;
            let page = page.map_err(failed("listing Services of the seed"))?;
            for service in &page.items {
                let annotations = service.metadata.annotations.as_ref();
                let id = annotations.and_then(|all| all.get(ROUTE_ID)?.trim().parse().ok());
                ids.extend(id.filter(|_: &u32| {
                    service.metadata.namespace.as_deref() != Some(self.owner.as_str())
                }));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(ids),
            }
        }
    }

    fn claims(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn holder(&self, server: usize) -> String {
        format!("{}/{}", self.owner, server_name(server))
    }
}

/// Returns the first id of `range` that is not taken, from a place that `start` names, and around.
fn free(start: u32, range: &RangeInclusive<u32>, taken: &BTreeSet<u32>) -> Option<u32> {
    let (first, last) = (*range.start(), *range.end());
    let count = last.saturating_sub(first).saturating_add(1);
    let start = first.saturating_add(start % count);
    let mut ids = (start..=last).chain(first..start);
    ids.find(|id| !taken.contains(id))
}

fn name(id: u32) -> String {
    format!("{CLAIM}{id}")
}

fn holder(claim: &ConfigMap) -> String {
    let data = claim.data.as_ref().and_then(|data| data.get(HOLDER));
    data.cloned().unwrap_or_else(|| "unknown".to_owned())
}

/// What names of claims begin with.
const CLAIM: &str = "rhizome-route-id-";

/// The key of a claim that says whose it is.
const HOLDER: &str = "service";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_id_search_wraps_around() {
        let taken = BTreeSet::from([1, 2, RouteId::MAX]);
        let all = 1..=RouteId::MAX;
        assert_eq!(free(0, &all, &taken), Some(3));
        assert_eq!(free(41, &all, &taken), Some(42));
        assert_eq!(free(RouteId::MAX - 1, &all, &taken), Some(3));
        assert_eq!(free(RouteId::MAX, &all, &BTreeSet::new()), Some(1));
        assert!(free(u32::MAX, &all, &taken).is_some_and(|id| id <= RouteId::MAX));
    }

    #[test]
    fn ids_are_chosen_from_range() {
        let range = 7..=9;
        let mut taken = BTreeSet::new();
        for expected in [8, 9, 7] {
            assert_eq!(free(100, &range, &taken), Some(expected));
            taken.insert(expected);
        }
        assert_eq!(free(100, &range, &taken), None);
    }
}
