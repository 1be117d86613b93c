//! Building a snapshot: what is wrong with a specification, what is taken over from the last one.
//!
//! ```text
//! last snapshot ──keep(place)──▶ Builder ──routes──▶ RoutesBuilder ──build──▶ the next
//! specification ──add──────────▶    └───────────────────────┴─▶ every fault, each with its offender
//! ```
//!
//! What is kept costs a number, and a copy of a pointer for each piece of the lists and tables that it
//! is in; what is added is checked and made. The tables are the last ones, changed, unless most of the
//! routes are new.

mod clusters;
mod errors;
mod matches;
mod unchanged;

use std::collections::HashSet;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::pieces::{Joiner, Pieces};
use crate::route::{Matches, Route};
use crate::snapshot::Snapshot;
use crate::spec::{ClusterSpec, RouteSpec, TableSpec};
use crate::tables::Tables;

use self::clusters::{Shared, build_cluster, check_cluster};
use self::matches::parse_matches;
use self::unchanged::{UnchangedClusters, UnchangedRoutes};
pub use errors::{BuildError, BuildErrors, ClusterFault, RouteFault};

/// Builds what `spec` says, and keeps of `previous` whatever is as it was.
pub(crate) fn build(
    spec: &TableSpec,
    generation: u64,
    previous: Option<&Snapshot>,
) -> Result<Snapshot, BuildErrors> {
    let mut builder = Builder::new(previous);
    let mut clusters = UnchangedClusters::default();
    for cluster in &spec.clusters {
        match clusters.find(cluster, previous) {
            Some(place) => builder.keep_cluster(place),
            None => builder.add_cluster(cluster),
        }
    }
    let mut builder = builder.routes();
    let mut routes = UnchangedRoutes::default();
    for route in &spec.routes {
        match routes.find(route, previous) {
            Some(place) => builder.keep_route(place),
            None => builder.add_route(route),
        }
    }
    builder.build(generation)
}

/// Puts a snapshot together from parts of the last one and new ones: the clusters.
#[derive(Debug)]
pub struct Builder<'p> {
    previous: Option<&'p Snapshot>,
    errors: BuildErrors,
    shared: Shared,
    /// Clusters in their order: a place of the last snapshot's, or their number and one of `new`.
    given: Vec<u32>,
    /// Which clusters of the last snapshot stay.
    kept: Vec<bool>,
    new: Vec<New>,
}

/// A cluster that is not the last snapshot's.
#[derive(Debug)]
struct New {
    /// Orders it among the last snapshot's: odd in the place of one of them, even between two.
    key: u32,
    /// How many new ones were given before it.
    at: u32,
    cluster: Arc<Cluster>,
}

impl New {
    fn name(&self) -> &str {
        self.cluster.name()
    }
}

impl<'p> Builder<'p> {
    /// Begins a snapshot that has nothing yet.
    #[must_use]
    pub fn new(previous: Option<&'p Snapshot>) -> Self {
        let before = previous.map_or(0, |snapshot| snapshot.clusters.len());
        Self {
            previous,
            errors: BuildErrors::default(),
            shared: Shared::default(),
            given: Vec::with_capacity(before + 1),
            kept: vec![false; before],
            new: Vec::new(),
        }
    }

    /// Keeps the cluster at a place of the last snapshot's [`Snapshot::clusters`] as it is; a place
    /// that it does not have is nothing.
    #[inline]
    pub fn keep_cluster(&mut self, place: usize) {
        let Some(kept) = self.kept.get_mut(place) else {
            return;
        };
        self.given.push(number(place));
        if std::mem::replace(kept, true) {
            self.twice(place);
        }
    }

    /// Adds a cluster, which goes on with the state of the one that had its name before.
    pub fn add_cluster(&mut self, spec: &ClusterSpec) {
        check_cluster(spec, &mut self.errors);
        let place = self
            .previous
            .map_or(Err(0), |snapshot| snapshot.cluster_place(&spec.name));
        let old = place.ok().zip(self.previous);
        let old = old.and_then(|(place, snapshot)| snapshot.clusters.get(place));
        let cluster = build_cluster(spec, old.map(AsRef::as_ref), &mut self.shared);
        let key = match place {
            Ok(place) => 2 * number(place) + 1,
            Err(between) => 2 * number(between),
        };
        let at = number(self.new.len());
        self.given.push(number(self.kept.len()) + at);
        let cluster = Arc::new(cluster);
        self.new.push(New { key, at, cluster });
    }

    /// Goes on with the routes, now that all clusters are there.
    #[must_use]
    pub fn routes(mut self) -> RoutesBuilder<'p> {
        let mut new = std::mem::take(&mut self.new);
        // By their names only among those between the same two.
        new.sort_unstable_by(|left, right| {
            let by_name = || left.name().cmp(right.name());
            let keys = left.key.cmp(&right.key).then_with(by_name);
            keys.then_with(|| left.at.cmp(&right.at))
        });
        self.check_names(&new);
        let named = self.named(&new);
        let olds = self.previous.map(|snapshot| &snapshot.clusters);
        let gone = olds.into_iter().flat_map(|olds| not(&self.kept, olds));
        let gone = gone.map(Arc::as_ptr).collect();
        let (clusters, places) = self.join(olds, new);
        let routes = self.previous.map(|snapshot| &snapshot.routes);
        RoutesBuilder {
            previous: self.previous,
            gone,
            clusters,
            places,
            named,
            at: 0,
            given_as: Vec::new(),
            errors: self.errors,
            routes: Joiner::new(routes),
            kept: vec![false; routes.map_or(0, Pieces::len)],
            last: None,
            moved: false,
            fresh: Vec::new(),
            given: 0,
            refused: Vec::new(),
        }
    }

    /// Finds new clusters with a name that another one has; they are sorted.
    fn check_names(&mut self, new: &[New]) {
        for (at, one) in new.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| new.get(before));
            let again = before.is_some_and(|before| {
                before.key == one.key && (one.key % 2 == 1 || before.name() == one.name())
            });
            let old = (one.key % 2 == 1).then_some(one.key as usize / 2);
            let kept = old.is_some_and(|old| self.kept.get(old) == Some(&true));
            if again || kept {
                self.duplicate(one.name().to_owned());
            }
        }
    }

    /// Notes that a cluster of the last snapshot was kept a second time.
    #[cold]
    fn twice(&mut self, place: usize) {
        let old = self.previous.and_then(|old| old.clusters.get(place));
        let name = old.map(|old| old.name().to_string());
        self.duplicate(name.unwrap_or_default());
    }

    fn duplicate(&mut self, cluster: String) {
        let fault = ClusterFault::Duplicate;
        self.errors.push(BuildError::Cluster { cluster, fault });
    }

    /// Puts the new clusters, which are sorted, between those that stay; returns the list, and the
    /// place in it of each that was given.
    fn join(
        &self,
        olds: Option<&'p Pieces<Arc<Cluster>>>,
        new: Vec<New>,
    ) -> (Pieces<Arc<Cluster>>, Vec<u32>) {
        let before = self.kept.len();
        let mut clusters = Joiner::new(olds);
        // Where each of the last snapshot's is now, and behind them each of the new ones.
        let mut now = vec![0_u32; before + new.len()];
        let mut looked = 0;
        let mut keep = |clusters: &mut Joiner<'_, _>, now: &mut [u32], upto: usize| {
            for place in looked..upto {
                if self.kept.get(place) == Some(&true)
                    && let Some(now) = now.get_mut(place)
                {
                    *now = number(clusters.len());
                    clusters.keep(place);
                }
            }
            looked = upto;
        };
        for New { key, at, cluster } in new {
            keep(&mut clusters, &mut now, key as usize / 2);
            if let Some(now) = now.get_mut(before + at as usize) {
                *now = number(clusters.len());
            }
            clusters.push(cluster);
        }
        keep(&mut clusters, &mut now, before);
        let place = |given: &u32| now.get(*given as usize).copied().unwrap_or_default();
        let places = self.given.iter().map(place).collect();
        (clusters.finish(), places)
    }

    /// Returns the clusters with endpoints whose names are to be resolved.
    fn named(&self, new: &[New]) -> Box<[Arc<Cluster>]> {
        // Of those that stay it was known; looking into each of very many would cost their change.
        let olds = self.previous.map_or(&[][..], |snapshot| &snapshot.named);
        let stays = |old: &&Arc<Cluster>| {
            let place = self
                .previous
                .and_then(|snapshot| snapshot.cluster_place(old.name()).ok());
            place.is_some_and(|place| self.kept.get(place) == Some(&true))
        };
        let new = new.iter().map(|new| &new.cluster);
        let new = new.filter(|cluster| cluster.has_host_names());
        olds.iter().filter(stays).chain(new).cloned().collect()
    }
}

/// Puts a snapshot together from parts of the last one and new ones: the routes, in their order.
#[derive(Debug)]
pub struct RoutesBuilder<'p> {
    previous: Option<&'p Snapshot>,
    /// Clusters of the last snapshot that are no more, or not the same.
    gone: HashSet<*const Cluster>,
    clusters: Pieces<Arc<Cluster>>,
    places: Vec<u32>,
    named: Box<[Arc<Cluster>]>,
    /// Which of the given clusters the last route leads to: mostly routes have the clusters' order.
    at: usize,
    /// Which was given of each in `clusters`; made when a route is out of that order.
    given_as: Vec<u32>,
    errors: BuildErrors,
    routes: Joiner<'p, Arc<Route>>,
    /// Which routes of the last snapshot stay.
    kept: Vec<bool>,
    /// The place of the one that was kept last.
    last: Option<usize>,
    /// Whether those that stay have another order.
    moved: bool,
    /// Those that do not, with their places in `routes`.
    fresh: Vec<(usize, Arc<Route>)>,
    /// Routes given, the refused ones too; errors name them by it.
    given: usize,
    /// Of them, which were refused.
    refused: Vec<usize>,
}

impl RoutesBuilder<'_> {
    /// Returns the place in [`Snapshot::clusters`] of each cluster that was given, in the order in
    /// which they were.
    #[must_use]
    pub fn cluster_places(&self) -> &[u32] {
        &self.places
    }

    /// Keeps the route at a place of the last snapshot's [`Snapshot::routes`]; it leads to the
    /// cluster that has now the name of its cluster. A place that it does not have is nothing.
    #[inline]
    pub fn keep_route(&mut self, place: usize) {
        if self.gone.is_empty()
            && let Some(kept) = self.kept.get_mut(place)
            && !std::mem::replace(kept, true)
        {
            self.keep(place);
        } else {
            self.keep_leading(place);
        }
    }

    /// Keeps a route that is marked as kept, as it is.
    fn keep(&mut self, place: usize) {
        self.given += 1;
        self.moved |= self.last.is_some_and(|last| last > place);
        self.last = Some(place);
        self.routes.keep(place);
    }

    /// Keeps a route whose cluster may be another one now.
    fn keep_leading(&mut self, place: usize) {
        let Some(old) = self.previous.and_then(|old| old.routes.get(place)) else {
            return;
        };
        let same_cluster = !self.gone.contains(&Arc::as_ptr(old.cluster()));
        // One that is kept a second time is a second route, which contradicts the first.
        if same_cluster
            && let Some(kept) = self.kept.get_mut(place)
            && !std::mem::replace(kept, true)
        {
            self.keep(place);
            return;
        }
        self.given += 1;
        let name = Arc::clone(old.cluster().name());
        match self.cluster(&name) {
            Some(cluster) => self.put(old.leading_to(cluster)),
            None => self.refuse(RouteFault::UnknownCluster {
                cluster: name.to_string(),
            }),
        }
    }

    /// Adds a route.
    pub fn add_route(&mut self, spec: &RouteSpec) {
        self.given += 1;
        let cluster = self.cluster(&spec.cluster);
        let mut faults = Vec::new();
        let matches = parse_matches(&spec.matches, &mut |fault| faults.push(fault));
        if cluster.is_none() {
            faults.push(RouteFault::UnknownCluster {
                cluster: spec.cluster.clone(),
            });
        }
        match (matches, cluster) {
            (Some(matches), Some(cluster)) => self.put(Route::new(matches, cluster, spec)),
            _ => faults.into_iter().for_each(|fault| self.refuse(fault)),
        }
    }

    fn put(&mut self, route: Route) {
        let route = Arc::new(route);
        self.fresh.push((self.routes.len(), Arc::clone(&route)));
        self.routes.push(route);
    }

    /// Notes a fault of the route that was given last.
    fn refuse(&mut self, fault: RouteFault) {
        let place = self.given;
        if self.refused.last() != Some(&place) {
            self.refused.push(place);
        }
        self.errors.push(BuildError::Route { place, fault });
    }

    fn cluster(&mut self, name: &str) -> Option<Arc<Cluster>> {
        for at in [self.at, self.at + 1] {
            let cluster = self.places.get(at).map(|place| *place as usize);
            let cluster = cluster.and_then(|place| self.clusters.get(place));
            if let Some(cluster) = cluster.filter(|cluster| **cluster.name() == *name) {
                self.at = at;
                return Some(Arc::clone(cluster));
            }
        }
        let by_name = |cluster: &Arc<Cluster>| (**cluster.name()).cmp(name);
        let place = self.clusters.search(by_name).ok()?;
        if self.given_as.is_empty() {
            self.given_as.resize(self.clusters.len(), 0);
            for (given, place) in (0..).zip(&self.places) {
                if let Some(as_given) = self.given_as.get_mut(*place as usize) {
                    *as_given = given;
                }
            }
        }
        self.at = self.given_as.get(place).map_or(0, |given| *given as usize);
        self.clusters.get(place).map(Arc::clone)
    }

    /// Builds the snapshot of a number.
    ///
    /// # Errors
    /// All that is wrong, each fault naming its offender; nothing is built then.
    pub fn build(mut self, generation: u64) -> Result<Snapshot, BuildErrors> {
        let routes = std::mem::replace(&mut self.routes, Joiner::new(None)).finish();
        let tables = self.tables(&routes);
        if self.errors.total() > 0 {
            return Err(self.errors);
        }
        Ok(Snapshot {
            generation,
            clusters: self.clusters,
            named: self.named,
            routes,
            tables,
        })
    }

    fn tables(&mut self, routes: &Pieces<Arc<Route>>) -> Tables {
        let mut faults = Vec::new();
        let tables = self
            .changed_tables(routes)
            .unwrap_or_else(|| Tables::of(routes, &mut |at, fault| faults.push((at, fault))));
        self.check_public_keys(routes, &mut faults);
        for (at, fault) in faults {
            let given = |place, refused: &usize| place + usize::from(*refused <= place);
            let place = self.refused.iter().fold(at + 1, given);
            self.errors.push(BuildError::Route { place, fault });
        }
        tables
    }

    /// Returns the last tables, changed, if that is less work than new ones and if no two routes have
    /// to do with each other, for then their order matters.
    fn changed_tables(&self, routes: &Pieces<Arc<Route>>) -> Option<Tables> {
        let previous = self.previous?;
        let gone = not(&self.kept, &previous.routes);
        if self.moved || self.fresh.len() + gone.clone().count() > routes.len() / 2 {
            return None;
        }
        let mut tables = previous.tables.clone();
        if !tables.remove_all(gone) {
            return None;
        }
        for (_, route) in &self.fresh {
            let mut alone = true;
            let first = !tables.has_any_of(route);
            tables.insert(route, &mut |_| alone = false);
            if !(first && alone) {
                return None;
            }
        }
        Some(tables)
    }

    /// Finds public keys that two routes have; no table has them.
    fn check_public_keys(
        &self,
        routes: &Pieces<Arc<Route>>,
        faults: &mut Vec<(usize, RouteFault)>,
    ) {
        if (self.fresh.iter()).all(|(_, route)| public_keys(route).is_empty()) {
            return;
        }
        let mut seen = HashSet::new();
        for (at, route) in routes.iter().enumerate() {
            for key in public_keys(route) {
                if !seen.insert(key) {
                    faults.push((at, RouteFault::DuplicatePublicKey { key: *key }));
                }
            }
        }
    }
}

fn public_keys(route: &Route) -> &[[u8; 32]] {
    match route.matches() {
        Matches::WireGuard(wireguard) => &wireguard.public_keys,
        Matches::ConnectDestinations(_)
        | Matches::Destinations { .. }
        | Matches::ServerNames(_) => &[],
    }
}

/// Returns those of the last snapshot's elements that were not kept.
fn not<'o, T>(kept: &[bool], olds: &'o Pieces<T>) -> impl Iterator<Item = &'o T> + Clone {
    let gone = kept.iter().enumerate().filter(|(_, kept)| !**kept);
    gone.filter_map(|(place, _)| olds.get(place))
}

/// Places and counts are far below what 31 bits hold: a file of them would be refused for its size.
fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX >> 1)
}
