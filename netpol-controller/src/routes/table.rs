//! All groups, and the owner of each match that several claim.
//!
//! ```text
//!   claims: server name, CONNECT value, destination, key, number ─▶ holders, the oldest first
//! ```
//!
//! The oldest object has a match that several claim, by its creation, then its namespace and name;
//! the others keep what no older object claims and get an Event. So no object takes over a route
//! by being created later, and the outcome does not depend on the order of events. When an object
//! came to say what it says is not known, so an older one may take a route by an edit. Services are
//! old and many, and their authors are trusted with less: what an annotation claims comes after what
//! objects of Istio and the Gateway API claim. What lies
//! within what another claims is [`wider`]'s. Claims are looked up, not searched for: a group costs
//! what it claims, and a wide claim what lies within it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use route::{ClusterSpec, IpPrefix, RouteMatch, RouteSpec};

use self::wider::{Claims, holder_of, reversed, within};
use super::{Group, Routed, SourcedRoute};
use crate::plan::{Problem, Reason};
use crate::state::{Kind, ObjectKey};

mod wider;

/// All groups, with the accepted routes of each.
#[derive(Debug, Default)]
pub struct Table {
    groups: BTreeMap<Arc<str>, Entry>,
    /// By gateway.
    claims: Vec<Claims>,
}

#[derive(Debug, Default)]
struct Entry {
    group: Group,
    /// By gateway.
    accepted: Vec<Vec<RouteSpec>>,
    conflicts: BTreeSet<Problem>,
}

/// Effects of a group's change.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changed {
    /// Groups whose accepted routes changed.
    pub routes: BTreeSet<Arc<str>>,
    /// Groups whose clusters changed.
    pub clusters: BTreeSet<Arc<str>>,
    /// Groups whose problems changed.
    pub problems: BTreeSet<Arc<str>>,
    /// Services whose routed ports changed.
    pub services: BTreeSet<ObjectKey>,
}

/// Something that one route alone may match.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Claim {
    Connect(String),
    Destination(IpPrefix, Option<u16>),
    /// A server name, its labels in reverse.
    Name(String),
    PublicKey([u8; 32]),
    RouteId(u32),
}

/// A claimant; the order is the one of precedence.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Holder {
    /// Objects that are made for routes come first.
    is_annotation: bool,
    created: i64,
    key: ObjectKey,
    kind: Kind,
    group: Arc<str>,
    /// Place of the route in its group.
    place: usize,
}

impl Table {
    /// Replaces a group; an empty one is removed.
    pub fn put(&mut self, name: &str, group: Group) -> Changed {
        let mut changed = Changed::default();
        let name: Arc<str> = name.into();
        let old = self.groups.remove(&name).unwrap_or_default();
        changed.compare(&name, &old.group, &group);
        let routes = [&old.group, &group].map(|own| own.gateways.iter().map(|own| &own.routes));
        let [before, now] = routes;
        let same_routes = before.eq(now);
        let mut affected = BTreeSet::from([Arc::clone(&name)]);
        if !same_routes {
            self.withdraw(&name, &old.group, &mut affected);
            self.claim(&name, &group, &mut affected);
        }
        let is_empty = group.is_empty();
        let entry = Entry { group, ..old };
        self.groups.insert(Arc::clone(&name), entry);
        if !same_routes {
            for other in affected {
                self.settle(&other, &mut changed);
            }
        }
        if is_empty {
            self.groups.remove(&name);
        }
        changed
    }

    /// Returns the routes of a group that it has on a gateway.
    pub fn accepted(&self, gateway: usize, group: &str) -> &[RouteSpec] {
        let entry = self.groups.get(group);
        entry
            .and_then(|entry| entry.accepted.get(gateway))
            .map_or(&[], Vec::as_slice)
    }

    /// Returns the clusters of a group on a gateway, sorted by name; no other group has one of
    /// them.
    pub fn clusters(&self, gateway: usize, group: &str) -> &[ClusterSpec] {
        let entry = self.groups.get(group);
        entry.map_or(&[], |entry| entry.group.clusters(gateway))
    }

    /// Returns the groups that have anything, in order.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<str>> {
        self.groups.keys()
    }

    /// Returns the problems of a group, sorted and distinct.
    pub fn problems(&self, group: &str) -> Vec<Problem> {
        let Some(entry) = self.groups.get(group) else {
            return Vec::new();
        };
        let mut all = entry.conflicts.clone();
        all.extend(entry.group.problems.iter().cloned());
        all.into_iter().collect()
    }

    /// Returns the ports of a Service's pods that gateways lead to.
    pub fn routed(&self, service: &ObjectKey) -> &[Routed] {
        let entry = self.groups.get(&service.namespace);
        let own = entry.and_then(|entry| entry.group.routed.get(service));
        own.map_or(&[], Vec::as_slice)
    }

    /// Returns the Services that gateways lead to.
    pub fn routed_services(&self) -> impl Iterator<Item = &ObjectKey> {
        let all = self.groups.values();
        all.flat_map(|entry| entry.group.routed.keys())
    }

    fn withdraw(&mut self, name: &Arc<str>, group: &Group, affected: &mut BTreeSet<Arc<str>>) {
        for (claims, own) in self.claims.iter_mut().zip(&group.gateways) {
            for (place, route) in own.routes.iter().enumerate() {
                let holder = Holder::new(name, place, route);
                for claim in claims_of(&route.spec.matches) {
                    let Some(holders) = claims.get_mut(&claim) else {
                        continue;
                    };
                    holders.remove(&holder);
                    affected.extend(groups_of(holders));
                    if holders.is_empty() {
                        claims.remove(&claim);
                    }
                    affected.extend(within(claims, &claim).flat_map(groups_of));
                }
            }
        }
    }

    fn claim(&mut self, name: &Arc<str>, group: &Group, affected: &mut BTreeSet<Arc<str>>) {
        let gateways = self.claims.len().max(group.gateways.len());
        self.claims.resize_with(gateways, BTreeMap::new);
        for (claims, own) in self.claims.iter_mut().zip(&group.gateways) {
            for (place, route) in own.routes.iter().enumerate() {
                for claim in claims_of(&route.spec.matches) {
                    affected.extend(within(claims, &claim).flat_map(groups_of));
                    let holders = claims.entry(claim).or_default();
                    affected.extend(groups_of(holders));
                    holders.insert(Holder::new(name, place, route));
                }
            }
        }
    }

    /// Recomputes the accepted routes of a group.
    fn settle(&mut self, name: &Arc<str>, changed: &mut Changed) {
        let Some(entry) = self.groups.get(name) else {
            return;
        };
        let mut conflicts = BTreeSet::new();
        let mut accepted = Vec::with_capacity(entry.group.gateways.len());
        for (gateway, own) in entry.group.gateways.iter().enumerate() {
            let routes = own.routes.iter().enumerate();
            let kept = routes.filter_map(|(place, route)| {
                let holder = Holder::new(name, place, route);
                self.keep(gateway, &holder, route, &mut conflicts)
            });
            accepted.push(kept.collect::<Vec<_>>());
        }
        let Some(entry) = self.groups.get_mut(name) else {
            return;
        };
        let none = |gateways: &[Vec<RouteSpec>]| gateways.iter().all(Vec::is_empty);
        if entry.accepted != accepted && !(none(&entry.accepted) && none(&accepted)) {
            changed.routes.insert(Arc::clone(name));
        }
        if entry.conflicts != conflicts {
            changed.problems.insert(Arc::clone(name));
        }
        entry.accepted = accepted;
        entry.conflicts = conflicts;
    }

    /// Returns a route without the matches that others own.
    fn keep(
        &self,
        gateway: usize,
        own: &Holder,
        route: &SourcedRoute,
        conflicts: &mut BTreeSet<Problem>,
    ) -> Option<RouteSpec> {
        let mut has = |claim: Claim| {
            let Some(claims) = self.claims.get(gateway) else {
                return true;
            };
            let (holder, barred) = holder_of(claims, &claim);
            let message = if let Some((_, (wide, of))) = barred.iter().find(|(one, _)| *one == own)
            {
                format!(
                    "{claim} lies within {wide}, which is {}",
                    of.described_to(own)
                )
            } else {
                match holder {
                    Some(first) if first != own => {
                        // Two objects that say the same are no conflict.
                        if self.cluster_of(gateway, first) == Some(&route.spec.cluster) {
                            return false;
                        }
                        format!("{claim} is {}", first.described_to(own))
                    }
                    Some(_) | None => return true,
                }
            };
            let object = route.source.clone();
            Problem::new(object, Reason::RouteConflict, &message).add_to(conflicts);
            false
        };
        let matches = remaining(&route.spec.matches, &mut has)?;
        Some(RouteSpec {
            matches,
            ..route.spec.clone()
        })
    }

    fn cluster_of(&self, gateway: usize, holder: &Holder) -> Option<&String> {
        let group = &self.groups.get(&holder.group)?.group;
        let route = group.gateways.get(gateway)?.routes.get(holder.place)?;
        Some(&route.spec.cluster)
    }
}

impl Changed {
    fn compare(&mut self, name: &Arc<str>, old: &Group, new: &Group) {
        let gateways = old.gateways.len().max(new.gateways.len());
        if (0..gateways).any(|index| old.clusters(index) != new.clusters(index)) {
            self.clusters.insert(Arc::clone(name));
        }
        if old.problems != new.problems {
            self.problems.insert(Arc::clone(name));
        }
        for key in old.routed.keys().chain(new.routed.keys()) {
            if old.routed.get(key) != new.routed.get(key) {
                self.services.insert(key.clone());
            }
        }
    }
}

impl Group {
    fn clusters(&self, gateway: usize) -> &[ClusterSpec] {
        let own = self.gateways.get(gateway);
        own.map_or(&[], |own| &own.clusters)
    }

    /// Returns whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        let mut gateways = self.gateways.iter();
        self.problems.is_empty()
            && self.routed.is_empty()
            && gateways.all(|own| own.routes.is_empty() && own.clusters.is_empty())
    }
}

impl Holder {
    fn new(group: &Arc<str>, place: usize, route: &SourcedRoute) -> Self {
        Self {
            is_annotation: route.source.kind == Kind::Service,
            created: route.created,
            key: route.source.key.clone(),
            kind: route.source.kind,
            group: Arc::clone(group),
            place,
        }
    }

    /// Returns whether its object is older than another one's, of whatever kind.
    fn is_older(&self, other: &Self) -> bool {
        (self.created, &self.key, self.kind) < (other.created, &other.key, other.kind)
    }

    /// Describes the owner, for the message of a claimant that comes after it.
    fn described_to(&self, other: &Self) -> String {
        let why = if self.is_older(other) {
            "is older"
        } else {
            "comes before annotations"
        };
        format!("{} {}'s, which {why}", self.kind.name(), self.key)
    }
}

fn groups_of(holders: &BTreeSet<Holder>) -> impl Iterator<Item = Arc<str>> {
    holders.iter().map(|holder| Arc::clone(&holder.group))
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(value) => write!(f, "the CONNECT destination {value:?}"),
            Self::Destination(prefix, None) => write!(f, "the destination {prefix}"),
            Self::Destination(prefix, Some(port)) => {
                write!(f, "the destination {prefix}, port {port}")
            }
            Self::Name(name) => write!(f, "the server name {:?}", reversed(name)),
            Self::PublicKey(_) => f.write_str("a WireGuard public key"),
            Self::RouteId(id) => write!(f, "the WireGuard route id {id}"),
        }
    }
}

fn claims_of(matches: &RouteMatch) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut note = |claim| {
        claims.push(claim);
        true
    };
    // Nothing is left out, so the rest is the whole and not wanted.
    drop(remaining(matches, &mut note));
    claims
}

/// Returns a match with those of its claims that `has` grants; `None` when none is left.
fn remaining(matches: &RouteMatch, has: &mut impl FnMut(Claim) -> bool) -> Option<RouteMatch> {
    match matches {
        RouteMatch::ConnectDestinations(values) => {
            let mut values = values.clone();
            values.retain(|value| has(Claim::Connect(value.clone())));
            (!values.is_empty()).then_some(RouteMatch::ConnectDestinations(values))
        }
        RouteMatch::Destinations { prefixes, port } => {
            let mut prefixes = prefixes.clone();
            prefixes.retain(|prefix| has(Claim::Destination(*prefix, *port)));
            let port = *port;
            (!prefixes.is_empty()).then_some(RouteMatch::Destinations { prefixes, port })
        }
        RouteMatch::ServerNames(names) => {
            let mut names = names.clone();
            names.retain(|name| has(Claim::Name(reversed(name))));
            (!names.is_empty()).then_some(RouteMatch::ServerNames(names))
        }
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => {
            let mut public_keys = public_keys.clone();
            public_keys.retain(|key| has(Claim::PublicKey(*key)));
            let route_id = route_id.filter(|id| has(Claim::RouteId(*id)));
            (!public_keys.is_empty() || route_id.is_some()).then_some(RouteMatch::WireGuard {
                public_keys,
                route_id,
            })
        }
    }
}

#[cfg(test)]
mod tests;
