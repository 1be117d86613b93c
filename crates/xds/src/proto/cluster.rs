//! Messages of clusters and their endpoints: `envoy.config.cluster.v3`, `envoy.config.endpoint.v3`.

use prost::Message;
use prost_types::Duration;

use super::core::{Address, ConfigSource, Empty, Locality, Percent, TcpKeepalive, TransportSocket};

/// `envoy.config.cluster.v3.Cluster`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Cluster {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// See [`discovery_type`].
    #[prost(int32, tag = "2")]
    pub(crate) discovery_type: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) eds_cluster_config: Option<EdsClusterConfig>,
    #[prost(message, optional, tag = "4")]
    pub(crate) connect_timeout: Option<Duration>,
    /// See [`lb_policy`].
    #[prost(int32, tag = "6")]
    pub(crate) lb_policy: i32,
    #[prost(message, optional, tag = "10")]
    pub(crate) circuit_breakers: Option<CircuitBreakers>,
    #[prost(int32, tag = "17")]
    pub(crate) dns_lookup_family: i32,
    #[prost(message, optional, tag = "19")]
    pub(crate) outlier_detection: Option<OutlierDetection>,
    #[prost(message, optional, tag = "24")]
    pub(crate) transport_socket: Option<TransportSocket>,
    #[prost(message, optional, tag = "27")]
    pub(crate) common_lb_config: Option<CommonLbConfig>,
    #[prost(message, optional, tag = "30")]
    pub(crate) upstream_connection_options: Option<UpstreamConnectionOptions>,
    #[prost(message, optional, tag = "33")]
    pub(crate) load_assignment: Option<ClusterLoadAssignment>,
}

/// Values of `Cluster.DiscoveryType`.
pub(crate) mod discovery_type {
    pub(crate) const STATIC: i32 = 0;
    pub(crate) const STRICT_DNS: i32 = 1;
    pub(crate) const EDS: i32 = 3;
}

/// Values of `Cluster.LbPolicy`.
pub(crate) mod lb_policy {
    pub(crate) const ROUND_ROBIN: i32 = 0;
    pub(crate) const LEAST_REQUEST: i32 = 1;
    pub(crate) const RING_HASH: i32 = 2;
    pub(crate) const RANDOM: i32 = 3;
    pub(crate) const MAGLEV: i32 = 5;
}

/// Value of `Cluster.DnsLookupFamily` that asks for both.
pub(crate) const DNS_LOOKUP_FAMILY_ALL: i32 = 4;

/// `Cluster.EdsClusterConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EdsClusterConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) eds_config: Option<ConfigSource>,
    #[prost(string, tag = "2")]
    pub(crate) service_name: String,
}

/// `CircuitBreakers`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CircuitBreakers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) thresholds: Vec<Thresholds>,
}

/// `CircuitBreakers.Thresholds`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Thresholds {
    /// 0 is the default priority.
    #[prost(int32, tag = "1")]
    pub(crate) priority: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) max_connections: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) max_pending_requests: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub(crate) max_requests: Option<u32>,
    #[prost(message, optional, tag = "5")]
    pub(crate) max_retries: Option<u32>,
}

/// `OutlierDetection`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OutlierDetection {
    #[prost(message, optional, tag = "1")]
    pub(crate) consecutive_5xx: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) base_ejection_time: Option<Duration>,
    #[prost(message, optional, tag = "4")]
    pub(crate) max_ejection_percent: Option<u32>,
    #[prost(message, optional, tag = "5")]
    pub(crate) enforcing_consecutive_5xx: Option<u32>,
    #[prost(message, optional, tag = "6")]
    pub(crate) enforcing_success_rate: Option<u32>,
    #[prost(bool, tag = "12")]
    pub(crate) split_external_local_origin_errors: bool,
    #[prost(message, optional, tag = "13")]
    pub(crate) consecutive_local_origin_failure: Option<u32>,
    #[prost(message, optional, tag = "14")]
    pub(crate) enforcing_consecutive_local_origin_failure: Option<u32>,
    #[prost(message, optional, tag = "15")]
    pub(crate) enforcing_local_origin_success_rate: Option<u32>,
    #[prost(message, optional, tag = "21")]
    pub(crate) max_ejection_time: Option<Duration>,
}

/// `Cluster.CommonLbConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommonLbConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) healthy_panic_threshold: Option<Percent>,
    #[prost(message, optional, tag = "2")]
    pub(crate) zone_aware: Option<ZoneAwareLbConfig>,
    #[prost(message, optional, tag = "3")]
    pub(crate) locality_weighted: Option<Empty>,
}

/// `Cluster.CommonLbConfig.ZoneAwareLbConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ZoneAwareLbConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) routing_enabled: Option<Percent>,
    #[prost(message, optional, tag = "2")]
    pub(crate) min_cluster_size: Option<u64>,
}

/// `UpstreamConnectionOptions`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpstreamConnectionOptions {
    #[prost(message, optional, tag = "1")]
    pub(crate) tcp_keepalive: Option<TcpKeepalive>,
}

/// `envoy.config.endpoint.v3.ClusterLoadAssignment`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterLoadAssignment {
    #[prost(string, tag = "1")]
    pub(crate) cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) endpoints: Vec<LocalityLbEndpoints>,
    #[prost(message, optional, tag = "4")]
    pub(crate) policy: Option<AssignmentPolicy>,
}

/// `ClusterLoadAssignment.Policy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AssignmentPolicy {
    /// Percent.
    #[prost(message, optional, tag = "3")]
    pub(crate) overprovisioning_factor: Option<u32>,
}

/// `LocalityLbEndpoints`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LocalityLbEndpoints {
    #[prost(message, optional, tag = "1")]
    pub(crate) locality: Option<Locality>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) lb_endpoints: Vec<LbEndpoint>,
    #[prost(message, optional, tag = "3")]
    pub(crate) load_balancing_weight: Option<u32>,
    #[prost(uint32, tag = "5")]
    pub(crate) priority: u32,
}

/// `LbEndpoint`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    pub(crate) endpoint: Option<Endpoint>,
    /// See [`health_status`].
    #[prost(int32, tag = "2")]
    pub(crate) health_status: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) load_balancing_weight: Option<u32>,
}

/// Values of `envoy.config.core.v3.HealthStatus`.
pub(crate) mod health_status {
    pub(crate) const UNKNOWN: i32 = 0;
    pub(crate) const HEALTHY: i32 = 1;
    pub(crate) const UNHEALTHY: i32 = 2;
    pub(crate) const DRAINING: i32 = 3;
    pub(crate) const TIMEOUT: i32 = 4;
    pub(crate) const DEGRADED: i32 = 5;
}

/// `envoy.config.endpoint.v3.Endpoint`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Endpoint {
    #[prost(message, optional, tag = "1")]
    pub(crate) address: Option<Address>,
}
