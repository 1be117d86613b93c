//! Routes from `VirtualService`s and `Gateway`s of Istio.
//!
//! ```text
//!   Gateway server (port, protocol, names) ─┐
//!                                           ├─ names in common ─▶ server names ─▶ Service
//!   VirtualService tls / tcp route ─────────┘
//! ```
//!
//! A server that ends TLS in front of an API server, as Gardener writes it by default, is served as
//! passthrough of its names, since the API server ends TLS itself; with `tlsTermination` as one that ends it.

use std::collections::BTreeSet;
use std::sync::Arc;

use route::{RouteMatch, normal_server_name};

use super::claims::{Claim, Claims, Context, Source, Target};
use super::names::common;
use super::{GatewayEntry, Ports, select, terminate};
use crate::plan::Reason;
use crate::state::{
    ClusterState, IstioServer, Kind, Mention, ObjectKey, RouteDestination, ServerPort, TlsMatch,
    VirtualRoute, VirtualService, WeightedDestination, in_namespace, service_of_host,
};

mod listeners;

pub(super) use self::listeners::servers;

/// Suffixes of Services that Gardener adds to an API server's for other TLS settings.
const SIDE_SERVICES: [&str; 2] = ["-mtls", "-connection-upgrade"];

const API_SERVER_PORT: u16 = 443;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tls {
    /// Passes it on, by server name.
    Passthrough,
    /// Ends it.
    Terminate,
    /// Passes it on to destinations that the server name spells out.
    Auto,
    /// Has none.
    Plain,
}

fn tls_of(server: &IstioServer) -> Tls {
    match (server.port.protocol.as_str(), server.tls_mode()) {
        (_, "AUTO_PASSTHROUGH") => Tls::Auto,
        (_, "PASSTHROUGH") => Tls::Passthrough,
        ("HTTP" | "HTTP2" | "TCP" | "GRPC" | "MONGO", "") => Tls::Plain,
        (_, _) => Tls::Terminate,
    }
}

pub(super) fn ends_tls(server: &IstioServer) -> bool {
    tls_of(server) == Tls::Terminate
}

/// Returns the routes of the `VirtualService`s that lead into the group's namespace, and the
/// problems of those that lie in it.
pub(super) fn virtual_services(cx: Context<'_>) -> Claims {
    let mut claims = Claims::default();
    let mention = Mention::Namespace(cx.namespace.into());
    for (key, service) in cx.state.virtual_services.mentioning(&mention) {
        let source = Source::new(Kind::VirtualService, key, service.created);
        let problems = cx.shared_problems(|(index, entry)| {
            let bound = Bound {
                state: cx.state,
                entry,
                key,
                service,
            };
            if !select::exported(&service.export_to, &key.namespace, &entry.namespace)
                || !bound.is_bound()
            {
                return None;
            }
            let mut own = BTreeSet::new();
            let routes = bound.routes(&mut own).into_iter();
            claims.routes.extend(routes.map(|(names, target)| {
                source.claim(index, RouteMatch::ServerNames(names), target)
            }));
            Some(own)
        });
        if *key.namespace == *cx.namespace {
            claims.not_translated(&source.object, problems);
        }
    }
    claims
}

/// A `VirtualService` as one gateway sees it.
struct Bound<'w> {
    state: &'w ClusterState,
    entry: &'w GatewayEntry,
    key: &'w ObjectKey,
    service: &'w VirtualService,
}

impl<'w> Bound<'w> {
    /// Returns whether any of its routes is for the gateway's port for TLS.
    fn is_bound(&self) -> bool {
        let routes = [&self.service.tls, &self.service.tcp].into_iter().flatten();
        let matches = routes.flat_map(|route| &route.matches);
        let all = TlsMatch::default();
        !self.servers(&all).is_empty()
            || matches.into_iter().any(|one| !self.servers(one).is_empty())
    }

    fn routes(&self, problems: &mut BTreeSet<String>) -> Vec<(Vec<String>, Target)> {
        let mut found = Vec::new();
        for (place, route) in self.service.tls.iter().enumerate() {
            let at = format!("tls[{place}]");
            let wanted = route
                .matches
                .iter()
                .map(|one| self.tls_names(one, &at, problems));
            let names: Vec<String> = wanted.flatten().collect();
            self.lead(route, &at, names, problems, &mut found);
        }
        for (place, route) in self.service.tcp.iter().enumerate() {
            let at = format!("tcp[{place}]");
            let names = self.tcp_names(route, &at, problems);
            self.lead(route, &at, names, problems, &mut found);
        }
        found
    }

    fn lead(
        &self,
        route: &VirtualRoute,
        at: &str,
        mut names: Vec<String>,
        problems: &mut BTreeSet<String>,
        found: &mut Vec<(Vec<String>, Target)>,
    ) {
        if names.is_empty() {
            return;
        }
        names.sort();
        names.dedup();
        match destination(self.state, self.key, &route.destinations) {
            Ok(target) => found.push((names, target)),
            Err(why) => drop(problems.insert(format!("{at}: {why}"))),
        }
    }

    /// Returns the names of a match that some server of its gateways passes on.
    fn tls_names(&self, one: &TlsMatch, at: &str, problems: &mut BTreeSet<String>) -> Vec<String> {
        let servers = self.servers(one);
        let passing: Vec<_> = servers
            .iter()
            .filter(|(_, server)| tls_of(server) == Tls::Passthrough)
            .collect();
        if servers.is_empty() {
            return Vec::new();
        }
        if let Some(what) = unknown_in(one) {
            problems.insert(format!("{at}: a match by {what}"));
            return Vec::new();
        }
        if passing.is_empty() {
            problems.insert(format!(
                "{at}: no server of its gateways passes TLS through"
            ));
            return Vec::new();
        }
        let hosts: Vec<String> = passing
            .iter()
            .flat_map(|(key, server)| hosts(key, server, &self.key.namespace))
            .collect();
        let mut names = Vec::new();
        for wanted in &one.sni_hosts {
            let wanted = match normal_server_name(wanted) {
                Ok(wanted) => wanted,
                Err(error) => {
                    problems.insert(format!("{at}: {wanted:?}: {error}"));
                    continue;
                }
            };
            let before = names.len();
            let both = hosts.iter().filter_map(|host| common(host, &wanted));
            names.extend(both.map(str::to_owned));
            if names.len() == before {
                problems.insert(format!("{at}: no server of its gateways is for {wanted:?}"));
            }
        }
        names
    }

    /// A TCP route takes what the TLS servers of its gateways have no other route for: here, all of
    /// their names.
    fn tcp_names(
        &self,
        route: &VirtualRoute,
        at: &str,
        problems: &mut BTreeSet<String>,
    ) -> Vec<String> {
        let all = [TlsMatch::default()];
        let matches = if route.matches.is_empty() {
            &all[..]
        } else {
            &route.matches
        };
        let mut names = Vec::new();
        for one in matches {
            let servers = self.servers(one);
            if servers.is_empty() {
                continue;
            }
            if let Some(what) = unknown_in(one) {
                problems.insert(format!("{at}: a match by {what}"));
                continue;
            }
            for (key, server) in servers {
                if tls_of(server) == Tls::Passthrough {
                    names.extend(hosts(key, server, &self.key.namespace));
                } else {
                    problems.insert(format!("{at}: Gateway {key} has no TLS to pass through"));
                }
            }
        }
        names
    }

    /// Returns the servers on the gateway's port for TLS that a match is about.
    fn servers(&self, one: &TlsMatch) -> Vec<(&'w ObjectKey, &'w IstioServer)> {
        self.servers_on(one, &[self.entry.ports.tls])
    }

    /// Returns the servers on some ports that a match is about.
    fn servers_on(&self, one: &TlsMatch, ports: &[u16]) -> Vec<(&'w ObjectKey, &'w IstioServer)> {
        let wanted = |server: &IstioServer| {
            let port = server.port.number;
            ports.contains(&port) && one.port.is_none_or(|own| own == port)
        };
        let names = match one.gateways.as_slice() {
            [] => &self.service.gateways,
            own => own,
        };
        let keys = self.service.gateway_keys(names, self.key);
        let found = keys.filter_map(|key| self.state.istio_gateways.get_key_value(&key));
        let own = found.filter(|(_, gateway)| {
            gateway.servers.iter().any(wanted)
                && select::serves_istio_gateway(self.state, self.entry, gateway)
        });
        let servers =
            own.flat_map(|(key, gateway)| gateway.servers.iter().map(move |server| (key, server)));
        servers.filter(|(_, server)| wanted(server)).collect()
    }
}

/// Returns the criterion of a match that a gateway does not support.
fn unknown_in(one: &TlsMatch) -> Option<&'static str> {
    if !one.destination_subnets.is_empty() {
        Some("destinationSubnets")
    } else if !one.source_labels.is_empty() {
        Some("sourceLabels")
    } else if one.source_namespace.is_some() {
        Some("sourceNamespace")
    } else {
        None
    }
}

/// Returns the names of a server that are open to `VirtualService`s of a namespace, normal; those
/// that are no names are left out.
fn hosts(gateway: &ObjectKey, server: &IstioServer, namespace: &str) -> Vec<String> {
    let open = server
        .hosts
        .iter()
        .filter_map(|host| match host.split_once('/') {
            None | Some(("*", _)) => Some(host.rsplit('/').next().unwrap_or(host)),
            Some((".", name)) => (*gateway.namespace == *namespace).then_some(name),
            Some((own, name)) => (own == namespace).then_some(name),
        });
    open.filter_map(|host| normal_server_name(host).ok())
        .collect()
}

/// Returns the one port that all destinations have.
fn destination(
    state: &ClusterState,
    own: &ObjectKey,
    destinations: &[WeightedDestination],
) -> Result<Target, String> {
    let mut targets = BTreeSet::new();
    for one in weighted(destinations) {
        if let Some(subset) = &one.destination.subset {
            return Err(format!("the subset {subset:?}"));
        }
        targets.insert(target(state, own, &one.destination)?);
    }
    let mut targets = targets.into_iter();
    match (targets.next(), targets.next()) {
        (Some(target), None) => Ok(target),
        (None, _) => Err("no destination".to_owned()),
        (Some(_), Some(_)) => Err("several destinations".to_owned()),
    }
}

/// Returns the destinations that get any of the traffic.
fn weighted(destinations: &[WeightedDestination]) -> impl Iterator<Item = &WeightedDestination> {
    let sole = destinations.len() == 1;
    destinations
        .iter()
        .filter(move |one| sole || one.weight > 0)
}

fn target(state: &ClusterState, own: &ObjectKey, to: &RouteDestination) -> Result<Target, String> {
    let service = service_of_host(&to.host, &own.namespace)
        .ok_or_else(|| format!("the host {:?} is not a Service's", to.host))?;
    let port = match to.port {
        Some(port) if port.number > 0 => port.number,
        Some(_) => return Err("port 0".to_owned()),
        None => state.sole_port(&service)?,
    };
    Ok(Target::tcp(service, port))
}

/// Returns passthrough routes for servers that end TLS in front of API servers of the group's
/// namespace, and the problems of the `Gateway`s that lie in it.
pub(super) fn terminating_gateways(cx: Context<'_>) -> Claims {
    let mut claims = Claims::default();
    for key in gateways_near(cx) {
        let Some(gateway) = cx.state.istio_gateways.get(&key) else {
            continue;
        };
        let source = Source::new(Kind::IstioGateway, &key, gateway.created);
        for (index, entry) in cx.gateways() {
            if !select::serves_istio_gateway(cx.state, entry, gateway) {
                continue;
            }
            for server in &gateway.servers {
                let (port, ports) = (server.port.number, &entry.ports);
                let mut serving = cx
                    .gateways()
                    .filter(|(_, other)| select::serves_istio_gateway(cx.state, other, gateway));
                let known = |ports: &Ports| [ports.tls, ports.node, ports.vpn].contains(&port);
                if port != ports.tls && serving.any(|(_, other)| known(&other.ports)) {
                    continue;
                }
                let (reason, message) = match tls_of(server) {
                    _ if port != ports.tls => {
                        let tls = ports.tls;
                        let message = format!("port {port} is not the gateway's for TLS, {tls}");
                        (Reason::RouteNotTranslated, message)
                    }
                    Tls::Passthrough => continue,
                    Tls::Terminate => match passed_through(cx.state, entry, &key, server) {
                        Ok((names, target, mut message)) => {
                            let ends = entry.terminates_tls;
                            let ends = ends
                                .then(|| terminate::of(cx.state, entry, (&key, server), &target));
                            let (ends, why) =
                                ends.map_or((None, None), |own| (own.clone().ok(), own.err()));
                            message.extend(why.map(|why| format!(": {why}")));
                            let problems = ends
                                .as_ref()
                                .map(|own| terminate::problems(cx.state, entry, own));
                            if !names.is_empty() {
                                let matches = RouteMatch::ServerNames(names);
                                claims.routes.push(Claim {
                                    terminate: ends.map(Arc::new),
                                    ..source.claim(index, matches, target)
                                });
                            }
                            match problems {
                                Some(problems) if problems.is_empty() => continue,
                                Some(problems) => {
                                    let why = problems.join("; ");
                                    let message = format!(
                                        "gateways without its Secrets pass TLS through: {why}"
                                    );
                                    (Reason::RouteAdapted, message)
                                }
                                None => (Reason::RouteAdapted, message),
                            }
                        }
                        Err(message) => (Reason::RouteNotTranslated, message),
                    },
                    Tls::Auto => (
                        Reason::RouteNotTranslated,
                        "AUTO_PASSTHROUGH: clients would choose any Service".to_owned(),
                    ),
                    Tls::Plain => (Reason::RouteNotTranslated, accepts_only(server, "TLS")),
                };
                if *key.namespace == *cx.namespace {
                    claims.problem(&source.object, reason, &message);
                }
            }
        }
    }
    claims
}

/// Returns the problem of a server on a port of a listener for something else.
fn accepts_only(server: &IstioServer, accepted: &str) -> String {
    let ServerPort { number, protocol } = &server.port;
    format!("{protocol} on port {number}, which accepts only {accepted}")
}

/// Returns the Istio `Gateway`s in the namespace, and those that lead into it.
fn gateways_near(cx: Context<'_>) -> BTreeSet<ObjectKey> {
    let mention = Mention::Namespace(cx.namespace.into());
    let services = cx.state.virtual_services.mentioning(&mention);
    let bound = services.flat_map(|(key, own)| own.gateway_keys(&own.gateways, key));
    let own = in_namespace(&cx.state.istio_gateways, cx.namespace);
    bound.chain(own.map(|(key, _)| key.clone())).collect()
}

/// Returns the names of a server that ends TLS, the API server that they are passed through to, and
/// the message that says so; or why they are not.
fn passed_through(
    state: &ClusterState,
    entry: &GatewayEntry,
    key: &ObjectKey,
    server: &IstioServer,
) -> Result<(Vec<String>, Target, String), String> {
    let target = api_server(state, entry, key, server).ok_or_else(|| {
        let mode = server.tls_mode();
        format!("TLS is not terminated here ({mode}), and no API server is behind it")
    })?;
    let names = hosts(key, server, &key.namespace);
    let (shown, cluster) = (names.join(", "), target.cluster());
    let message = format!("TLS is not terminated here: {shown} is passed through to {cluster}");
    Ok((names, target, message))
}

/// Returns the API server that a server which ends TLS is in front of: the one that HTTP routes
/// lead to, or the namespace's when nothing is bound yet and clients may show certificates.
///
/// Only the `VirtualService`s of the `Gateway`'s own namespace count: any author may bind one to
/// it, and a single destination more would take the API server's names away.
fn api_server(
    state: &ClusterState,
    entry: &GatewayEntry,
    gateway: &ObjectKey,
    server: &IstioServer,
) -> Option<Target> {
    let mention = Mention::Gateway(gateway.clone());
    let bound = state.virtual_services.mentioning(&mention);
    let bound = bound.filter(|(key, _)| key.namespace == gateway.namespace);
    let mut any = false;
    let mut found = BTreeSet::new();
    for (key, service) in bound {
        any = true;
        if select::exported(&service.export_to, &key.namespace, &entry.namespace) {
            let to = service.http.iter().flat_map(|route| &route.destinations);
            found.extend(to.filter_map(|one| api_server_of(key, &one.destination)));
        }
    }
    if !any && server.tls_mode() == "OPTIONAL_MUTUAL" {
        let service = ObjectKey::new(&gateway.namespace, "kube-apiserver");
        found.insert(Target::tcp(service, API_SERVER_PORT));
    }
    found.pop_first().filter(|_| found.is_empty())
}

fn api_server_of(own: &ObjectKey, to: &RouteDestination) -> Option<Target> {
    let service = service_of_host(&to.host, &own.namespace)?;
    let mut name = &*service.name;
    for suffix in SIDE_SERVICES {
        name = name.strip_suffix(suffix).unwrap_or(name);
    }
    let port = to.port.map_or(API_SERVER_PORT, |port| port.number);
    let service = ObjectKey::new(&service.namespace, name);
    name.ends_with("kube-apiserver")
        .then(|| Target::tcp(service, port))
}
