//! Messages of HTTP: the connection manager, its routes, access control by role.

use std::collections::BTreeMap;

use prost_types::{Any, Duration};

use super::core::{CidrRange, ConfigSource, Empty, RegexMatcher, StringMatcher};
use super::known::{Kind, messages};
use super::listener::{Filter3, Filter4, kind};

/// The one of `header_match_specifier`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum HeaderPattern {
    #[prost(string, tag = "4")]
    Exact(String),
    #[prost(bool, tag = "7")]
    Present(bool),
    #[prost(string, tag = "9")]
    Prefix(String),
    #[prost(string, tag = "10")]
    Suffix(String),
    #[prost(message, tag = "11")]
    SafeRegex(RegexMatcher),
    #[prost(string, tag = "12")]
    Contains(String),
    #[prost(message, tag = "13")]
    String(StringMatcher),
}

/// The one of `identifier`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum PrincipalIdentifier {
    #[prost(bool, tag = "3")]
    Any(bool),
    #[prost(message, tag = "10")]
    DirectRemoteIp(CidrRange),
    #[prost(message, tag = "11")]
    RemoteIp(CidrRange),
}

messages! {
    /// `…http_connection_manager.v3.HttpConnectionManager`.
    struct HttpConnectionManager {
        /// 0 is automatic, 1 is HTTP/1.
        1 codec_type: i32 [int32];
        2 stat_prefix: String [string] = Kind::Ignored;
        3 rds: Option<Rds> [message];
        4 route_config: Option<RouteConfiguration> [message];
        5 http_filters: Vec<Filter4> [message, repeated] = Kind::Each(HttpFilter::known);
        8 http_protocol_options: Option<Http1ProtocolOptions> [message] = Kind::Ignored;
        9 http2_protocol_options: Option<Http2ProtocolOptions> [message];
        14 use_remote_address: Option<bool> [message] = Kind::Ignored;
        15 generate_request_id: Option<bool> [message] = Kind::Ignored;
        /// What may be asked for besides plain requests; here only the types count.
        23 upgrade_configs: Vec<UpgradeType> [message, repeated] = Kind::Ignored;
        24 stream_idle_timeout: Option<Duration> [message];
        35 common_http_protocol_options: Option<CommonHttpProtocolOptions> [message];
        41 request_headers_timeout: Option<Duration> [message] = Kind::Ignored;
    } ignored {
        6 add_user_agent, 7 tracing, 10 server_name, 12 drain_timeout,
        13 access_log, 16 forward_client_cert_details, 17 set_current_client_cert_details,
        18 proxy_100_continue, 19 xff_num_trusted_hops,
        20 represent_ipv4_remote_address_as_ipv4_mapped_ipv6, 21 skip_xff_append, 22 via,
        25 internal_address_config, 26 delayed_close_timeout, 28 request_timeout,
        29 max_request_headers_kb, 30 normalize_path, 32 preserve_external_request_id,
        33 merge_slashes, 34 server_header_transformation,
        36 request_id_extension, 37 always_set_request_id_in_response,
        39 strip_matching_host_port, 40 stream_error_on_invalid_http_message,
        42 strip_any_host_port, 43 path_normalization_options, 44 http3_protocol_options,
        45 path_with_escaped_slashes_action, 47 strip_trailing_host_dot,
        48 scheme_header_transformation, 49 proxy_status_config, 51 append_x_forwarded_port,
        53 add_proxy_protocol_connection_state, 54 access_log_flush_interval,
        55 flush_access_log_on_new_request, 56 access_log_options, 57 append_local_overload,
        58 http1_safe_max_connection_duration, 59 stream_flush_timeout,
    } refused {
        31 scoped_routes, 38 local_reply_config, 46 original_ip_detection_extensions,
        50 typed_header_validation_config, 52 early_header_mutation_extensions,
        60 forward_client_cert_matcher,
    }

    /// `HttpConnectionManager.UpgradeConfig`.
    struct UpgradeType {
        1 upgrade_type: String [string];
    }

    /// `Rds`.
    struct Rds {
        1 config_source: Option<ConfigSource> [message];
        2 route_config_name: String [string];
    }

    /// `envoy.config.core.v3.Http1ProtocolOptions`.
    #[derive(Copy)]
    struct Http1ProtocolOptions {
        2 accept_http_10: bool [bool];
    }

    /// `envoy.config.core.v3.Http2ProtocolOptions`.
    #[derive(Copy)]
    struct Http2ProtocolOptions {
        2 max_concurrent_streams: Option<u32> [message];
    } ignored {
        1 hpack_table_size, 3 initial_stream_window_size, 4 initial_connection_window_size,
        5 allow_connect, 6 allow_metadata, 7 max_outbound_frames,
        8 max_outbound_control_frames, 9 max_consecutive_inbound_frames_with_empty_payload,
        10 max_inbound_priority_frames_per_stream,
        11 max_inbound_window_update_frames_per_data_frame_sent,
        12 stream_error_on_invalid_http_messaging, 13 custom_settings_parameters,
        14 override_stream_error_on_invalid_http_message, 15 connection_keepalive,
        16 use_oghttp2_codec, 17 max_metadata_size, 18 enable_huffman_encoding,
    }

    /// `envoy.config.core.v3.HttpProtocolOptions`.
    #[derive(Copy)]
    struct CommonHttpProtocolOptions {
        1 idle_timeout: Option<Duration> [message];
        3 max_connection_duration: Option<Duration> [message];
    } ignored {
        2 max_headers_count, 4 max_stream_duration, 5 headers_with_underscores_action,
        6 max_requests_per_connection, 7 max_response_headers_kb,
    }

    /// `envoy.config.core.v3.HeaderValueOption`.
    struct HeaderValueOption {
        1 header: Option<HeaderValue> [message];
        /// 2 is to overwrite or add.
        3 append_action: i32 [int32] = Kind::Ignored;
    } ignored {
        2 append, 4 keep_empty_value,
    }

    /// `envoy.config.core.v3.HeaderValue`.
    struct HeaderValue {
        1 key: String [string];
        2 value: String [string];
    } ignored {
        3 raw_value,
    }

    /// `envoy.config.route.v3.RouteConfiguration`.
    struct RouteConfiguration {
        1 name: String [string];
        2 virtual_hosts: Vec<VirtualHost> [message, repeated];
    } ignored {
        3 internal_only_headers, 4 response_headers_to_add, 5 response_headers_to_remove,
        6 request_headers_to_add, 7 validate_clusters, 8 request_headers_to_remove,
        10 most_specific_header_mutations_wins, 11 max_direct_response_body_size_bytes,
        14 ignore_port_in_host_matching, 15 ignore_path_parameters_in_path_matching,
        17 metadata,
    } refused {
        9 vhds, 12 cluster_specifier_plugins, 13 request_mirror_policies,
        16 typed_per_filter_config, 18 vhost_header,
    }

    /// `VirtualHost`.
    struct VirtualHost {
        1 name: String [string] = Kind::Ignored;
        2 domains: Vec<String> [string, repeated];
        3 routes: Vec<Route> [message, repeated];
        /// 0 is none.
        4 require_tls: i32 [int32];
        10 response_headers_to_add: Vec<HeaderValueOption> [message, repeated];
        13 request_headers_to_remove: Vec<String> [string, repeated] = Kind::Ignored;
    } ignored {
        5 virtual_clusters, 7 request_headers_to_add, 11 response_headers_to_remove,
        14 include_request_attempt_count, 18 per_request_buffer_limit_bytes,
        19 include_attempt_count_in_response, 23 include_is_timeout_retry_header, 24 metadata,
        25 request_body_buffer_limit,
    } refused {
        6 rate_limits, 8 cors, 15 typed_per_filter_config, 16 retry_policy, 17 hedge_policy,
        20 retry_policy_typed_config, 21 matcher, 22 request_mirror_policies,
    }

    /// `Route`.
    struct Route {
        1 matches: Option<RouteMatch> [message] as "match";
        2 route: Option<RouteAction> [message];
        3 redirect: Option<RedirectAction> [message];
        7 direct_response: Option<DirectResponseAction> [message];
        13 typed_per_filter_config: BTreeMap<String, Any>
            [btree_map = "string, message"] = Kind::Each(PerFilterConfig::known);
    } ignored {
        4 metadata, 5 decorator, 9 request_headers_to_add, 10 response_headers_to_add,
        11 response_headers_to_remove, 12 request_headers_to_remove, 14 name, 15 tracing,
        16 per_request_buffer_limit_bytes, 19 stat_prefix, 20 request_body_buffer_limit,
    } refused {
        17 filter_action, 18 non_forwarding_action,
    }

    /// `RouteMatch`.
    struct RouteMatch {
        1 prefix: Option<String> [string, optional];
        6 headers: Vec<HeaderMatcher> [message, repeated];
        11 tls_context: Option<TlsContextMatch> [message];
        12 connect_matcher: Option<Empty> [message];
        field 10: "safe_regex" => Kind::One(RegexMatcher::known);
    } ignored {
        2 path, 4 case_sensitive, 14 path_separated_prefix,
    } refused {
        7 query_parameters, 8 grpc, 9 runtime_fraction, 13 dynamic_metadata,
        15 path_match_policy, 16 filter_state,
    }

    /// `RouteMatch.TlsContextMatchOptions`.
    #[derive(Copy)]
    struct TlsContextMatch {
        1 presented: Option<bool> [message];
    } refused {
        2 validated,
    }

    /// `HeaderMatcher`; the matches but the last are the old form of `string_match`.
    struct HeaderMatcher {
        1 name: String [string];
        8 invert_match: bool [bool];
        oneof pattern: Option<HeaderPattern>
            [oneof = "HeaderPattern", tags = "4, 7, 9, 10, 11, 12, 13"];
        field 4: "exact_match" => Kind::Value;
        field 7: "present_match" => Kind::Value;
        field 9: "prefix_match" => Kind::Value;
        field 10: "suffix_match" => Kind::Value;
        field 11: "safe_regex_match" => Kind::One(RegexMatcher::known);
        field 12: "contains_match" => Kind::Value;
        field 13: "string_match" => Kind::One(StringMatcher::known);
    } ignored {
        14 treat_missing_header_as_empty,
    } refused {
        6 range_match,
    }

    /// `RouteAction`.
    struct RouteAction {
        1 cluster: Option<String> [string, optional];
        2 cluster_header: Option<String> [string, optional];
        /// Counts where TLS ends; a CONNECT request has none.
        8 timeout: Option<Duration> [message];
        9 retry_policy: Option<RetryPolicy> [message];
        15 hash_policy: Vec<RouteHashPolicy> [message, repeated];
        24 idle_timeout: Option<Duration> [message];
        25 upgrade_configs: Vec<UpgradeConfig> [message, repeated];
        36 max_stream_duration: Option<MaxStreamDuration> [message];
    } ignored {
        11 priority, 20 cluster_not_found_response_code, 23 max_grpc_timeout,
        28 grpc_timeout_offset, 38 append_x_forwarded_host, 42 flush_timeout,
    } refused {
        3 weighted_clusters, 4 metadata_match, 5 prefix_rewrite, 6 host_rewrite_literal,
        7 auto_host_rewrite, 13 rate_limits, 14 include_vh_rate_limits, 17 cors,
        26 internal_redirect_action, 27 hedge_policy, 29 host_rewrite_header,
        30 request_mirror_policies, 31 max_internal_redirects, 32 regex_rewrite,
        33 retry_policy_typed_config, 34 internal_redirect_policy, 35 host_rewrite_path_regex,
        37 cluster_specifier_plugin, 39 inline_cluster_specifier_plugin, 40 early_data_policy,
        41 path_rewrite_policy, 44 host_rewrite, 45 path_rewrite,
    }

    /// `RetryPolicy`.
    struct RetryPolicy {
        1 retry_on: String [string] = Kind::Ignored;
        2 num_retries: Option<u32> [message];
        5 retry_host_predicate: Vec<Filter3> [message, repeated] = Kind::Ignored;
        6 host_selection_retry_max_attempts: i64 [int64] = Kind::Ignored;
    } ignored {
        3 per_try_timeout, 7 retriable_status_codes, 8 retry_back_off, 9 retriable_headers,
        10 retriable_request_headers, 11 rate_limited_retry_back_off, 13 per_try_idle_timeout,
    } refused {
        4 retry_priority, 12 retry_options_predicates,
    }

    /// `RouteAction.HashPolicy`.
    #[derive(Copy)]
    struct RouteHashPolicy {
        3 connection_properties: Option<ConnectionProperties> [message];
    } ignored {
        4 terminal,
    } refused {
        1 header, 2 cookie, 5 query_parameter, 6 filter_state,
    }

    /// `RouteAction.HashPolicy.ConnectionProperties`.
    #[derive(Copy)]
    struct ConnectionProperties {
        1 source_ip: bool [bool];
    }

    /// `RouteAction.UpgradeConfig`.
    struct UpgradeConfig {
        1 upgrade_type: String [string];
        2 enabled: Option<bool> [message];
        3 connect_config: Option<ConnectConfig> [message];
    }

    /// `RouteAction.UpgradeConfig.ConnectConfig`.
    #[derive(Copy)]
    struct ConnectConfig {
        2 allow_post: bool [bool];
    } refused {
        1 proxy_protocol_config,
    }

    /// `RouteAction.MaxStreamDuration`.
    #[derive(Copy)]
    struct MaxStreamDuration {
        1 max_stream_duration: Option<Duration> [message];
    } ignored {
        2 grpc_timeout_header_max, 3 grpc_timeout_header_offset,
    }

    /// `RedirectAction`.
    #[derive(Copy)]
    struct RedirectAction {
        /// 4 is 308.
        3 response_code: i32 [int32] = Kind::Ignored;
        4 https_redirect: bool [bool] = Kind::Ignored;
        8 port_redirect: u32 [uint32] = Kind::Ignored;
    } ignored {
        1 host_redirect, 2 path_redirect, 5 prefix_rewrite, 6 strip_query, 7 scheme_redirect,
        9 regex_rewrite,
    }

    /// `DirectResponseAction`.
    #[derive(Copy)]
    struct DirectResponseAction {
        1 status: u32 [uint32] = Kind::Ignored;
    } ignored {
        2 body, 3 body_format,
    }

    /// `envoy.extensions.filters.http.rbac.v3.RBAC`.
    struct RbacFilter {
        1 rules: Option<Rbac> [message];
    } ignored {
        2 shadow_rules, 3 shadow_rules_stat_prefix, 5 shadow_matcher, 6 rules_stat_prefix,
        7 track_per_rule_stats,
    } refused {
        4 matcher,
    }

    /// `envoy.extensions.filters.http.rbac.v3.RBACPerRoute`.
    struct RbacPerRoute {
        2 rbac: Option<RbacFilter> [message];
    }

    /// `envoy.config.rbac.v3.RBAC`.
    struct Rbac {
        /// 0 is to allow.
        1 action: i32 [int32];
        2 policies: BTreeMap<String, RbacPolicy>
            [btree_map = "string, message"] = Kind::Each(RbacPolicies::known);
    } ignored {
        3 audit_logging_options,
    }

    /// `envoy.config.rbac.v3.Policy`.
    struct RbacPolicy {
        1 permissions: Vec<RbacPermission> [message, repeated];
        2 principals: Vec<RbacPrincipal> [message, repeated];
    } refused {
        3 condition, 4 checked_condition, 5 cel_config,
    }

    /// `envoy.config.rbac.v3.Permission`.
    struct RbacPermission {
        3 any: Option<bool> [bool, optional];
    } refused {
        1 and_rules, 2 or_rules, 4 header, 5 destination_ip, 6 destination_port, 7 metadata,
        8 not_rule, 9 requested_server_name, 10 url_path, 11 destination_port_range, 12 matcher,
        13 uri_template, 14 sourced_metadata,
    }

    /// `envoy.config.rbac.v3.Principal`.
    struct RbacPrincipal {
        oneof identifier: Option<PrincipalIdentifier> [oneof = "PrincipalIdentifier", tags = "3, 10, 11"];
        field 3: "any" => Kind::Value;
        field 10: "direct_remote_ip" => Kind::One(CidrRange::known);
        field 11: "remote_ip" => Kind::One(CidrRange::known);
    } refused {
        1 and_ids, 2 or_ids, 4 authenticated, 5 source_ip, 6 header, 7 metadata, 8 not_id,
        9 url_path, 12 filter_state, 13 sourced_metadata, 14 custom,
    }

    /// `envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter`.
    struct HttpFilter {
        field 4: "typed_config" => Kind::Any(&[
            (kind::RBAC, Some(RbacFilter::known)),
            (kind::ROUTER, Some(Router::known)),
            (kind::STATS, None),
            // What Istio adds, without effect on where a CONNECT request goes.
            ("envoy.extensions.filters.http.cors.v3.Cors", Some(Empty::known)),
            ("envoy.extensions.filters.http.fault.v3.HTTPFault", Some(Empty::known)),
            ("envoy.extensions.filters.http.grpc_stats.v3.FilterConfig", None),
            ("io.istio.http.peer_metadata.Config", None),
            ("istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig", None),
        ]);
    } ignored {
        1 name, 6 is_optional,
    } refused {
        5 config_discovery, 7 disabled,
    }

    /// `envoy.extensions.filters.http.router.v3.Router`.
    struct Router {} ignored {
        1 dynamic_stats, 2 start_child_span, 3 upstream_log, 4 suppress_envoy_headers,
        5 strict_check_headers, 6 respect_expected_rq_timeout,
        7 suppress_grpc_request_failure_code_stats, 9 upstream_log_options,
    } refused {
        8 upstream_http_filters,
    }

    /// `envoy.config.route.v3.Route.TypedPerFilterConfigEntry`.
    struct PerFilterConfig {
        field 2: "value" => Kind::Any(&[
            (kind::RBAC_PER_ROUTE, Some(RbacPerRoute::known)),
        ]);
    } ignored {
        1 key,
    }

    /// `envoy.config.rbac.v3.RBAC.PoliciesEntry`.
    struct RbacPolicies {
        field 2: "value" => Kind::One(RbacPolicy::known);
    } ignored {
        1 key,
    }
}
