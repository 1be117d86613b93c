//! Which gateways and ingress controllers lead to a Service, and at which ports of its pods.
//!
//! Ingresses, `VirtualService`s and `TLSRoute`s name ports of the Service; policies need those of
//! its pods. What names no port of the Service leads nowhere and is passed over. What cannot be
//! followed (a missing gateway) is reported on the object and does not affect the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ports::Port;
use super::service::{Grant, IngressController, Origin, RoutedPort};
use super::{Problem, Reason};
use crate::state::{
    ClusterState, Gateway, Kind, LabelSelector, MAX_ELEMENTS, ObjectKey, ObjectRef, Protocol,
    Service, ServicePort, TargetPort, TlsRoute, VirtualService, in_namespace, service_of_host,
};

/// Label of a gateway's pods with the name of their `Gateway` (Gateway API, GEP-1762).
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

pub(super) fn routed(routed: &[RoutedPort]) -> impl Iterator<Item = Grant<'static>> {
    routed.iter().map(|port| Grant {
        origin: Origin::Gateway,
        namespace: Arc::clone(&port.gateway_namespace),
        clients: LabelSelector::of_labels(port.gateway_selector.clone()),
        port: Port::one(port.protocol, &port.target),
    })
}

pub(super) fn ingresses<'a>(
    state: &'a ClusterState,
    controller: &'a IngressController,
    key: &'a ObjectKey,
    service: &'a Service,
) -> impl Iterator<Item = Grant<'static>> {
    let all = in_namespace(&state.ingresses, &key.namespace);
    let backends = all.flat_map(|(_, ingress)| &ingress.backends);
    let own = backends.filter(|backend| *backend.service == *key.name);
    let ports = own.filter_map(|backend| target(service, &backend.port));
    let namespace: Arc<str> = controller.namespace.as_str().into();
    ports.map(move |port| Grant {
        origin: Origin::IngressController,
        namespace: Arc::clone(&namespace),
        clients: controller.pod_selector.clone(),
        port,
    })
}

/// Returns the exposure by `VirtualService`s and `TLSRoute`s of the Service's namespace, and what
/// is wrong with them.
pub(super) fn routes(
    state: &ClusterState,
    key: &ObjectKey,
    service: &Service,
) -> (Vec<Grant<'static>>, BTreeSet<Problem>) {
    let mut found = Routes {
        state,
        exposures: Vec::new(),
        problems: BTreeSet::new(),
    };
    for (name, route) in in_namespace(&state.virtual_services, &key.namespace) {
        let ports = virtual_ports(route, key, service);
        if !ports.is_empty() {
            found.virtual_service(name, route, &ports);
        }
    }
    for (name, route) in in_namespace(&state.tls_routes, &key.namespace) {
        if let Some(port) = tls_port(state, (name, route), key, service) {
            found.tls_route(name, route, &BTreeSet::from([port]));
        }
    }
    (found.exposures, found.problems)
}

struct Routes<'a> {
    state: &'a ClusterState,
    exposures: Vec<Grant<'static>>,
    problems: BTreeSet<Problem>,
}

impl Routes<'_> {
    fn virtual_service(&mut self, key: &ObjectKey, route: &VirtualService, ports: &BTreeSet<Port>) {
        if route.gateways.len() > MAX_ELEMENTS {
            let message = format!("more than {MAX_ELEMENTS} gateways, for the others");
            self.problem(Kind::VirtualService, key, &message);
        }
        // Many gateways of the same pods are one client.
        let mut selectors = BTreeSet::new();
        for gateway in route.gateway_keys(&route.gateways, key) {
            let Some(object) = self.state.istio_gateways.get(&gateway) else {
                let message = format!("Gateway {gateway} does not exist");
                self.problem(Kind::VirtualService, key, &message);
                continue;
            };
            if object.selector.is_empty() {
                let message = format!("Gateway {gateway} has no selector");
                self.problem(Kind::VirtualService, key, &message);
                continue;
            }
            selectors.insert(&object.selector);
        }
        for selector in selectors {
            let clients = LabelSelector::of_labels(selector.clone());
            for namespace in self.state.pods.namespaces_of(&clients) {
                self.expose(&namespace, &clients, ports);
            }
        }
    }

    fn tls_route(&mut self, key: &ObjectKey, route: &TlsRoute, ports: &BTreeSet<Port>) {
        for parent in &route.parents {
            let Some(gateway) = parent.gateway(&key.namespace) else {
                continue;
            };
            let Some(object) = self.state.gateways.get(&gateway) else {
                let message = format!("Gateway {gateway} does not exist");
                self.problem(Kind::TlsRoute, key, &message);
                continue;
            };
            let state = self.state;
            let names = |one| state.accepted_names((key, route), parent, (&gateway, one));
            if object.listeners.iter().all(|one| names(one).is_empty()) {
                let message = format!("no listener of Gateway {gateway} accepts it");
                self.problem(Kind::TlsRoute, key, &message);
                continue;
            }
            let clients = pods_of(&gateway, object);
            // A Gateway's name may be longer than a label's value.
            if let Err(why) = clients.check() {
                let message = format!("the pods of Gateway {gateway} cannot be selected, {why}");
                self.problem(Kind::TlsRoute, key, &message);
                continue;
            }
            self.expose(&gateway.namespace, &clients, ports);
        }
    }

    fn expose(&mut self, namespace: &Arc<str>, clients: &LabelSelector, ports: &BTreeSet<Port>) {
        self.exposures.extend(ports.iter().map(|port| Grant {
            origin: Origin::Gateway,
            namespace: Arc::clone(namespace),
            clients: clients.clone(),
            port: port.clone(),
        }));
    }

    fn problem(&mut self, kind: Kind, key: &ObjectKey, what: &str) {
        let object = ObjectRef::new(kind, key);
        let message = format!("{what}: it gets no NetworkPolicies");
        Problem::new(object, Reason::RouteNotTranslated, &message).add_to(&mut self.problems);
    }
}

/// Returns the port of the pods behind the Service's port. Of several with one number TCP's is
/// meant: nothing else is routed.
fn target(service: &Service, port: &TargetPort) -> Option<Port> {
    let named = |own: &&ServicePort| match port {
        TargetPort::Name(name) => own.name == *name,
        TargetPort::Number(number) => own.port == *number,
    };
    let mut ports = service.ports.iter().filter(named);
    let tcp = |own: &&ServicePort| own.protocol == Protocol::Tcp;
    let chosen = ports.clone().find(tcp).or_else(|| ports.next())?;
    Some(Port::one(chosen.protocol, &chosen.target))
}

/// Returns the Services that a `VirtualService` leads to, with the ports it names: only by their
/// full names, and only in its own namespace. Gardener does not look at `exportTo`, names or ports
/// of gateways either.
pub(super) fn destinations<'a>(
    key: &'a ObjectKey,
    route: &'a VirtualService,
) -> impl Iterator<Item = (ObjectKey, u16)> {
    route.destinations().filter_map(|weighted| {
        let destination = &weighted.destination;
        let service = service_of_host(&destination.host, "")?;
        let number = destination.port?.number;
        (service.namespace == key.namespace && number > 0).then_some((service, number))
    })
}

fn virtual_ports(route: &VirtualService, key: &ObjectKey, service: &Service) -> BTreeSet<Port> {
    let own = destinations(key, route).filter(|(found, _)| found == key);
    own.filter_map(|(_, number)| target(service, &TargetPort::Number(number)))
        .collect()
}

fn tls_port(
    state: &ClusterState,
    (name, route): (&ObjectKey, &TlsRoute),
    key: &ObjectKey,
    service: &Service,
) -> Option<Port> {
    let (found, number) = state.backend(name, route).ok()?;
    target(service, &TargetPort::Number(number)).filter(|_| found == *key)
}

/// Selects the pods that are made for a `Gateway`.
fn pods_of(key: &ObjectKey, gateway: &Gateway) -> LabelSelector {
    let mut labels = gateway.infrastructure.labels.clone();
    labels.insert(GATEWAY_NAME.to_owned(), key.name.to_string());
    LabelSelector::of_labels(labels)
}
