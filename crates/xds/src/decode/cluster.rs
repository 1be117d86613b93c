//! Decodes clusters and assignments, and combines them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use route::{Balance, ClusterSpec, EndpointSpec, OutlierParams, ProxyVersion, TcpOptions};

use crate::decode::fault::{Fault, Within};
use crate::decode::parts;
use crate::decode::terminate::Upstream;
use crate::proto::{
    Cluster, ClusterLoadAssignment, CommonLbConfig, ConfigSource, LbEndpoint, LocalityLbEndpoints,
    OutlierDetection, ProxyProtocolUpstreamTransport, TcpKeepalive, TransportSocket,
    discovery_type, health_status, kind, lb_policy,
};

/// Endpoints that a cluster may have, which is what a table can index.
pub const MAX_ENDPOINTS: usize = 65_535;

/// Connections at a time that Envoy allows when a cluster does not say.
const DEFAULT_CONNECTIONS: u32 = 1024;

/// Time to connect that Envoy allows when a cluster does not say.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What weights of localities are multiplied with, so that parts of one remain.
const WEIGHT_SCALE: u64 = 1000;

/// A cluster as it was sent.
#[derive(Debug)]
pub(super) struct ClusterConfig {
    /// Without endpoints and socket options.
    spec: ClusterSpec,
    /// Keepalive of connections to endpoints; what is absent is the process's.
    pub(super) keepalive: Option<TcpKeepalive>,
    /// TLS with endpoints, for requests of routes that end it.
    pub(super) tls: Option<Upstream>,
    /// Weights of localities count.
    locality_weighted: bool,
    endpoints: Endpoints,
}

/// Where the endpoints of a cluster come from.
#[derive(Debug)]
enum Endpoints {
    Assigned(Arc<str>),
    Inline(Assignment),
    /// An internal listener of this name.
    Listener(Arc<str>),
}

impl TcpKeepalive {
    /// Returns `base` with this keepalive. Zero anywhere switches it off, as in Envoy.
    pub(super) fn over(self, base: &TcpOptions) -> TcpOptions {
        let (time, interval) = (self.keepalive_time, self.keepalive_interval);
        let probes = self.keepalive_probes;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let mut options = base.clone();
        options.keepalive = time.map_or(base.keepalive, seconds);
        options.keepalive_interval = interval.map_or(base.keepalive_interval, seconds);
        options.keepalive_probes = probes.unwrap_or(base.keepalive_probes);
        if [time, interval, probes].contains(&Some(0)) {
            options.keepalive = Duration::ZERO;
        }
        options
    }
}

/// Endpoints by locality.
#[derive(Debug, Default)]
pub(super) struct Assignment {
    localities: Vec<LocalityEndpoints>,
}

#[derive(Debug)]
struct LocalityEndpoints {
    weight: Option<u32>,
    endpoints: Vec<EndpointSpec>,
}

impl ClusterConfig {
    pub(super) fn read(message: &Cluster) -> Result<Self, Fault> {
        let mut spec = ClusterSpec::new(parts::name(&message.name).within("name")?);
        spec.balance = balance(message.lb_policy)?;
        let timeout = parts::some_duration("connect_timeout", message.connect_timeout)?;
        spec.connect_timeout = timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT);
        if spec.connect_timeout.is_zero() {
            return Err(Fault::at("connect_timeout", "it is zero"));
        }
        spec.max_connections = max_connections(message)?;
        let outlier = message.outlier_detection.as_ref();
        spec.outlier = outlier.map(outlier_params).transpose()?.flatten();
        let socket = message.transport_socket.as_ref();
        let version = socket.map(proxy_version).transpose();
        spec.send_proxy_protocol = version.within("transport_socket")?.flatten();
        let tls = socket.map(Upstream::read).transpose();
        let tls = tls.within("transport_socket")?.flatten();
        let lb = message.common_lb_config.as_ref();
        spec.zone_aware = lb.is_none_or(zone_aware);
        let options = message.upstream_connection_options.as_ref();
        let keepalive = options.and_then(|options| options.tcp_keepalive.as_ref());
        Ok(Self {
            locality_weighted: lb.is_some_and(|lb| lb.locality_weighted.is_some()),
            keepalive: keepalive.copied(),
            tls,
            endpoints: endpoints(message)?,
            spec,
        })
    }

    /// Returns the name of the assignment that has the endpoints, if one does.
    pub(super) fn assignment(&self) -> Option<&Arc<str>> {
        match &self.endpoints {
            Endpoints::Assigned(name) => Some(name),
            Endpoints::Inline(_) | Endpoints::Listener(_) => None,
        }
    }

    /// Returns the name of the internal listener that it leads to, if it does.
    pub(super) fn internal_listener(&self) -> Option<&Arc<str>> {
        match &self.endpoints {
            Endpoints::Listener(name) => Some(name),
            Endpoints::Assigned(_) | Endpoints::Inline(_) => None,
        }
    }

    /// Returns the cluster with its endpoints, which are in `assigned` unless it has them itself.
    pub(super) fn spec(&self, assigned: Option<&Assignment>) -> ClusterSpec {
        let assignment = match &self.endpoints {
            Endpoints::Assigned(_) => assigned,
            Endpoints::Inline(assignment) => Some(assignment),
            Endpoints::Listener(_) => None,
        };
        let mut spec = self.spec.clone();
        if let Some(assignment) = assignment {
            spec.endpoints = assignment.endpoints(self.locality_weighted);
        }
        spec
    }
}

impl Assignment {
    pub(super) fn read(message: &ClusterLoadAssignment) -> Result<Self, Fault> {
        let mut seen = HashSet::new();
        let mut assignment = Self::default();
        for (index, locality) in message.endpoints.iter().enumerate() {
            let read = read_locality(locality, &mut seen);
            let read = read.within(format_args!("endpoints[{index}]"))?;
            assignment.localities.push(read);
        }
        if seen.len() > MAX_ENDPOINTS {
            let why = format!("there are more than {MAX_ENDPOINTS} endpoints");
            return Err(Fault::at("endpoints", why));
        }
        Ok(assignment)
    }

    fn endpoints(&self, weighted: bool) -> Vec<EndpointSpec> {
        let mut all = Vec::new();
        for locality in &self.localities {
            if !weighted {
                all.extend_from_slice(&locality.endpoints);
                continue;
            }
            // Without a weight a locality is given nothing.
            let Some(weight) = locality.weight else {
                continue;
            };
            let each = locality.endpoints.iter();
            let sum: u64 = each.clone().map(|one| u64::from(one.weight)).sum();
            all.extend(each.map(|endpoint| {
                let share = u128::from(endpoint.weight) * u128::from(weight);
                let share = share * u128::from(WEIGHT_SCALE) / u128::from(sum.max(1));
                EndpointSpec {
                    weight: u32::try_from(share.max(1)).unwrap_or(u32::MAX),
                    ..endpoint.clone()
                }
            }));
        }
        all
    }
}

fn read_locality(
    message: &LocalityLbEndpoints,
    seen: &mut HashSet<route::EndpointAddress>,
) -> Result<LocalityEndpoints, Fault> {
    let locality = message.locality.as_ref();
    let zone = locality.map(|locality| locality.zone.as_str());
    let zone: Option<Arc<str>> = zone.filter(|zone| !zone.is_empty()).map(Into::into);
    let mut endpoints = Vec::with_capacity(message.lb_endpoints.len());
    for (index, one) in message.lb_endpoints.iter().enumerate() {
        let step = format_args!("lb_endpoints[{index}]");
        let endpoint = read_endpoint(one, zone.as_ref(), message.priority).within(step)?;
        if !seen.insert(endpoint.address.clone()) {
            let why = format!("{} is there twice", endpoint.address);
            return Err(Fault::at(format_args!("lb_endpoints[{index}]"), why));
        }
        endpoints.push(endpoint);
    }
    Ok(LocalityEndpoints {
        weight: message.load_balancing_weight,
        endpoints,
    })
}

fn read_endpoint(
    message: &LbEndpoint,
    zone: Option<&Arc<str>>,
    priority: u32,
) -> Result<EndpointSpec, Fault> {
    let address = message.endpoint.as_ref().map(|one| one.address.as_ref());
    let address = parts::endpoint_address(address.flatten()).within("endpoint")?;
    let weight = message.load_balancing_weight.unwrap_or(1);
    if weight == 0 {
        return Err(Fault::at("load_balancing_weight", "it is 0"));
    }
    let healthy = match message.health_status {
        health_status::UNKNOWN | health_status::HEALTHY | health_status::DEGRADED => true,
        health_status::UNHEALTHY | health_status::DRAINING | health_status::TIMEOUT => false,
        other => return Err(Fault::at("health_status", unknown(other))),
    };
    Ok(EndpointSpec {
        zone: zone.cloned(),
        weight,
        priority,
        healthy,
        ..EndpointSpec::new(address)
    })
}

fn unknown(value: i32) -> String {
    format!("the value {value} is not understood")
}

fn endpoints(message: &Cluster) -> Result<Endpoints, Fault> {
    match message.discovery_type {
        discovery_type::EDS => {
            let config = message.eds_cluster_config.as_ref();
            let source = config.and_then(|config| config.eds_config.as_ref());
            source_is_stream(source).within("eds_cluster_config.eds_config")?;
            let service = config.map_or("", |config| config.service_name.as_str());
            let service = if service.is_empty() {
                &message.name
            } else {
                service
            };
            Ok(Endpoints::Assigned(service.into()))
        }
        discovery_type::STATIC | discovery_type::STRICT_DNS => {
            if let Some(name) = internal(message) {
                let name = parts::name(name).within("load_assignment")?;
                return Ok(Endpoints::Listener(name.into()));
            }
            let assignment = message.load_assignment.as_ref().map(Assignment::read);
            let assignment = assignment.transpose().within("load_assignment")?;
            Ok(Endpoints::Inline(assignment.unwrap_or_default()))
        }
        other => Err(Fault::at("type", unknown(other))),
    }
}

/// Returns the internal listener that is the only endpoint.
fn internal(message: &Cluster) -> Option<&str> {
    let [locality] = message.load_assignment.as_ref()?.endpoints.as_slice() else {
        return None;
    };
    let [endpoint] = locality.lb_endpoints.as_slice() else {
        return None;
    };
    let address = endpoint.endpoint.as_ref()?.address.as_ref()?;
    Some(&address.internal.as_ref()?.server_listener_name)
}

/// Checks that what is referred to comes by the stream that is already there.
pub(super) fn source_is_stream(source: Option<&ConfigSource>) -> Result<(), Fault> {
    if source.is_some_and(|source| source.ads.is_some() || source.own.is_some()) {
        Ok(())
    } else {
        Err(Fault::new("only ads and self are understood"))
    }
}

fn balance(policy: i32) -> Result<Balance, Fault> {
    match policy {
        lb_policy::ROUND_ROBIN => Ok(Balance::RoundRobin),
        lb_policy::LEAST_REQUEST => Ok(Balance::LeastRequest),
        lb_policy::RANDOM => Ok(Balance::Random),
        lb_policy::MAGLEV | lb_policy::RING_HASH => Ok(Balance::Maglev),
        other => Err(Fault::at("lb_policy", unknown(other))),
    }
}

fn max_connections(message: &Cluster) -> Result<u32, Fault> {
    let breakers = message.circuit_breakers.iter();
    let mut thresholds = breakers.flat_map(|breakers| &breakers.thresholds);
    let default = thresholds.find(|thresholds| thresholds.priority == 0);
    match default.and_then(|thresholds| thresholds.max_connections) {
        None => Ok(DEFAULT_CONNECTIONS),
        Some(0) => {
            let why = "0 connections would admit no client";
            Err(Fault::at("circuit_breakers", why))
        }
        // How the API writes that there is no limit.
        Some(u32::MAX) => Ok(0),
        Some(most) => Ok(most),
    }
}

fn outlier_params(message: &OutlierDetection) -> Result<Option<OutlierParams>, Fault> {
    let defaults = OutlierParams::default();
    let (failures, enforced) = if message.split_external_local_origin_errors {
        (
            message.consecutive_local_origin_failure,
            message.enforcing_consecutive_local_origin_failure,
        )
    } else {
        (message.consecutive_5xx, message.enforcing_consecutive_5xx)
    };
    let failures = failures.unwrap_or(defaults.consecutive_connect_failures);
    if failures == 0 || enforced == Some(0) {
        return Ok(None);
    }
    let field = "outlier_detection.base_ejection_time";
    let ejection = parts::some_duration(field, message.base_ejection_time)?;
    let ejection = ejection.unwrap_or(defaults.ejection);
    if ejection.is_zero() {
        return Err(Fault::at(field, "it is zero"));
    }
    // 10 percent is Envoy's default.
    let percent = message.max_ejection_percent.unwrap_or(10);
    let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
    Ok(Some(OutlierParams {
        consecutive_connect_failures: failures,
        ejection,
        max_ejected_percent: percent.ok_or_else(|| {
            let why = "it is more than 100";
            Fault::at("outlier_detection.max_ejection_percent", why)
        })?,
    }))
}

fn zone_aware(lb: &CommonLbConfig) -> bool {
    let zones = lb.zone_aware.as_ref();
    let enabled = zones.and_then(|zones| zones.routing_enabled.as_ref());
    lb.locality_weighted.is_none() && enabled.is_none_or(|percent| percent.value > 0.0)
}

/// Returns the version of the PROXY header that a transport socket sends, if it sends one.
fn proxy_version(socket: &TransportSocket) -> Result<Option<ProxyVersion>, Fault> {
    let Some(any) = &socket.typed_config else {
        return Err(Fault::new("it has no typed_config"));
    };
    let message =
        parts::unpack::<ProxyProtocolUpstreamTransport>(any, kind::UPSTREAM_PROXY_PROTOCOL);
    let Some(message) = message? else {
        return Ok(None);
    };
    let inner = message.transport_socket.as_ref();
    if inner.map(Upstream::read).transpose()?.flatten().is_some() {
        return Err(Fault::new("TLS behind a PROXY header is not understood"));
    }
    let inner = inner.map(proxy_version);
    if inner.transpose()?.flatten().is_some() {
        return Err(Fault::new("two PROXY headers are not understood"));
    }
    match message.config.map_or(0, |config| config.version) {
        0 => Ok(Some(ProxyVersion::V1)),
        1 => Ok(Some(ProxyVersion::V2)),
        other => Err(Fault::at("typed_config.config.version", unknown(other))),
    }
}
