//! Routes from `TLSRoute`s and `Gateway`s of the Gateway API.
//!
//! A route is served when a listener on the gateway's port takes it. What that takes, and where a
//! route leads, is defined once for routes and policies, by [`ClusterState::accepted_names`] and
//! [`ClusterState::backend`].

use std::collections::BTreeSet;

use route::RouteMatch;

use super::claims::{Claims, Context, Source, Target};
use super::{GatewayEntry, select};
use crate::state::{
    ClusterState, GatewayListener, Kind, ObjectKey, ObjectRef, TlsRoute, in_namespace,
};

/// Returns the problems of the group's `Gateway`s that have listeners which cannot be served.
pub(super) fn gateways(cx: Context<'_>) -> Claims {
    let mut claims = Claims::default();
    for (key, gateway) in in_namespace(&cx.state.gateways, cx.namespace) {
        let problems = cx.shared_problems(|(_, entry)| {
            let serves = select::serves_gateway(cx.state, entry, key, gateway);
            let listeners = gateway.listeners.iter();
            serves.then(|| listeners.filter_map(|own| unserved(entry, own)).collect())
        });
        claims.not_translated(&ObjectRef::new(Kind::Gateway, key), problems);
    }
    claims
}

fn unserved(entry: &GatewayEntry, listener: &GatewayListener) -> Option<String> {
    let name = &listener.name;
    if listener.passes() {
        let other = listener.port != entry.ports.tls;
        return other.then(|| {
            let own = entry.ports.tls;
            format!(
                "listener {name}: TLS is accepted on port {own}, not {}",
                listener.port
            )
        });
    }
    let tls = matches!(listener.protocol.as_str(), "TLS" | "HTTPS");
    (tls && listener.port == entry.ports.tls)
        .then(|| format!("listener {name}: TLS is not terminated here, only passed through"))
}

pub(super) fn tls_routes(cx: Context<'_>) -> Claims {
    let mut claims = Claims::default();
    for (key, route) in in_namespace(&cx.state.tls_routes, cx.namespace) {
        let source = Source::new(Kind::TlsRoute, key, route.created);
        let problems = cx.shared_problems(|(index, entry)| {
            let mut own = BTreeSet::new();
            let names = names(cx.state, entry, key, route, &mut own)?;
            if !names.is_empty() {
                match cx.state.backend(key, route) {
                    Ok((service, port)) => {
                        let matches = RouteMatch::ServerNames(names);
                        let target = Target::tcp(service, port);
                        claims.routes.push(source.claim(index, matches, target));
                    }
                    Err(why) => drop(own.insert(why)),
                }
            }
            Some(own)
        });
        claims.not_translated(&source.object, problems);
    }
    claims
}

/// Returns the names under which a gateway's listeners take the route; `None` when it is bound to
/// no `Gateway` of that gateway.
fn names(
    state: &ClusterState,
    entry: &GatewayEntry,
    key: &ObjectKey,
    route: &TlsRoute,
    problems: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    let mut names: Option<BTreeSet<String>> = None;
    for parent in &route.parents {
        let Some(at) = parent.gateway(&key.namespace) else {
            continue;
        };
        let Some(gateway) = state.gateways.get(&at) else {
            continue;
        };
        if !select::serves_gateway(state, entry, &at, gateway) {
            continue;
        }
        let own = gateway.listeners.iter();
        let own = own.filter(|listener| listener.port == entry.ports.tls);
        let taken: Vec<String> = own
            .flat_map(|listener| state.accepted_names((key, route), parent, (&at, listener)))
            .collect();
        if taken.is_empty() {
            problems.insert(format!("no listener of Gateway {at} accepts it"));
        }
        names.get_or_insert_default().extend(taken);
    }
    names.map(|names| names.into_iter().collect())
}
