//! Which groups an object affects, so that its change costs no others.
//!
//! Asked before and after the change: what an object was about is affected as well.

use std::collections::BTreeSet;
use std::sync::Arc;

use route::normal_server_name;

use super::istio::ends_tls;
use super::names::covers;
use super::{GatewayEntry, annotations, select};
use crate::state::{
    Catalog, ClusterState, FilterPatch, Kind, Mention, Mentions, ObjectKey, Scope, has_labels,
    in_namespace,
};

/// Returns the groups that an object is about, as it is known now.
pub fn groups_of(
    state: &ClusterState,
    entries: &[GatewayEntry],
    kind: Kind,
    key: &ObjectKey,
) -> BTreeSet<Arc<str>> {
    let own = || BTreeSet::from([Arc::clone(&key.namespace)]);
    match kind {
        Kind::DestinationRule => state.destination_rules.namespaces_of(key),
        Kind::EndpointSlice | Kind::Endpoints | Kind::Service | Kind::TlsRoute => own(),
        Kind::EnvoyFilter => of_filter(state, entries, key),
        Kind::Gateway => &bound_to(&state.tls_routes, key) | &own(),
        Kind::IstioGateway => of_istio_gateway(state, key),
        Kind::Namespace => {
            // Its labels decide which listeners take its routes.
            let some = in_namespace(&state.tls_routes, &key.name).next().is_some();
            some.then(|| Arc::clone(&key.name)).into_iter().collect()
        }
        Kind::Pod => of_pod(state, entries, key),
        Kind::VirtualService => of_virtual_service(state, key),
        Kind::Ingress | Kind::NetworkPolicy | Kind::Shoot => BTreeSet::new(),
    }
}

/// Returns the groups that a Secret of a gateway's is about.
pub fn groups_of_secret(state: &ClusterState, name: &str) -> BTreeSet<Arc<str>> {
    let mut groups = BTreeSet::new();
    for (key, gateway) in &state.istio_gateways {
        let tls = gateway
            .servers
            .iter()
            .filter_map(|server| server.tls.as_ref());
        if { tls }.any(|own| own.credential_name == name) {
            groups.extend(of_istio_gateway(state, key));
        }
    }
    for (key, rule) in state.destination_rules.iter() {
        let ports = rule.traffic_policy["portLevelSettings"].as_array();
        let mut policies = ports.into_iter().flatten().chain([&rule.traffic_policy]);
        if policies.any(|own| own["tls"]["credentialName"] == name) {
            groups.extend(state.destination_rules.namespaces_of(key));
        }
    }
    groups
}

/// Returns all groups that there may be something to say about.
pub fn all_groups(state: &ClusterState) -> BTreeSet<Arc<str>> {
    let mut groups: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut last: Option<&Arc<str>> = None;
    let keys = state.services.keys().chain(state.istio_gateways.keys());
    for key in keys
        .chain(state.gateways.keys())
        .chain(state.tls_routes.keys())
    {
        // They come in order: each namespace once is nearly all there is to insert.
        if last != Some(&key.namespace) {
            groups.insert(Arc::clone(&key.namespace));
            last = Some(&key.namespace);
        }
    }
    for key in state.virtual_services.keys() {
        groups.extend(state.virtual_services.namespaces_of(key));
    }
    for key in state.envoy_filters.keys() {
        groups.extend(state.envoy_filters.namespaces_of(key));
    }
    groups
}

/// A rule that leaves the destination to a header is about every Service, as is a restriction of a
/// whole listener; one of a server name is about the namespaces that have a route with it. A filter of
/// another namespace than a gateway's is about nothing: any author may write and change one.
fn of_filter(
    state: &ClusterState,
    entries: &[GatewayEntry],
    key: &ObjectKey,
) -> BTreeSet<Arc<str>> {
    if !entries.iter().any(|own| select::may_filter(own, key)) {
        return BTreeSet::new();
    }
    let filter = state.envoy_filters.get(key);
    let mut groups = state.envoy_filters.namespaces_of(key);
    for patch in filter.into_iter().flat_map(|filter| &filter.patches) {
        match patch {
            FilterPatch::Connect(connect) if connect.cluster.is_none() => return all_groups(state),
            FilterPatch::Restrict(restriction) => match &restriction.scope {
                Scope::Chain(name) => groups.extend(chained(state, name)),
                Scope::Listener => return all_groups(state),
                Scope::Namespaces => {}
                // Also what has no name of its own.
                Scope::ServerName(name) if **name == *"*" => return all_groups(state),
                Scope::ServerName(name) => groups.extend(named(state, name)),
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

fn chained(state: &ClusterState, name: &str) -> BTreeSet<Arc<str>> {
    let mut groups = BTreeSet::new();
    for patch in state.envoy_filters.values().flat_map(|own| &own.patches) {
        if let FilterPatch::Chain(chain) = patch
            && chain.name.as_deref() == Some(name)
        {
            groups.insert(Arc::clone(&chain.cluster.service.namespace));
        }
    }
    groups
}

/// Returns the groups of the objects that spell out a server name, or one within it: a route's name
/// is always one that some object says.
fn named(state: &ClusterState, pattern: &str) -> BTreeSet<Arc<str>> {
    let within = |text: &str| {
        let own = text.rsplit('/').next().unwrap_or(text).trim();
        normal_server_name(own).is_ok_and(|own| covers(pattern, &own))
    };
    let mut groups = BTreeSet::new();
    for (key, service) in state.virtual_services.iter() {
        let matches = service.tls.iter().flat_map(|route| &route.matches);
        if matches
            .flat_map(|one| &one.sni_hosts)
            .any(|host| within(host))
        {
            groups.extend(state.virtual_services.namespaces_of(key));
        }
    }
    for (key, gateway) in &state.istio_gateways {
        let mut hosts = gateway.servers.iter().flat_map(|server| &server.hosts);
        if hosts.any(|host| within(host)) {
            groups.extend(of_istio_gateway(state, key));
        }
    }
    for (key, gateway) in &state.gateways {
        if gateway.listeners.iter().any(|own| within(&own.hostname)) {
            groups.extend(bound_to(&state.tls_routes, key));
        }
    }
    for (key, route) in state.tls_routes.iter() {
        if route.hostnames.iter().any(|host| within(host)) {
            groups.extend(state.tls_routes.namespaces_of(key));
        }
    }
    for (key, service) in &state.services {
        if annotations::server_names(service).any(within) {
            groups.insert(Arc::clone(&key.namespace));
        }
    }
    groups
}

/// What is bound to a `Gateway` of its namespace that ends TLS says together which API server is
/// behind it, so it is also about whatever else is bound there.
fn of_virtual_service(state: &ClusterState, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let mut groups = state.virtual_services.namespaces_of(key);
    let service = state.virtual_services.get(key);
    let mentions = service.map(|service| service.mentions(key));
    for mention in mentions.into_iter().flatten() {
        if let Mention::Gateway(gateway) = mention
            && gateway.namespace == key.namespace
            && let Some(object) = state.istio_gateways.get(&gateway)
            && object.servers.iter().any(ends_tls)
        {
            groups.extend(of_istio_gateway(state, &gateway));
        }
    }
    groups
}

fn of_istio_gateway(state: &ClusterState, key: &ObjectKey) -> BTreeSet<Arc<str>> {
    let mut groups = bound_to(&state.virtual_services, key);
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
fn of_pod(state: &ClusterState, entries: &[GatewayEntry], pod: &ObjectKey) -> BTreeSet<Arc<str>> {
    let Some(labels) = state.pods.labels_of(pod) else {
        return BTreeSet::new();
    };
    let own = |entry: &&GatewayEntry| {
        *entry.namespace == *pod.namespace && has_labels(labels, &entry.selector)
    };
    let own: Vec<_> = entries.iter().filter(own).collect();
    // Others with the same labels say the same.
    if own.is_empty() || state.pods.count(&pod.namespace, labels) > 1 {
        return BTreeSet::new();
    }
    let open = |selector| own.iter().any(|entry| select::pods_decide(entry, selector));
    let mut groups = BTreeSet::new();
    for (key, gateway) in &state.istio_gateways {
        if open(&gateway.selector) {
            groups.extend(of_istio_gateway(state, key));
        }
    }
    for (key, filter) in state.envoy_filters.iter() {
        if open(&filter.workload_selector.labels) {
            groups.extend(of_filter(state, entries, key));
        }
    }
    for (key, gateway) in &state.gateways {
        if open(&gateway.infrastructure.labels) {
            groups.extend(bound_to(&state.tls_routes, key));
        }
    }
    groups
}
