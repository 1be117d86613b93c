//! What messages of HTTP may hold.

use super::known::Kind::{Any, Each, Ignored, One, Refused, Value};
use super::known::{
    CIDR_RANGE, CONFIG_SOURCE, EMPTY, Message, OPAQUE, REGEX_MATCHER, STRING_MATCHER,
};
use super::listener::kind;

/// `envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`.
pub(crate) static HTTP_CONNECTION_MANAGER: Message = Message {
    name: "HttpConnectionManager",
    fields: &[
        (1, "codec_type", Value),
        (2, "stat_prefix", Ignored),
        (3, "rds", One(&RDS)),
        (4, "route_config", One(&ROUTE_CONFIGURATION)),
        (5, "http_filters", Each(&HTTP_FILTER)),
        (6, "add_user_agent", Ignored),
        (7, "tracing", Ignored),
        (8, "http_protocol_options", Ignored),
        (9, "http2_protocol_options", Ignored),
        (10, "server_name", Ignored),
        (12, "drain_timeout", Ignored),
        (13, "access_log", Ignored),
        (14, "use_remote_address", Ignored),
        (15, "generate_request_id", Ignored),
        (16, "forward_client_cert_details", Ignored),
        (17, "set_current_client_cert_details", Ignored),
        (18, "proxy_100_continue", Ignored),
        (19, "xff_num_trusted_hops", Ignored),
        (
            20,
            "represent_ipv4_remote_address_as_ipv4_mapped_ipv6",
            Ignored,
        ),
        (21, "skip_xff_append", Ignored),
        (22, "via", Ignored),
        (23, "upgrade_configs", Ignored),
        (24, "stream_idle_timeout", Value),
        (25, "internal_address_config", Ignored),
        (26, "delayed_close_timeout", Ignored),
        (28, "request_timeout", Ignored),
        (29, "max_request_headers_kb", Ignored),
        (30, "normalize_path", Ignored),
        (31, "scoped_routes", Refused),
        (32, "preserve_external_request_id", Ignored),
        (33, "merge_slashes", Ignored),
        (34, "server_header_transformation", Ignored),
        (35, "common_http_protocol_options", Ignored),
        (36, "request_id_extension", Ignored),
        (37, "always_set_request_id_in_response", Ignored),
        (38, "local_reply_config", Refused),
        (39, "strip_matching_host_port", Ignored),
        (40, "stream_error_on_invalid_http_message", Ignored),
        (41, "request_headers_timeout", Ignored),
        (42, "strip_any_host_port", Ignored),
        (43, "path_normalization_options", Ignored),
        (44, "http3_protocol_options", Ignored),
        (45, "path_with_escaped_slashes_action", Ignored),
        (46, "original_ip_detection_extensions", Refused),
        (47, "strip_trailing_host_dot", Ignored),
        (48, "scheme_header_transformation", Ignored),
        (49, "proxy_status_config", Ignored),
        (50, "typed_header_validation_config", Refused),
        (51, "append_x_forwarded_port", Ignored),
        (52, "early_header_mutation_extensions", Refused),
        (53, "add_proxy_protocol_connection_state", Ignored),
        (54, "access_log_flush_interval", Ignored),
        (55, "flush_access_log_on_new_request", Ignored),
        (56, "access_log_options", Ignored),
        (57, "append_local_overload", Ignored),
        (58, "http1_safe_max_connection_duration", Ignored),
        (59, "stream_flush_timeout", Ignored),
        (60, "forward_client_cert_matcher", Refused),
    ],
};

/// `envoy.extensions.filters.network.http_connection_manager.v3.Rds`.
pub(crate) static RDS: Message = Message {
    name: "Rds",
    fields: &[
        (1, "config_source", One(&CONFIG_SOURCE)),
        (2, "route_config_name", Value),
    ],
};

/// `envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter`.
pub(crate) static HTTP_FILTER: Message = Message {
    name: "HttpFilter",
    fields: &[
        (1, "name", Ignored),
        (
            4,
            "typed_config",
            Any(&[
                (kind::RBAC, &RBAC_FILTER),
                (kind::ROUTER, &ROUTER),
                (kind::STATS, &OPAQUE),
            ]),
        ),
        (5, "config_discovery", Refused),
        (6, "is_optional", Ignored),
        (7, "disabled", Refused),
    ],
};

/// `envoy.extensions.filters.http.router.v3.Router`.
pub(crate) static ROUTER: Message = Message {
    name: "Router",
    fields: &[
        (1, "dynamic_stats", Ignored),
        (2, "start_child_span", Ignored),
        (3, "upstream_log", Ignored),
        (4, "suppress_envoy_headers", Ignored),
        (5, "strict_check_headers", Ignored),
        (6, "respect_expected_rq_timeout", Ignored),
        (7, "suppress_grpc_request_failure_code_stats", Ignored),
        (8, "upstream_http_filters", Refused),
        (9, "upstream_log_options", Ignored),
    ],
};

/// `envoy.config.route.v3.RouteConfiguration`.
pub(crate) static ROUTE_CONFIGURATION: Message = Message {
    name: "RouteConfiguration",
    fields: &[
        (1, "name", Value),
        (2, "virtual_hosts", Each(&VIRTUAL_HOST)),
        (3, "internal_only_headers", Ignored),
        (4, "response_headers_to_add", Ignored),
        (5, "response_headers_to_remove", Ignored),
        (6, "request_headers_to_add", Ignored),
        (7, "validate_clusters", Ignored),
        (8, "request_headers_to_remove", Ignored),
        (9, "vhds", Refused),
        (10, "most_specific_header_mutations_wins", Ignored),
        (11, "max_direct_response_body_size_bytes", Ignored),
        (12, "cluster_specifier_plugins", Refused),
        (13, "request_mirror_policies", Refused),
        (14, "ignore_port_in_host_matching", Ignored),
        (15, "ignore_path_parameters_in_path_matching", Ignored),
        (16, "typed_per_filter_config", Refused),
        (17, "metadata", Ignored),
        (18, "vhost_header", Refused),
    ],
};

/// `envoy.config.route.v3.VirtualHost`.
pub(crate) static VIRTUAL_HOST: Message = Message {
    name: "VirtualHost",
    fields: &[
        (1, "name", Ignored),
        (2, "domains", Value),
        (3, "routes", Each(&ROUTE)),
        (4, "require_tls", Value),
        (5, "virtual_clusters", Ignored),
        (6, "rate_limits", Refused),
        (7, "request_headers_to_add", Ignored),
        (8, "cors", Refused),
        (10, "response_headers_to_add", Ignored),
        (11, "response_headers_to_remove", Ignored),
        (13, "request_headers_to_remove", Ignored),
        (14, "include_request_attempt_count", Ignored),
        (15, "typed_per_filter_config", Refused),
        (16, "retry_policy", Refused),
        (17, "hedge_policy", Refused),
        (18, "per_request_buffer_limit_bytes", Ignored),
        (19, "include_attempt_count_in_response", Ignored),
        (20, "retry_policy_typed_config", Refused),
        (21, "matcher", Refused),
        (22, "request_mirror_policies", Refused),
        (23, "include_is_timeout_retry_header", Ignored),
        (24, "metadata", Ignored),
        (25, "request_body_buffer_limit", Ignored),
    ],
};

/// `envoy.config.route.v3.Route`.
pub(crate) static ROUTE: Message = Message {
    name: "Route",
    fields: &[
        (1, "match", One(&ROUTE_MATCH)),
        (2, "route", One(&ROUTE_ACTION)),
        (3, "redirect", One(&REDIRECT)),
        (4, "metadata", Ignored),
        (5, "decorator", Ignored),
        (7, "direct_response", One(&DIRECT_RESPONSE)),
        (9, "request_headers_to_add", Ignored),
        (10, "response_headers_to_add", Ignored),
        (11, "response_headers_to_remove", Ignored),
        (12, "request_headers_to_remove", Ignored),
        (13, "typed_per_filter_config", Each(&PER_FILTER_CONFIG)),
        (14, "name", Ignored),
        (15, "tracing", Ignored),
        (16, "per_request_buffer_limit_bytes", Ignored),
        (17, "filter_action", Refused),
        (18, "non_forwarding_action", Refused),
        (19, "stat_prefix", Ignored),
        (20, "request_body_buffer_limit", Ignored),
    ],
};

/// `envoy.config.route.v3.Route.TypedPerFilterConfigEntry`.
pub(crate) static PER_FILTER_CONFIG: Message = Message {
    name: "typed_per_filter_config",
    fields: &[
        (1, "key", Value),
        (2, "value", Any(&[(kind::RBAC_PER_ROUTE, &RBAC_PER_ROUTE)])),
    ],
};

/// `envoy.config.route.v3.RouteMatch`.
pub(crate) static ROUTE_MATCH: Message = Message {
    name: "RouteMatch",
    fields: &[
        (1, "prefix", Value),
        (2, "path", Value),
        (4, "case_sensitive", Ignored),
        (6, "headers", Each(&HEADER_MATCHER)),
        (7, "query_parameters", Refused),
        (8, "grpc", Refused),
        (9, "runtime_fraction", Refused),
        (10, "safe_regex", One(&REGEX_MATCHER)),
        (11, "tls_context", Refused),
        (12, "connect_matcher", One(&EMPTY)),
        (13, "dynamic_metadata", Refused),
        (14, "path_separated_prefix", Value),
        (15, "path_match_policy", Refused),
        (16, "filter_state", Refused),
    ],
};

/// `envoy.config.route.v3.HeaderMatcher`.
pub(crate) static HEADER_MATCHER: Message = Message {
    name: "HeaderMatcher",
    fields: &[
        (1, "name", Value),
        (4, "exact_match", Value),
        (6, "range_match", Refused),
        (7, "present_match", Value),
        (8, "invert_match", Value),
        (9, "prefix_match", Value),
        (10, "suffix_match", Value),
        (11, "safe_regex_match", One(&REGEX_MATCHER)),
        (12, "contains_match", Value),
        (13, "string_match", One(&STRING_MATCHER)),
        (14, "treat_missing_header_as_empty", Ignored),
    ],
};

/// `envoy.config.route.v3.RouteAction`.
pub(crate) static ROUTE_ACTION: Message = Message {
    name: "RouteAction",
    fields: &[
        (1, "cluster", Value),
        (2, "cluster_header", Value),
        (3, "weighted_clusters", Refused),
        (4, "metadata_match", Refused),
        (5, "prefix_rewrite", Refused),
        (6, "host_rewrite_literal", Refused),
        (7, "auto_host_rewrite", Refused),
        (8, "timeout", Ignored),
        (9, "retry_policy", One(&RETRY_POLICY)),
        (11, "priority", Ignored),
        (13, "rate_limits", Refused),
        (14, "include_vh_rate_limits", Refused),
        (15, "hash_policy", Each(&ROUTE_HASH_POLICY)),
        (17, "cors", Refused),
        (20, "cluster_not_found_response_code", Ignored),
        (23, "max_grpc_timeout", Ignored),
        (24, "idle_timeout", Value),
        (25, "upgrade_configs", Each(&UPGRADE_CONFIG)),
        (26, "internal_redirect_action", Refused),
        (27, "hedge_policy", Refused),
        (28, "grpc_timeout_offset", Ignored),
        (29, "host_rewrite_header", Refused),
        (30, "request_mirror_policies", Refused),
        (31, "max_internal_redirects", Refused),
        (32, "regex_rewrite", Refused),
        (33, "retry_policy_typed_config", Refused),
        (34, "internal_redirect_policy", Refused),
        (35, "host_rewrite_path_regex", Refused),
        (36, "max_stream_duration", One(&MAX_STREAM_DURATION)),
        (37, "cluster_specifier_plugin", Refused),
        (38, "append_x_forwarded_host", Ignored),
        (39, "inline_cluster_specifier_plugin", Refused),
        (40, "early_data_policy", Refused),
        (41, "path_rewrite_policy", Refused),
        (42, "flush_timeout", Ignored),
        (44, "host_rewrite", Refused),
        (45, "path_rewrite", Refused),
    ],
};

/// `envoy.config.route.v3.RetryPolicy`.
pub(crate) static RETRY_POLICY: Message = Message {
    name: "RetryPolicy",
    fields: &[
        (1, "retry_on", Ignored),
        (2, "num_retries", Value),
        (3, "per_try_timeout", Ignored),
        (4, "retry_priority", Refused),
        (5, "retry_host_predicate", Ignored),
        (6, "host_selection_retry_max_attempts", Ignored),
        (7, "retriable_status_codes", Ignored),
        (8, "retry_back_off", Ignored),
        (9, "retriable_headers", Ignored),
        (10, "retriable_request_headers", Ignored),
        (11, "rate_limited_retry_back_off", Ignored),
        (12, "retry_options_predicates", Refused),
        (13, "per_try_idle_timeout", Ignored),
    ],
};

/// `envoy.config.route.v3.RouteAction.HashPolicy`.
pub(crate) static ROUTE_HASH_POLICY: Message = Message {
    name: "HashPolicy",
    fields: &[
        (1, "header", Refused),
        (2, "cookie", Refused),
        (3, "connection_properties", One(&CONNECTION_PROPERTIES)),
        (4, "terminal", Ignored),
        (5, "query_parameter", Refused),
        (6, "filter_state", Refused),
    ],
};

/// `envoy.config.route.v3.RouteAction.HashPolicy.ConnectionProperties`.
pub(crate) static CONNECTION_PROPERTIES: Message = Message {
    name: "ConnectionProperties",
    fields: &[(1, "source_ip", Value)],
};

/// `envoy.config.route.v3.RouteAction.UpgradeConfig`.
pub(crate) static UPGRADE_CONFIG: Message = Message {
    name: "UpgradeConfig",
    fields: &[
        (1, "upgrade_type", Value),
        (2, "enabled", Value),
        (3, "connect_config", One(&CONNECT_CONFIG)),
    ],
};

/// `envoy.config.route.v3.RouteAction.UpgradeConfig.ConnectConfig`.
pub(crate) static CONNECT_CONFIG: Message = Message {
    name: "ConnectConfig",
    fields: &[
        (1, "proxy_protocol_config", Refused),
        (2, "allow_post", Value),
    ],
};

/// `envoy.config.route.v3.RouteAction.MaxStreamDuration`.
pub(crate) static MAX_STREAM_DURATION: Message = Message {
    name: "MaxStreamDuration",
    fields: &[
        (1, "max_stream_duration", Value),
        (2, "grpc_timeout_header_max", Ignored),
        (3, "grpc_timeout_header_offset", Ignored),
    ],
};

/// `envoy.config.route.v3.RedirectAction`.
pub(crate) static REDIRECT: Message = Message {
    name: "RedirectAction",
    fields: &[
        (1, "host_redirect", Ignored),
        (2, "path_redirect", Ignored),
        (3, "response_code", Ignored),
        (4, "https_redirect", Ignored),
        (5, "prefix_rewrite", Ignored),
        (6, "strip_query", Ignored),
        (7, "scheme_redirect", Ignored),
        (8, "port_redirect", Ignored),
        (9, "regex_rewrite", Ignored),
    ],
};

/// `envoy.config.route.v3.DirectResponseAction`.
pub(crate) static DIRECT_RESPONSE: Message = Message {
    name: "DirectResponseAction",
    fields: &[
        (1, "status", Ignored),
        (2, "body", Ignored),
        (3, "body_format", Ignored),
    ],
};

/// `envoy.extensions.filters.http.rbac.v3.RBAC`.
pub(crate) static RBAC_FILTER: Message = Message {
    name: "RBAC",
    fields: &[
        (1, "rules", One(&RBAC)),
        (2, "shadow_rules", Ignored),
        (3, "shadow_rules_stat_prefix", Ignored),
        (4, "matcher", Refused),
        (5, "shadow_matcher", Ignored),
        (6, "rules_stat_prefix", Ignored),
        (7, "track_per_rule_stats", Ignored),
    ],
};

/// `envoy.extensions.filters.http.rbac.v3.RBACPerRoute`.
pub(crate) static RBAC_PER_ROUTE: Message = Message {
    name: "RBACPerRoute",
    fields: &[(2, "rbac", One(&RBAC_FILTER))],
};

/// `envoy.config.rbac.v3.RBAC`.
pub(crate) static RBAC: Message = Message {
    name: "RBAC",
    fields: &[
        (1, "action", Value),
        (2, "policies", Each(&RBAC_POLICIES)),
        (3, "audit_logging_options", Ignored),
    ],
};

/// `envoy.config.rbac.v3.RBAC.PoliciesEntry`.
pub(crate) static RBAC_POLICIES: Message = Message {
    name: "policies",
    fields: &[(1, "key", Value), (2, "value", One(&RBAC_POLICY))],
};

/// `envoy.config.rbac.v3.Policy`.
pub(crate) static RBAC_POLICY: Message = Message {
    name: "Policy",
    fields: &[
        (1, "permissions", Each(&RBAC_PERMISSION)),
        (2, "principals", Each(&RBAC_PRINCIPAL)),
        (3, "condition", Refused),
        (4, "checked_condition", Refused),
        (5, "cel_config", Refused),
    ],
};

/// `envoy.config.rbac.v3.Permission`.
pub(crate) static RBAC_PERMISSION: Message = Message {
    name: "Permission",
    fields: &[
        (1, "and_rules", Refused),
        (2, "or_rules", Refused),
        (3, "any", Value),
        (4, "header", Refused),
        (5, "destination_ip", Refused),
        (6, "destination_port", Refused),
        (7, "metadata", Refused),
        (8, "not_rule", Refused),
        (9, "requested_server_name", Refused),
        (10, "url_path", Refused),
        (11, "destination_port_range", Refused),
        (12, "matcher", Refused),
        (13, "uri_template", Refused),
        (14, "sourced_metadata", Refused),
    ],
};

/// `envoy.config.rbac.v3.Principal`.
pub(crate) static RBAC_PRINCIPAL: Message = Message {
    name: "Principal",
    fields: &[
        (1, "and_ids", Refused),
        (2, "or_ids", Refused),
        (3, "any", Value),
        (4, "authenticated", Refused),
        (5, "source_ip", Refused),
        (6, "header", Refused),
        (7, "metadata", Refused),
        (8, "not_id", Refused),
        (9, "url_path", Refused),
        (10, "direct_remote_ip", One(&CIDR_RANGE)),
        (11, "remote_ip", One(&CIDR_RANGE)),
        (12, "filter_state", Refused),
        (13, "sourced_metadata", Refused),
        (14, "custom", Refused),
    ],
};
