//! What istiod adds of its own to every resource, and listeners that are another proxy's matter.

use prost::Message as _;

use super::*;
use crate::decode::decode_for;
use crate::proto::{ConfigSource, Rds, TransportSocket};

const LISTENER: ResourceType = ResourceType::Listener;
const CLUSTER: ResourceType = ResourceType::Cluster;
const EXCHANGE: &str = "envoy.tcp.metadataexchange.config.MetadataExchange";
const FAULT: &str = "envoy.extensions.filters.http.fault.v3.HTTPFault";

/// An `Any` of `kind`, encoded; the fields of a `TypedStruct` have the same numbers.
fn packed(kind: &str, value: Vec<u8>) -> Vec<u8> {
    let type_url = format!("type.googleapis.com/{kind}");
    Any { type_url, value }.encode_to_vec()
}

/// The same, with its fields by name: `{"protocol": "x"}`.
fn by_names(kind: &str) -> Vec<u8> {
    let field = b"\x0a\x0f\x0a\x08protocol\x12\x03\x1a\x01x".to_vec();
    packed("udpa.type.v1.TypedStruct", packed(kind, field))
}

/// A field that holds `body`.
fn field(number: u32, body: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::bytes::encode(number, &body.to_vec(), &mut field);
    field
}

/// A cluster with this `typed_config` of a filter.
fn with_filter(config: &[u8]) -> Vec<u8> {
    let name = field(1, b"istio.metadata_exchange");
    let filter = [name, field(2, config)].concat();
    [cluster("c").encode_to_vec(), field(40, &filter)].concat()
}

#[test]
fn metadata_exchange_of_cluster_has_no_effect() {
    for config in [by_names(EXCHANGE), packed(EXCHANGE, field(1, b"x"))] {
        assert!(decode(CLUSTER, "c", &with_filter(&config)).is_ok());
    }
    let path = "Cluster c: filters[0].typed_config: the type";
    for kind in ["envoy.tcp.other", kind::TCP_PROXY] {
        let error = wrong(CLUSTER, "c", &with_filter(&by_names(kind)));
        assert_eq!(error, format!("{path} {kind:?} is not understood"));
    }
}

/// A listener of CONNECT requests whose connection manager has this filter beside the router.
fn with_http_filter(config: &[u8]) -> Vec<u8> {
    let mut manager = manager(routes("r", Vec::new()));
    manager.http_filters = vec![filter(kind::ROUTER, &Empty {})];
    let manager = [manager.encode_to_vec(), field(5, &field(4, config))].concat();
    let chain = FilterChain {
        filters: vec![raw_filter(kind::HTTP_CONNECTION_MANAGER, manager)],
        ..FilterChain::default()
    };
    listener("vpn", 8132, vec![chain]).encode_to_vec()
}

#[test]
fn http_filters_of_istiod_have_no_effect() {
    for config in [
        by_names("io.istio.http.peer_metadata.Config"),
        by_names(kind::STATS),
        packed(kind::STATS, field(1, b"x")),
        packed("envoy.extensions.filters.http.cors.v3.Cors", Vec::new()),
        packed(
            "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
            field(3, b""),
        ),
        packed(
            "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
            field(1, b""),
        ),
        packed(FAULT, Vec::new()),
    ] {
        let decoded = decode(LISTENER, "vpn", &with_http_filter(&config));
        assert!(decoded.is_ok(), "{decoded:?}");
    }
    // One that delays or aborts does have one; and by names it could be hidden that it does.
    let path = "filters[0].typed_config(HttpConnectionManager).http_filters[1].typed_config";
    for (config, why) in [
        (
            packed(FAULT, field(1, b"")),
            "(HTTPFault).#1: the field is unknown",
        ),
        (by_names(FAULT), ": the type"),
        (by_names(kind::RBAC), ": the type"),
    ] {
        let error = wrong(LISTENER, "vpn", &with_http_filter(&config));
        assert!(error.contains(&format!("{path}{why}")), "{error}");
    }
}

/// A listener that terminates TLS for HTTP, with routes of its own.
fn terminating(name: &str, port: u32, protocol: i32) -> Listener {
    let mut manager = manager(routes("", Vec::new()));
    manager.route_config = None;
    manager.rds = Some(Rds {
        config_source: Some(ConfigSource::ads()),
        route_config_name: "https.443".to_owned(),
    });
    let tls = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    let chain = FilterChain {
        filters: vec![filter(kind::HTTP_CONNECTION_MANAGER, &manager)],
        transport_socket: Some(TransportSocket {
            name: String::new(),
            typed_config: Some(any(tls, &Empty {})),
        }),
        ..FilterChain::default()
    };
    let mut listener = listener(name, port, vec![chain]);
    let address = listener.address.as_mut().unwrap();
    address.socket_address.as_mut().unwrap().protocol = protocol;
    listener
}

#[test]
fn listener_of_no_socket_may_say_anything() {
    let own = own();
    let own_port = u32::from(own[0].port);
    let decoded =
        |listener: &Listener| decode_for(&own, LISTENER, &listener.name, &listener.encode_to_vec());
    // By QUIC beside ours, and at a port of its own.
    let mut state = State::default();
    for listener in [
        terminating("udp_0.0.0.0_9443", own_port, 1),
        terminating("0.0.0.0_15022", 15_022, 0),
    ] {
        state.set(listener.name.as_str(), decoded(&listener).unwrap());
    }
    assert!(state.missing().is_empty());
    let why = "no listener of this gateway has its name or port";
    let wanted = ["0.0.0.0_15022", "udp_0.0.0.0_9443"].map(|name| format!("{name}: {why}"));
    assert_eq!(reports(&table(&state)), wanted);
    assert!(table(&state).spec.routes.is_empty());
    for listener in [
        terminating("0.0.0.0_9443", own_port, 0),
        terminating("tls|x", 1, 0),
    ] {
        let error = decoded(&listener).unwrap_err().to_string();
        assert!(
            error.contains("filter_chains[0].transport_socket"),
            "{error}"
        );
    }
    // Whose it is cannot be said of one under a wrong name.
    let error = decode_for(&own, LISTENER, "a", &terminating("b", 1, 0).encode_to_vec());
    assert!(error.is_err());
}
