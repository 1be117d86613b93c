//! Building a snapshot: what is wrong with a specification, what is taken over from the last one.

mod errors;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cluster::{Cluster, Settings};
use crate::destinations::DestinationTable;
use crate::endpoint::Endpoint;
use crate::maglev::MOST_ENDPOINTS;
use crate::names::{NameTable, normal_pattern};
use crate::route::{Matches, Route, WireGuardMatch};
use crate::snapshot::Snapshot;
use crate::spec::{ClusterSpec, EndpointAddress, EndpointSpec, RouteMatch, RouteSpec, TableSpec};

pub use errors::{BuildError, BuildErrors, ClusterFault, RouteFault};

pub(crate) fn build(
    spec: &TableSpec,
    generation: u64,
    previous: Option<&Snapshot>,
) -> Result<Snapshot, BuildErrors> {
    let mut errors = BuildErrors::default();
    let clusters = build_clusters(&spec.clusters, previous, &mut errors);
    let mut routes = Routes::new(spec, previous);
    {
        let by_name: HashMap<&str, &Arc<Cluster>> = clusters
            .iter()
            .map(|cluster| (&**cluster.name(), cluster))
            .collect();
        for (route, place) in spec.routes.iter().zip(1..) {
            let cluster = by_name.get(route.cluster.as_str()).copied();
            routes.add(route, place, cluster, &mut errors);
        }
    }
    if errors.total() > 0 {
        return Err(errors);
    }
    Ok(Snapshot {
        generation,
        clusters: clusters.into(),
        routes: routes.all.into(),
        names: routes.names,
        destinations: routes.destinations,
        connects: routes.connects,
        route_ids: routes.route_ids,
    })
}

/// Builds the clusters, in the order of their names.
fn build_clusters(
    specs: &[ClusterSpec],
    previous: Option<&Snapshot>,
    errors: &mut BuildErrors,
) -> Vec<Arc<Cluster>> {
    let mut shared = Shared::default();
    let mut sorted: Vec<&ClusterSpec> = specs.iter().collect();
    sorted.sort_by(|left, right| left.name.cmp(&right.name));
    for pair in sorted.windows(2) {
        if let [left, right] = pair
            && left.name == right.name
        {
            let (cluster, fault) = (left.name.clone(), ClusterFault::Duplicate);
            errors.push(BuildError::Cluster { cluster, fault });
        }
    }
    let mut olds = previous
        .map_or(&[][..], |snapshot| &snapshot.clusters)
        .iter()
        .peekable();
    let mut clusters = Vec::with_capacity(sorted.len());
    for spec in sorted {
        // Both are in the order of names, so one walk over the old ones finds each of them.
        while olds.next_if(|old| **old.name() < *spec.name).is_some() {}
        let old = olds
            .peek()
            .copied()
            .filter(|old| **old.name() == *spec.name);
        // What is as it was has been checked.
        let cluster = match old {
            Some(old) if old.is(spec) => Arc::clone(old),
            Some(_) | None => {
                check_cluster(spec, errors);
                Arc::new(build_cluster(spec, old.map(AsRef::as_ref), &mut shared))
            }
        };
        clusters.push(cluster);
    }
    clusters
}

fn check_cluster(spec: &ClusterSpec, errors: &mut BuildErrors) {
    let mut fault = |fault: ClusterFault| {
        errors.push(BuildError::Cluster {
            cluster: spec.name.clone(),
            fault,
        });
    };
    if spec.name.is_empty() {
        fault(ClusterFault::NoName);
    }
    if spec.connect_timeout.is_zero() {
        fault(ClusterFault::NoConnectTimeout);
    }
    if let Some(outlier) = &spec.outlier {
        if outlier.consecutive_connect_failures == 0 {
            fault(ClusterFault::NoFailures);
        }
        if outlier.ejection.is_zero() {
            fault(ClusterFault::NoEjection);
        }
        if outlier.max_ejected_percent > 100 {
            fault(ClusterFault::Percent {
                given: outlier.max_ejected_percent,
            });
        }
    }
    if spec.endpoints.len() > MOST_ENDPOINTS {
        fault(ClusterFault::TooManyEndpoints {
            given: spec.endpoints.len(),
        });
    }
    let mut seen = HashSet::new();
    for EndpointSpec {
        address, weight, ..
    } in &spec.endpoints
    {
        let endpoint = || address.to_string();
        if spec.endpoints.len() > 1 && !seen.insert(address) {
            fault(ClusterFault::DuplicateEndpoint {
                endpoint: endpoint(),
            });
        }
        if let Err(why) = address.check() {
            fault(ClusterFault::EndpointAddress {
                endpoint: endpoint(),
                why,
            });
        }
        if *weight == 0 {
            fault(ClusterFault::NoWeight {
                endpoint: endpoint(),
            });
        }
    }
}

/// Builds a cluster with the state of the one that had its name before.
fn build_cluster(spec: &ClusterSpec, old: Option<&Cluster>, shared: &mut Shared) -> Cluster {
    let old_endpoints: HashMap<&EndpointAddress, &Arc<Endpoint>> = old
        .map(|old| {
            old.endpoints()
                .iter()
                .map(|endpoint| (endpoint.address(), endpoint))
                .collect()
        })
        .unwrap_or_default();
    let endpoints =
        spec.endpoints.iter().map(
            |endpoint| match old_endpoints.get(&endpoint.address).copied() {
                Some(old) if old.is(endpoint) => Arc::clone(old),
                old => {
                    let zone = endpoint.zone.as_deref().map(|zone| shared.zone(zone));
                    Arc::new(Endpoint::new(endpoint, zone, old.map(AsRef::as_ref)))
                }
            },
        );
    let endpoints = endpoints.collect();
    Cluster::new(spec, endpoints, shared.settings(spec, old), old)
}

/// What clusters have in common and share.
#[derive(Default)]
struct Shared {
    zones: HashSet<Arc<str>>,
    /// Those of the last cluster: mostly all of a table are alike.
    settings: Option<Arc<Settings>>,
}

impl Shared {
    fn zone(&mut self, zone: &str) -> Arc<str> {
        if let Some(known) = self.zones.get(zone) {
            return Arc::clone(known);
        }
        let zone: Arc<str> = zone.into();
        self.zones.insert(Arc::clone(&zone));
        zone
    }

    fn settings(&mut self, spec: &ClusterSpec, old: Option<&Cluster>) -> Arc<Settings> {
        let known = self
            .settings
            .as_ref()
            .or_else(|| old.map(Cluster::settings));
        let settings = match known {
            Some(known) if known.is(spec) => Arc::clone(known),
            Some(_) | None => Arc::new(Settings::new(spec)),
        };
        self.settings = Some(Arc::clone(&settings));
        settings
    }
}

/// The routes while they are gathered.
struct Routes<'p> {
    previous: Option<&'p Snapshot>,
    all: Vec<Arc<Route>>,
    names: NameTable,
    destinations: DestinationTable,
    connects: HashMap<Arc<str>, Arc<Route>>,
    route_ids: HashMap<u32, Arc<Route>>,
    public_keys: HashSet<[u8; 32]>,
}

impl<'p> Routes<'p> {
    fn new(spec: &TableSpec, previous: Option<&'p Snapshot>) -> Self {
        let mut names = 0;
        let mut connects = 0;
        for route in &spec.routes {
            match &route.matches {
                RouteMatch::ServerNames(some) => names += some.len(),
                RouteMatch::ConnectDestinations(some) => connects += some.len(),
                RouteMatch::Destinations { .. } | RouteMatch::WireGuard { .. } => {}
            }
        }
        Self {
            previous,
            all: Vec::with_capacity(spec.routes.len()),
            names: NameTable::with_capacity(names),
            destinations: DestinationTable::default(),
            connects: HashMap::with_capacity(connects),
            route_ids: HashMap::new(),
            public_keys: HashSet::new(),
        }
    }

    /// Adds a route; `place` counts from 1 and names it in errors.
    fn add(
        &mut self,
        spec: &RouteSpec,
        place: usize,
        cluster: Option<&Arc<Cluster>>,
        errors: &mut BuildErrors,
    ) {
        let mut fault = |fault: RouteFault| errors.push(BuildError::Route { place, fault });
        let matches = parse_matches(&spec.matches, &mut fault);
        if cluster.is_none() {
            fault(RouteFault::UnknownCluster {
                cluster: spec.cluster.clone(),
            });
        }
        let (Some(matches), Some(cluster)) = (matches, cluster) else {
            return;
        };
        let old = self
            .previous
            .and_then(|snapshot| same_first_match(snapshot, &matches));
        let route = match old {
            Some(old) if is_same(old, &matches, spec, cluster) => Arc::clone(old),
            Some(_) | None => Arc::new(Route::new(matches, Arc::clone(cluster), spec)),
        };
        self.insert(&route, &mut fault);
        self.all.push(route);
    }

    fn insert(&mut self, route: &Arc<Route>, fault: &mut impl FnMut(RouteFault)) {
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
        for key in &wireguard.public_keys {
            if !self.public_keys.insert(*key) {
                fault(RouteFault::DuplicatePublicKey { key: *key });
            }
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

fn duplicate(value: &str) -> RouteFault {
    RouteFault::DuplicateMatch {
        value: value.to_owned(),
    }
}

/// Brings what a route matches into the form in which it is compared; `None` after a fault.
fn parse_matches(matches: &RouteMatch, fault: &mut impl FnMut(RouteFault)) -> Option<Matches> {
    match matches {
        RouteMatch::ConnectDestinations(values) => {
            if values.is_empty() || values.iter().any(String::is_empty) {
                fault(RouteFault::NoMatch);
                return None;
            }
            let values = values.iter().map(|value| value.as_str().into());
            Some(Matches::ConnectDestinations(values.collect()))
        }
        RouteMatch::Destinations { prefixes, port } => {
            if prefixes.is_empty() {
                fault(RouteFault::NoMatch);
                return None;
            }
            if *port == Some(0) {
                fault(RouteFault::Port);
                return None;
            }
            Some(Matches::Destinations {
                prefixes: prefixes.as_slice().into(),
                port: *port,
            })
        }
        RouteMatch::ServerNames(names) => {
            if names.is_empty() {
                fault(RouteFault::NoMatch);
            }
            let mut patterns: Vec<Arc<str>> = Vec::with_capacity(names.len());
            for name in names {
                match normal_pattern(name) {
                    Ok(pattern) => patterns.push(pattern.into()),
                    Err(why) => fault(RouteFault::ServerName {
                        name: name.clone(),
                        why,
                    }),
                }
            }
            let complete = patterns.len() == names.len() && !patterns.is_empty();
            complete.then(|| Matches::ServerNames(patterns.into_iter().collect()))
        }
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => {
            if public_keys.is_empty() && route_id.is_none() {
                fault(RouteFault::NoMatch);
                return None;
            }
            if let Some(id) = *route_id
                && !(1..=RouteMatch::MAX_ROUTE_ID).contains(&id)
            {
                fault(RouteFault::RouteId { id });
                return None;
            }
            Some(Matches::WireGuard(Box::new(WireGuardMatch {
                public_keys: public_keys.as_slice().into(),
                route_id: *route_id,
            })))
        }
    }
}

/// Returns the route of a snapshot that has the first of `matches`.
fn same_first_match<'s>(snapshot: &'s Snapshot, matches: &Matches) -> Option<&'s Arc<Route>> {
    match matches {
        Matches::ConnectDestinations(values) => snapshot.connects.get(values.first()?),
        Matches::Destinations { prefixes, port } => {
            snapshot.destinations.exact(&(*prefixes.first()?, *port))
        }
        Matches::ServerNames(patterns) => snapshot.names.exact(patterns.first()?),
        Matches::WireGuard(wireguard) => snapshot.route_ids.get(&wireguard.route_id?),
    }
}

fn is_same(old: &Route, matches: &Matches, spec: &RouteSpec, cluster: &Arc<Cluster>) -> bool {
    // Named one by one, so that a new one cannot be forgotten.
    let RouteSpec {
        matches: _,
        cluster: _,
        listeners,
        allow_sources,
        idle_timeout,
        max_connection_age,
    } = spec;
    Arc::ptr_eq(old.cluster(), cluster)
        && old.matches() == matches
        && old.listeners() == *listeners
        && old.allow_sources() == *allow_sources
        && old.idle_timeout() == *idle_timeout
        && old.max_connection_age() == *max_connection_age
}
