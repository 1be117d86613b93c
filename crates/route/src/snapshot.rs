//! The immutable table that connections are routed by.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::route::{Matches, Route};
use crate::tables::Tables;

/// All clusters and routes at one moment; never changes, is swapped whole.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub(crate) generation: u64,
    /// In the order of their names.
    pub(crate) clusters: Box<[Arc<Cluster>]>,
    /// In the order of the specification.
    pub(crate) routes: Box<[Arc<Route>]>,
    pub(crate) tables: Tables,
}

impl Snapshot {
    /// Returns the snapshot of generation 0 that routes nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Returns the route for a TLS server name, or for none.
    ///
    /// Names are compared without regard to ASCII case and one trailing dot. An exact name comes
    /// first, then the longest wildcard (`*.x` stands for one or more labels in front of `.x`),
    /// then `*`, which also takes absent names and those longer than any host name.
    #[must_use]
    pub fn by_server_name(&self, name: Option<&str>) -> Option<&Arc<Route>> {
        self.tables.names.find(name, |_| true)
    }

    /// Returns the route for a destination: of the longest prefix that has one for the port or for
    /// any port, the port's own first.
    #[must_use]
    pub fn by_destination(&self, addr: SocketAddr) -> Option<&Arc<Route>> {
        self.tables.destinations.find(addr, |_| true)
    }

    /// Returns the route for the value of the header that names a CONNECT request's destination;
    /// values are compared byte by byte.
    #[must_use]
    pub fn by_connect(&self, value: &str) -> Option<&Arc<Route>> {
        self.tables.connects.get(value)
    }

    /// Returns the route for the number that a WireGuard datagram carries.
    #[must_use]
    pub fn by_route_id(&self, id: u32) -> Option<&Arc<Route>> {
        self.tables.route_ids.get(&id)
    }

    /// Returns the route of the WireGuard servers that have a public key.
    #[must_use]
    pub fn by_public_key(&self, key: &[u8; 32]) -> Option<&Arc<Route>> {
        self.tables.public_keys.get(key)
    }

    /// Returns the routes of WireGuard servers with the servers' public keys, in the order of the
    /// specification.
    pub fn wireguard_routes(&self) -> impl Iterator<Item = (&[[u8; 32]], &Arc<Route>)> {
        self.routes
            .iter()
            .filter_map(|route| match route.matches() {
                Matches::WireGuard(wireguard) => Some((&*wireguard.public_keys, route)),
                Matches::ConnectDestinations(_)
                | Matches::Destinations { .. }
                | Matches::ServerNames(_) => None,
            })
    }

    /// Returns the look-ups of the caller's listener at `index`: as if the table had no routes that
    /// do not serve it.
    #[must_use]
    pub fn on(&self, index: usize) -> OnListener<'_> {
        OnListener {
            snapshot: self,
            index,
        }
    }

    /// Returns the number that the snapshot was built with.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the clusters in the order of their names.
    pub fn clusters(&self) -> impl ExactSizeIterator<Item = &Arc<Cluster>> {
        self.clusters.iter()
    }

    /// Returns the cluster of a name.
    #[must_use]
    pub fn cluster(&self, name: &str) -> Option<&Arc<Cluster>> {
        let by_name = |cluster: &Arc<Cluster>| (**cluster.name()).cmp(name);
        self.clusters
            .get(self.clusters.binary_search_by(by_name).ok()?)
    }

    /// Returns whether the clusters and routes are all those of `previous`, in the same order.
    #[must_use]
    pub fn is_unchanged_from(&self, previous: &Self) -> bool {
        fn same<T>(left: &[Arc<T>], right: &[Arc<T>]) -> bool {
            let pairs = || left.iter().zip(right);
            left.len() == right.len() && pairs().all(|(left, right)| Arc::ptr_eq(left, right))
        }
        same(&self.clusters, &previous.clusters) && same(&self.routes, &previous.routes)
    }

    /// Returns the routes in the order of the specification.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Arc<Route>> {
        self.routes.iter()
    }

    /// Returns the host names of all endpoints, each once, in order; gathered anew for each call.
    pub fn host_names(&self) -> impl Iterator<Item = &str> {
        let endpoints = self.clusters.iter().flat_map(|cluster| cluster.endpoints());
        let names: BTreeSet<&str> = endpoints
            .filter_map(|endpoint| endpoint.address().host_name())
            .collect();
        names.into_iter()
    }
}

/// The look-ups of one listener; each is as the snapshot's of the same name.
#[derive(Clone, Copy, Debug)]
pub struct OnListener<'s> {
    snapshot: &'s Snapshot,
    index: usize,
}

impl<'s> OnListener<'s> {
    /// Returns the route for a TLS server name, or for none.
    #[must_use]
    pub fn by_server_name(self, name: Option<&str>) -> Option<&'s Arc<Route>> {
        let fit = |route: &Route| route.serves(self.index);
        self.snapshot.tables.names.find(name, fit)
    }

    /// Returns the route for a destination.
    #[must_use]
    pub fn by_destination(self, addr: SocketAddr) -> Option<&'s Arc<Route>> {
        let fit = |route: &Route| route.serves(self.index);
        self.snapshot.tables.destinations.find(addr, fit)
    }

    /// Returns the route for the value of the header that names a CONNECT request's destination.
    #[must_use]
    pub fn by_connect(self, value: &str) -> Option<&'s Arc<Route>> {
        let route = self.snapshot.by_connect(value)?;
        route.serves(self.index).then_some(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;

    /// A table of very many routes has one of each per route.
    #[test]
    fn types_per_route_stay_small() {
        assert!(size_of::<Route>() <= 56, "{}", size_of::<Route>());
        assert!(size_of::<Cluster>() <= 88, "{}", size_of::<Cluster>());
        assert!(size_of::<Endpoint>() <= 80, "{}", size_of::<Endpoint>());
    }
}
