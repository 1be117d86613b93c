//! Servers of Istio `Gateway`s on the ports for node proxies and VPN clients.
//!
//! ```text
//!   TLS ─────────────────────────────────────────▶ problem
//!   HTTP, TCP ─ VirtualService ─▶ Service ─┬─▶ a route leads there: served
//!             └ none, or to no Service:    └─▶ none does: problem
//!               the port is open already
//! ```
//!
//! Gardener writes such servers so that Istio opens the port, and `EnvoyFilter`s for the routes; what
//! is bound to the server leads nowhere, or where a route leads too. Claims no route of its own.

use std::collections::BTreeSet;

use route::RouteMatch;

use super::{Bound, Tls, accepts_only, tls_of, weighted};
use crate::plan::Reason;
use crate::routes::claims::{Claims, Context};
use crate::routes::{GatewayEntry, select};
use crate::state::{
    IstioGateway, IstioServer, Kind, MAX_ELEMENTS, Mention, ObjectKey, ObjectRef, RouteDestination,
    TlsMatch, in_namespace, service_of_host,
};

/// Returns the problems of servers that no route serves; `routed` are the claims of all sources.
pub(in crate::routes) fn servers(cx: Context<'_>, routed: &Claims) -> Claims {
    let mut claims = Claims::default();
    with_tls(cx, &mut claims);
    without_tls(cx, routed, &mut claims);
    claims
}

/// Reports the servers with TLS of the namespace's `Gateway`s.
fn with_tls(cx: Context<'_>, claims: &mut Claims) {
    for (key, gateway) in in_namespace(&cx.state.istio_gateways, cx.namespace) {
        let problems = cx.shared_problems(|(_, entry)| {
            let servers = gateway.servers.iter();
            let with_tls = servers.filter(|own| tls_of(own) != Tls::Plain);
            let problem = |server: &IstioServer| {
                let accepted = accepted(cx, entry, gateway, server.port.number)?;
                Some(accepts_only(server, accepted))
            };
            let is_for = select::serves_istio_gateway(cx.state, entry, gateway);
            is_for.then(|| with_tls.filter_map(problem).collect())
        });
        for problem in problems {
            report(claims, key, &problem);
        }
    }
}

/// Reports the servers without TLS from which a `VirtualService` leads to a Service of the group that
/// no route leads to.
fn without_tls(cx: Context<'_>, routed: &Claims, claims: &mut Claims) {
    let mention = Mention::Namespace(cx.namespace.into());
    for (key, service) in cx.state.virtual_services.mentioning(&mention) {
        let problems = cx.shared_problems(|(index, entry)| {
            if !select::exported(&service.export_to, &key.namespace, &entry.namespace) {
                return None;
            }
            let bound = Bound::new(cx.state, entry, key, service);
            let (mut is_for, mut problems) = (false, BTreeSet::new());
            for plain in plain_routes(&bound) {
                let gateway = cx.state.istio_gateways.get(plain.gateway);
                let port = plain.server.port.number;
                let accepted = gateway.and_then(|own| accepted(cx, entry, own, port));
                let Some(accepted) = accepted else { continue };
                is_for = true;
                if let Some(missing) = plain.missing(cx, key, routed, (index, entry)) {
                    let only = accepts_only(plain.server, accepted);
                    problems.insert((plain.gateway.clone(), format!("{only}: {missing}")));
                }
            }
            is_for.then_some(problems)
        });
        for (gateway, problem) in problems {
            report(claims, &gateway, &problem);
        }
    }
}

/// Returns what a gateway accepts on a port that is for node proxies or VPN clients; `None` on others,
/// and where the port is for TLS of another gateway on the same pods.
fn accepted(
    cx: Context<'_>,
    entry: &GatewayEntry,
    gateway: &IstioGateway,
    port: u16,
) -> Option<&'static str> {
    let for_tls = |other: &GatewayEntry| {
        other.ports.tls == port && select::serves_istio_gateway(cx.state, other, gateway)
    };
    let what = if port == entry.ports.node {
        "PROXY headers and CONNECT"
    } else if port == entry.ports.vpn {
        "CONNECT"
    } else {
        return None;
    };
    (!cx.gateways().any(|(_, other)| for_tls(other))).then_some(what)
}

fn report(claims: &mut Claims, gateway: &ObjectKey, message: &str) {
    let object = ObjectRef::new(Kind::IstioGateway, gateway);
    claims.problem(&object, Reason::RouteNotTranslated, message);
}

/// A destination of a route, and the server without TLS that it leads from.
struct PlainRoute<'w> {
    gateway: &'w ObjectKey,
    server: &'w IstioServer,
    to: &'w RouteDestination,
}

/// Returns where routes lead from servers without TLS on the ports for node proxies and VPN clients:
/// from those for HTTP by HTTP routes, from others by TCP routes. The first [`MAX_ELEMENTS`] will do to
/// report what is missing.
fn plain_routes<'w>(bound: &Bound<'w>) -> Vec<PlainRoute<'w>> {
    let ports = bound.entry.ports;
    let all = [TlsMatch::default()];
    let mut found = Vec::new();
    for (routes, http) in [(&bound.service.http, true), (&bound.service.tcp, false)] {
        for route in routes {
            let matches = if route.matches.is_empty() {
                &all[..]
            } else {
                &route.matches
            };
            let servers = matches
                .iter()
                .flat_map(|one| bound.servers_on(one, &[ports.node, ports.vpn]));
            let plain =
                servers.filter(|(_, own)| tls_of(own) == Tls::Plain && speaks_http(own) == http);
            for (gateway, server) in plain {
                let to = weighted(&route.destinations).map(|one| &one.destination);
                let to = to.take(MAX_ELEMENTS - found.len());
                found.extend(to.map(|to| PlainRoute {
                    gateway,
                    server,
                    to,
                }));
            }
        }
    }
    found
}

impl PlainRoute<'_> {
    /// Returns what no route of a gateway leads to; `None` when one does, when the destination is
    /// another group's, or when there is no such Service, as behind a port that is only opened.
    fn missing(
        &self,
        cx: Context<'_>,
        bound: &ObjectKey,
        routed: &Claims,
        (index, entry): (usize, &GatewayEntry),
    ) -> Option<String> {
        let Some(service) = service_of_host(&self.to.host, &bound.namespace) else {
            let own = *bound.namespace == *cx.namespace;
            return own.then(|| format!("the host {:?} is not a Service's", self.to.host));
        };
        if *service.namespace != *cx.namespace || !cx.state.services.contains_key(&service) {
            return None;
        }
        let on_node = self.server.port.number == entry.ports.node;
        let mut own = routed.routes.iter().filter(|own| own.gateway == index);
        let served = own.any(|own| {
            let same = own.target.service == service
                && self
                    .to
                    .port
                    .is_none_or(|port| port.number == own.target.port);
            same && if speaks_http(self.server) {
                matches!(own.matches, RouteMatch::ConnectDestinations(_))
            } else {
                on_node && matches!(own.matches, RouteMatch::Destinations { .. })
            }
        });
        (!served).then(|| format!("no route there leads to Service {service}"))
    }
}

fn speaks_http(server: &IstioServer) -> bool {
    matches!(server.port.protocol.as_str(), "HTTP" | "HTTP2" | "GRPC")
}
