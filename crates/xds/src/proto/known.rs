//! What messages may hold: every field of the API by number and name, and what is made of it.
//!
//! Decoding alone would drop in silence what it has no place for, so a resource is first walked
//! along these tables. Here are their form and the messages that others are made of.

use Kind::{Any, Each, Ignored, One, Refused, Value};

pub(crate) use super::known_cluster::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};
pub(crate) use super::known_http::ROUTE_CONFIGURATION;
pub(crate) use super::known_listener::LISTENER;
use super::listener::kind;

/// A message.
#[derive(Debug)]
pub(crate) struct Message {
    /// What it is called in the path of what is inside its `Any`.
    pub(crate) name: &'static str,
    /// Its fields, in the order of their numbers.
    pub(crate) fields: &'static [Field],
}

/// A field: its number, its name, and what is made of it.
pub(crate) type Field = (u32, &'static str, Kind);

/// What is made of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// One of these messages, by full name, inside an `Any`.
    Any(&'static [(&'static str, &'static Message)]),
    /// Any number of messages.
    Each(&'static Message),
    /// Nothing, on purpose: it changes neither where a connection goes nor who may go there.
    Ignored,
    /// One message.
    One(&'static Message),
    /// It is known and not understood: a resource that has it is refused.
    Refused,
    /// It is read.
    Value,
}

/// A message that has no fields.
pub(crate) static EMPTY: Message = Message {
    name: "",
    fields: &[],
};

/// A message whose fields do not matter, whichever they are.
pub(crate) static OPAQUE: Message = Message {
    name: "opaque",
    fields: &[],
};

/// `rhizome.route.v1.WireGuardRoute`.
pub(crate) static WIREGUARD_ROUTE: Message = Message {
    name: "WireGuardRoute",
    fields: &[
        (1, "name", Value),
        (2, "public_keys", Value),
        (3, "route_id", Value),
        (4, "cluster", Value),
        (5, "allow_sources", Each(&CIDR_RANGE)),
        (6, "idle_timeout", Value),
        (7, "max_connection_age", Value),
    ],
};

/// `envoy.config.core.v3.Address`.
pub(crate) static ADDRESS: Message = Message {
    name: "Address",
    fields: &[
        (1, "socket_address", One(&SOCKET_ADDRESS)),
        (2, "pipe", Refused),
        (3, "envoy_internal_address", Refused),
    ],
};

/// `envoy.config.core.v3.SocketAddress`.
pub(crate) static SOCKET_ADDRESS: Message = Message {
    name: "SocketAddress",
    fields: &[
        (1, "protocol", Value),
        (2, "address", Value),
        (3, "port_value", Value),
        (4, "named_port", Refused),
        (5, "resolver_name", Refused),
        (6, "ipv4_compat", Ignored),
        (7, "network_namespace_filepath", Refused),
    ],
};

/// `envoy.config.core.v3.CidrRange`.
pub(crate) static CIDR_RANGE: Message = Message {
    name: "CidrRange",
    fields: &[(1, "address_prefix", Value), (2, "prefix_len", Value)],
};

/// `envoy.config.core.v3.TcpKeepalive`.
pub(crate) static TCP_KEEPALIVE: Message = Message {
    name: "TcpKeepalive",
    fields: &[
        (1, "keepalive_probes", Value),
        (2, "keepalive_time", Value),
        (3, "keepalive_interval", Value),
    ],
};

/// `envoy.config.core.v3.Locality`.
pub(crate) static LOCALITY: Message = Message {
    name: "Locality",
    fields: &[
        (1, "region", Ignored),
        (2, "zone", Value),
        (3, "sub_zone", Ignored),
    ],
};

/// `envoy.config.core.v3.TransportSocket`.
pub(crate) static TRANSPORT_SOCKET: Message = Message {
    name: "TransportSocket",
    fields: &[
        (1, "name", Ignored),
        (
            3,
            "typed_config",
            Any(&[
                (kind::RAW_BUFFER, &EMPTY),
                (kind::UPSTREAM_PROXY_PROTOCOL, &UPSTREAM_PROXY_PROTOCOL),
            ]),
        ),
    ],
};

/// `envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport`.
pub(crate) static UPSTREAM_PROXY_PROTOCOL: Message = Message {
    name: "ProxyProtocolUpstreamTransport",
    fields: &[
        (1, "config", One(&PROXY_PROTOCOL_CONFIG)),
        (2, "transport_socket", One(&TRANSPORT_SOCKET)),
        (3, "allow_unspecified_address", Ignored),
        (4, "tlv_as_pool_key", Ignored),
    ],
};

/// `envoy.config.core.v3.ProxyProtocolConfig`.
pub(crate) static PROXY_PROTOCOL_CONFIG: Message = Message {
    name: "ProxyProtocolConfig",
    fields: &[
        (1, "version", Value),
        (2, "pass_through_tlvs", Refused),
        (3, "added_tlvs", Refused),
    ],
};

/// `envoy.config.core.v3.ConfigSource`.
pub(crate) static CONFIG_SOURCE: Message = Message {
    name: "ConfigSource",
    fields: &[
        (1, "path", Refused),
        (2, "api_config_source", Refused),
        (3, "ads", One(&EMPTY)),
        (4, "initial_fetch_timeout", Ignored),
        (5, "self", One(&SELF)),
        (6, "resource_api_version", Ignored),
        (7, "authorities", Refused),
        (8, "path_config_source", Refused),
    ],
};

/// `envoy.config.core.v3.SelfConfigSource`.
pub(crate) static SELF: Message = Message {
    name: "SelfConfigSource",
    fields: &[(1, "transport_api_version", Ignored)],
};

/// `envoy.type.matcher.v3.StringMatcher`.
pub(crate) static STRING_MATCHER: Message = Message {
    name: "StringMatcher",
    fields: &[
        (1, "exact", Value),
        (2, "prefix", Value),
        (3, "suffix", Value),
        (5, "safe_regex", One(&REGEX_MATCHER)),
        (6, "ignore_case", Value),
        (7, "contains", Value),
        (8, "custom", Refused),
    ],
};

/// `envoy.type.matcher.v3.RegexMatcher`.
pub(crate) static REGEX_MATCHER: Message = Message {
    name: "RegexMatcher",
    fields: &[(1, "google_re2", Ignored), (2, "regex", Value)],
};

/// `envoy.type.v3.Percent`.
pub(crate) static PERCENT: Message = Message {
    name: "Percent",
    fields: &[(1, "value", Value)],
};
