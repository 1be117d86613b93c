//! Which Services an object is about, so that its change plans no others again.
//!
//! Asked before and after the change: what an object was about is planned again as well. Pure
//! look-ups.

use std::collections::BTreeSet;

use super::exposure::destinations;
use super::labels::requested_keys;
use super::service::{Compatibility, PolicySettings};
use crate::state::{
    ClusterState, Ingress, Kind, Labels, Mention, ObjectKey, TlsRoute, VirtualService, has_labels,
    in_namespace,
};

/// Returns the Services whose policies an object decides about, as it is known now.
pub fn services_of(
    state: &ClusterState,
    settings: &PolicySettings,
    kind: Kind,
    key: &ObjectKey,
) -> BTreeSet<ObjectKey> {
    match kind {
        Kind::Gateway => of_gateway(state, key).collect(),
        Kind::Ingress => {
            let found = state.ingresses.get(key);
            found.map_or_else(BTreeSet::new, |own| exposed(key, own).collect())
        }
        Kind::IstioGateway => through(state, &BTreeSet::from([key])),
        Kind::Namespace => of_namespace(state, settings, &key.name),
        Kind::Pod => of_pod(state, settings, key),
        Kind::Service => {
            let found = state.services.contains_key(key);
            found.then(|| key.clone()).into_iter().collect()
        }
        Kind::TlsRoute => {
            let found = state.tls_routes.get(key);
            found.map_or_else(BTreeSet::new, |own| backends(key, own).collect())
        }
        Kind::VirtualService => {
            let found = state.virtual_services.get(key);
            found.map_or_else(BTreeSet::new, |own| led_to(key, own).collect())
        }
        Kind::DestinationRule
        | Kind::EndpointSlice
        | Kind::Endpoints
        | Kind::EnvoyFilter
        | Kind::NetworkPolicy
        | Kind::Shoot => BTreeSet::new(),
    }
}

fn exposed(key: &ObjectKey, ingress: &Ingress) -> impl Iterator<Item = ObjectKey> {
    let backends = ingress.backends.iter();
    backends.map(|backend| ObjectKey::new(&key.namespace, &backend.service))
}

fn led_to<'a>(key: &'a ObjectKey, route: &'a VirtualService) -> impl Iterator<Item = ObjectKey> {
    destinations(key, route).map(|(service, _)| service)
}

fn backends(key: &ObjectKey, route: &TlsRoute) -> impl Iterator<Item = ObjectKey> {
    let all = route.rules.iter().flat_map(|rule| &rule.backends);
    all.filter_map(|backend| backend.service(&key.namespace).ok())
}

/// Returns the Services of a namespace, those that select it as their clients', and those that
/// ingress controllers and gateways in it lead to. What is routed by other means is not among them.
fn of_namespace(
    state: &ClusterState,
    settings: &PolicySettings,
    name: &str,
) -> BTreeSet<ObjectKey> {
    let mut found = selecting(state, name);
    let controller = settings.ingress_controller_selector.as_ref();
    if controller.is_some_and(|controller| controller.namespace == name) {
        let all = state.ingresses.iter();
        found.extend(all.flat_map(|(key, ingress)| exposed(key, ingress)));
    }
    found.extend(of_gateway_pods(state, |selector| {
        let mut sets = state.pods.labels_in(name);
        sets.any(|labels| has_labels(labels, selector))
    }));
    let gateways = in_namespace(&state.gateways, name);
    found.extend(gateways.flat_map(|(gateway, _)| of_gateway(state, gateway)));
    found
}

/// Returns the Services of a namespace, and those that select it as their clients'.
fn selecting(state: &ClusterState, name: &str) -> BTreeSet<ObjectKey> {
    let labels = state.namespaces.get(name).map(|own| &own.labels);
    let all = state.services.iter().filter(|(key, service)| {
        let mut selectors = service.namespace_selectors.iter().flatten();
        &*key.namespace == name
            || labels.is_some_and(|labels| selectors.any(|one| one.matches(labels)))
    });
    all.map(|(key, _)| key.clone()).collect()
}

/// Returns the Services whose policies are only there while a pod asks for them, and those that a
/// gateway leads to whose pods it is one of; none while there is another pod with its labels.
fn of_pod(state: &ClusterState, settings: &PolicySettings, pod: &ObjectKey) -> BTreeSet<ObjectKey> {
    let labels = state.pods.labels_of(pod);
    let sole = |labels: &&_| state.pods.count(&pod.namespace, labels) == 1;
    let Some(labels) = labels.map(AsRef::as_ref).filter(sole) else {
        return BTreeSet::new();
    };
    let mut found = of_gateway_pods(state, |selector| has_labels(labels, selector));
    let gated = settings.compatibility == Compatibility::Upstream;
    if gated && requests_alone(state, &pod.namespace, labels) {
        found.extend(selecting(state, &pod.namespace));
    }
    found
}

fn of_gateway(state: &ClusterState, gateway: &ObjectKey) -> impl Iterator<Item = ObjectKey> {
    let mention = Mention::Gateway(gateway.clone());
    let bound = state.tls_routes.mentioning(&mention);
    bound.flat_map(|(key, route)| backends(key, route))
}

/// Returns the Services that those Istio `Gateway`s lead to whose selector satisfies `has`.
fn of_gateway_pods(state: &ClusterState, has: impl Fn(&Labels) -> bool) -> BTreeSet<ObjectKey> {
    let all = state.istio_gateways.iter();
    let with = all.filter(|(_, gateway)| !gateway.selector.is_empty() && has(&gateway.selector));
    through(state, &with.map(|(key, _)| key).collect())
}

fn through(state: &ClusterState, gateways: &BTreeSet<&ObjectKey>) -> BTreeSet<ObjectKey> {
    let mentions = gateways.iter().map(|key| Mention::Gateway((*key).clone()));
    let bound = mentions.flat_map(|one| state.virtual_services.mentioning(&one));
    bound.flat_map(|(key, route)| led_to(key, route)).collect()
}

/// Returns whether these labels ask for something that no others in the namespace ask for.
fn requests_alone(state: &ClusterState, namespace: &str, labels: &Labels) -> bool {
    let mut keys = requested_keys(labels);
    keys.any(|key| {
        let mut others = state
            .pods
            .labels_in(namespace)
            .filter(|others| *others != labels);
        !others.any(|others| requested_keys(others).any(|other| other == key))
    })
}

#[cfg(test)]
mod tests;
