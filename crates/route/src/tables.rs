//! The tables that a connection is looked up in: what matches what.
//!
//! A table of the next snapshot is the last one's, less what went and with what came; what did not
//! change they share.

use std::hash::Hash;
use std::sync::Arc;

use crate::build::RouteFault;
use crate::destinations::DestinationTable;
use crate::names::NameTable;
use crate::pieces::Pieces;
use crate::route::{Matches, Route, WireGuardMatch};
use crate::shards::ShardMap;

/// A map by what routes match.
pub(crate) type RouteMap<K> = ShardMap<K, Arc<Route>>;

/// All look-up tables of a snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) names: NameTable,
    pub(crate) destinations: DestinationTable,
    pub(crate) connects: RouteMap<Arc<str>>,
    pub(crate) route_ids: RouteMap<u32>,
}

impl Tables {
    /// Returns the tables of these routes; `fault` is told of every match that two of them have,
    /// with the later one's place in the iterator.
    pub(crate) fn of(
        routes: &Pieces<Arc<Route>>,
        fault: &mut impl FnMut(usize, RouteFault),
    ) -> Self {
        let mut tables = Self::with_room_for(routes);
        for (at, route) in routes.iter().enumerate() {
            tables.insert(route, &mut |why| fault(at, why));
        }
        tables
    }

    fn with_room_for(routes: &Pieces<Arc<Route>>) -> Self {
        let (mut names, mut connects, mut destinations) = (0, 0, 0);
        for route in routes.iter() {
            match route.matches() {
                Matches::ServerNames(some) => names += some.len(),
                Matches::ConnectDestinations(some) => connects += some.len(),
                Matches::Destinations { prefixes, .. } => destinations += prefixes.len(),
                Matches::WireGuard(_) => {}
            }
        }
        Self {
            names: NameTable::with_capacity(names),
            destinations: DestinationTable::with_capacity(destinations),
            connects: RouteMap::with_capacity(connects),
            route_ids: RouteMap::default(),
        }
    }

    /// Adds a route; `fault` is told of every match that another one has already.
    pub(crate) fn insert(&mut self, route: &Arc<Route>, fault: &mut impl FnMut(RouteFault)) {
        match route.matches() {
            Matches::ConnectDestinations(values) => {
                for value in values.iter() {
                    match beside(self.connects.get(value), route) {
                        Some(route) => drop(self.connects.insert(Arc::clone(value), route)),
                        None => fault(duplicate(value)),
                    }
                }
            }
            Matches::Destinations { prefixes, port } => {
                for prefix in prefixes {
                    let key = (*prefix, *port);
                    match beside(self.destinations.exact(&key), route) {
                        Some(route) => self.destinations.insert(key, route),
                        None => fault(RouteFault::DuplicateDestination {
                            prefix: *prefix,
                            port: *port,
                        }),
                    }
                }
            }
            Matches::ServerNames(patterns) => {
                for pattern in patterns.iter() {
                    match beside(self.names.exact(pattern), route) {
                        Some(route) => self.names.insert(pattern, route),
                        None => fault(duplicate(pattern)),
                    }
                }
            }
            Matches::WireGuard(wireguard) => self.insert_wireguard(wireguard, route, fault),
        }
    }

    fn insert_wireguard(
        &mut self,
        wireguard: &WireGuardMatch,
        route: &Arc<Route>,
        fault: &mut impl FnMut(RouteFault),
    ) {
        if let Some(id) = wireguard.route_id
            && self.route_ids.insert(id, Arc::clone(route)).is_some()
        {
            fault(RouteFault::DuplicateRouteId { id });
        }
    }

    /// Answers whether there is an entry for anything that `route` matches.
    pub(crate) fn has_any_of(&self, route: &Route) -> bool {
        match route.matches() {
            Matches::ConnectDestinations(values) => values
                .iter()
                .any(|value| self.connects.get(value).is_some()),
            Matches::Destinations { prefixes, port } => prefixes
                .iter()
                .any(|prefix| self.destinations.exact(&(*prefix, *port)).is_some()),
            Matches::ServerNames(patterns) => patterns
                .iter()
                .any(|pattern| self.names.exact(pattern).is_some()),
            Matches::WireGuard(wireguard) => wireguard
                .route_id
                .is_some_and(|id| self.route_ids.get(&id).is_some()),
        }
    }

    /// Takes routes out, and answers whether all of their entries were their own: those that one
    /// shares with a route of other listeners can only be made anew. After `false` the tables are of
    /// no use.
    pub(crate) fn remove_all<'r>(
        &mut self,
        mut routes: impl Iterator<Item = &'r Arc<Route>>,
    ) -> bool {
        routes.all(|route| self.remove(route))
    }

    fn remove(&mut self, route: &Arc<Route>) -> bool {
        match route.matches() {
            Matches::ConnectDestinations(values) => values
                .iter()
                .all(|value| take(&mut self.connects, value, route)),
            Matches::Destinations { prefixes, port } => prefixes
                .iter()
                .all(|prefix| self.destinations.remove(&(*prefix, *port), route)),
            Matches::ServerNames(patterns) => patterns
                .iter()
                .all(|pattern| self.names.remove(pattern, route)),
            Matches::WireGuard(wireguard) => wireguard
                .route_id
                .is_none_or(|id| take(&mut self.route_ids, &id, route)),
        }
    }
}

/// Takes the entry of `key` out if it leads to just this route, and answers whether it does.
pub(crate) fn take<K: Clone + Eq + Hash>(
    map: &mut RouteMap<K>,
    key: &K,
    route: &Arc<Route>,
) -> bool {
    map.remove_if(key, |own| Arc::ptr_eq(own, route))
}

/// Returns what a table is to have where `route` matches the same as `first`: both in one when they
/// differ in their listeners alone, `None` when they contradict each other.
fn beside(first: Option<&Arc<Route>>, route: &Arc<Route>) -> Option<Arc<Route>> {
    match first {
        None => Some(Arc::clone(route)),
        Some(first) => first.united(route).map(Arc::new),
    }
}

fn duplicate(value: &str) -> RouteFault {
    RouteFault::DuplicateMatch {
        value: value.to_owned(),
    }
}
