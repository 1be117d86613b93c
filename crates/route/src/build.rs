//! Building a snapshot: what is wrong with a specification, what is taken over from the last one.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::cluster::{Cluster, Settings};
use crate::destinations::DestinationTable;
use crate::endpoint::Endpoint;
use crate::maglev::MOST_ENDPOINTS;
use crate::names::{HostNameError, NameTable, normal_pattern};
use crate::prefix::IpPrefix;
use crate::route::{Matches, Route};
use crate::snapshot::Snapshot;
use crate::spec::{
    ClusterSpec, EndpointAddress, EndpointAddressError, EndpointSpec, RouteMatch, RouteSpec,
    TableSpec,
};

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
    if errors.total > 0 {
        return Err(errors);
    }
    Ok(Snapshot {
        generation,
        clusters: clusters.into(),
        routes: routes.all.into(),
        names: routes.names,
        destinations: routes.destinations,
        connects: routes.connects,
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
}

impl<'p> Routes<'p> {
    fn new(spec: &TableSpec, previous: Option<&'p Snapshot>) -> Self {
        let mut names = 0;
        let mut connects = 0;
        for route in &spec.routes {
            match &route.matches {
                RouteMatch::ServerNames(some) => names += some.len(),
                RouteMatch::ConnectDestinations(some) => connects += some.len(),
                RouteMatch::Destinations { .. } => {}
            }
        }
        Self {
            previous,
            all: Vec::with_capacity(spec.routes.len()),
            names: NameTable::with_capacity(names),
            destinations: DestinationTable::default(),
            connects: HashMap::with_capacity(connects),
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
                    if self
                        .connects
                        .insert(Arc::clone(value), Arc::clone(route))
                        .is_some()
                    {
                        fault(RouteFault::DuplicateMatch {
                            value: value.to_string(),
                        });
                    }
                }
            }
            Matches::Destinations { prefixes, port } => {
                for prefix in prefixes {
                    if self.destinations.insert((*prefix, *port), route).is_some() {
                        let (prefix, port) = (*prefix, *port);
                        fault(RouteFault::DuplicateDestination { prefix, port });
                    }
                }
            }
            Matches::ServerNames(patterns) => {
                for pattern in patterns.iter() {
                    if self.names.insert(pattern, route).is_some() {
                        fault(RouteFault::DuplicateMatch {
                            value: pattern.to_string(),
                        });
                    }
                }
            }
        }
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
    }
}

fn is_same(old: &Route, matches: &Matches, spec: &RouteSpec, cluster: &Arc<Cluster>) -> bool {
    Arc::ptr_eq(old.cluster(), cluster)
        && old.matches() == matches
        && old.allow_sources() == spec.allow_sources
        && old.idle_timeout() == spec.idle_timeout
        && old.max_connection_age() == spec.max_connection_age
}

/// What is wrong with a specification: the first faults, and how many there are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BuildErrors {
    first: Vec<BuildError>,
    total: usize,
}

impl BuildErrors {
    /// Faults that are kept; more are only counted.
    pub const KEPT: usize = 20;

    fn push(&mut self, error: BuildError) {
        self.total += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(error);
        }
    }

    /// Returns the first faults, at most [`KEPT`](Self::KEPT).
    #[must_use]
    pub fn first(&self) -> &[BuildError] {
        &self.first
    }

    /// Returns the number of all faults.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

impl fmt::Display for BuildErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.first.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        match self.total.saturating_sub(self.first.len()) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for BuildErrors {}

/// One fault of a specification.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A cluster is wrong.
    #[error("cluster {cluster:?}: {fault}")]
    Cluster {
        /// The cluster's name.
        cluster: String,
        /// What is wrong with it.
        fault: ClusterFault,
    },
    /// A route is wrong.
    #[error("route {place}: {fault}")]
    Route {
        /// Which of the specification's routes, from 1.
        place: usize,
        /// What is wrong with it.
        fault: RouteFault,
    },
}

/// What is wrong with a cluster.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFault {
    /// Another cluster has the same name.
    #[error("the name is taken by another cluster")]
    Duplicate,
    /// Two endpoints have the same address.
    #[error("endpoint {endpoint:?} is there twice")]
    DuplicateEndpoint {
        /// The endpoint's address.
        endpoint: String,
    },
    /// An endpoint's address cannot be used.
    #[error("endpoint {endpoint:?}: {why}")]
    EndpointAddress {
        /// The endpoint's address.
        endpoint: String,
        /// Why not.
        why: EndpointAddressError,
    },
    /// The time to connect is zero.
    #[error("the time to connect is zero")]
    NoConnectTimeout,
    /// Ejections last no time.
    #[error("the ejection time of outlier detection is zero")]
    NoEjection,
    /// Endpoints are ejected without a failure.
    #[error("the number of failures of outlier detection is zero")]
    NoFailures,
    /// The cluster has no name.
    #[error("the name is empty")]
    NoName,
    /// An endpoint has weight 0.
    #[error("endpoint {endpoint:?} has weight 0; at least 1 is needed")]
    NoWeight {
        /// The endpoint's address.
        endpoint: String,
    },
    /// More than all endpoints may be ejected.
    #[error("at most 100 percent of the endpoints can be ejected, not {given}")]
    Percent {
        /// What was asked for.
        given: u8,
    },
    /// There are more endpoints than 65,535.
    #[error("{given} endpoints are more than a cluster can have, which is {MOST_ENDPOINTS}")]
    TooManyEndpoints {
        /// Number of endpoints.
        given: usize,
    },
}

/// What is wrong with a route.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteFault {
    /// The same destination is matched a second time.
    #[error("destination {prefix}{} is matched twice", port_text(*.port))]
    DuplicateDestination {
        /// Prefix of the destination.
        prefix: IpPrefix,
        /// Port; `None` = any.
        port: Option<u16>,
    },
    /// The same name or CONNECT value is matched a second time.
    #[error("{value:?} is matched twice")]
    DuplicateMatch {
        /// What is matched, in the form in which it is compared.
        value: String,
    },
    /// The route matches nothing, or an empty value.
    #[error("there is nothing to match, or an empty value")]
    NoMatch,
    /// The destination port is 0.
    #[error("port 0 is no destination")]
    Port,
    /// A server name is no host name or wildcard.
    #[error("server name {name:?}: {why}")]
    ServerName {
        /// The name as given.
        name: String,
        /// Why not.
        why: HostNameError,
    },
    /// No cluster has the name that the route leads to.
    #[error("there is no cluster {cluster:?}")]
    UnknownCluster {
        /// The name as given.
        cluster: String,
    },
}

fn port_text(port: Option<u16>) -> String {
    port.map(|port| format!(" port {port}")).unwrap_or_default()
}
