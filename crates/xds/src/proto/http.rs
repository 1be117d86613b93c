//! Messages of HTTP: the connection manager, its routes, access control by role.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::{Any, Duration};

use super::core::{CidrRange, ConfigSource, Empty, RegexMatcher, StringMatcher};
use super::listener::{Filter3, Filter4};

/// `…http_connection_manager.v3.HttpConnectionManager`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpConnectionManager {
    /// 0 is automatic, 1 is HTTP/1.
    #[prost(int32, tag = "1")]
    pub(crate) codec_type: i32,
    #[prost(string, tag = "2")]
    pub(crate) stat_prefix: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) rds: Option<Rds>,
    #[prost(message, optional, tag = "4")]
    pub(crate) route_config: Option<RouteConfiguration>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) http_filters: Vec<Filter4>,
    #[prost(message, optional, tag = "8")]
    pub(crate) http_protocol_options: Option<Http1ProtocolOptions>,
    #[prost(message, optional, tag = "14")]
    pub(crate) use_remote_address: Option<bool>,
    #[prost(message, optional, tag = "15")]
    pub(crate) generate_request_id: Option<bool>,
    /// What may be asked for besides plain requests; here only the types count.
    #[prost(message, repeated, tag = "23")]
    pub(crate) upgrade_configs: Vec<UpgradeType>,
    #[prost(message, optional, tag = "24")]
    pub(crate) stream_idle_timeout: Option<Duration>,
    #[prost(message, optional, tag = "41")]
    pub(crate) request_headers_timeout: Option<Duration>,
}

/// `HttpConnectionManager.UpgradeConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpgradeType {
    #[prost(string, tag = "1")]
    pub(crate) upgrade_type: String,
}

/// `Rds`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rds {
    #[prost(message, optional, tag = "1")]
    pub(crate) config_source: Option<ConfigSource>,
    #[prost(string, tag = "2")]
    pub(crate) route_config_name: String,
}

/// `envoy.config.core.v3.Http1ProtocolOptions`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Http1ProtocolOptions {
    #[prost(bool, tag = "2")]
    pub(crate) accept_http_10: bool,
}

/// `envoy.config.route.v3.RouteConfiguration`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteConfiguration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) virtual_hosts: Vec<VirtualHost>,
}

/// `VirtualHost`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct VirtualHost {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) domains: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) routes: Vec<Route>,
    /// 0 is none.
    #[prost(int32, tag = "4")]
    pub(crate) require_tls: i32,
}

/// `Route`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Route {
    #[prost(message, optional, tag = "1")]
    pub(crate) matches: Option<RouteMatch>,
    #[prost(message, optional, tag = "2")]
    pub(crate) route: Option<RouteAction>,
    #[prost(message, optional, tag = "3")]
    pub(crate) redirect: Option<RedirectAction>,
    #[prost(message, optional, tag = "7")]
    pub(crate) direct_response: Option<DirectResponseAction>,
    #[prost(btree_map = "string, message", tag = "13")]
    pub(crate) typed_per_filter_config: BTreeMap<String, Any>,
}

/// `RouteMatch`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteMatch {
    #[prost(string, optional, tag = "1")]
    pub(crate) prefix: Option<String>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) headers: Vec<HeaderMatcher>,
    #[prost(message, optional, tag = "12")]
    pub(crate) connect_matcher: Option<Empty>,
}

/// `HeaderMatcher`; the matches but the last are the old form of `string_match`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMatcher {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(oneof = "HeaderPattern", tags = "4, 7, 9, 10, 11, 12, 13")]
    pub(crate) pattern: Option<HeaderPattern>,
    #[prost(bool, tag = "8")]
    pub(crate) invert_match: bool,
}

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

/// `RouteAction`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteAction {
    #[prost(string, optional, tag = "1")]
    pub(crate) cluster: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) cluster_header: Option<String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) timeout: Option<Duration>,
    #[prost(message, optional, tag = "9")]
    pub(crate) retry_policy: Option<RetryPolicy>,
    #[prost(message, repeated, tag = "15")]
    pub(crate) hash_policy: Vec<RouteHashPolicy>,
    #[prost(message, optional, tag = "24")]
    pub(crate) idle_timeout: Option<Duration>,
    #[prost(message, repeated, tag = "25")]
    pub(crate) upgrade_configs: Vec<UpgradeConfig>,
    #[prost(message, optional, tag = "36")]
    pub(crate) max_stream_duration: Option<MaxStreamDuration>,
}

/// `RetryPolicy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RetryPolicy {
    #[prost(string, tag = "1")]
    pub(crate) retry_on: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) num_retries: Option<u32>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) retry_host_predicate: Vec<Filter3>,
    #[prost(int64, tag = "6")]
    pub(crate) host_selection_retry_max_attempts: i64,
}

/// `RouteAction.HashPolicy`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RouteHashPolicy {
    #[prost(message, optional, tag = "3")]
    pub(crate) connection_properties: Option<ConnectionProperties>,
}

/// `RouteAction.HashPolicy.ConnectionProperties`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ConnectionProperties {
    #[prost(bool, tag = "1")]
    pub(crate) source_ip: bool,
}

/// `RouteAction.UpgradeConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpgradeConfig {
    #[prost(string, tag = "1")]
    pub(crate) upgrade_type: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) enabled: Option<bool>,
    #[prost(message, optional, tag = "3")]
    pub(crate) connect_config: Option<ConnectConfig>,
}

/// `RouteAction.UpgradeConfig.ConnectConfig`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ConnectConfig {
    #[prost(bool, tag = "2")]
    pub(crate) allow_post: bool,
}

/// `RouteAction.MaxStreamDuration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct MaxStreamDuration {
    #[prost(message, optional, tag = "1")]
    pub(crate) max_stream_duration: Option<Duration>,
}

/// `RedirectAction`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RedirectAction {
    /// 4 is 308.
    #[prost(int32, tag = "3")]
    pub(crate) response_code: i32,
    #[prost(bool, tag = "4")]
    pub(crate) https_redirect: bool,
    #[prost(uint32, tag = "8")]
    pub(crate) port_redirect: u32,
}

/// `DirectResponseAction`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct DirectResponseAction {
    #[prost(uint32, tag = "1")]
    pub(crate) status: u32,
}

/// `envoy.extensions.filters.http.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacFilter {
    #[prost(message, optional, tag = "1")]
    pub(crate) rules: Option<Rbac>,
}

/// `envoy.extensions.filters.http.rbac.v3.RBACPerRoute`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacPerRoute {
    #[prost(message, optional, tag = "2")]
    pub(crate) rbac: Option<RbacFilter>,
}

/// `envoy.config.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rbac {
    /// 0 is to allow.
    #[prost(int32, tag = "1")]
    pub(crate) action: i32,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) policies: BTreeMap<String, RbacPolicy>,
}

/// `envoy.config.rbac.v3.Policy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacPolicy {
    #[prost(message, repeated, tag = "1")]
    pub(crate) permissions: Vec<RbacPermission>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) principals: Vec<RbacPrincipal>,
}

/// `envoy.config.rbac.v3.Permission`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacPermission {
    #[prost(bool, optional, tag = "3")]
    pub(crate) any: Option<bool>,
}

/// `envoy.config.rbac.v3.Principal`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RbacPrincipal {
    #[prost(oneof = "PrincipalIdentifier", tags = "3, 10, 11")]
    pub(crate) identifier: Option<PrincipalIdentifier>,
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
