//! Clusters: the addresses behind a Service's port, and how they are used.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use route::{ClusterSpec, EndpointAddress, EndpointSpec};

use super::draft::Target;
use super::policy::Policy;
use crate::world::{Service, ServicePort, World};

/// Returns the cluster of a port. It has no endpoints when there is no such Service or port.
///
/// Endpoints of the gateway's own zone come first unless a rule says otherwise. That is all that a
/// Service could ask for by `trafficDistribution` or `topology-mode`, so these are not read.
pub(super) fn cluster(world: &World, target: &Target, policy: &Policy) -> ClusterSpec {
    let mut spec = ClusterSpec::new(target.cluster());
    spec.endpoints = endpoints(world, target);
    spec.balance = policy.balance.unwrap_or(spec.balance);
    spec.zone_aware = policy.zone_aware.unwrap_or(spec.zone_aware);
    let timeout = policy.connect_timeout.filter(|timeout| !timeout.is_zero());
    spec.connect_timeout = timeout.unwrap_or(spec.connect_timeout);
    spec.max_connections = policy.max_connections.unwrap_or(spec.max_connections);
    spec.outlier = policy.outlier.clone().unwrap_or(spec.outlier);
    spec.send_proxy_protocol = policy.proxy_protocol;
    spec.tcp = policy.tcp.clone().map(Arc::new);
    spec
}

fn endpoints(world: &World, target: &Target) -> Vec<EndpointSpec> {
    let Some(service) = world.services.get(&target.service) else {
        return Vec::new();
    };
    if let Some(name) = &service.external_name {
        return external(name, target.port);
    }
    let Some(port) = target.port_of(world) else {
        return Vec::new();
    };
    let found = addresses(world, target, port);
    let mut chosen: BTreeMap<SocketAddr, Option<Arc<str>>> = BTreeMap::new();
    // Those that end are used when no other is left.
    for terminating in [false, true] {
        if chosen.is_empty() {
            let own = found.iter().filter(|one| one.terminating == terminating);
            chosen.extend(own.map(|one| (one.address, one.zone.clone())));
        }
    }
    let family = family(service, &chosen);
    let chosen = chosen
        .into_iter()
        .filter(|(address, _)| family.is_none_or(|v6| address.is_ipv6() == v6));
    chosen
        .map(|(address, zone)| EndpointSpec {
            zone: zone.map(|zone| zone.to_string()),
            ..EndpointSpec::new(EndpointAddress::Ip(address))
        })
        .collect()
}

/// A name that cannot be resolved leaves the cluster empty instead of the table refused.
fn external(name: &str, port: u16) -> Vec<EndpointSpec> {
    let address = match name.parse::<IpAddr>() {
        Ok(ip) => Some(EndpointAddress::Ip((ip, port).into())),
        Err(_) => format!("{name}:{port}").parse().ok(),
    };
    address.map(EndpointSpec::new).into_iter().collect()
}

struct Found {
    address: SocketAddr,
    terminating: bool,
    zone: Option<Arc<str>>,
}

fn addresses(world: &World, target: &Target, port: &ServicePort) -> Vec<Found> {
    let sets = world.endpoints_of(&target.service);
    let subsets = sets.flat_map(|set| &set.subsets);
    let found = subsets.flat_map(|(addresses, ports)| {
        let own = ports
            .iter()
            .find(|own| own.name == port.name && own.protocol == port.protocol && own.port > 0);
        let usable = addresses.iter().filter(|address| address.ready);
        own.into_iter().flat_map(move |own| {
            usable.clone().map(|address| Found {
                address: (address.ip, own.port).into(),
                terminating: address.terminating,
                zone: address.zone.clone(),
            })
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
