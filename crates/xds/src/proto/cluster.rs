//! Messages of clusters and their endpoints: `envoy.config.cluster.v3`, `envoy.config.endpoint.v3`.

use prost_types::Duration;

use super::core::{Address, ConfigSource, Empty, Locality, Percent, TcpKeepalive, TransportSocket};
use super::known::{Kind, messages};

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

/// Values of `envoy.config.core.v3.HealthStatus`.
pub(crate) mod health_status {
    pub(crate) const UNKNOWN: i32 = 0;
    pub(crate) const HEALTHY: i32 = 1;
    pub(crate) const UNHEALTHY: i32 = 2;
    pub(crate) const DRAINING: i32 = 3;
    pub(crate) const TIMEOUT: i32 = 4;
    pub(crate) const DEGRADED: i32 = 5;
}

messages! {
    /// `envoy.config.cluster.v3.Cluster`.
    struct Cluster {
        1 name: String [string];
        /// See [`discovery_type`].
        2 discovery_type: i32 [int32] as "type";
        3 eds_cluster_config: Option<EdsClusterConfig> [message];
        4 connect_timeout: Option<Duration> [message];
        /// See [`lb_policy`].
        6 lb_policy: i32 [int32];
        10 circuit_breakers: Option<CircuitBreakers> [message];
        17 dns_lookup_family: i32 [int32] = Kind::Ignored;
        19 outlier_detection: Option<OutlierDetection> [message];
        24 transport_socket: Option<TransportSocket> [message];
        27 common_lb_config: Option<CommonLbConfig> [message];
        30 upstream_connection_options: Option<UpstreamConnectionOptions> [message];
        33 load_assignment: Option<ClusterLoadAssignment> [message];
        field 40: "filters" => Kind::Each(ClusterFilter::known);
    } ignored {
        5 per_connection_buffer_limit_bytes, 9 max_requests_per_connection,
        13 http_protocol_options, 14 http2_protocol_options, 16 dns_refresh_rate,
        20 cleanup_interval, 23 ring_hash_lb_config, 25 metadata, 26 protocol_selection,
        28 alt_stat_name, 29 common_http_protocol_options,
        31 close_connections_on_host_health_failure, 32 ignore_health_on_host_removal,
        36 typed_extension_protocol_options, 37 least_request_lb_config, 39 respect_dns_ttl,
        44 dns_failure_refresh_rate, 45 use_tcp_for_dns_lookups,
        46 upstream_http_protocol_options, 47 track_timeout_budgets, 49 track_cluster_stats,
        50 preconnect_policy, 51 connection_pool_per_downstream_connection, 52 maglev_lb_config,
        54 wait_for_warm_on_init, 56 round_robin_lb_config, 57 lrs_report_endpoint_metrics,
        58 dns_jitter,
    } refused {
        8 health_checks, 18 dns_resolvers, 21 upstream_bind_config, 22 lb_subset_config,
        34 original_dst_lb_config, 38 cluster_type, 41 load_balancing_policy,
        42 lrs_server, 43 transport_socket_matches, 48 upstream_config,
        53 dns_resolution_config, 55 typed_dns_resolver_config, 59 transport_socket_matcher,
    }

    /// `envoy.config.cluster.v3.Filter`. Istio's exchange of metadata is of connections with its own
    /// ALPN; others pass it unchanged.
    struct ClusterFilter {
        field 2: "typed_config" => Kind::Any(&[
            ("envoy.tcp.metadataexchange.config.MetadataExchange", None),
        ]);
    } ignored {
        1 name,
    } refused {
        3 config_discovery,
    }

    /// `Cluster.EdsClusterConfig`.
    struct EdsClusterConfig {
        1 eds_config: Option<ConfigSource> [message];
        2 service_name: String [string];
    }

    /// `CircuitBreakers`.
    struct CircuitBreakers {
        1 thresholds: Vec<Thresholds> [message, repeated];
    } ignored {
        2 per_host_thresholds,
    }

    /// `CircuitBreakers.Thresholds`.
    struct Thresholds {
        /// 0 is the default priority.
        1 priority: i32 [int32];
        2 max_connections: Option<u32> [message];
        3 max_pending_requests: Option<u32> [message] = Kind::Ignored;
        4 max_requests: Option<u32> [message] = Kind::Ignored;
        5 max_retries: Option<u32> [message] = Kind::Ignored;
    } ignored {
        6 track_remaining, 7 max_connection_pools, 8 retry_budget,
    }

    /// `OutlierDetection`.
    struct OutlierDetection {
        1 consecutive_5xx: Option<u32> [message];
        3 base_ejection_time: Option<Duration> [message];
        4 max_ejection_percent: Option<u32> [message];
        5 enforcing_consecutive_5xx: Option<u32> [message];
        6 enforcing_success_rate: Option<u32> [message] = Kind::Ignored;
        12 split_external_local_origin_errors: bool [bool];
        13 consecutive_local_origin_failure: Option<u32> [message];
        14 enforcing_consecutive_local_origin_failure: Option<u32> [message];
        15 enforcing_local_origin_success_rate: Option<u32> [message] = Kind::Ignored;
        21 max_ejection_time: Option<Duration> [message] = Kind::Ignored;
    } ignored {
        2 interval, 7 success_rate_minimum_hosts, 8 success_rate_request_volume,
        9 success_rate_stdev_factor, 10 consecutive_gateway_failure,
        11 enforcing_consecutive_gateway_failure, 16 failure_percentage_threshold,
        17 enforcing_failure_percentage, 18 enforcing_failure_percentage_local_origin,
        19 failure_percentage_minimum_hosts, 20 failure_percentage_request_volume,
        22 max_ejection_time_jitter, 23 successful_active_health_check_uneject_host,
        25 always_eject_one_host,
    } refused {
        24 monitors,
    }

    /// `Cluster.CommonLbConfig`.
    struct CommonLbConfig {
        1 healthy_panic_threshold: Option<Percent> [message] = Kind::Ignored;
        2 zone_aware: Option<ZoneAwareLbConfig> [message] as "zone_aware_lb_config";
        3 locality_weighted: Option<Empty> [message] as "locality_weighted_lb_config";
    } ignored {
        4 update_merge_window, 5 ignore_new_hosts_until_first_hc,
        7 consistent_hashing_lb_config,
    } refused {
        6 close_connections_on_host_set_change, 8 override_host_status,
    }

    /// `Cluster.CommonLbConfig.ZoneAwareLbConfig`.
    struct ZoneAwareLbConfig {
        1 routing_enabled: Option<Percent> [message];
        2 min_cluster_size: Option<u64> [message] = Kind::Ignored;
    } ignored {
        3 fail_traffic_on_panic,
    }

    /// `UpstreamConnectionOptions`.
    struct UpstreamConnectionOptions {
        1 tcp_keepalive: Option<TcpKeepalive> [message];
    } ignored {
        2 set_local_interface_name_on_upstream_connections, 3 happy_eyeballs_config,
    }

    /// `envoy.config.endpoint.v3.ClusterLoadAssignment`.
    struct ClusterLoadAssignment {
        1 cluster_name: String [string];
        2 endpoints: Vec<LocalityLbEndpoints> [message, repeated];
        4 policy: Option<AssignmentPolicy> [message];
    } refused {
        5 named_endpoints,
    }

    /// `ClusterLoadAssignment.Policy`.
    struct AssignmentPolicy {
        /// Percent.
        3 overprovisioning_factor: Option<u32> [message] = Kind::Ignored;
    } ignored {
        6 weighted_priority_health,
    } refused {
        2 drop_overloads, 4 endpoint_stale_after,
    }

    /// `LocalityLbEndpoints`.
    struct LocalityLbEndpoints {
        1 locality: Option<Locality> [message];
        2 lb_endpoints: Vec<LbEndpoint> [message, repeated];
        3 load_balancing_weight: Option<u32> [message];
        5 priority: u32 [uint32];
    } ignored {
        6 proximity, 9 metadata,
    } refused {
        7 load_balancer_endpoints, 8 leds_cluster_locality_config,
    }

    /// `LbEndpoint`.
    struct LbEndpoint {
        1 endpoint: Option<Endpoint> [message];
        /// See [`health_status`].
        2 health_status: i32 [int32];
        4 load_balancing_weight: Option<u32> [message];
    } ignored {
        3 metadata,
    } refused {
        5 endpoint_name,
    }

    /// `envoy.config.endpoint.v3.Endpoint`.
    struct Endpoint {
        1 address: Option<Address> [message];
    } ignored {
        2 health_check_config, 3 hostname, 4 additional_addresses,
    }
}
