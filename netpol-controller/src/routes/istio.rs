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

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use route::{RouteMatch, normal_server_name};

use super::claims::{Claim, Claims, Context, Source, Target};
use super::names::common;
use super::{GatewayEntry, Ports, select, terminate};
use crate::plan::Reason;
use crate::state::{
    ClusterState, IstioServer, Kind, MAX_ELEMENTS, Mention, ObjectKey, RouteDestination,
    ServerPort, TlsMatch, VirtualRoute, VirtualService, WeightedDestination, in_namespace,
    service_of_host,
};

mod listeners;

pub(super) use self::listeners::servers;

/// Suffixes of Services that Gardener adds to an API server's for other TLS settings.
const SIDE_SERVICES: [&str; 2] = ["-mtls", "-connection-upgrade"];

const API_SERVER_PORT: u16 = 443;

/// Most names, servers and pairs of them that are looked at for one `VirtualService` and gateway.
const MAX_WORK: usize = MAX_ELEMENTS * MAX_ELEMENTS;

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
            let bound = Bound::new(cx.state, entry, key, service);
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
            if bound.is_too_large.get() || service.namespaces(key).len() > MAX_ELEMENTS {
                own.insert(TOO_LARGE.to_owned());
            }
            Some(own)
        });
        if *key.namespace == *cx.namespace {
            claims.not_translated(&source.object, problems);
        }
    }
    claims
}

/// Why not all of a `VirtualService` is followed.
const TOO_LARGE: &str = "its gateways, matches, names or namespaces are too many: some are ignored";

/// A `VirtualService` as one gateway sees it.
struct Bound<'w> {
    state: &'w ClusterState,
    entry: &'w GatewayEntry,
    key: &'w ObjectKey,
    service: &'w VirtualService,
    /// What may still be looked at, since its lists multiply with each other and those of `Gateway`s.
    work: Cell<usize>,
    /// Names that it may still have.
    names: Cell<usize>,
    /// Some of it was ignored.
    is_too_large: Cell<bool>,
}

impl<'w> Bound<'w> {
    fn new(
        state: &'w ClusterState,
        entry: &'w GatewayEntry,
        key: &'w ObjectKey,
        service: &'w VirtualService,
    ) -> Self {
        Self {
            state,
            entry,
            key,
            service,
            work: Cell::new(MAX_WORK),
            names: Cell::new(MAX_ELEMENTS),
            is_too_large: Cell::new(false),
        }
    }

    /// Returns whether so much may still be looked at.
    fn may_look_at(&self, many: usize) -> bool {
        let left = self.work.get().checked_sub(many);
        self.work.set(left.unwrap_or(0));
        if left.is_none() {
            self.is_too_large.set(true);
        }
        left.is_some()
    }

    /// Returns whether any of its routes is for the gateway's port for TLS, as far as it is known.
    fn is_bound(&self) -> bool {
        let routes = [&self.service.tls, &self.service.tcp].into_iter().flatten();
        let matches = routes.flat_map(|route| &route.matches);
        let all = TlsMatch::default();
        !self.servers(&all).is_empty()
            || matches.into_iter().any(|one| !self.servers(one).is_empty())
            || self.is_too_large.get()
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
        if names.len() > self.names.get() {
            self.is_too_large.set(true);
            names.truncate(self.names.get());
            if names.is_empty() {
                return;
            }
        }
        self.names.set(self.names.get() - names.len());
        let target = destination(self.state, self.key, &route.destinations);
        let target = target.and_then(|target| {
            let service = &target.service;
            select::check_lead(self.state, self.entry, self.key, service).map(|()| target)
        });
        match target {
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
        let pairs = |server: &IstioServer| server.hosts.len() * one.sni_hosts.len();
        let hosts: BTreeSet<String> = passing
            .iter()
            .filter(|(_, server)| self.may_look_at(pairs(server)))
            .flat_map(|(key, server)| hosts(key, server, &self.key.namespace))
            .collect();
        if hosts.is_empty() && self.is_too_large.get() {
            return Vec::new();
        }
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
                if !self.may_look_at(server.hosts.len()) {
                    continue;
                }
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
        if names.len() > MAX_ELEMENTS {
            self.is_too_large.set(true);
        }
        if !self.may_look_at(names.len().min(MAX_ELEMENTS)) {
            return Vec::new();
        }
        let keys = self.service.gateway_keys(names, self.key).into_iter();
        let found = keys.filter_map(|key| self.state.istio_gateways.get_key_value(&key));
        let own = found.filter(|(_, gateway)| {
            self.may_look_at(gateway.servers.len())
                && gateway.servers.iter().any(wanted)
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
            let behind = api_servers(cx.state, entry, &key);
            let mut names_left = MAX_ELEMENTS;
            let mut is_too_large = gateway.servers.len() > MAX_ELEMENTS;
            for server in gateway.servers.iter().take(MAX_ELEMENTS) {
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
                    Tls::Terminate => {
                        match passed_through((cx.state, entry), behind.as_ref(), &key, server) {
                            Ok((mut names, target, mut message)) => {
                                is_too_large |= names.len() > names_left;
                                names.truncate(names_left);
                                names_left -= names.len();
                                let ends = entry.terminates_tls;
                                let ends = ends.then(|| {
                                    terminate::of(cx.state, entry, (&key, server), &target)
                                });
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
                        }
                    }
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
            if is_too_large && *key.namespace == *cx.namespace {
                let message = "its servers or names are too many: some are ignored";
                claims.problem(&source.object, Reason::RouteNotTranslated, message);
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
    (state, entry): (&ClusterState, &GatewayEntry),
    behind: Option<&BTreeSet<Target>>,
    key: &ObjectKey,
    server: &IstioServer,
) -> Result<(Vec<String>, Target, String), String> {
    let target = api_server(behind, key, server).ok_or_else(|| {
        let mode = server.tls_mode();
        format!("TLS is not terminated here ({mode}), and no API server is behind it")
    })?;
    select::check_lead(state, entry, key, &target.service)
        .map_err(|why| format!("TLS is not terminated here, and its API server's {why}"))?;
    let names = hosts(key, server, &key.namespace);
    let (shown, cluster) = (names.join(", "), target.cluster());
    let message = format!("TLS is not terminated here: {shown} is passed through to {cluster}");
    Ok((names, target, message))
}

/// Returns the API server that a server which ends TLS is in front of: the one that HTTP routes
/// lead to, or the namespace's when nothing is bound yet and clients may show certificates.
fn api_server(
    behind: Option<&BTreeSet<Target>>,
    gateway: &ObjectKey,
    server: &IstioServer,
) -> Option<Target> {
    let Some(found) = behind else {
        let service = ObjectKey::new(&gateway.namespace, "kube-apiserver");
        let asks = server.tls_mode() == "OPTIONAL_MUTUAL";
        return asks.then(|| Target::tcp(service, API_SERVER_PORT));
    };
    let sole = found.first().filter(|_| found.len() == 1);
    sole.cloned()
}

/// Returns the API servers that HTTP routes lead to from a `Gateway`; none when nothing is bound.
///
/// Only the `VirtualService`s of the `Gateway`'s own namespace count: any author may bind one to
/// it, and a single destination more would take the API server's names away.
fn api_servers(
    state: &ClusterState,
    entry: &GatewayEntry,
    gateway: &ObjectKey,
) -> Option<BTreeSet<Target>> {
    let mention = Mention::Gateway(gateway.clone());
    let bound = state.virtual_services.mentioning(&mention);
    let bound = bound.filter(|(key, _)| key.namespace == gateway.namespace);
    let mut found = None;
    for (key, service) in bound {
        let all: &mut BTreeSet<_> = found.get_or_insert_default();
        if select::exported(&service.export_to, &key.namespace, &entry.namespace) {
            let to = service.http.iter().flat_map(|route| &route.destinations);
            let to = to.take(MAX_ELEMENTS);
            all.extend(to.filter_map(|one| api_server_of(key, &one.destination)));
        }
    }
    found
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
