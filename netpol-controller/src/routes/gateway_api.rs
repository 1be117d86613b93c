//! Routes from `TLSRoute`s and `Gateway`s of the Gateway API.
//!
//! A route is served when a listener on the gateway's port takes it. What that takes, and where a
//! route leads, is told once for routes and policies, by [`World::taken_names`] and
//! [`World::backend`].

use std::collections::BTreeSet;

use route::RouteMatch;

use super::draft::{Agreed, Draft, Source, Target, Times};
use super::{GatewayEntry, select};
use crate::plan::Reason;
use crate::world::{GatewayListener, Kind, ObjectKey, TlsRoute, World, in_namespace};

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
    if listener.passes() {
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
                match world.backend(key, route) {
                    Ok((service, port)) => {
                        let target = Target::tcp(service, port);
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
        let own = gateway.listeners.iter();
        let own = own.filter(|listener| listener.port == entry.ports.tls);
        let taken: Vec<String> = own
            .flat_map(|listener| world.taken_names((key, route), parent, (&at, listener)))
            .collect();
        if taken.is_empty() {
            problems.insert(format!("no listener of Gateway {at} takes it"));
        }
        names.extend(taken);
    }
    names.sort();
    names.dedup();
    (names, bound)
}
