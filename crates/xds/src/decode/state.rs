//! Decoded resources by type and name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use route::TcpOptions;

use crate::decode::cluster::ClusterConfig;
use crate::decode::table::{OwnListener, Table, TableError, table};
use crate::decode::{Decoded, Received};
use crate::resource::ResourceType;

/// Resources of one type, by name.
pub(crate) type Named = BTreeMap<Arc<str>, Arc<Decoded>>;

/// Decoded resources by type and name; cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Clones share them until one is changed.
    types: [Arc<Named>; ResourceType::ALL.len()],
    /// What clusters that ask for keepalive have besides.
    pub(super) tcp: Arc<TcpOptions>,
}

impl State {
    /// Creates a state without resources. A cluster that sets keepalive gets these socket options
    /// otherwise; one that does not keeps none of its own.
    #[must_use]
    pub fn with_tcp(tcp: Arc<TcpOptions>) -> Self {
        Self {
            tcp,
            ..Self::default()
        }
    }

    /// Returns the resources of a type.
    pub(crate) fn of(&self, kind: ResourceType) -> &Named {
        &self.types[kind as usize]
    }

    /// Returns the names of those resources of a type that came from a server, and what came.
    pub(crate) fn received(
        &self,
        kind: ResourceType,
    ) -> impl Iterator<Item = (&Arc<str>, &Received)> {
        let all = self.of(kind).iter();
        all.filter_map(|(name, decoded)| Some((name, decoded.received.as_ref()?)))
    }

    /// Adds a resource, or puts it in place of the one of its name.
    pub fn set(&mut self, name: impl Into<Arc<str>>, decoded: impl Into<Arc<Decoded>>) {
        let decoded = decoded.into();
        let named = &mut self.types[decoded.kind() as usize];
        Arc::make_mut(named).insert(name.into(), decoded);
    }

    /// Removes a resource, if it is there.
    pub fn remove(&mut self, kind: ResourceType, name: &str) {
        let named = &mut self.types[kind as usize];
        if named.contains_key(name) {
            Arc::make_mut(named).remove(name);
        }
    }

    /// Keeps those resources of a type whose name is to be kept.
    pub(crate) fn retain(&mut self, kind: ResourceType, keep: impl Fn(&str) -> bool) {
        let named = &mut self.types[kind as usize];
        if named.keys().any(|name| !keep(name)) {
            Arc::make_mut(named).retain(|name, _| keep(name));
        }
    }

    /// Returns the names of the resources of a type that others refer to: assignments that clusters
    /// do, route configurations that listeners do, and secrets that chains which end TLS do.
    ///
    /// Clusters that routes lead to are not meant: those may come and go.
    pub(crate) fn wanted(&self, kind: ResourceType) -> BTreeSet<Arc<str>> {
        match kind {
            ResourceType::ClusterLoadAssignment => {
                let clusters = self.of(ResourceType::Cluster).values();
                let clusters = clusters.filter_map(|one| one.cluster());
                let names = clusters.filter_map(|cluster| cluster.assignment());
                names.cloned().collect()
            }
            ResourceType::RouteConfiguration => {
                let listeners = self.of(ResourceType::Listener).values();
                let listeners = listeners.filter_map(|one| one.listener());
                let names = listeners.flat_map(|listener| listener.route_configurations());
                names.cloned().collect()
            }
            ResourceType::Secret => {
                let listeners = self.of(ResourceType::Listener).values();
                let listeners = listeners.filter_map(|one| one.listener());
                let chains = listeners.flat_map(|listener| listener.terminating());
                let mut names = BTreeSet::new();
                for chain in chains {
                    names.insert(Arc::clone(&chain.downstream.certificate));
                    names.extend(chain.downstream.client_authorities.clone());
                    for cluster in [Some(&chain.cluster), chain.identified.as_ref()] {
                        let cluster = cluster.and_then(|name| self.cluster(name));
                        if let Some(tls) = cluster.and_then(|own| own.tls.as_ref()) {
                            names.insert(Arc::clone(&tls.authorities));
                            names.extend(tls.identity.clone());
                        }
                    }
                }
                names
            }
            ResourceType::Cluster | ResourceType::Listener | ResourceType::WireGuardRoute => {
                BTreeSet::new()
            }
        }
    }

    pub(super) fn cluster(&self, name: &str) -> Option<&ClusterConfig> {
        self.of(ResourceType::Cluster).get(name)?.cluster()
    }

    /// Returns the cluster without TLS that has the endpoints of one with TLS, if there is one.
    pub(super) fn shared<'s>(&'s self, config: &'s ClusterConfig) -> Option<&'s str> {
        config.tls.as_ref()?;
        let name = config.assignment()?;
        let plain = self.cluster(name)?;
        (plain.tls.is_none() && plain.assignment() == Some(name)).then_some(&**name)
    }

    /// Returns the resources that others refer to and that are not there. Secrets are held apart, and their
    /// routes are passed through without them.
    #[must_use]
    pub fn missing(&self) -> BTreeSet<(ResourceType, Arc<str>)> {
        let of = |kind: ResourceType| {
            let wanted = self.wanted(kind).into_iter();
            let missing = wanted.filter(move |name| !self.of(kind).contains_key(name));
            missing.map(move |name| (kind, name))
        };
        let kinds = ResourceType::ALL.into_iter();
        let kinds = kinds.filter(|kind| *kind != ResourceType::Secret);
        kinds.flat_map(of).collect()
    }

    /// Translates the resources into clusters and routes, for these listeners of the caller; a
    /// route's set of listeners counts by their order.
    ///
    /// Equal resources make equal tables.
    ///
    /// # Errors
    /// Resources contradict each other, or there are too many.
    pub fn table(&self, own: &[OwnListener]) -> Result<Table, TableError> {
        table(self, own)
    }
}
