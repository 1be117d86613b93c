//! Finds what a specification has in common with the last snapshot, in the place where it is.
//!
//! Mostly everything is as it was and where it was: the next place is looked at first.

use std::collections::HashMap;
use std::sync::Arc;

use super::matches::parse_matches;
use crate::route::{Matches, Route};
use crate::snapshot::Snapshot;
use crate::spec::{ClusterSpec, RouteSpec};

/// Finds clusters.
#[derive(Debug, Default)]
pub(super) struct UnchangedClusters {
    next: usize,
}

impl UnchangedClusters {
    /// Returns the place of the cluster that is what `spec` describes.
    pub(super) fn find(
        &mut self,
        spec: &ClusterSpec,
        previous: Option<&Snapshot>,
    ) -> Option<usize> {
        let clusters = &previous?.clusters;
        let is = |place: &usize| clusters.get(*place).is_some_and(|old| old.is(spec));
        let by_name = || previous?.cluster_place(&spec.name).ok();
        let place = Some(self.next)
            .filter(is)
            .or_else(|| by_name().filter(is))?;
        self.next = place + 1;
        Some(place)
    }
}

/// Finds routes.
#[derive(Debug, Default)]
pub(super) struct UnchangedRoutes {
    next: usize,
    /// Where each route of the last snapshot is; made when one is not the next.
    places: Option<HashMap<*const Route, usize>>,
}

impl UnchangedRoutes {
    /// Returns the place of the route that is what `spec` describes.
    pub(super) fn find(&mut self, spec: &RouteSpec, previous: Option<&Snapshot>) -> Option<usize> {
        let previous = previous?;
        let is = |place: &usize| previous.routes.get(*place).is_some_and(|old| old.is(spec));
        let place = Some(self.next)
            .filter(is)
            .or_else(|| self.elsewhere(spec, previous).filter(is))?;
        self.next = place + 1;
        Some(place)
    }

    /// Returns the place of the route that has the first match of `spec`.
    fn elsewhere(&mut self, spec: &RouteSpec, previous: &Snapshot) -> Option<usize> {
        let matches = parse_matches(&spec.matches, &mut |_| ())?;
        let old = same_first_match(previous, &matches)?;
        let places = self.places.get_or_insert_with(|| {
            let routes = previous.routes.iter().zip(0..);
            routes
                .map(|(old, place)| (Arc::as_ptr(old), place))
                .collect()
        });
        places.get(&Arc::as_ptr(old)).copied()
    }
}

/// Returns the route of a snapshot that has the first of `matches`.
fn same_first_match<'s>(snapshot: &'s Snapshot, matches: &Matches) -> Option<&'s Arc<Route>> {
    let tables = &snapshot.tables;
    match matches {
        Matches::ConnectDestinations(values) => tables.connects.get(values.first()?),
        Matches::Destinations { prefixes, port } => {
            tables.destinations.exact(&(*prefixes.first()?, *port))
        }
        Matches::ServerNames(patterns) => tables.names.exact(patterns.first()?),
        Matches::WireGuard(wireguard) => tables.route_ids.get(&wireguard.route_id?),
    }
}
