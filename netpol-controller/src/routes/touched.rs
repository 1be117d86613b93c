//! Which groups an object is about, so that its change costs no others.
//!
//! Asked before and after the change: what an object was about is touched as well.

use std::collections::BTreeSet;
use std::sync::Arc;

use route::normal_server_name;

use super::istio::ends_tls;
use super::names::covers;
use super::{RouteSettings, annotations, select};
use crate::world::{
    Catalog, FilterPatch, Kind, Mention, Mentions, ObjectKey, Scope, World, has_labels,
    in_namespace,
};

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
        Kind::VirtualService => of_virtual_service(world, key),
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

/// A rule that leaves the destination to a header is about every Service, as is a restriction of a
/// whole listener; one of a server name is about the namespaces that have a route with it.
fn of_filter(world: &World, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let filter = world.envoy_filters.get(key);
    let mut groups = world.envoy_filters.namespaces_of(key);
    for patch in filter.into_iter().flat_map(|filter| &filter.patches) {
        match patch {
            FilterPatch::Connect(connect) if connect.cluster.is_none() => return all_groups(world),
            FilterPatch::Restrict(restriction) => match &restriction.scope {
                Scope::Chain(name) => groups.extend(chained(world, name)),
                Scope::Listener => return all_groups(world),
                Scope::Namespaces => {}
                // Also what has no name of its own.
                Scope::ServerName(name) if **name == *"*" => return all_groups(world),
                Scope::ServerName(name) => groups.extend(named(world, name)),
            },
            FilterPatch::Chain(_)
            | FilterPatch::Connect(_)
            | FilterPatch::Http
            | FilterPatch::Nothing
            | FilterPatch::Socket(_)
            | FilterPatch::Unknown(_) => {}
        }
    }
    groups
}

/// Returns the namespaces that filter chains of a name lead into.
fn chained(world: &World, name: &str) -> BTreeSet<Arc<str>> {
    let patches = world.envoy_filters.values().flat_map(|own| &own.patches);
    let chains = patches.filter_map(|patch| match patch {
        FilterPatch::Chain(chain) if chain.name.as_deref() == Some(name) => Some(chain),
        FilterPatch::Chain(_)
        | FilterPatch::Connect(_)
        | FilterPatch::Http
        | FilterPatch::Nothing
        | FilterPatch::Restrict(_)
        | FilterPatch::Socket(_)
        | FilterPatch::Unknown(_) => None,
    });
    chains
        .map(|chain| Arc::clone(&chain.cluster.service.namespace))
        .collect()
}

/// Returns the groups of the objects that spell out a server name, or one within it: a route's name
/// is always one that some object says.
fn named(world: &World, pattern: &str) -> BTreeSet<Arc<str>> {
    let within = |text: &str| {
        let own = text.rsplit('/').next().unwrap_or(text).trim();
        normal_server_name(own).is_ok_and(|own| covers(pattern, &own))
    };
    let mut groups = BTreeSet::new();
    for (key, service) in world.virtual_services.iter() {
        let matches = service.tls.iter().flat_map(|route| &route.matches);
        if matches
            .flat_map(|one| &one.sni_hosts)
            .any(|host| within(host))
        {
            groups.extend(world.virtual_services.namespaces_of(key));
        }
    }
    for (key, gateway) in &world.istio_gateways {
        let mut hosts = gateway.servers.iter().flat_map(|server| &server.hosts);
        if hosts.any(|host| within(host)) {
            groups.extend(of_istio_gateway(world, key));
        }
    }
    for (key, gateway) in &world.gateways {
        if gateway.listeners.iter().any(|own| within(&own.hostname)) {
            groups.extend(bound_to(&world.tls_routes, key));
        }
    }
    for (key, route) in world.tls_routes.iter() {
        if route.hostnames.iter().any(|host| within(host)) {
            groups.extend(world.tls_routes.namespaces_of(key));
        }
    }
    for (key, service) in &world.services {
        if annotations::server_names(service).any(within) {
            groups.insert(Arc::clone(&key.namespace));
        }
    }
    groups
}

/// What is bound to a `Gateway` that ends TLS says together which API server is behind it, so it is
/// also about whatever else is bound there.
fn of_virtual_service(world: &World, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let mut groups = world.virtual_services.namespaces_of(key);
    let service = world.virtual_services.get(key);
    let mentions = service.map(|service| service.mentions(key));
    for mention in mentions.into_iter().flatten() {
        if let Mention::Gateway(gateway) = mention
            && let Some(object) = world.istio_gateways.get(&gateway)
            && object.servers.iter().any(ends_tls)
        {
            groups.extend(of_istio_gateway(world, &gateway));
        }
    }
    groups
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
        .filter(|entry| has_labels(labels, &entry.selector))
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
