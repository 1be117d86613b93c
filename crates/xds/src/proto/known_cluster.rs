//! What messages of clusters and endpoints may hold.

use super::known::Kind::{Each, Ignored, One, Refused, Value};
use super::known::{
    ADDRESS, CONFIG_SOURCE, EMPTY, LOCALITY, Message, PERCENT, TCP_KEEPALIVE, TRANSPORT_SOCKET,
};

/// `envoy.config.cluster.v3.Cluster`.
pub(crate) static CLUSTER: Message = Message {
    name: "Cluster",
    fields: &[
        (1, "name", Value),
        (2, "type", Value),
        (3, "eds_cluster_config", One(&EDS_CLUSTER_CONFIG)),
        (4, "connect_timeout", Value),
        (5, "per_connection_buffer_limit_bytes", Ignored),
        (6, "lb_policy", Value),
        (8, "health_checks", Refused),
        (9, "max_requests_per_connection", Ignored),
        (10, "circuit_breakers", One(&CIRCUIT_BREAKERS)),
        (13, "http_protocol_options", Ignored),
        (14, "http2_protocol_options", Ignored),
        (16, "dns_refresh_rate", Ignored),
        (17, "dns_lookup_family", Ignored),
        (18, "dns_resolvers", Refused),
        (19, "outlier_detection", One(&OUTLIER_DETECTION)),
        (20, "cleanup_interval", Ignored),
        (21, "upstream_bind_config", Refused),
        (22, "lb_subset_config", Refused),
        (23, "ring_hash_lb_config", Ignored),
        (24, "transport_socket", One(&TRANSPORT_SOCKET)),
        (25, "metadata", Ignored),
        (26, "protocol_selection", Ignored),
        (27, "common_lb_config", One(&COMMON_LB_CONFIG)),
        (28, "alt_stat_name", Ignored),
        (29, "common_http_protocol_options", Ignored),
        (
            30,
            "upstream_connection_options",
            One(&UPSTREAM_CONNECTION_OPTIONS),
        ),
        (31, "close_connections_on_host_health_failure", Ignored),
        (32, "ignore_health_on_host_removal", Ignored),
        (33, "load_assignment", One(&CLUSTER_LOAD_ASSIGNMENT)),
        (34, "original_dst_lb_config", Refused),
        (36, "typed_extension_protocol_options", Ignored),
        (37, "least_request_lb_config", Ignored),
        (38, "cluster_type", Refused),
        (39, "respect_dns_ttl", Ignored),
        (40, "filters", Refused),
        (41, "load_balancing_policy", Refused),
        (42, "lrs_server", Refused),
        (43, "transport_socket_matches", Refused),
        (44, "dns_failure_refresh_rate", Ignored),
        (45, "use_tcp_for_dns_lookups", Ignored),
        (46, "upstream_http_protocol_options", Ignored),
        (47, "track_timeout_budgets", Ignored),
        (48, "upstream_config", Refused),
        (49, "track_cluster_stats", Ignored),
        (50, "preconnect_policy", Ignored),
        (51, "connection_pool_per_downstream_connection", Ignored),
        (52, "maglev_lb_config", Ignored),
        (53, "dns_resolution_config", Refused),
        (54, "wait_for_warm_on_init", Ignored),
        (55, "typed_dns_resolver_config", Refused),
        (56, "round_robin_lb_config", Ignored),
        (57, "lrs_report_endpoint_metrics", Ignored),
        (58, "dns_jitter", Ignored),
        (59, "transport_socket_matcher", Refused),
    ],
};

/// `envoy.config.cluster.v3.Cluster.EdsClusterConfig`.
pub(crate) static EDS_CLUSTER_CONFIG: Message = Message {
    name: "EdsClusterConfig",
    fields: &[
        (1, "eds_config", One(&CONFIG_SOURCE)),
        (2, "service_name", Value),
    ],
};

/// `envoy.config.cluster.v3.CircuitBreakers`.
pub(crate) static CIRCUIT_BREAKERS: Message = Message {
    name: "CircuitBreakers",
    fields: &[
        (1, "thresholds", Each(&THRESHOLDS)),
        (2, "per_host_thresholds", Ignored),
    ],
};

/// `envoy.config.cluster.v3.CircuitBreakers.Thresholds`.
pub(crate) static THRESHOLDS: Message = Message {
    name: "Thresholds",
    fields: &[
        (1, "priority", Value),
        (2, "max_connections", Value),
        (3, "max_pending_requests", Ignored),
        (4, "max_requests", Ignored),
        (5, "max_retries", Ignored),
        (6, "track_remaining", Ignored),
        (7, "max_connection_pools", Ignored),
        (8, "retry_budget", Ignored),
    ],
};

/// `envoy.config.cluster.v3.OutlierDetection`.
pub(crate) static OUTLIER_DETECTION: Message = Message {
    name: "OutlierDetection",
    fields: &[
        (1, "consecutive_5xx", Value),
        (2, "interval", Ignored),
        (3, "base_ejection_time", Value),
        (4, "max_ejection_percent", Value),
        (5, "enforcing_consecutive_5xx", Value),
        (6, "enforcing_success_rate", Ignored),
        (7, "success_rate_minimum_hosts", Ignored),
        (8, "success_rate_request_volume", Ignored),
        (9, "success_rate_stdev_factor", Ignored),
        (10, "consecutive_gateway_failure", Ignored),
        (11, "enforcing_consecutive_gateway_failure", Ignored),
        (12, "split_external_local_origin_errors", Value),
        (13, "consecutive_local_origin_failure", Value),
        (14, "enforcing_consecutive_local_origin_failure", Value),
        (15, "enforcing_local_origin_success_rate", Ignored),
        (16, "failure_percentage_threshold", Ignored),
        (17, "enforcing_failure_percentage", Ignored),
        (18, "enforcing_failure_percentage_local_origin", Ignored),
        (19, "failure_percentage_minimum_hosts", Ignored),
        (20, "failure_percentage_request_volume", Ignored),
        (21, "max_ejection_time", Ignored),
        (22, "max_ejection_time_jitter", Ignored),
        (23, "successful_active_health_check_uneject_host", Ignored),
        (24, "monitors", Refused),
        (25, "always_eject_one_host", Ignored),
    ],
};

/// `envoy.config.cluster.v3.Cluster.CommonLbConfig`.
pub(crate) static COMMON_LB_CONFIG: Message = Message {
    name: "CommonLbConfig",
    fields: &[
        (1, "healthy_panic_threshold", Ignored),
        (2, "zone_aware_lb_config", One(&ZONE_AWARE_LB_CONFIG)),
        (3, "locality_weighted_lb_config", One(&EMPTY)),
        (4, "update_merge_window", Ignored),
        (5, "ignore_new_hosts_until_first_hc", Ignored),
        (6, "close_connections_on_host_set_change", Refused),
        (7, "consistent_hashing_lb_config", Ignored),
        (8, "override_host_status", Refused),
    ],
};

/// `envoy.config.cluster.v3.Cluster.CommonLbConfig.ZoneAwareLbConfig`.
pub(crate) static ZONE_AWARE_LB_CONFIG: Message = Message {
    name: "ZoneAwareLbConfig",
    fields: &[
        (1, "routing_enabled", One(&PERCENT)),
        (2, "min_cluster_size", Ignored),
        (3, "fail_traffic_on_panic", Ignored),
    ],
};

/// `envoy.config.cluster.v3.UpstreamConnectionOptions`.
pub(crate) static UPSTREAM_CONNECTION_OPTIONS: Message = Message {
    name: "UpstreamConnectionOptions",
    fields: &[
        (1, "tcp_keepalive", One(&TCP_KEEPALIVE)),
        (
            2,
            "set_local_interface_name_on_upstream_connections",
            Ignored,
        ),
        (3, "happy_eyeballs_config", Ignored),
    ],
};

/// `envoy.config.endpoint.v3.ClusterLoadAssignment`.
pub(crate) static CLUSTER_LOAD_ASSIGNMENT: Message = Message {
    name: "ClusterLoadAssignment",
    fields: &[
        (1, "cluster_name", Value),
        (2, "endpoints", Each(&LOCALITY_LB_ENDPOINTS)),
        (4, "policy", One(&POLICY)),
        (5, "named_endpoints", Refused),
    ],
};

/// `envoy.config.endpoint.v3.ClusterLoadAssignment.Policy`.
pub(crate) static POLICY: Message = Message {
    name: "Policy",
    fields: &[
        (2, "drop_overloads", Refused),
        (3, "overprovisioning_factor", Ignored),
        (4, "endpoint_stale_after", Refused),
        (6, "weighted_priority_health", Ignored),
    ],
};

/// `envoy.config.endpoint.v3.LocalityLbEndpoints`.
pub(crate) static LOCALITY_LB_ENDPOINTS: Message = Message {
    name: "LocalityLbEndpoints",
    fields: &[
        (1, "locality", One(&LOCALITY)),
        (2, "lb_endpoints", Each(&LB_ENDPOINT)),
        (3, "load_balancing_weight", Value),
        (5, "priority", Value),
        (6, "proximity", Ignored),
        (7, "load_balancer_endpoints", Refused),
        (8, "leds_cluster_locality_config", Refused),
        (9, "metadata", Ignored),
    ],
};

/// `envoy.config.endpoint.v3.LbEndpoint`.
pub(crate) static LB_ENDPOINT: Message = Message {
    name: "LbEndpoint",
    fields: &[
        (1, "endpoint", One(&ENDPOINT)),
        (2, "health_status", Value),
        (3, "metadata", Ignored),
        (4, "load_balancing_weight", Value),
        (5, "endpoint_name", Refused),
    ],
};

/// `envoy.config.endpoint.v3.Endpoint`.
pub(crate) static ENDPOINT: Message = Message {
    name: "Endpoint",
    fields: &[
        (1, "address", One(&ADDRESS)),
        (2, "health_check_config", Ignored),
        (3, "hostname", Ignored),
        (4, "additional_addresses", Ignored),
    ],
};
