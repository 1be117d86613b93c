//! Messages of listeners and what is below HTTP: `envoy.config.listener.v3`, listener filters, the
//! TCP proxy.

use prost::Message;
use prost_types::{Any, Duration};

use super::core::{Address, CidrRange, Empty, TransportSocket};

/// Full names of the messages that travel in an `Any`.
pub(crate) mod kind {
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
}

/// `envoy.config.listener.v3.Listener`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Listener {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) address: Option<Address>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) filter_chains: Vec<FilterChain>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) listener_filters: Vec<Filter3>,
    #[prost(message, optional, tag = "15")]
    pub(crate) listener_filters_timeout: Option<Duration>,
    #[prost(message, optional, tag = "25")]
    pub(crate) default_filter_chain: Option<FilterChain>,
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

/// `FilterChain`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilterChain {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter_chain_match: Option<FilterChainMatch>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) filters: Vec<Filter4>,
    #[prost(message, optional, tag = "6")]
    pub(crate) transport_socket: Option<TransportSocket>,
    /// Told apart by it in Envoy's statistics and logs.
    #[prost(string, tag = "7")]
    pub(crate) name: String,
}

/// `FilterChainMatch`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilterChainMatch {
    #[prost(message, repeated, tag = "3")]
    pub(crate) prefix_ranges: Vec<CidrRange>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) source_prefix_ranges: Vec<CidrRange>,
    #[prost(message, optional, tag = "8")]
    pub(crate) destination_port: Option<u32>,
    #[prost(string, tag = "9")]
    pub(crate) transport_protocol: String,
    #[prost(string, repeated, tag = "11")]
    pub(crate) server_names: Vec<String>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) direct_source_prefix_ranges: Vec<CidrRange>,
}

/// `envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProxyProtocol {
    #[prost(bool, tag = "2")]
    pub(crate) allow_requests_without_proxy_protocol: bool,
}

/// `envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TcpProxy {
    #[prost(string, tag = "1")]
    pub(crate) stat_prefix: String,
    #[prost(string, tag = "2")]
    pub(crate) cluster: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) max_connect_attempts: Option<u32>,
    #[prost(message, optional, tag = "8")]
    pub(crate) idle_timeout: Option<Duration>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) hash_policy: Vec<HashPolicy>,
    #[prost(message, optional, tag = "13")]
    pub(crate) max_downstream_connection_duration: Option<Duration>,
}

/// `envoy.type.v3.HashPolicy`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HashPolicy {
    #[prost(message, optional, tag = "1")]
    pub(crate) source_ip: Option<Empty>,
}
