//! Which gateways and ingress controllers lead to a Service, and at which ports of its pods.
//!
//! Ingresses, `VirtualService`s and `TLSRoute`s name ports of the Service; policies need those of
//! its pods. What names no port of the Service leads nowhere and is passed over. What cannot be
//! followed (a gateway that is not there) is told on the object and does no harm to the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::describe::clip;
use super::ports::Port;
use super::service::{Grant, IngressController, Origin, RoutedPort};
use super::{Problem, Reason};
use crate::world::{
    BackendPort, Gateway, GatewayListener, Kind, LabelSelector, ObjectKey, ObjectRef, ParentRef,
    Protocol, RouteBackend, Service, ServicePort, TlsRoute, VirtualService, World, in_namespace,
};

/// Label of a gateway's pods with the name of their `Gateway` (Gateway API, GEP-1762).
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// Pods outside that lead connections to a port of a Service's pods.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Exposure {
    origin: Origin<'static>,
    /// Their namespace.
    pub(super) namespace: Arc<str>,
    clients: LabelSelector,
    port: Port,
}

impl Exposure {
    /// Returns it as what it grants.
    pub(super) fn grant(&self) -> Grant<'_> {
        Grant {
            origin: self.origin,
            namespace: &self.namespace,
            clients: self.clients.clone(),
            port: self.port.clone(),
        }
    }
}

/// Returns the exposure by what gateways route.
pub(super) fn routed(routed: &[RoutedPort]) -> impl Iterator<Item = Exposure> {
    routed.iter().map(|port| Exposure {
        origin: Origin::Gateway,
        namespace: Arc::clone(&port.gateway_namespace),
        clients: LabelSelector {
            match_labels: port.gateway_selector.clone(),
            match_expressions: Vec::new(),
        },
        port: Port::one(port.protocol, &port.target),
    })
}

/// Returns the exposure by Ingresses.
pub(super) fn ingresses<'a>(
    world: &'a World,
    controller: &'a IngressController,
    key: &'a ObjectKey,
    service: &'a Service,
) -> impl Iterator<Item = Exposure> {
    let all = in_namespace(&world.ingresses, &key.namespace);
    let backends = all.flat_map(|(_, ingress)| &ingress.backends);
    let own = backends.filter(|backend| *backend.service == *key.name);
    let ports = own.filter_map(|backend| target(service, &backend.port));
    let namespace: Arc<str> = controller.namespace.as_str().into();
    ports.map(move |port| Exposure {
        origin: Origin::IngressController,
        namespace: Arc::clone(&namespace),
        clients: controller.pod_selector.clone(),
        port,
    })
}

/// Returns the exposure by `VirtualService`s and `TLSRoute`s of the Service's namespace, and what
/// is wrong with them.
pub(super) fn routes(
    world: &World,
    key: &ObjectKey,
    service: &Service,
) -> (Vec<Exposure>, Vec<Problem>) {
    let mut found = Routes {
        world,
        exposures: Vec::new(),
        problems: Vec::new(),
    };
    for (name, route) in in_namespace(&world.virtual_services, &key.namespace) {
        let ports = virtual_ports(route, key, service);
        if !ports.is_empty() {
            found.virtual_service(name, route, &ports);
        }
    }
    for (name, route) in in_namespace(&world.tls_routes, &key.namespace) {
        let ports = tls_ports(route, key, service);
        if !ports.is_empty() {
            found.tls_route(name, route, &ports);
        }
    }
    (found.exposures, found.problems)
}

struct Routes<'a> {
    world: &'a World,
    exposures: Vec<Exposure>,
    problems: Vec<Problem>,
}

impl Routes<'_> {
    fn virtual_service(&mut self, key: &ObjectKey, route: &VirtualService, ports: &BTreeSet<Port>) {
        for gateway in gateways(key, route) {
            let Some(object) = self.world.istio_gateways.get(&gateway) else {
                let message = format!("Gateway {gateway} does not exist");
                self.problem(Kind::VirtualService, key, &message);
                continue;
            };
            if object.selector.is_empty() {
                let message = format!("Gateway {gateway} has no selector");
                self.problem(Kind::VirtualService, key, &message);
                continue;
            }
            let clients = LabelSelector {
                match_labels: object.selector.clone(),
                match_expressions: Vec::new(),
            };
            for namespace in self.world.pods.namespaces_of(&clients) {
                self.expose(&namespace, &clients, ports);
            }
        }
    }

    fn tls_route(&mut self, key: &ObjectKey, route: &TlsRoute, ports: &BTreeSet<Port>) {
        for (gateway, parent) in parents(key, route) {
            let Some(object) = self.world.gateways.get(&gateway) else {
                self.problem(
                    Kind::TlsRoute,
                    key,
                    &format!("Gateway {gateway} does not exist"),
                );
                continue;
            };
            let mut listeners = object.listeners.iter();
            if !listeners.any(|one| admits(self.world, &gateway, one, parent, key)) {
                let message = format!("no listener of Gateway {gateway} takes it");
                self.problem(Kind::TlsRoute, key, &message);
                continue;
            }
            self.expose(&gateway.namespace, &pods_of(&gateway, object), ports);
        }
    }

    fn expose(&mut self, namespace: &Arc<str>, clients: &LabelSelector, ports: &BTreeSet<Port>) {
        self.exposures.extend(ports.iter().map(|port| Exposure {
            origin: Origin::Gateway,
            namespace: Arc::clone(namespace),
            clients: clients.clone(),
            port: port.clone(),
        }));
    }

    fn problem(&mut self, kind: Kind, key: &ObjectKey, what: &str) {
        self.problems.push(Problem {
            object: ObjectRef {
                kind,
                key: key.clone(),
            },
            reason: Reason::RouteNotTranslated,
            message: clip(&format!("{what}: it gets no NetworkPolicies")),
        });
    }
}

/// Returns the port of the pods behind the Service's port. Of several with one number TCP's is
/// meant: nothing else is routed.
fn target(service: &Service, port: &BackendPort) -> Option<Port> {
    let named = |own: &&ServicePort| match port {
        BackendPort::Name(name) => own.name == *name,
        BackendPort::Number(number) => own.port == *number,
    };
    let mut ports = service.ports.iter().filter(named);
    let tcp = |own: &&ServicePort| own.protocol == Protocol::Tcp;
    let chosen = ports.clone().find(tcp).or_else(|| ports.next())?;
    Some(Port::one(chosen.protocol, &chosen.target))
}

/// Returns the gateways a `VirtualService` is bound to, but not the mesh, which has no pods of its
/// own.
pub(super) fn gateways<'a>(
    key: &'a ObjectKey,
    route: &'a VirtualService,
) -> impl Iterator<Item = ObjectKey> {
    let named = route.gateways.iter().filter(|name| *name != "mesh");
    named.map(|name| match name.split_once('/') {
        Some((namespace, name)) => ObjectKey::new(namespace, name),
        None => ObjectKey::new(&key.namespace, name),
    })
}

/// Returns the Services that a `VirtualService` leads to, with the ports it names: only by their
/// full names, and only in its own namespace.
pub(super) fn destinations<'a>(
    key: &'a ObjectKey,
    route: &'a VirtualService,
) -> impl Iterator<Item = (&'a str, u16)> {
    let routes = [&route.http, &route.tls, &route.tcp].into_iter().flatten();
    let all = routes.flat_map(|route| &route.destinations);
    all.filter_map(|weighted| {
        let destination = &weighted.destination;
        let host = destination.host.strip_suffix(".svc.cluster.local")?;
        let (service, namespace) = host.split_once('.')?;
        let number = destination.port?.number;
        (namespace == &*key.namespace && number > 0).then_some((service, number))
    })
}

/// Returns the `Gateway`s a `TLSRoute` is bound to.
pub(super) fn parents<'a>(
    key: &'a ObjectKey,
    route: &'a TlsRoute,
) -> impl Iterator<Item = (ObjectKey, &'a ParentRef)> {
    let of_gateways = route
        .parents
        .iter()
        .filter(|parent| is_kind(&parent.kind, "Gateway"));
    of_gateways.map(|parent| {
        (
            ObjectKey::new(or(&parent.namespace, key), &parent.name),
            parent,
        )
    })
}

/// Returns the backends of a `TLSRoute` that are Services of its namespace.
pub(super) fn backends<'a>(
    key: &'a ObjectKey,
    route: &'a TlsRoute,
) -> impl Iterator<Item = &'a RouteBackend> {
    let all = route.rules.iter().flatten();
    all.filter(|backend| {
        is_kind(&backend.kind, "Service") && or(&backend.namespace, key) == &*key.namespace
    })
}

fn virtual_ports(route: &VirtualService, key: &ObjectKey, service: &Service) -> BTreeSet<Port> {
    let own = destinations(key, route).filter(|(name, _)| *name == &*key.name);
    own.filter_map(|(_, number)| target(service, &BackendPort::Number(number)))
        .collect()
}

fn tls_ports(route: &TlsRoute, key: &ObjectKey, service: &Service) -> BTreeSet<Port> {
    let own = backends(key, route).filter(|backend| *backend.name == *key.name);
    let numbers = own.filter_map(|backend| backend.port);
    numbers
        .filter_map(|number| target(service, &BackendPort::Number(number)))
        .collect()
}

/// Tells whether a listener takes a route that is bound to it as `parent` says.
fn admits(
    world: &World,
    gateway: &ObjectKey,
    listener: &GatewayListener,
    parent: &ParentRef,
    route: &ObjectKey,
) -> bool {
    let namespaces = &listener.allowed_routes.namespaces;
    let from = match namespaces.from.as_str() {
        "All" => true,
        "Selector" => {
            let namespace = world.namespaces.get(&route.namespace);
            namespace.is_some_and(|own| namespaces.selector.matches(&own.labels))
        }
        "" | "Same" => route.namespace == gateway.namespace,
        _ => false,
    };
    from && listener.protocol == "TLS"
        && (parent.section_name.is_empty() || parent.section_name == listener.name)
        && parent.port.is_none_or(|port| port == listener.port)
}

/// Selects the pods that are made for a `Gateway`.
fn pods_of(key: &ObjectKey, gateway: &Gateway) -> LabelSelector {
    let mut labels = gateway.infrastructure_labels.clone();
    labels.insert(GATEWAY_NAME.to_owned(), key.name.to_string());
    LabelSelector {
        match_labels: labels,
        match_expressions: Vec::new(),
    }
}

fn is_kind(kind: &str, wanted: &str) -> bool {
    kind.is_empty() || kind == wanted
}

fn or<'a>(namespace: &'a str, key: &'a ObjectKey) -> &'a str {
    match namespace {
        "" => &key.namespace,
        namespace => namespace,
    }
}
