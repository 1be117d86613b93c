//! From changed groups to the resources of each gateway.
//!
//! ```text
//!   affected groups ─translate─▶ Table ─changed groups─▶ resources of those groups ─▶ xDS server
//!                                                  └──▶ whole listeners, for clients without parts
//! ```
//!
//! A change costs the groups it affects. Whole listeners cost all routes; they are made only while
//! a client needs them, and not more often than every [`WHOLE_PERIOD`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use xds::{Audience, GatewayHandle, GatewayParams, Resource, ResourceType};

use crate::config::{Config, RoutingConfig};
use crate::metrics::{Metrics, count};
use crate::plan::{self, Problem, RoutedPort};
use crate::routes::{self, Changed, GatewayEntry, Table};
use crate::state::{ClusterState, ObjectKey, authorities_of};
use crate::status::GatewaySummary;

/// The shortest time between two sets of whole listeners.
const WHOLE_PERIOD: Duration = Duration::from_millis(100);

/// Withheld routes that are named to operators; beside the total number.
const NAMED: usize = 100;

/// The key of a published resource within its gateway.
type ResourceKey = (ResourceType, Arc<str>);

pub(crate) struct Publisher {
    entries: Vec<GatewayEntry>,
    table: Table,
    gateways: Vec<Gateway>,
}

struct Gateway {
    params: GatewayParams,
    /// Where they go; nowhere in a dry run.
    handle: Option<GatewayHandle>,
    whole_wanted: Option<watch::Receiver<usize>>,
    /// What was published of each group.
    groups: BTreeMap<Arc<str>, Published>,
    /// What was published for clients that need listeners whole.
    whole: BTreeSet<ResourceKey>,
    /// What those lack.
    whole_withheld: Vec<String>,
    /// The routes changed since.
    whole_due: bool,
    whole_at: Option<Instant>,
    /// Secrets of its namespace may exist that are not known yet.
    awaits_secrets: bool,
}

#[derive(Default)]
struct Published {
    clusters: BTreeSet<ResourceKey>,
    parts: BTreeSet<ResourceKey>,
    withheld: Vec<String>,
    routes: usize,
}

/// Returns who may ask for the resources of each gateway.
pub(crate) fn access(gateways: &[GatewayEntry]) -> Vec<xds::GatewayAccess> {
    let gateways = gateways.iter().map(|entry| xds::GatewayAccess {
        name: entry.name.clone(),
        clients: entry.clients.clone(),
    });
    gateways.collect()
}

pub(crate) fn server_params(
    gateways: &[GatewayEntry],
    tls: Option<tls::ServerTls>,
) -> xds::ServerParams {
    xds::ServerParams {
        tls,
        gateways: access(gateways),
        limits: xds::ServerLimits::default(),
        delta: true,
    }
}

impl Publisher {
    /// Publishes on `server`, which was made of the parameters of the same configuration; without
    /// one it translates only. Without routing there are no gateways, and nothing to do.
    pub(crate) fn new(routing: Option<&RoutingConfig>, server: Option<&xds::Server>) -> Self {
        let entries = routing.map(|own| own.gateways.clone()).unwrap_or_default();
        let gateways = entries.iter().map(|entry| {
            let params = GatewayParams {
                tls: entry.ports.tls,
                node: entry.ports.node,
                vpn: entry.ports.vpn,
                ..GatewayParams::default()
            };
            let handle = server.and_then(|server| server.gateway(&entry.name));
            if let Some(handle) = &handle {
                handle.complete_secrets(!entry.terminates_tls);
                handle.update(xds::base(&params), Vec::new());
            }
            Gateway {
                params,
                whole_wanted: handle.as_ref().map(GatewayHandle::whole_wanted),
                handle,
                groups: BTreeMap::new(),
                whole: BTreeSet::new(),
                whole_withheld: Vec::new(),
                whole_due: true,
                whole_at: None,
                awaits_secrets: entry.terminates_tls,
            }
        });
        Self {
            gateways: gateways.collect(),
            entries,
            table: Table::default(),
        }
    }

    pub(crate) fn translate(
        &mut self,
        state: &ClusterState,
        groups: BTreeSet<Arc<str>>,
    ) -> Changed {
        let mut changed = Changed::default();
        if self.gateways.is_empty() {
            return changed;
        }
        for name in groups {
            let group = routes::group(state, &self.entries, &name);
            let more = self.table.put(&name, group);
            changed.routes.extend(more.routes);
            changed.clusters.extend(more.clusters);
            changed.problems.extend(more.problems);
            changed.services.extend(more.services);
        }
        let published: BTreeSet<_> = changed.routes.union(&changed.clusters).cloned().collect();
        for (index, gateway) in self.gateways.iter_mut().enumerate() {
            gateway.whole_due |= !changed.routes.is_empty();
            // Until whole listeners follow, what they lead to must not go.
            if let Some(handle) = gateway.handle.as_ref().filter(|_| gateway.whole_due) {
                handle.complete_whole(false);
            }
            gateway.publish(index, &self.table, &published);
        }
        changed
    }

    /// Publishes Secrets as they are now, each to the gateways of its namespace. Gateways go on with what they
    /// have of one that is gone, and are told of none that it does not exist before all are known.
    pub(crate) fn publish_secrets(&mut self, state: &ClusterState, keys: &BTreeSet<ObjectKey>) {
        for key in keys {
            let set = state.secrets.resources(key);
            let kind = ResourceType::Secret;
            let names = [Arc::clone(&key.name), authorities_of(&key.name).into()];
            let gone = names.map(|name| (kind, Audience::Parts, name));
            for (entry, gateway) in self.entries.iter().zip(&self.gateways) {
                let own = *entry.namespace == *key.namespace && entry.terminates_tls;
                if let Some(handle) = gateway.handle.as_ref().filter(|_| own) {
                    if set.is_empty() {
                        handle.update(Vec::new(), gone.to_vec());
                    } else {
                        handle.update(set.to_vec(), Vec::new());
                    }
                }
            }
        }
        for (entry, gateway) in self.entries.iter().zip(&mut self.gateways) {
            if gateway.awaits_secrets && state.secrets.settled(&entry.namespace) {
                gateway.awaits_secrets = false;
                if let Some(handle) = &gateway.handle {
                    handle.complete_secrets(true);
                }
            }
        }
    }

    pub(crate) fn problems(&self, group: &str) -> Vec<Problem> {
        self.table.problems(group)
    }

    /// Marks the resources as complete, once everything was translated.
    pub(crate) fn complete(&self) {
        for gateway in &self.gateways {
            if let Some(handle) = &gateway.handle {
                handle.complete();
            }
        }
    }

    pub(crate) fn publish_whole(&mut self, now: Instant) {
        for (index, gateway) in self.gateways.iter_mut().enumerate() {
            gateway.publish_whole(index, &self.table, now);
        }
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        let wanting = self.gateways.iter();
        let wanting = wanting.filter(|own| own.whole_due && own.wants_whole());
        let last = wanting.map(|own| own.whole_at);
        last.map(|last| last.map_or_else(Instant::now, |at| at + WHOLE_PERIOD))
            .min()
    }

    /// Returns what gateways lead to of a Service.
    pub(crate) fn routed(&self, service: &ObjectKey) -> Vec<RoutedPort> {
        let all = self.table.routed(service).iter();
        let ports = all.filter_map(|routed| {
            let entry = self.entries.get(routed.gateway)?;
            Some(RoutedPort {
                gateway_namespace: entry.namespace.as_str().into(),
                gateway_selector: entry.selector.clone(),
                protocol: routed.protocol,
                target: routed.target.clone(),
            })
        });
        ports.collect()
    }

    pub(crate) fn routed_services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.table.routed_services()
    }

    pub(crate) fn summary(&self) -> BTreeMap<String, GatewaySummary> {
        let named = self.entries.iter().zip(&self.gateways);
        let figures = named.enumerate().map(|(index, (entry, gateway))| {
            let groups = gateway.groups.values();
            // What neither kind of client is sent is counted once.
            let withheld = groups.clone().flat_map(|own| &own.withheld);
            let withheld: BTreeSet<&String> = withheld.chain(&gateway.whole_withheld).collect();
            let all = self.table.groups();
            let clusters = all.map(|group| self.table.clusters(index, group).len());
            let summary = GatewaySummary {
                routes: groups.clone().map(|own| own.routes).sum(),
                clusters: clusters.sum(),
                withheld_total: withheld.len(),
                withheld: withheld.into_iter().take(NAMED).cloned().collect(),
            };
            (entry.name.clone(), summary)
        });
        figures.collect()
    }

    /// Brings the metrics up to date with what [`Publisher::summary`] said.
    pub(crate) fn report(
        &self,
        summary: &BTreeMap<String, GatewaySummary>,
        state: &ClusterState,
        config: &Config,
        metrics: &Metrics,
    ) {
        if self.gateways.is_empty() {
            return;
        }
        let known = |values: &[String]| values.iter().all(|name| summary.contains_key(name));
        metrics.routes.retain(known);
        metrics.withheld.retain(known);
        for (name, figures) in summary {
            metrics.routes.with(&[name]).set(count(figures.routes));
            let withheld = metrics.withheld.with(&[name]);
            withheld.set(count(figures.withheld_total));
        }
        let has_policies = |service: &&ObjectKey| {
            let policies = config.policies();
            policies.is_some_and(|own| plan::handled(state, own, service))
        };
        let services = self.routed_services();
        let without = services.filter(|own| !has_policies(own));
        let ports = without.map(|own| self.table.routed(own).len());
        metrics.without_policy.with(&[]).set(count(ports.sum()));
    }
}

impl Gateway {
    fn publish(&mut self, index: usize, table: &Table, groups: &BTreeSet<Arc<str>>) {
        let (mut set, mut removed) = (Vec::new(), Vec::new());
        for group in groups {
            let before = self.groups.remove(group).unwrap_or_default();
            let clusters = table.clusters(index, group).iter().flat_map(xds::cluster);
            let clusters: Vec<Resource> = clusters.collect();
            let accepted = table.accepted(index, group);
            let parts = xds::parts(group, accepted, &self.params);
            let now = Published {
                clusters: keys(&clusters),
                parts: keys(&parts.resources),
                withheld: parts.withheld,
                routes: accepted.len(),
            };
            removed.extend(gone(&before.clusters, &now.clusters, Audience::All));
            removed.extend(gone(&before.parts, &now.parts, Audience::Parts));
            set.extend(clusters);
            set.extend(parts.resources);
            if !(now.clusters.is_empty() && now.parts.is_empty() && now.withheld.is_empty()) {
                self.groups.insert(Arc::clone(group), now);
            }
        }
        if let Some(handle) = &self.handle {
            handle.update(set, removed);
        }
    }

    fn wants_whole(&self) -> bool {
        self.whole_wanted
            .as_ref()
            .is_some_and(|own| *own.borrow() > 0)
    }

    fn publish_whole(&mut self, index: usize, table: &Table, now: Instant) {
        let wanted = self.wants_whole();
        let Some(handle) = &self.handle else {
            return;
        };
        if !wanted {
            if !self.whole.is_empty() {
                let before = std::mem::take(&mut self.whole);
                handle.complete_whole(false);
                let removed = gone(&before, &self.whole, Audience::Whole);
                handle.update(Vec::new(), removed.collect());
            }
            self.whole_withheld.clear();
            self.whole_due = true;
            return;
        }
        let early = self.whole_at.is_some_and(|at| now < at + WHOLE_PERIOD);
        if !self.whole_due || early {
            return;
        }
        (self.whole_due, self.whole_at) = (false, Some(now));
        let groups = table.groups().map(|group| table.accepted(index, group));
        let whole = xds::whole(&self.params, groups);
        let now = keys(&whole.resources);
        let removed = gone(&self.whole, &now, Audience::Whole);
        handle.update(whole.resources, removed.collect());
        handle.complete_whole(true);
        self.whole = now;
        self.whole_withheld = whole.withheld;
    }
}

/// Returns the keys of what was published and is no longer.
fn gone<'a>(
    before: &'a BTreeSet<ResourceKey>,
    now: &'a BTreeSet<ResourceKey>,
    audience: Audience,
) -> impl Iterator<Item = (ResourceType, Audience, Arc<str>)> + 'a {
    let gone = before.difference(now);
    gone.map(move |(kind, name)| (*kind, audience, Arc::clone(name)))
}

fn keys(resources: &[Resource]) -> BTreeSet<ResourceKey> {
    let all = resources.iter();
    all.map(|own| (own.kind, Arc::clone(&own.name))).collect()
}
