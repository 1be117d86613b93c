//! Which groups an object is about, so that its change costs no others.
//!
//! Asked before and after the change: what an object was about is touched as well.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{RouteSettings, select};
use crate::world::{Catalog, FilterPatch, Kind, Mention, Mentions, ObjectKey, World, in_namespace};

/// Returns the groups that an object is about, as it is known now.
#[must_use]
pub fn groups_of(
    world: &World,
    settings: &RouteSettings,
    kind: Kind,
    key: &ObjectKey,
) -> BTreeSet<Arc<str>> {
    let own = || BTreeSet::from([Arc::clone(&key.namespace)]);
    match kind {
        Kind::DestinationRule => world.destination_rules.namespaces_of(key),
        Kind::EndpointSlice | Kind::Endpoints | Kind::Service | Kind::TlsRoute => own(),
        Kind::EnvoyFilter => of_filter(world, key),
        Kind::Gateway => {
            let mut groups = bound_to(&world.tls_routes, key);
            groups.insert(Arc::clone(&key.namespace));
            groups
        }
        Kind::IstioGateway => of_istio_gateway(world, key),
        Kind::Namespace => {
            // Its labels decide which listeners take its routes.
            let some = in_namespace(&world.tls_routes, &key.name).next().is_some();
            some.then(|| Arc::clone(&key.name)).into_iter().collect()
        }
        Kind::Pod => of_pod(world, settings, key),
        Kind::VirtualService => world.virtual_services.namespaces_of(key),
        Kind::Ingress | Kind::NetworkPolicy | Kind::Shoot => BTreeSet::new(),
    }
}

/// Returns all groups that there may be something to say about.
#[must_use]
pub fn all_groups(world: &World) -> BTreeSet<Arc<str>> {
    let mut groups: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut last: Option<&Arc<str>> = None;
    let keys = world.services.keys().chain(world.istio_gateways.keys());
    for key in keys
        .chain(world.gateways.keys())
        .chain(world.tls_routes.keys())
    {
        // They come in order: each namespace once is nearly all there is to insert.
        if last != Some(&key.namespace) {
            groups.insert(Arc::clone(&key.namespace));
            last = Some(&key.namespace);
        }
    }
    for key in world.virtual_services.keys() {
        groups.extend(world.virtual_services.namespaces_of(key));
    }
    for key in world.envoy_filters.keys() {
        groups.extend(world.envoy_filters.namespaces_of(key));
    }
    groups
}

/// A rule that leaves the destination to a header is about every Service.
fn of_filter(world: &World, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let filter = world.envoy_filters.get(key);
    let mut patches = filter.into_iter().flat_map(|filter| &filter.patches);
    let everywhere = patches.any(|patch| match patch {
        FilterPatch::Connect(connect) => connect.cluster.is_none(),
        FilterPatch::Chain(_)
        | FilterPatch::Http
        | FilterPatch::Nothing
        | FilterPatch::Socket(_)
        | FilterPatch::Unknown(_) => false,
    });
    if everywhere {
        all_groups(world)
    } else {
        world.envoy_filters.namespaces_of(key)
    }
}

fn of_istio_gateway(world: &World, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let mut groups = bound_to(&world.virtual_services, key);
    groups.insert(Arc::clone(&key.namespace));
    groups
}

/// Returns the namespaces that the objects bound to a gateway mention.
fn bound_to<T: Mentions>(objects: &Catalog<T>, gateway: &ObjectKey) -> BTreeSet<Arc<str>> {
    let mention = Mention::Gateway(gateway.clone());
    let bound = objects.mentioning(&mention);
    bound
        .flat_map(|(key, _)| objects.namespaces_of(key))
        .collect()
}

/// A gateway's pods decide only where the configured labels leave it open.
fn of_pod(world: &World, settings: &RouteSettings, pod: &ObjectKey) -> BTreeSet<Arc<str>> {
    let Some(labels) = world.pods.labels_of(pod) else {
        return BTreeSet::new();
    };
    let own = settings
        .gateways
        .iter()
        .filter(|entry| *entry.namespace == *pod.namespace);
    let own: Vec<_> = own
        .filter(|entry| select::contains(labels, &entry.selector))
        .collect();
    // Others with the same labels say the same.
    if own.is_empty() || world.pods.count(&pod.namespace, labels) > 1 {
        return BTreeSet::new();
    }
    let open = |selector| own.iter().any(|entry| select::pods_decide(entry, selector));
    let mut groups = BTreeSet::new();
    for (key, gateway) in &world.istio_gateways {
        if open(&gateway.selector) {
            groups.extend(of_istio_gateway(world, key));
        }
    }
    for (key, filter) in world.envoy_filters.iter() {
        if open(&filter.workload_labels) {
            groups.extend(of_filter(world, key));
        }
    }
    for (key, gateway) in &world.gateways {
        if open(&gateway.infrastructure_labels) {
            groups.extend(bound_to(&world.tls_routes, key));
        }
    }
    groups
}
