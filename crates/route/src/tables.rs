//! The tables that a connection is looked up in: what matches what.
//!
//! Hashes are quick ones that differ from process to process; clients of the gateway only look up,
//! and never add.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;

use crate::build::Fault;
use crate::destinations::DestinationTable;
use crate::names::NameTable;
use crate::public_key::public_key_start;
use crate::route::{Matches, Route};

/// A map by what routes match.
pub(crate) type RouteMap<K> = HashMap<K, Arc<Route>, RandomState>;

/// All look-up tables of a snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) names: NameTable,
    pub(crate) destinations: DestinationTable,
    pub(crate) connects: RouteMap<Arc<str>>,
    pub(crate) route_ids: RouteMap<u32>,
    pub(crate) public_keys: RouteMap<[u8; 32]>,
}

impl Tables {
    /// Adds a route; `fault` is told of every match that another one has already.
    pub(crate) fn insert(&mut self, route: &Arc<Route>, fault: Fault<'_>) {
        match route.matches() {
            Matches::ConnectDestinations(values) => {
                for value in values.iter() {
                    match beside(self.connects.get(value), route) {
                        Some(route) => drop(self.connects.insert(Arc::clone(value), route)),
                        None => fault(format_args!("{value:?} is matched twice")),
                    }
                }
            }
            Matches::Destinations { prefixes, port } => {
                for prefix in prefixes {
                    let key = (*prefix, *port);
                    match beside(self.destinations.exact(&key), route) {
                        Some(route) => self.destinations.insert(key, route),
                        None => {
                            let port = port.map(|port| format!(" port {port}")).unwrap_or_default();
                            fault(format_args!("destination {prefix}{port} is matched twice"));
                        }
                    }
                }
            }
            Matches::ServerNames(patterns) => {
                for pattern in patterns.iter() {
                    match beside(self.names.exact(pattern), route) {
                        Some(route) => self.names.insert(pattern, route),
                        None => fault(format_args!("{pattern:?} is matched twice")),
                    }
                }
            }
            Matches::WireGuard(wireguard) => {
                if let Some(id) = wireguard.route_id
                    && self.route_ids.insert(id, Arc::clone(route)).is_some()
                {
                    fault(format_args!("WireGuard route id {id} is matched twice"));
                }
                for key in &wireguard.public_keys {
                    if self.public_keys.insert(*key, Arc::clone(route)).is_some() {
                        let key = public_key_start(key);
                        fault(format_args!("WireGuard public key {key} is matched twice"));
                    }
                }
            }
        }
    }

    /// Returns the route that has the first of `matches`.
    pub(crate) fn first_match(&self, matches: &Matches) -> Option<&Arc<Route>> {
        match matches {
            Matches::ConnectDestinations(values) => self.connects.get(values.first()?),
            Matches::Destinations { prefixes, port } => {
                self.destinations.exact(&(*prefixes.first()?, *port))
            }
            Matches::ServerNames(patterns) => self.names.exact(patterns.first()?),
            Matches::WireGuard(wireguard) => self.route_ids.get(&wireguard.route_id?),
        }
    }
}

/// Returns what a table is to have where `route` matches the same as `first`: both in one when they
/// differ in their listeners alone, `None` when they contradict each other.
fn beside(first: Option<&Arc<Route>>, route: &Arc<Route>) -> Option<Arc<Route>> {
    match first {
        None => Some(Arc::clone(route)),
        Some(first) => first.united(route).map(Arc::new),
    }
}
