//! Messages that others are made of: `envoy.config.core.v3`, `envoy.type.v3`, and our own one.

use prost::Message;
use prost_types::{Any, Duration};

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Address {
    #[prost(message, optional, tag = "1")]
    pub(crate) socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SocketAddress {
    /// 0 is TCP.
    #[prost(int32, tag = "1")]
    pub(crate) protocol: i32,
    #[prost(string, tag = "2")]
    pub(crate) address: String,
    #[prost(uint32, optional, tag = "3")]
    pub(crate) port_value: Option<u32>,
    #[prost(bool, tag = "6")]
    pub(crate) ipv4_compat: bool,
}

/// `envoy.config.core.v3.CidrRange`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CidrRange {
    #[prost(string, tag = "1")]
    pub(crate) address_prefix: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) prefix_len: Option<u32>,
}

/// `envoy.config.core.v3.TcpKeepalive`; times in seconds.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TcpKeepalive {
    #[prost(message, optional, tag = "1")]
    pub(crate) keepalive_probes: Option<u32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) keepalive_time: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub(crate) keepalive_interval: Option<u32>,
}

/// `envoy.config.core.v3.Locality`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Locality {
    #[prost(string, tag = "2")]
    pub(crate) zone: String,
}

/// `envoy.config.core.v3.TransportSocket`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TransportSocket {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) typed_config: Option<Any>,
}

/// `envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProxyProtocolUpstreamTransport {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<ProxyProtocolConfig>,
    #[prost(message, optional, tag = "2")]
    pub(crate) transport_socket: Option<TransportSocket>,
}

/// `envoy.config.core.v3.ProxyProtocolConfig`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProxyProtocolConfig {
    /// 0 is version 1, 1 is version 2.
    #[prost(int32, tag = "1")]
    pub(crate) version: i32,
}

/// `envoy.config.core.v3.ConfigSource`, by the stream that is already there.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigSource {
    #[prost(message, optional, tag = "3")]
    pub(crate) ads: Option<Empty>,
    #[prost(message, optional, tag = "5")]
    pub(crate) own: Option<Empty>,
    /// 2 is v3.
    #[prost(int32, tag = "6")]
    pub(crate) resource_api_version: i32,
}

impl ConfigSource {
    /// Returns the source that is the stream itself.
    pub(crate) fn ads() -> Self {
        Self {
            ads: Some(Empty {}),
            own: None,
            resource_api_version: 2,
        }
    }
}

/// Any message that has no fields, or none that matter.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Empty {}

/// `envoy.type.matcher.v3.StringMatcher`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringMatcher {
    #[prost(oneof = "StringPattern", tags = "1, 2, 3, 5, 7")]
    pub(crate) pattern: Option<StringPattern>,
    #[prost(bool, tag = "6")]
    pub(crate) ignore_case: bool,
}

/// The one of `match_pattern`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum StringPattern {
    #[prost(string, tag = "1")]
    Exact(String),
    #[prost(string, tag = "2")]
    Prefix(String),
    #[prost(string, tag = "3")]
    Suffix(String),
    #[prost(message, tag = "5")]
    SafeRegex(RegexMatcher),
    #[prost(string, tag = "7")]
    Contains(String),
}

/// `envoy.type.matcher.v3.RegexMatcher`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegexMatcher {
    #[prost(string, tag = "2")]
    pub(crate) regex: String,
}

/// `envoy.type.v3.Percent`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Percent {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
}

/// `rhizome.route.v1.WireGuardRoute`: where WireGuard datagrams of one server go.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireGuardRoute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// 32 bytes each.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) public_keys: Vec<Vec<u8>>,
    /// 0 is none.
    #[prost(uint32, tag = "3")]
    pub(crate) route_id: u32,
    #[prost(string, tag = "4")]
    pub(crate) cluster: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) allow_sources: Vec<CidrRange>,
    #[prost(message, optional, tag = "6")]
    pub(crate) idle_timeout: Option<Duration>,
    #[prost(message, optional, tag = "7")]
    pub(crate) max_connection_age: Option<Duration>,
}

/// Puts a message of the type `kind` into an `Any`.
pub(crate) fn any(kind: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{kind}"),
        value: message.encode_to_vec(),
    }
}
