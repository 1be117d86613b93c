//! Decoded resources by type and name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use route::TcpOptions;

use crate::decode::cluster::{Assignment, ClusterConfig};
use crate::decode::http::ConnectRules;
use crate::decode::listener::ListenerConfig;
use crate::decode::table::{OwnListener, Table, TableError, table};
use crate::decode::wireguard::WireGuardConfig;
use crate::decode::{Body, Decoded};
use crate::resource::ResourceType;

/// Resources of one type, by name. Clones share them until one is changed.
pub(super) type Named<T> = Arc<BTreeMap<Arc<str>, Arc<T>>>;

/// Decoded resources by type and name; cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(super) clusters: Named<ClusterConfig>,
    pub(super) assignments: Named<Assignment>,
    pub(super) listeners: Named<ListenerConfig>,
    pub(super) routes: Named<ConnectRules>,
    pub(super) wireguard: Named<WireGuardConfig>,
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

    /// Adds a resource, or puts it in place of the one of its name.
    pub fn set(&mut self, name: &str, decoded: Decoded) {
        match decoded.0 {
            Body::Assignment(read) => put(&mut self.assignments, name, read),
            Body::Cluster(read) => put(&mut self.clusters, name, read),
            Body::Listener(read) => put(&mut self.listeners, name, read),
            Body::Routes(read) => put(&mut self.routes, name, read),
            Body::WireGuard(read) => put(&mut self.wireguard, name, read),
        }
    }

    /// Removes a resource, if it is there.
    pub fn remove(&mut self, kind: ResourceType, name: &str) {
        match kind {
            ResourceType::Cluster => remove(&mut self.clusters, name),
            ResourceType::ClusterLoadAssignment => remove(&mut self.assignments, name),
            ResourceType::Listener => remove(&mut self.listeners, name),
            ResourceType::RouteConfiguration => remove(&mut self.routes, name),
            ResourceType::WireGuardRoute => remove(&mut self.wireguard, name),
        }
    }

    /// Keeps those resources of a type whose name is to be kept.
    pub fn retain(&mut self, kind: ResourceType, keep: impl Fn(&str) -> bool) {
        match kind {
            ResourceType::Cluster => retain(&mut self.clusters, keep),
            ResourceType::ClusterLoadAssignment => retain(&mut self.assignments, keep),
            ResourceType::Listener => retain(&mut self.listeners, keep),
            ResourceType::RouteConfiguration => retain(&mut self.routes, keep),
            ResourceType::WireGuardRoute => retain(&mut self.wireguard, keep),
        }
    }

    /// Returns the names of the assignments that clusters refer to.
    #[must_use]
    pub fn wanted_assignments(&self) -> BTreeSet<Arc<str>> {
        let clusters = self.clusters.values();
        let names = clusters.filter_map(|cluster| cluster.assignment());
        names.cloned().collect()
    }

    /// Returns the names of the route configurations that listeners refer to.
    #[must_use]
    pub fn wanted_route_configurations(&self) -> BTreeSet<Arc<str>> {
        let listeners = self.listeners.values();
        let names = listeners.flat_map(|listener| listener.route_configurations());
        names.cloned().collect()
    }

    /// Returns the resources that others refer to and that are not there.
    ///
    /// Clusters that routes lead to are not meant: those may come and go.
    #[must_use]
    pub fn missing(&self) -> BTreeSet<(ResourceType, Arc<str>)> {
        let assignments = self.wanted_assignments().into_iter();
        let assignments = assignments
            .filter(|name| !self.assignments.contains_key(name))
            .map(|name| (ResourceType::ClusterLoadAssignment, name));
        let routes = self.wanted_route_configurations().into_iter();
        let routes = routes
            .filter(|name| !self.routes.contains_key(name))
            .map(|name| (ResourceType::RouteConfiguration, name));
        assignments.chain(routes).collect()
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

fn put<T>(map: &mut Named<T>, name: &str, value: Arc<T>) {
    let map = Arc::make_mut(map);
    match map.get_mut(name) {
        Some(place) => *place = value,
        None => drop(map.insert(name.into(), value)),
    }
}

fn remove<T>(map: &mut Named<T>, name: &str) {
    if map.contains_key(name) {
        Arc::make_mut(map).remove(name);
    }
}

fn retain<T>(map: &mut Named<T>, keep: impl Fn(&str) -> bool) {
    if map.keys().any(|name| !keep(name)) {
        Arc::make_mut(map).retain(|name, _| keep(name));
    }
}
