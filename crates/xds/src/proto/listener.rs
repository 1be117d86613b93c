//! Messages of listeners and what is below HTTP: `envoy.config.listener.v3`, listener filters, the
//! TCP proxy.

use prost::Message;
use prost_types::{Any, Duration};

use super::core::{Address, CidrRange, Empty, TransportSocket};
use super::http::HttpConnectionManager;
use super::known::{Kind, messages};

/// Full names of the messages that travel in an `Any`.
pub(crate) mod kind {
    pub(crate) const DOWNSTREAM_TLS: &str =
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    pub(crate) const HTTP_CONNECTION_MANAGER: &str =
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    pub(crate) const HTTP_INSPECTOR: &str =
        "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector";
    pub(crate) const PREVIOUS_HOSTS: &str =
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate";
    pub(crate) const PROXY_PROTOCOL: &str =
        "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol";
    pub(crate) const RAW_BUFFER: &str =
        "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer";
    pub(crate) const RBAC: &str = "envoy.extensions.filters.http.rbac.v3.RBAC";
    pub(crate) const RBAC_PER_ROUTE: &str = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute";
    pub(crate) const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";
    /// Istio's telemetry, on TCP and on HTTP.
    pub(crate) const STATS: &str = "stats.PluginConfig";
    pub(crate) const TCP_PROXY: &str = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
    pub(crate) const TLS_INSPECTOR: &str =
        "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
    pub(crate) const UPSTREAM_PROXY_PROTOCOL: &str =
        "envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport";
    pub(crate) const UPSTREAM_TLS: &str =
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
}

/// `ListenerFilter`, and what else has its name at 1 and its `typed_config` at 3.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Filter3 {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) typed_config: Option<Any>,
}

/// `Filter`, and `HttpFilter`: the `typed_config` is at 4.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Filter4 {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) typed_config: Option<Any>,
}

messages! {
    /// `envoy.config.listener.v3.Listener`.
    struct Listener {
        1 name: String [string];
        2 address: Option<Address> [message];
        3 filter_chains: Vec<FilterChain> [message, repeated];
        9 listener_filters: Vec<Filter3> [message, repeated] = Kind::Each(ListenerFilter::known);
        15 listener_filters_timeout: Option<Duration> [message] = Kind::Ignored;
        25 default_filter_chain: Option<FilterChain> [message];
        /// It has no socket, and is reached by its name.
        27 internal_listener: Option<Empty> [message];
    } ignored {
        4 use_original_dst, 5 per_connection_buffer_limit_bytes, 6 metadata, 7 deprecated_v1,
        8 drain_type, 10 transparent, 11 freebind, 12 tcp_fast_open_queue_length,
        13 socket_options, 16 traffic_direction, 17 continue_on_listener_filters_timeout,
        20 connection_balance_config, 21 reuse_port, 22 access_log, 24 tcp_backlog_size,
        26 bind_to_port, 28 stat_prefix, 29 enable_reuse_port, 30 enable_mptcp,
        31 ignore_global_conn_limit, 33 additional_addresses,
        34 max_connections_to_accept_per_socket_event, 35 bypass_overload_manager,
    } refused {
        18 udp_listener_config, 19 api_listener, 32 filter_chain_matcher,
        36 fcds_config,
    }

    /// The part of a `Listener` that says whether it is one of the caller's.
    struct ListenerHead {
        1 name: String [string];
        2 address: Option<Address> [message];
        27 internal_listener: Option<Empty> [message];
    }

    /// `FilterChain`.
    struct FilterChain {
        1 filter_chain_match: Option<FilterChainMatch> [message];
        3 filters: Vec<Filter4> [message, repeated] = Kind::Each(NetworkFilter::known);
        6 transport_socket: Option<TransportSocket> [message];
        /// Identifies it in Envoy's statistics and logs.
        7 name: String [string] = Kind::Ignored;
    } ignored {
        5 metadata, 9 transport_socket_connect_timeout,
    } refused {
        4 use_proxy_proto,
    }

    /// `FilterChainMatch`.
    struct FilterChainMatch {
        3 prefix_ranges: Vec<CidrRange> [message, repeated];
        6 source_prefix_ranges: Vec<CidrRange> [message, repeated];
        8 destination_port: Option<u32> [message];
        9 transport_protocol: String [string];
        11 server_names: Vec<String> [string, repeated];
        13 direct_source_prefix_ranges: Vec<CidrRange> [message, repeated];
    } refused {
        4 address_suffix, 5 suffix_len, 7 source_ports, 10 application_protocols,
        12 source_type,
    }

    /// `envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol`.
    struct ProxyProtocol {
        2 allow_requests_without_proxy_protocol: bool [bool] = Kind::Ignored;
    } ignored {
        1 rules, 3 pass_through_tlvs, 5 stat_prefix, 6 tlv_location,
    } refused {
        4 disallowed_versions,
    }

    /// `envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`.
    struct TcpProxy {
        1 stat_prefix: String [string] = Kind::Ignored;
        2 cluster: String [string];
        7 max_connect_attempts: Option<u32> [message];
        8 idle_timeout: Option<Duration> [message];
        11 hash_policy: Vec<HashPolicy> [message, repeated];
        13 max_downstream_connection_duration: Option<Duration> [message];
    } ignored {
        5 access_log, 15 access_log_flush_interval, 16 flush_access_log_on_connected,
        17 access_log_options, 18 backoff_options,
    } refused {
        3 downstream_idle_timeout, 4 upstream_idle_timeout, 9 metadata_match,
        10 weighted_clusters, 12 tunneling_config, 14 on_demand, 19 proxy_protocol_tlvs,
        20 max_downstream_connection_duration_jitter_percentage, 21 upstream_connect_mode,
        22 max_early_data_bytes,
    }

    /// `envoy.type.v3.HashPolicy`.
    #[derive(Copy)]
    struct HashPolicy {
        1 source_ip: Option<Empty> [message];
    } refused {
        2 filter_state,
    }

    /// `envoy.config.listener.v3.ListenerFilter`.
    struct ListenerFilter {
        field 3: "typed_config" => Kind::Any(&[
            (kind::HTTP_INSPECTOR, Some(Empty::known)),
            (kind::PROXY_PROTOCOL, Some(ProxyProtocol::known)),
            (kind::TLS_INSPECTOR, Some(TlsInspector::known)),
        ]);
    } ignored {
        1 name,
    } refused {
        4 filter_disabled, 5 config_discovery,
    }

    /// `envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector`.
    struct TlsInspector {} ignored {
        1 enable_ja3_fingerprinting, 2 initial_read_buffer_size, 3 enable_ja4_fingerprinting,
        4 close_connection_on_client_hello_parsing_errors, 5 max_client_hello_size,
    }

    /// `envoy.config.listener.v3.Filter`.
    struct NetworkFilter {
        field 4: "typed_config" => Kind::Any(&[
            (kind::HTTP_CONNECTION_MANAGER, Some(HttpConnectionManager::known)),
            (kind::STATS, None),
            (kind::TCP_PROXY, Some(TcpProxy::known)),
        ]);
    } ignored {
        1 name,
    } refused {
        5 config_discovery,
    }
}
