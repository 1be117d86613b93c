//! Which Services to plan again after another object changed.
//!
//! Pure lookups in the state after the change, with what the object was before it. A
//! change that changes no plan gives nothing, where that is cheap to see.

use std::collections::BTreeSet;

use super::exposure::destinations;
use super::labels::requested_keys;
use super::service::{Compatibility, PolicySettings};
use crate::state::{
    ClusterState, Ingress, Labels, ObjectKey, TlsRoute, VirtualService, has_labels, in_namespace,
};

/// Returns the Services of a namespace, and those that select it as their clients', by the labels
/// it had or has.
#[must_use]
pub fn services_selecting(
    state: &ClusterState,
    old: &Labels,
    new: &Labels,
    namespace: &str,
) -> BTreeSet<ObjectKey> {
    let all = state.services.iter().filter(|(key, service)| {
        let selectors = service.namespace_selectors.as_deref().unwrap_or_default();
        &*key.namespace == namespace
            || selectors
                .iter()
                .any(|one| one.matches(old) || one.matches(new))
    });
    all.map(|(key, _)| key.clone()).collect()
}

/// Returns the Services that a namespace matters to: those of [`services_selecting`], and those
/// that ingress controllers and gateways in it lead to. What is routed by other means is not
/// among them.
///
/// To be called when it was created, deleted, got other labels or began to go away.
#[must_use]
pub fn services_of_namespace(
    state: &ClusterState,
    settings: &PolicySettings,
    namespace: &str,
    old: &Labels,
    new: &Labels,
) -> BTreeSet<ObjectKey> {
    let mut found = services_selecting(state, old, new, namespace);
    let controller = settings.ingress_controller.as_ref();
    if controller.is_some_and(|controller| controller.namespace == namespace) {
        for (key, ingress) in &state.ingresses {
            found.extend(services_of_ingress(&key.namespace, None, Some(ingress)));
        }
    }
    found.extend(services_of_gateway_pods(state, |selector| {
        let mut sets = state.pods.labels_in(namespace);
        sets.any(|labels| has_labels(labels, selector))
    }));
    for (gateway, _) in in_namespace(&state.gateways, namespace) {
        found.extend(services_of_gateway(state, gateway));
    }
    found
}

/// Returns the Services that a pod's labels matter to: those whose policies are only there while a
/// pod asks for them, and those that a gateway leads to whose pods it is one of.
///
/// `old` and `new` are its known labels before and after the change
/// ([`Pods::labels_of`](crate::state::Pods::labels_of)). A pod like another one that is there
/// changes nothing.
#[must_use]
pub fn services_of_pod_change(
    state: &ClusterState,
    settings: &PolicySettings,
    namespace: &str,
    old: Option<&Labels>,
    new: Option<&Labels>,
) -> BTreeSet<ObjectKey> {
    let mut found = BTreeSet::new();
    if old == new {
        return found;
    }
    let count = |labels: &Labels| state.pods.count(namespace, labels);
    let gone = old.filter(|labels| count(labels) == 0);
    let come = new.filter(|labels| count(labels) == 1);
    for labels in [gone, come].into_iter().flatten() {
        let gated = settings.compatibility == Compatibility::Upstream;
        if gated && requests_alone(state, namespace, labels) {
            let own = state.namespaces.get(namespace);
            let none = Labels::new();
            let own = own.map_or(&none, |namespace| &namespace.labels);
            found.extend(services_selecting(state, own, own, namespace));
        }
        found.extend(services_of_gateway_pods(state, |selector| {
            has_labels(labels, selector)
        }));
    }
    found
}

/// Returns the Services that an Ingress exposed before or exposes now, but not both in the same
/// way.
#[must_use]
pub fn services_of_ingress(
    namespace: &str,
    old: Option<&Ingress>,
    new: Option<&Ingress>,
) -> BTreeSet<ObjectKey> {
    let of = |ingress: Option<&Ingress>| -> BTreeSet<_> {
        let backends = ingress.map_or(&[][..], |ingress| &ingress.backends);
        backends.iter().cloned().collect()
    };
    let (old, new) = (of(old), of(new));
    let changed = old.symmetric_difference(&new);
    changed
        .map(|backend| ObjectKey::new(namespace, &backend.service))
        .collect()
}

/// Returns the Services that a `VirtualService` led to before or leads to now.
#[must_use]
pub fn services_of_virtual_service(
    key: &ObjectKey,
    old: Option<&VirtualService>,
    new: Option<&VirtualService>,
) -> BTreeSet<ObjectKey> {
    let all = old.into_iter().chain(new);
    let services = all.flat_map(|route| destinations(key, route));
    services.map(|(service, _)| service).collect()
}

/// Returns the Services that a `TLSRoute` led to before or leads to now.
#[must_use]
pub fn services_of_tls_route(
    key: &ObjectKey,
    old: Option<&TlsRoute>,
    new: Option<&TlsRoute>,
) -> BTreeSet<ObjectKey> {
    let all = old.into_iter().chain(new);
    let backends = all.flat_map(|route| route.rules.iter().flatten());
    backends
        .filter_map(|backend| backend.service(&key.namespace).ok())
        .collect()
}

/// Returns the Services that an Istio `Gateway` leads to.
#[must_use]
pub fn services_of_istio_gateway(state: &ClusterState, gateway: &ObjectKey) -> BTreeSet<ObjectKey> {
    services_through(state, &BTreeSet::from([gateway]))
}

/// Returns the Services that a `Gateway` of the Gateway API leads to.
#[must_use]
pub fn services_of_gateway(state: &ClusterState, gateway: &ObjectKey) -> BTreeSet<ObjectKey> {
    let all = state.tls_routes.iter();
    let bound = all.filter(|(key, route)| {
        let mut parents = route.parents.iter();
        parents.any(|parent| parent.gateway(&key.namespace).as_ref() == Some(gateway))
    });
    bound
        .flat_map(|(key, route)| services_of_tls_route(key, None, Some(route)))
        .collect()
}

/// Returns the Services that those Istio `Gateway`s lead to whose selector satisfies `has`.
fn services_of_gateway_pods(
    state: &ClusterState,
    has: impl Fn(&Labels) -> bool,
) -> BTreeSet<ObjectKey> {
    let all = state.istio_gateways.iter();
    let with = all.filter(|(_, gateway)| !gateway.selector.is_empty() && has(&gateway.selector));
    let with: BTreeSet<_> = with.map(|(key, _)| key).collect();
    if with.is_empty() {
        return BTreeSet::new();
    }
    services_through(state, &with)
}

fn services_through(state: &ClusterState, through: &BTreeSet<&ObjectKey>) -> BTreeSet<ObjectKey> {
    let all = state.virtual_services.iter();
    let bound = all.filter(|(key, route)| {
        let mut gateways = route.gateway_keys(&route.gateways, key);
        gateways.any(|one| through.contains(&one))
    });
    bound
        .flat_map(|(key, route)| services_of_virtual_service(key, None, Some(route)))
        .collect()
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
