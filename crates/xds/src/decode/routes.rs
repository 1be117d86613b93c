//! Routes while they are gathered from resources: equal ones become one, contradictions are found.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use route::{IpPrefix, ListenerSet, RouteMatch, RouteSpec};

use crate::decode::table::TableError;

/// The routes found so far.
#[derive(Debug, Default)]
pub(super) struct Routes {
    specs: Vec<RouteSpec>,
    /// The resource of each.
    origins: Vec<Arc<str>>,
    /// Who matches what; only looked up.
    known: HashMap<Key, Known>,
    /// Most attempts to connect after the first, by cluster.
    retries: BTreeMap<String, u32>,
}

/// One thing that a route matches.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Key {
    Connect(String),
    Destination(IpPrefix, Option<u16>),
    Name(String),
    PublicKey([u8; 32]),
    RouteId(u32),
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Place of the first route that matches it.
    route: usize,
    /// Of all routes that match it.
    listeners: ListenerSet,
}

impl Routes {
    /// Adds a route of the resource `origin`.
    pub(super) fn add(
        &mut self,
        origin: &Arc<str>,
        mut spec: RouteSpec,
        retries: Option<u32>,
    ) -> Result<(), TableError> {
        if let Some(retries) = retries {
            let most = self.retries.entry(spec.cluster.clone()).or_default();
            *most = retries.max(*most);
        }
        let keys = keys(&spec.matches);
        let mut united = None;
        for key in &keys {
            let Some(known) = self.known.get(key) else {
                continue;
            };
            let first = &self.specs[known.route];
            if !same_but_match(first, &spec) {
                return Err(self.conflict(known.route, origin, key));
            }
            if first.matches == spec.matches {
                united = Some(known.route);
            } else if matches!(key, Key::PublicKey(_) | Key::RouteId(_)) {
                return Err(self.conflict(known.route, origin, key));
            }
        }
        let place = if let Some(route) = united {
            let first = &mut self.specs[route];
            first.listeners = first.listeners.union(spec.listeners);
            route
        } else {
            let known = &self.known;
            let listeners = spec.listeners;
            let new = |key: &Key| {
                known
                    .get(key)
                    .is_none_or(|known| !known.listeners.intersects(listeners))
            };
            if !keep(&mut spec.matches, new) {
                return Ok(());
            }
            self.specs.push(spec.clone());
            self.origins.push(Arc::clone(origin));
            self.specs.len() - 1
        };
        for key in keys {
            let known = self.known.entry(key).or_insert(Known {
                route: place,
                listeners: spec.listeners,
            });
            known.listeners = known.listeners.union(spec.listeners);
        }
        Ok(())
    }

    fn conflict(&self, first: usize, second: &Arc<str>, key: &Key) -> TableError {
        TableError::Conflict {
            first: self.origins[first].to_string(),
            second: second.to_string(),
            matched: key.to_string(),
        }
    }

    /// Returns the attempts to connect after the first that routes to a cluster ask for.
    pub(super) fn retries(&self, cluster: &str) -> Option<u32> {
        self.retries.get(cluster).copied()
    }

    /// Returns the routes with the resources they come from.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RouteSpec, &Arc<str>)> {
        self.specs.iter().zip(&self.origins)
    }

    /// Returns the routes.
    pub(super) fn into_specs(self) -> Vec<RouteSpec> {
        self.specs
    }
}

/// Tells whether two routes lead to the same place under the same conditions.
fn same_but_match(left: &RouteSpec, right: &RouteSpec) -> bool {
    // Named one by one, so that a new one cannot be forgotten.
    let RouteSpec {
        matches: _,
        cluster,
        listeners: _,
        allow_sources,
        idle_timeout,
        max_connection_age,
    } = left;
    *cluster == right.cluster
        && *allow_sources == right.allow_sources
        && *idle_timeout == right.idle_timeout
        && *max_connection_age == right.max_connection_age
}

fn keys(matches: &RouteMatch) -> Vec<Key> {
    match matches {
        RouteMatch::ConnectDestinations(values) => {
            values.iter().cloned().map(Key::Connect).collect()
        }
        RouteMatch::Destinations { prefixes, port } => {
            let prefixes = prefixes.iter();
            prefixes
                .map(|prefix| Key::Destination(*prefix, *port))
                .collect()
        }
        RouteMatch::ServerNames(names) => names.iter().cloned().map(Key::Name).collect(),
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => {
            let ids = route_id.iter().copied().map(Key::RouteId);
            ids.chain(public_keys.iter().copied().map(Key::PublicKey))
                .collect()
        }
    }
}

/// Keeps what is `new` of what a route matches; tells whether anything is left.
fn keep(matches: &mut RouteMatch, new: impl Fn(&Key) -> bool) -> bool {
    match matches {
        RouteMatch::ConnectDestinations(values) => {
            values.retain(|value| new(&Key::Connect(value.clone())));
            !values.is_empty()
        }
        RouteMatch::Destinations { prefixes, port } => {
            prefixes.retain(|prefix| new(&Key::Destination(*prefix, *port)));
            !prefixes.is_empty()
        }
        RouteMatch::ServerNames(names) => {
            names.retain(|name| new(&Key::Name(name.clone())));
            !names.is_empty()
        }
        // Either all of it is new, or the route was united or refused.
        RouteMatch::WireGuard { .. } => true,
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(value) => write!(f, "CONNECT to {value:?}"),
            Self::Destination(prefix, None) => write!(f, "destination {prefix}"),
            Self::Destination(prefix, Some(port)) => write!(f, "destination {prefix} port {port}"),
            Self::Name(name) => write!(f, "server name {name:?}"),
            Self::PublicKey(key) => {
                f.write_str("WireGuard public key ")?;
                key.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
            }
            Self::RouteId(id) => write!(f, "WireGuard route id {id}"),
        }
    }
}
