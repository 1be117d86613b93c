//! Messages that others are made of: `envoy.config.core.v3`, `envoy.type.v3`, and our own one.

use prost::Message;
use prost_types::{Any, Duration};

use super::known::{Kind, messages};
use super::listener::kind;
use super::tls::{DownstreamTlsContext, UpstreamTlsContext};

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

/// Packs a message of the type `kind` into an `Any`.
pub(crate) fn any(kind: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{kind}"),
        value: message.encode_to_vec(),
    }
}

messages! {
    /// `envoy.config.core.v3.Address`.
    struct Address {
        1 socket_address: Option<SocketAddress> [message];
        3 internal: Option<InternalAddress> [message] as "envoy_internal_address";
    } refused {
        2 pipe,
    }

    /// `envoy.config.core.v3.EnvoyInternalAddress`.
    struct InternalAddress {
        1 server_listener_name: String [string];
    } ignored {
        2 endpoint_id,
    }

    /// `envoy.config.core.v3.SocketAddress`.
    struct SocketAddress {
        /// 0 is TCP.
        1 protocol: i32 [int32];
        2 address: String [string];
        3 port_value: Option<u32> [uint32, optional];
        6 ipv4_compat: bool [bool] = Kind::Ignored;
    } refused {
        4 named_port, 5 resolver_name, 7 network_namespace_filepath,
    }

    /// `envoy.config.core.v3.CidrRange`.
    struct CidrRange {
        1 address_prefix: String [string];
        2 prefix_len: Option<u32> [message];
    }

    /// `envoy.config.core.v3.TcpKeepalive`; times in seconds.
    #[derive(Copy, Eq, Hash)]
    struct TcpKeepalive {
        1 keepalive_probes: Option<u32> [message];
        2 keepalive_time: Option<u32> [message];
        3 keepalive_interval: Option<u32> [message];
    }

    /// `envoy.config.core.v3.Locality`.
    struct Locality {
        2 zone: String [string];
    } ignored {
        1 region, 3 sub_zone,
    }

    /// `envoy.config.core.v3.TransportSocket`.
    struct TransportSocket {
        1 name: String [string] = Kind::Ignored;
        3 typed_config: Option<Any> [message] = Kind::Any(&[
            (kind::DOWNSTREAM_TLS, Some(DownstreamTlsContext::known)),
            (kind::UPSTREAM_TLS, Some(UpstreamTlsContext::known)),
            (kind::RAW_BUFFER, Some(Empty::known)),
            (kind::UPSTREAM_PROXY_PROTOCOL, Some(ProxyProtocolUpstreamTransport::known)),
        ]);
    }

    /// `envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport`.
    struct ProxyProtocolUpstreamTransport {
        1 config: Option<ProxyProtocolConfig> [message];
        2 transport_socket: Option<TransportSocket> [message];
    } ignored {
        3 allow_unspecified_address, 4 tlv_as_pool_key,
    }

    /// `envoy.config.core.v3.ProxyProtocolConfig`.
    struct ProxyProtocolConfig {
        /// 0 is version 1, 1 is version 2.
        1 version: i32 [int32];
    } refused {
        2 pass_through_tlvs, 3 added_tlvs,
    }

    /// `envoy.config.core.v3.ConfigSource`, by the stream that is already there.
    struct ConfigSource {
        3 ads: Option<Empty> [message];
        5 own: Option<Empty> [message] as "self" = Kind::One(SelfConfigSource::known);
        /// 2 is v3.
        6 resource_api_version: i32 [int32] = Kind::Ignored;
    } ignored {
        4 initial_fetch_timeout,
    } refused {
        1 path, 2 api_config_source, 7 authorities, 8 path_config_source,
    }

    /// Any message that has no fields, or none that matter.
    #[derive(Copy)]
    struct Empty {}

    /// `envoy.type.matcher.v3.StringMatcher`.
    struct StringMatcher {
        6 ignore_case: bool [bool];
        oneof pattern: Option<StringPattern> [oneof = "StringPattern", tags = "1, 2, 3, 5, 7"];
        field 1: "exact" => Kind::Value;
        field 2: "prefix" => Kind::Value;
        field 3: "suffix" => Kind::Value;
        field 5: "safe_regex" => Kind::One(RegexMatcher::known);
        field 7: "contains" => Kind::Value;
    } refused {
        8 custom,
    }

    /// `envoy.type.matcher.v3.RegexMatcher`.
    struct RegexMatcher {
        2 regex: String [string];
    } ignored {
        1 google_re2,
    }

    /// `envoy.type.v3.Percent`.
    struct Percent {
        1 value: f64 [double];
    }

    /// `rhizome.route.v1.WireGuardRoute`: where WireGuard datagrams of one server go.
    struct WireGuardRoute {
        1 name: String [string];
        /// 32 bytes each.
        2 public_keys: Vec<Vec<u8>> [bytes = "vec", repeated];
        /// 0 is none.
        3 route_id: u32 [uint32];
        4 cluster: String [string];
        5 allow_sources: Vec<CidrRange> [message, repeated];
        6 idle_timeout: Option<Duration> [message];
        7 max_connection_age: Option<Duration> [message];
    }

    /// `envoy.config.core.v3.SelfConfigSource`.
    struct SelfConfigSource {} ignored {
        1 transport_api_version,
    }
}
