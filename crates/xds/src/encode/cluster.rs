//! Clusters and their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use route::{Balance, ClusterSpec, EndpointAddress, EndpointSpec, OutlierParams, ProxyVersion};

use crate::encode::{duration, resource};
use crate::proto::{
    Address, AssignmentPolicy, CircuitBreakers, Cluster, ClusterLoadAssignment, CommonLbConfig,
    ConfigSource, DNS_LOOKUP_FAMILY_ALL, EdsClusterConfig, Empty, Endpoint, LbEndpoint, Locality,
    LocalityLbEndpoints, OutlierDetection, Percent, ProxyProtocolConfig,
    ProxyProtocolUpstreamTransport, SocketAddress, TcpKeepalive, Thresholds, TransportSocket,
    UpstreamConnectionOptions, ZoneAwareLbConfig, any, discovery_type, health_status, kind,
    lb_policy,
};
use crate::resource::{Audience, Resource, ResourceType};

/// Percent of endpoints that are usable below which Envoy uses all of them: of up to a hundred
/// endpoints, when none is.
const PANIC_PERCENT: f64 = 1.0;

/// Percent that makes Envoy stay with a priority while one in a hundred of its endpoints is usable.
const OVERPROVISIONING: u32 = 10_000;

/// How many times an ejection gets longer in a row.
const MAX_EJECTIONS: u32 = 10;

/// Encodes a cluster, and apart from it its endpoints when all of them are addresses.
///
/// Without a host name among them the endpoints are assigned (EDS), so that a change of one does
/// not touch the cluster; with one the cluster has them itself (`STRICT_DNS`).
#[must_use]
pub fn encode(spec: &ClusterSpec) -> Vec<Resource> {
    let is_ip = |one: &EndpointSpec| matches!(one.address, EndpointAddress::Ip(_));
    let assigned = spec.endpoints.iter().all(is_ip);
    let assignment = assignment(spec);
    let mut message = cluster(spec);
    if !assigned {
        message.discovery_type = discovery_type::STRICT_DNS;
        message.dns_lookup_family = DNS_LOOKUP_FAMILY_ALL;
        message.load_assignment = Some(assignment);
        let whole = resource(ResourceType::Cluster, &spec.name, &message, Audience::All);
        return vec![whole];
    }
    message.discovery_type = discovery_type::EDS;
    message.eds_cluster_config = Some(EdsClusterConfig {
        eds_config: Some(ConfigSource::ads()),
        service_name: String::new(),
    });
    let kind = ResourceType::ClusterLoadAssignment;
    vec![
        resource(ResourceType::Cluster, &spec.name, &message, Audience::All),
        resource(kind, &spec.name, &assignment, Audience::All),
    ]
}

/// Encodes everything but where the endpoints come from.
fn cluster(spec: &ClusterSpec) -> Cluster {
    // Zero is no limit, which the API writes as the greatest number. Whatever else Envoy limits by
    // itself is not limited.
    let max_connections = match spec.max_connections {
        0 => u32::MAX,
        most => most,
    };
    let thresholds = Thresholds {
        priority: 0,
        max_connections: Some(max_connections),
        max_pending_requests: Some(u32::MAX),
        max_requests: Some(u32::MAX),
        max_retries: Some(u32::MAX),
    };
    let zone_percent = if spec.zone_aware { 100.0 } else { 0.0 };
    Cluster {
        name: spec.name.clone(),
        connect_timeout: Some(duration(spec.connect_timeout)),
        lb_policy: match spec.balance {
            Balance::LeastRequest => lb_policy::LEAST_REQUEST,
            Balance::Maglev => lb_policy::MAGLEV,
            Balance::Random => lb_policy::RANDOM,
            Balance::RoundRobin => lb_policy::ROUND_ROBIN,
        },
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![thresholds],
        }),
        outlier_detection: spec.outlier.as_ref().map(outlier_detection),
        transport_socket: spec.send_proxy_protocol.map(proxy_protocol),
        common_lb_config: Some(CommonLbConfig {
            healthy_panic_threshold: Some(Percent {
                value: PANIC_PERCENT,
            }),
            zone_aware: Some(ZoneAwareLbConfig {
                routing_enabled: Some(Percent {
                    value: zone_percent,
                }),
                min_cluster_size: Some(1),
            }),
            locality_weighted: None,
        }),
        upstream_connection_options: keepalive(spec),
        ..Cluster::default()
    }
}

fn outlier_detection(params: &OutlierParams) -> OutlierDetection {
    OutlierDetection {
        base_ejection_time: Some(duration(params.ejection)),
        max_ejection_percent: Some(params.max_ejected_percent.into()),
        // Attempts to connect are what Envoy calls of local origin. Nothing else ejects.
        split_external_local_origin_errors: true,
        consecutive_local_origin_failure: Some(params.consecutive_connect_failures),
        enforcing_consecutive_local_origin_failure: Some(100),
        enforcing_success_rate: Some(0),
        enforcing_local_origin_success_rate: Some(0),
        max_ejection_time: Some(duration(params.ejection.saturating_mul(MAX_EJECTIONS))),
        ..OutlierDetection::default()
    }
}

fn proxy_protocol(version: ProxyVersion) -> TransportSocket {
    let raw = TransportSocket {
        name: "envoy.transport_sockets.raw_buffer".to_owned(),
        typed_config: Some(any(kind::RAW_BUFFER, &Empty {})),
    };
    let upstream = ProxyProtocolUpstreamTransport {
        config: Some(ProxyProtocolConfig {
            version: match version {
                ProxyVersion::V1 => 0,
                ProxyVersion::V2 => 1,
            },
        }),
        transport_socket: Some(raw),
    };
    TransportSocket {
        name: "envoy.transport_sockets.upstream_proxy_protocol".to_owned(),
        typed_config: Some(any(kind::UPSTREAM_PROXY_PROTOCOL, &upstream)),
    }
}

/// Encodes keepalive; what a cluster leaves to the kernel is left out, and none at all is a time of
/// zero. Other socket options have no place in the API.
fn keepalive(spec: &ClusterSpec) -> Option<UpstreamConnectionOptions> {
    let tcp = spec.tcp.as_ref()?;
    let keepalive = if tcp.keepalive.is_zero() {
        TcpKeepalive {
            keepalive_time: Some(0),
            ..TcpKeepalive::default()
        }
    } else {
        TcpKeepalive {
            keepalive_probes: Some(tcp.keepalive_probes).filter(|probes| *probes > 0),
            keepalive_time: seconds(tcp.keepalive),
            keepalive_interval: seconds(tcp.keepalive_interval),
        }
    };
    Some(UpstreamConnectionOptions {
        tcp_keepalive: Some(keepalive),
    })
}

/// Returns whole seconds, rounded up; `None` for none.
fn seconds(duration: Duration) -> Option<u32> {
    let rounded = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    (rounded > 0).then(|| u32::try_from(rounded).unwrap_or(u32::MAX))
}

/// Encodes the endpoints by priority and zone. Priorities are counted anew from 0, since Envoy
/// wants them without gaps.
fn assignment(spec: &ClusterSpec) -> ClusterLoadAssignment {
    let priorities: BTreeSet<u32> = spec.endpoints.iter().map(|one| one.priority).collect();
    let ranks: BTreeMap<u32, u32> = priorities.into_iter().zip(0..).collect();
    let mut localities: BTreeMap<(u32, &str), Vec<LbEndpoint>> = BTreeMap::new();
    for endpoint in &spec.endpoints {
        let rank = ranks.get(&endpoint.priority).copied().unwrap_or(0);
        let zone = endpoint.zone.as_deref().unwrap_or_default();
        let locality = localities.entry((rank, zone)).or_default();
        locality.push(lb_endpoint(endpoint));
    }
    let localities = localities.into_iter();
    let localities = localities.map(|((priority, zone), lb_endpoints)| LocalityLbEndpoints {
        locality: (!zone.is_empty()).then(|| Locality {
            zone: zone.to_owned(),
        }),
        lb_endpoints,
        load_balancing_weight: None,
        priority,
    });
    ClusterLoadAssignment {
        cluster_name: spec.name.clone(),
        endpoints: localities.collect(),
        policy: (ranks.len() > 1).then_some(AssignmentPolicy {
            overprovisioning_factor: Some(OVERPROVISIONING),
        }),
    }
}

fn lb_endpoint(endpoint: &EndpointSpec) -> LbEndpoint {
    let (address, port) = match &endpoint.address {
        EndpointAddress::Host { name, port } => (name.clone(), *port),
        EndpointAddress::Ip(addr) => (addr.ip().to_string(), addr.port()),
    };
    let address = SocketAddress {
        protocol: 0,
        address,
        port_value: Some(port.into()),
        ipv4_compat: false,
    };
    LbEndpoint {
        endpoint: Some(Endpoint {
            address: Some(Address {
                socket_address: Some(address),
                internal: None,
            }),
        }),
        health_status: if endpoint.healthy {
            health_status::UNKNOWN
        } else {
            health_status::UNHEALTHY
        },
        load_balancing_weight: (endpoint.weight != 1).then_some(endpoint.weight),
    }
}
