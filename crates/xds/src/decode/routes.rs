//! Routes while they are gathered from resources: equal ones become one, contradictions are found.
//!
//! A table has very many of them and is made for each change of any, so that what is only looked at
//! is borrowed from the resources.

use std::collections::HashMap;
use std::sync::Arc;

use route::{Handler, IpPrefix, ListenerSet, RouteMatch, RouteSpec};

use crate::decode::listener::Limits;
use crate::decode::table::TableError;
use crate::match_key::MatchKey;

/// The routes found so far.
#[derive(Debug, Default)]
pub(super) struct Routes<'s> {
    pub(super) specs: Vec<RouteSpec>,
    /// The resource of each, and the cluster that it leads to.
    pub(super) origins: Vec<(&'s Arc<str>, &'s str)>,
    /// Who matches what; only looked up.
    known: HashMap<Item<'s>, Known>,
    /// Most attempts to connect after the first, by cluster; only looked up.
    retries: HashMap<&'s str, u32>,
}

/// A route of a resource.
#[derive(Clone, Debug)]
pub(super) struct Found<'s> {
    /// Name of the resource.
    pub(super) origin: &'s Arc<str>,
    /// What it matches, all of one kind.
    pub(super) keys: Vec<Item<'s>>,
    pub(super) listeners: ListenerSet,
    /// Clients that may use it; empty = all.
    pub(super) sources: &'s [IpPrefix],
    pub(super) cluster: &'s str,
    pub(super) limits: Limits,
    /// How its TLS ends, if it does.
    pub(super) handler: Option<Handler>,
}

/// One thing that a route matches.
pub(super) type Item<'s> = MatchKey<&'s str>;

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Place of the first route that matches it.
    route: usize,
    /// Of all routes that match it.
    listeners: ListenerSet,
}

impl<'s> Routes<'s> {
    /// Adds a route.
    pub(super) fn add(&mut self, mut found: Found<'s>) -> Result<(), TableError> {
        if let Some(retries) = found.limits.retries {
            let most = self.retries.entry(found.cluster).or_default();
            *most = retries.max(*most);
        }
        let mut keys = std::mem::take(&mut found.keys);
        let Some(matches) = route_match(&keys) else {
            return Ok(());
        };
        let mut earlier = keys
            .iter()
            .filter_map(|key| Some((key, self.known.get(key)?)));
        let Some((key, first)) = earlier.next() else {
            self.push(&found, matches, &keys);
            return Ok(());
        };
        let same = self.specs[first.route].matches == matches;
        let mut apart = true;
        for (key, known) in std::iter::once((key, first)).chain(earlier) {
            let wireguard = matches!(key, Item::PublicKey(_) | Item::RouteId(_));
            let partly = !same && wireguard;
            // Those of WireGuard are of all listeners, and never of a part of a match.
            apart &= wireguard || !known.listeners.intersects(found.listeners);
            if partly || !self.differs_in_match_only(known.route, &found) {
                return Err(TableError::Conflict {
                    first: self.origins[known.route].0.to_string(),
                    second: found.origin.to_string(),
                    matched: key.to_string(),
                });
            }
        }
        if same && apart {
            let place = first.route;
            self.specs[place].listeners = self.specs[place].listeners.union(found.listeners);
            self.note(&keys, place, found.listeners);
        } else {
            keys.retain(|key| {
                let known = self.known.get(key);
                known.is_none_or(|known| !known.listeners.intersects(found.listeners))
            });
            if let Some(matches) = route_match(&keys) {
                self.push(&found, matches, &keys);
            }
        }
        Ok(())
    }

    fn push(&mut self, found: &Found<'s>, matches: RouteMatch, keys: &[Item<'s>]) {
        let limits = found.limits;
        self.specs.push(RouteSpec {
            matches,
            cluster: found.cluster.to_owned(),
            listeners: found.listeners,
            allow_sources: found.sources.to_vec(),
            idle_timeout: limits.idle_timeout,
            max_connection_age: limits.max_connection_age,
            handler: found.handler.clone(),
        });
        self.origins.push((found.origin, found.cluster));
        self.note(keys, self.specs.len() - 1, found.listeners);
    }

    fn note(&mut self, keys: &[Item<'s>], route: usize, listeners: ListenerSet) {
        for key in keys {
            let known = Known { route, listeners };
            let known = self.known.entry(*key).or_insert(known);
            known.listeners = known.listeners.union(listeners);
        }
    }

    /// Returns whether a route leads where another one does, under the same conditions.
    fn differs_in_match_only(&self, place: usize, found: &Found<'s>) -> bool {
        // Named one by one, so that a new one cannot be forgotten.
        let RouteSpec {
            matches: _,
            cluster,
            listeners: _,
            allow_sources,
            idle_timeout,
            max_connection_age,
            handler,
        } = &self.specs[place];
        cluster == found.cluster
            && allow_sources == found.sources
            && *idle_timeout == found.limits.idle_timeout
            && *max_connection_age == found.limits.max_connection_age
            && *handler == found.handler
    }

    /// Returns the attempts to connect after the first that routes to a cluster ask for.
    pub(super) fn retries(&self, cluster: &str) -> Option<u32> {
        self.retries.get(cluster).copied()
    }
}

/// Returns the match of these keys, all of which are of one kind; `None` without any.
fn route_match(keys: &[Item<'_>]) -> Option<RouteMatch> {
    let mut matched = match keys.first()? {
        Item::Connect(_) => RouteMatch::ConnectDestinations(Vec::new()),
        Item::Destination(_, port) => RouteMatch::Destinations {
            prefixes: Vec::new(),
            port: *port,
        },
        Item::Name(_) => RouteMatch::ServerNames(Vec::new()),
        Item::PublicKey(_) | Item::RouteId(_) => RouteMatch::WireGuard {
            public_keys: Vec::new(),
            route_id: None,
        },
    };
    for key in keys {
        match (&mut matched, *key) {
            (RouteMatch::ConnectDestinations(all), Item::Connect(text))
            | (RouteMatch::ServerNames(all), Item::Name(text)) => all.push(text.to_owned()),
            (RouteMatch::Destinations { prefixes, .. }, Item::Destination(prefix, _)) => {
                prefixes.push(prefix);
            }
            (RouteMatch::WireGuard { public_keys, .. }, Item::PublicKey(key)) => {
                public_keys.push(key);
            }
            (RouteMatch::WireGuard { route_id, .. }, Item::RouteId(id)) => *route_id = Some(id),
            _ => {}
        }
    }
    Some(matched)
}

#[cfg(test)]
mod tests {
    use route::{ClusterSpec, Snapshot, TableSpec};

    use super::*;

    fn add<'s>(routes: &mut Routes<'s>, origin: &'s Arc<str>, names: &'s [String], index: usize) {
        let found = Found {
            origin,
            keys: names.iter().map(|name| Item::Name(name)).collect(),
            listeners: ListenerSet::only(index),
            sources: &[],
            cluster: "c",
            limits: Limits::default(),
            handler: None,
        };
        routes.add(found).unwrap();
    }

    #[test]
    fn united_routes_do_not_overlap() {
        let origin = "r".into();
        let names = |names: [&str; 2]| names.map(|name| format!("{name}.example.com"));
        let (ab, ac) = (names(["a", "b"]), names(["a", "c"]));
        let mut routes = Routes::default();
        for (names, index) in [(&ab, 0), (&ac, 1), (&ab, 1), (&ab, 1), (&ac, 0)] {
            add(&mut routes, &origin, names, index);
        }
        let spec = TableSpec {
            clusters: vec![ClusterSpec::new("c")],
            routes: routes.specs,
        };
        Snapshot::build(spec, 1, None).unwrap();
    }
}
