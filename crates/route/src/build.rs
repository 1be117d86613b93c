//! Building a snapshot: what is wrong with a specification, what is taken over from the last one.
//!
//! ```text
//! TableSpec ──┬─▶ clusters, sorted by name ─▶ routes ─▶ look-up tables ─▶ Snapshot
//!             │      ▲ unchanged ones are the previous snapshot's
//!             └─▶ every fault, each with its offender
//! ```
//!
//! Everything is built anew on each change; only clusters, endpoints and routes that did not change
//! are shared with the previous snapshot, so that their state goes on.

mod clusters;
mod errors;
mod matches;

use std::fmt;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::route::Route;
use crate::snapshot::Snapshot;
use crate::spec::{ClusterSpec, RouteSpec, TableSpec};
use crate::tables::Tables;

use self::clusters::{build_cluster, check_cluster};
use self::matches::parse_matches;
pub use errors::BuildErrors;

/// Reports a fault of a route.
pub(crate) type Fault<'a> = &'a mut dyn FnMut(fmt::Arguments<'_>);

impl Snapshot {
    /// Builds a snapshot, and takes over from `previous` the state of every cluster and endpoint
    /// that both have, by cluster name and endpoint address. What did not change is shared, not
    /// copied.
    ///
    /// # Errors
    /// All that is wrong with the specification, each naming its offender; nothing is built then.
    pub fn build(
        spec: TableSpec,
        generation: u64,
        previous: Option<&Self>,
    ) -> Result<Self, BuildErrors> {
        let mut errors = BuildErrors::default();
        let clusters = build_clusters(&spec.clusters, previous, &mut errors);
        let mut routes = Vec::with_capacity(spec.routes.len());
        let mut tables = Tables::default();
        for (place, spec) in (1..).zip(&spec.routes) {
            let mut fault =
                |what: fmt::Arguments<'_>| errors.push(format_args!("route {place}: {what}"));
            let Some(route) = build_route(spec, &clusters, previous, &mut fault) else {
                continue;
            };
            tables.insert(&route, &mut fault);
            routes.push(route);
        }
        if errors.total() > 0 {
            return Err(errors);
        }
        Ok(Self {
            generation,
            clusters,
            routes: routes.into(),
            tables,
        })
    }
}

/// Builds the clusters in the order of their names.
fn build_clusters(
    specs: &[ClusterSpec],
    previous: Option<&Snapshot>,
    errors: &mut BuildErrors,
) -> Box<[Arc<Cluster>]> {
    let mut settings = None;
    let build = |spec: &ClusterSpec| {
        let old = previous.and_then(|snapshot| snapshot.cluster(&spec.name));
        if let Some(unchanged) = old.filter(|old| old.is(spec)) {
            return Arc::clone(unchanged);
        }
        check_cluster(spec, errors);
        Arc::new(build_cluster(spec, old.map(AsRef::as_ref), &mut settings))
    };
    let mut clusters: Box<[Arc<Cluster>]> = specs.iter().map(build).collect();
    clusters.sort_by(|left, right| left.name().cmp(right.name()));
    for pair in clusters.windows(2) {
        if let [first, second] = pair
            && first.name() == second.name()
        {
            let name = second.name();
            errors.push(format_args!(
                "cluster {name:?}: the name is taken by another cluster"
            ));
        }
    }
    clusters
}

fn build_route(
    spec: &RouteSpec,
    clusters: &[Arc<Cluster>],
    previous: Option<&Snapshot>,
    fault: Fault<'_>,
) -> Option<Arc<Route>> {
    let matches = parse_matches(&spec.matches, fault);
    let by_name = |cluster: &Arc<Cluster>| (**cluster.name()).cmp(&spec.cluster);
    let cluster = clusters.binary_search_by(by_name).ok();
    let Some(cluster) = cluster.and_then(|place| clusters.get(place)) else {
        fault(format_args!("there is no cluster {:?}", spec.cluster));
        return None;
    };
    let matches = matches?;
    let old = previous.and_then(|snapshot| snapshot.tables.first_match(&matches));
    if let Some(old) = old
        && old.is(spec)
        && Arc::ptr_eq(old.cluster(), cluster)
    {
        return Some(Arc::clone(old));
    }
    Some(Arc::new(Route::new(matches, Arc::clone(cluster), spec)))
}
