//! Routes from `TLSRoute`s and `Gateway`s of the Gateway API.
//!
//! A route is served when a listener for TLS passthrough on the gateway's port takes it: by section
//! name and port, by the namespaces it takes routes from, and by names in common. A backend is one
//! Service of the route's namespace; others would need a `ReferenceGrant`, which is not read.

use std::collections::BTreeSet;

use route::{RouteMatch, normal_server_name};

use super::draft::{Agreed, Draft, Source, Target, Times};
use super::names::common;
use super::{GatewayEntry, select};
use crate::plan::Reason;
use crate::world::{
    Gateway, GatewayListener, Kind, ObjectKey, ParentRef, RouteBackend, TlsRoute, World,
    in_namespace,
};

/// Tells of the `Gateway`s of the group's namespace that have listeners which cannot be served.
pub(super) fn gateways(draft: &mut Draft<'_>) {
    let world = draft.world;
    let namespace = draft.namespace.clone();
    for (key, gateway) in in_namespace(&world.gateways, &namespace) {
        let source = Source::new(Kind::Gateway, key, gateway.created);
        let mut problems = Agreed::default();
        for (_, entry) in draft.entries() {
            if select::takes_gateway(world, entry, key, gateway) {
                let unserved = gateway
                    .listeners
                    .iter()
                    .filter_map(|own| unserved(entry, own));
                problems.add(unserved.collect());
            }
        }
        for what in problems.all() {
            draft.problem(&source.object, Reason::RouteNotTranslated, &what);
        }
    }
}

fn unserved(entry: &GatewayEntry, listener: &GatewayListener) -> Option<String> {
    let name = &listener.name;
    if passes(listener) {
        let other = listener.port != entry.ports.tls;
        return other.then(|| {
            let own = entry.ports.tls;
            format!(
                "listener {name}: TLS is taken on port {own}, not {}",
                listener.port
            )
        });
    }
    let tls = matches!(listener.protocol.as_str(), "TLS" | "HTTPS");
    (tls && listener.port == entry.ports.tls)
        .then(|| format!("listener {name}: TLS is not ended here, only passed through"))
}

fn passes(listener: &GatewayListener) -> bool {
    listener.protocol == "TLS" && listener.tls.mode == "Passthrough"
}

/// Adds the routes of the group's `TLSRoute`s.
pub(super) fn tls_routes(draft: &mut Draft<'_>) {
    let world = draft.world;
    let namespace = draft.namespace.clone();
    for (key, route) in in_namespace(&world.tls_routes, &namespace) {
        let source = Source::new(Kind::TlsRoute, key, route.created);
        let mut problems = Agreed::default();
        for (index, entry) in draft.entries() {
            let mut own = BTreeSet::new();
            let (names, bound) = names(world, entry, key, route, &mut own);
            if !bound {
                continue;
            }
            if !names.is_empty() {
                match backend(world, key, route) {
                    Ok(target) => {
                        let matches = RouteMatch::ServerNames(names);
                        draft.route(index, matches, target, &source, Times::default());
                    }
                    Err(why) => drop(own.insert(why)),
                }
            }
            problems.add(own);
        }
        for what in problems.all() {
            draft.problem(&source.object, Reason::RouteNotTranslated, &what);
        }
    }
}

/// Returns the names under which a gateway's listeners take the route, and whether it is bound to
/// any `Gateway` of that gateway.
fn names(
    world: &World,
    entry: &GatewayEntry,
    key: &ObjectKey,
    route: &TlsRoute,
    problems: &mut BTreeSet<String>,
) -> (Vec<String>, bool) {
    let mut names = Vec::new();
    let mut bound = false;
    for parent in &route.parents {
        let Some(at) = parent.gateway(&key.namespace) else {
            continue;
        };
        let Some(gateway) = world.gateways.get(&at) else {
            continue;
        };
        if !select::takes_gateway(world, entry, &at, gateway) {
            continue;
        }
        bound = true;
        let taken = taken_names(world, entry, (key, route), parent, (&at, gateway));
        if taken.is_empty() {
            problems.insert(format!("no listener of Gateway {at} takes it"));
        }
        names.extend(taken);
    }
    names.sort();
    names.dedup();
    (names, bound)
}

fn taken_names(
    world: &World,
    entry: &GatewayEntry,
    (key, route): (&ObjectKey, &TlsRoute),
    parent: &ParentRef,
    (at, gateway): (&ObjectKey, &Gateway),
) -> Vec<String> {
    let fits = |listener: &&GatewayListener| {
        passes(listener)
            && listener.port == entry.ports.tls
            && (parent.section_name.is_empty() || parent.section_name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
            && takes_from(world, at, listener, key)
    };
    let mut names = Vec::new();
    for listener in gateway.listeners.iter().filter(fits) {
        let Some(own) = pattern(&listener.hostname) else {
            continue;
        };
        if route.hostnames.is_empty() {
            names.push(own);
            continue;
        }
        let wanted: Vec<String> = route
            .hostnames
            .iter()
            .filter_map(|name| pattern(name))
            .collect();
        let both = wanted.iter().filter_map(|wanted| common(wanted, &own));
        names.extend(both.map(str::to_owned));
    }
    names
}

/// Tells whether a listener takes routes from the route's namespace.
fn takes_from(
    world: &World,
    gateway: &ObjectKey,
    listener: &GatewayListener,
    route: &ObjectKey,
) -> bool {
    let allowed = &listener.allowed_routes.namespaces;
    match allowed.from.as_str() {
        "All" => true,
        "Selector" => {
            let namespace = world.namespaces.get(&route.namespace);
            namespace.is_some_and(|own| allowed.selector.matches(&own.labels))
        }
        "" | "Same" => route.namespace == gateway.namespace,
        _ => false,
    }
}

/// Returns a host name as a pattern; an empty one is every name.
fn pattern(name: &str) -> Option<String> {
    match name {
        "" => Some("*".to_owned()),
        name => normal_server_name(name).ok(),
    }
}

/// Returns the one port that the route's backends come to.
fn backend(world: &World, key: &ObjectKey, route: &TlsRoute) -> Result<Target, String> {
    let [rule] = route.rules.as_slice() else {
        return Err(format!("{} rules, there must be one", route.rules.len()));
    };
    let weighty = rule.iter().filter(|backend| backend.weight != Some(0));
    let targets: BTreeSet<Target> = weighty
        .map(|backend| target(world, key, backend))
        .collect::<Result<_, _>>()?;
    let mut targets = targets.into_iter();
    match (targets.next(), targets.next()) {
        (Some(target), None) => Ok(target),
        (None, _) => Err("no backend".to_owned()),
        (Some(_), Some(_)) => Err("several backends".to_owned()),
    }
}

fn target(world: &World, key: &ObjectKey, backend: &RouteBackend) -> Result<Target, String> {
    if !matches!(backend.kind.as_str(), "" | "Service") {
        return Err(format!("a backend of kind {}", backend.kind));
    }
    if !backend.namespace.is_empty() && *backend.namespace != *key.namespace {
        return Err(format!(
            "a backend in namespace {}: ReferenceGrants are not read",
            backend.namespace
        ));
    }
    let service = ObjectKey::new(&key.namespace, &backend.name);
    match backend.port {
        Some(port) if port > 0 => Ok(Target::tcp(service, port)),
        Some(_) | None => {
            let object = world.services.get(&service);
            match object.map_or(&[][..], |object| &object.ports) {
                [port] => Ok(Target::tcp(service, port.port)),
                ports => Err(format!(
                    "a port is needed, Service {service} has {}",
                    ports.len()
                )),
            }
        }
    }
}
