//! From permitted claims to routes, and to clusters with their endpoints.
//!
//! ```text
//!   Claims ──by gateway──▶ target ──DestinationRule, endpoints──▶ ClusterSpec
//!                          claim  ──timeouts, sources───────────▶ RouteSpec
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv6Addr, SocketAddr};

use route::{ClusterSpec, EndpointAddress, EndpointSpec, Handler, IpPrefix, OWN_PODS, RouteSpec};

use super::claims::{Claim, Claims, Context, Target, Times};
use super::{GatewayEntry, GatewayGroup, Group, Routed, SourcedRoute, policy};
use crate::plan::Reason;
use crate::state::{self, ClusterState, ObjectKey, Service, ServicePort, Sources, in_namespace};

/// Most clusters of one group. A gateway refuses all that is sent when it has more than
/// [`xds::MAX_RESOURCES`], and with it what other namespaces have.
const MAX_CLUSTERS: usize = 4096;

pub(super) fn group(cx: Context<'_>, claims: Claims) -> Group {
    let Claims { routes, problems } = claims;
    let mut by_gateway: Vec<Vec<Claim>> = cx.gateways().map(|_| Vec::new()).collect();
    for claim in routes {
        by_gateway[claim.gateway].push(claim);
    }
    let mut reports = Claims {
        routes: Vec::new(),
        problems,
    };
    let mut routed: BTreeMap<ObjectKey, BTreeSet<Routed>> = BTreeMap::new();
    let mut group = Group::default();
    for ((_, entry), claims) in cx.gateways().zip(by_gateway) {
        let mut clusters: BTreeMap<Target, (ClusterSpec, Times)> = BTreeMap::new();
        let mut routes = Vec::with_capacity(claims.len());
        for claim in claims {
            if clusters.len() >= MAX_CLUSTERS && !clusters.contains_key(&claim.target) {
                let message = format!("routes lead to more than {MAX_CLUSTERS} ports here");
                let object = &claim.source.object;
                reports.problem(object, Reason::RouteNotTranslated, &message);
                continue;
            }
            let (spec, times) = clusters.entry(claim.target.clone()).or_insert_with(|| {
                let mut spec = ClusterSpec::new(claim.target.cluster());
                spec.endpoints = endpoints(cx.state, &claim.target);
                let (times, adapted) = policy::apply(cx.state, entry, &claim.target, &mut spec);
                for (rule, message) in adapted {
                    reports.problem(&rule, Reason::RouteAdapted, &message);
                }
                (spec, times)
            });
            routes.push(route(&claim, spec, *times));
            if claim.sources.is_none() {
                continue;
            }
            match routed_port(cx.state, &claim) {
                Ok(port) => {
                    let service = claim.target.service.clone();
                    routed.entry(service).or_default().insert(port);
                }
                Err(why) => {
                    let message = format!("{why}: connections are refused");
                    let object = &claim.source.object;
                    reports.problem(object, Reason::RouteNotTranslated, &message);
                }
            }
        }
        let mut clusters: Vec<_> = clusters.into_values().map(|(spec, _)| spec).collect();
        clusters.extend(own_pods(cx, entry));
        clusters.sort_by(|a, b| a.name.cmp(&b.name));
        group.gateways.push(GatewayGroup { clusters, routes });
    }
    let sorted = |(key, ports): (ObjectKey, BTreeSet<Routed>)| (key, ports.into_iter().collect());
    group.routed = routed.into_iter().map(sorted).collect();
    group.problems = reports.problems.into_iter().collect();
    group
}

/// Returns the pods in a gateway's namespace with their zones, ready or not, as endpoints have them.
fn own_pods(cx: Context<'_>, entry: &GatewayEntry) -> Option<ClusterSpec> {
    if cx.namespace != entry.namespace {
        return None;
    }
    let services = in_namespace(&cx.state.services, cx.namespace);
    let sets = services.flat_map(|(key, _)| cx.state.endpoints_of(key));
    let addresses = sets.flat_map(|set| &set.subsets).flat_map(|own| &own.0);
    let zones = addresses.filter_map(|own| Some((own.ip, own.zone.clone()?)));
    let zones: BTreeMap<_, _> = zones.collect();
    let mut spec = ClusterSpec::new(OWN_PODS);
    let pods = zones.into_iter().map(|(ip, zone)| EndpointSpec {
        zone: Some(zone),
        ..EndpointSpec::new(EndpointAddress::Ip((ip, entry.ports.tls).into()))
    });
    spec.endpoints.extend(pods);
    (!spec.endpoints.is_empty()).then_some(spec)
}

fn route(claim: &Claim, cluster: &ClusterSpec, times: Times) -> SourcedRoute {
    let mut spec = RouteSpec::new(claim.matches.clone(), cluster.name.clone());
    spec.idle_timeout = claim.times.idle_timeout.or(times.idle_timeout);
    spec.max_connection_age = claim.times.max_connection_age.or(times.max_connection_age);
    spec.handler = claim.terminate.clone().map(Handler::new);
    if let Sources::Only(ranges) = &claim.sources {
        spec.allow_sources.clone_from(ranges);
        // An empty list admits all; from this address no client connects.
        if ranges.is_empty() {
            let nowhere = IpPrefix::host(Ipv6Addr::UNSPECIFIED.into());
            spec.allow_sources.push(nowhere);
        }
    }
    SourcedRoute {
        spec,
        source: claim.source.object.clone(),
        created: claim.source.created,
    }
}

/// Returns the port of the pods that a claim opens, or why there is none.
fn routed_port(state: &ClusterState, claim: &Claim) -> Result<Routed, String> {
    let target = &claim.target;
    let (service, protocol) = (&target.service, target.protocol.as_str());
    let Some(own) = state.services.get(service) else {
        return Err(format!("there is no Service {service}"));
    };
    if own.is_external_name {
        return Err(format!("Service {service} stands for a name elsewhere"));
    }
    let Some(port) = target.port_of(state) else {
        let port = target.port;
        return Err(format!("Service {service} has no {protocol} port {port}"));
    };
    Ok(Routed {
        gateway: claim.gateway,
        protocol: target.protocol,
        target: port.target.clone(),
    })
}

/// Returns the endpoints of a port; none when there is no such Service or port.
///
/// Those of the gateway's own zone come first unless a rule says otherwise. That is all that a
/// Service could ask for by `trafficDistribution` or `topology-mode`, so these are not read.
fn endpoints(state: &ClusterState, target: &Target) -> Vec<EndpointSpec> {
    let Some(service) = state.services.get(&target.service) else {
        return Vec::new();
    };
    // The name could lead to the gateway itself, or wherever its author may not.
    if service.is_external_name {
        return Vec::new();
    }
    let Some(port) = target.port_of(state) else {
        return Vec::new();
    };
    let found = addresses(state, target, port);
    let mut chosen: BTreeMap<SocketAddr, &state::EndpointAddress> = BTreeMap::new();
    // Those that end are used when no other is left.
    for terminating in [false, true] {
        if chosen.is_empty() {
            let own = found.iter().copied();
            chosen.extend(own.filter(|(_, own)| own.terminating == terminating));
        }
    }
    let family = family(service, &chosen);
    let chosen = chosen
        .into_iter()
        .filter(|(address, _)| family.is_none_or(|v6| address.is_ipv6() == v6))
        .take(xds::MAX_ENDPOINTS);
    chosen
        .map(|(address, own)| EndpointSpec {
            zone: own.zone.clone(),
            ..EndpointSpec::new(EndpointAddress::Ip(address))
        })
        .collect()
}

fn addresses<'w>(
    state: &'w ClusterState,
    target: &Target,
    port: &ServicePort,
) -> Vec<(SocketAddr, &'w state::EndpointAddress)> {
    let sets = state.endpoints_of(&target.service);
    let subsets = sets.flat_map(|set| &set.subsets);
    let found = subsets.flat_map(|(addresses, ports)| {
        let own = ports
            .iter()
            .find(|own| own.name == port.name && own.protocol == port.protocol && own.port > 0);
        let usable = addresses.iter().filter(|address| address.ready);
        own.into_iter().flat_map(move |own| {
            let usable = usable.clone();
            usable.map(|address| ((address.ip, own.port).into(), address))
        })
    });
    found.collect()
}

/// Of a Service of both families each pod has two addresses; returns which of them is used, IPv6 or
/// not: that of the first cluster address, when some pod has one.
fn family<T>(service: &Service, found: &BTreeMap<SocketAddr, T>) -> Option<bool> {
    let v6 = service.cluster_ips.first()?.is_ipv6();
    found
        .keys()
        .any(|address| address.is_ipv6() == v6)
        .then_some(v6)
}
