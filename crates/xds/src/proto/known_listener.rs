//! What messages of listeners may hold, down to the TCP proxy.

use super::known::Kind::{Any, Each, Ignored, One, Refused, Value};
use super::known::{ADDRESS, CIDR_RANGE, EMPTY, Message, OPAQUE, TRANSPORT_SOCKET};
use super::known_http::HTTP_CONNECTION_MANAGER;
use super::listener::kind;

/// `envoy.config.listener.v3.Listener`.
pub(crate) static LISTENER: Message = Message {
    name: "Listener",
    fields: &[
        (1, "name", Value),
        (2, "address", One(&ADDRESS)),
        (3, "filter_chains", Each(&FILTER_CHAIN)),
        (4, "use_original_dst", Ignored),
        (5, "per_connection_buffer_limit_bytes", Ignored),
        (6, "metadata", Ignored),
        (7, "deprecated_v1", Ignored),
        (8, "drain_type", Ignored),
        (9, "listener_filters", Each(&LISTENER_FILTER)),
        (10, "transparent", Ignored),
        (11, "freebind", Ignored),
        (12, "tcp_fast_open_queue_length", Ignored),
        (13, "socket_options", Ignored),
        (15, "listener_filters_timeout", Ignored),
        (16, "traffic_direction", Ignored),
        (17, "continue_on_listener_filters_timeout", Ignored),
        (18, "udp_listener_config", Refused),
        (19, "api_listener", Refused),
        (20, "connection_balance_config", Ignored),
        (21, "reuse_port", Ignored),
        (22, "access_log", Ignored),
        (24, "tcp_backlog_size", Ignored),
        (25, "default_filter_chain", One(&FILTER_CHAIN)),
        (26, "bind_to_port", Ignored),
        (27, "internal_listener", Refused),
        (28, "stat_prefix", Ignored),
        (29, "enable_reuse_port", Ignored),
        (30, "enable_mptcp", Ignored),
        (31, "ignore_global_conn_limit", Ignored),
        (32, "filter_chain_matcher", Refused),
        (33, "additional_addresses", Ignored),
        (34, "max_connections_to_accept_per_socket_event", Ignored),
        (35, "bypass_overload_manager", Ignored),
        (36, "fcds_config", Refused),
    ],
};

/// `envoy.config.listener.v3.ListenerFilter`.
pub(crate) static LISTENER_FILTER: Message = Message {
    name: "ListenerFilter",
    fields: &[
        (1, "name", Ignored),
        (
            3,
            "typed_config",
            Any(&[
                (kind::HTTP_INSPECTOR, &HTTP_INSPECTOR),
                (kind::PROXY_PROTOCOL, &PROXY_PROTOCOL),
                (kind::TLS_INSPECTOR, &TLS_INSPECTOR),
            ]),
        ),
        (4, "filter_disabled", Refused),
        (5, "config_discovery", Refused),
    ],
};

/// `envoy.extensions.filters.listener.http_inspector.v3.HttpInspector`.
pub(crate) static HTTP_INSPECTOR: Message = Message {
    name: "HttpInspector",
    fields: &[],
};

/// `envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol`.
pub(crate) static PROXY_PROTOCOL: Message = Message {
    name: "ProxyProtocol",
    fields: &[
        (1, "rules", Ignored),
        (2, "allow_requests_without_proxy_protocol", Ignored),
        (3, "pass_through_tlvs", Ignored),
        (4, "disallowed_versions", Refused),
        (5, "stat_prefix", Ignored),
        (6, "tlv_location", Ignored),
    ],
};

/// `envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector`.
pub(crate) static TLS_INSPECTOR: Message = Message {
    name: "TlsInspector",
    fields: &[
        (1, "enable_ja3_fingerprinting", Ignored),
        (2, "initial_read_buffer_size", Ignored),
        (3, "enable_ja4_fingerprinting", Ignored),
        (
            4,
            "close_connection_on_client_hello_parsing_errors",
            Ignored,
        ),
        (5, "max_client_hello_size", Ignored),
    ],
};

/// `envoy.config.listener.v3.FilterChain`.
pub(crate) static FILTER_CHAIN: Message = Message {
    name: "FilterChain",
    fields: &[
        (1, "filter_chain_match", One(&FILTER_CHAIN_MATCH)),
        (3, "filters", Each(&FILTER)),
        (4, "use_proxy_proto", Refused),
        (5, "metadata", Ignored),
        (6, "transport_socket", One(&TRANSPORT_SOCKET)),
        (7, "name", Ignored),
        (9, "transport_socket_connect_timeout", Ignored),
    ],
};

/// `envoy.config.listener.v3.FilterChainMatch`.
pub(crate) static FILTER_CHAIN_MATCH: Message = Message {
    name: "FilterChainMatch",
    fields: &[
        (3, "prefix_ranges", Each(&CIDR_RANGE)),
        (4, "address_suffix", Refused),
        (5, "suffix_len", Refused),
        (6, "source_prefix_ranges", Each(&CIDR_RANGE)),
        (7, "source_ports", Refused),
        (8, "destination_port", Value),
        (9, "transport_protocol", Value),
        (10, "application_protocols", Refused),
        (11, "server_names", Value),
        (12, "source_type", Refused),
        (13, "direct_source_prefix_ranges", Each(&CIDR_RANGE)),
    ],
};

/// `envoy.config.listener.v3.Filter`.
pub(crate) static FILTER: Message = Message {
    name: "Filter",
    fields: &[
        (1, "name", Ignored),
        (
            4,
            "typed_config",
            Any(&[
                (kind::HTTP_CONNECTION_MANAGER, &HTTP_CONNECTION_MANAGER),
                (kind::STATS, &OPAQUE),
                (kind::TCP_PROXY, &TCP_PROXY),
            ]),
        ),
        (5, "config_discovery", Refused),
    ],
};

/// `envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`.
pub(crate) static TCP_PROXY: Message = Message {
    name: "TcpProxy",
    fields: &[
        (1, "stat_prefix", Ignored),
        (2, "cluster", Value),
        (3, "downstream_idle_timeout", Refused),
        (4, "upstream_idle_timeout", Refused),
        (5, "access_log", Ignored),
        (7, "max_connect_attempts", Value),
        (8, "idle_timeout", Value),
        (9, "metadata_match", Refused),
        (10, "weighted_clusters", Refused),
        (11, "hash_policy", Each(&HASH_POLICY)),
        (12, "tunneling_config", Refused),
        (13, "max_downstream_connection_duration", Value),
        (14, "on_demand", Refused),
        (15, "access_log_flush_interval", Ignored),
        (16, "flush_access_log_on_connected", Ignored),
        (17, "access_log_options", Ignored),
        (18, "backoff_options", Ignored),
        (19, "proxy_protocol_tlvs", Refused),
        (
            20,
            "max_downstream_connection_duration_jitter_percentage",
            Refused,
        ),
        (21, "upstream_connect_mode", Refused),
        (22, "max_early_data_bytes", Refused),
    ],
};

/// `envoy.type.v3.HashPolicy`.
pub(crate) static HASH_POLICY: Message = Message {
    name: "HashPolicy",
    fields: &[(1, "source_ip", One(&EMPTY)), (2, "filter_state", Refused)],
};
