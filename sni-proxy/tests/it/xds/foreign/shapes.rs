//! Resources as istiod writes them for a gateway with Gardener's objects, field by field.
//!
//! Taken from Istio's `pilot/pkg/networking/core` (`cluster_builder`, `gateway`, `listener_builder`,
//! `networkfilter`) and `pilot/pkg/xds/filters`, and from the EnvoyFilters of Gardener's chart
//! `istio-ingress`. Field numbers are those of Envoy's API. Access logs and tracing are left out.

use std::net::SocketAddr;

use super::wire::{Message, any, new};

pub(super) const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
pub(super) const ASSIGNMENT: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";
pub(super) const LISTENER: &str = "envoy.config.listener.v3.Listener";

/// What a connection limit is without one: 2³² - 1.
const UNLIMITED: u64 = 0xffff_ffff;

/// The values that Gardener admits, by header.
const VPN: &str = r"^outbound\|1194\|\|vpn-seed-server(-[0-4])?\..*\.svc\.cluster\.local$";
const BOTH: &str = r"^outbound\|(1194\|\|vpn-seed-server(-[0-4])?|443\|\|kube-apiserver)\..*\.svc\.cluster\.local$";

fn wrapped(value: u64) -> Message {
    new().number(1, value)
}

fn seconds(seconds: u64) -> Message {
    new().number(1, seconds)
}

/// A `google.protobuf.Struct` of one key with a string.
fn text_struct(key: &str, value: &str) -> Message {
    let value = new().text(3, value);
    new().message(1, new().text(1, key).message(2, value))
}

/// A message by the names of its fields, as istiod sends those of Istio's proxy.
fn typed_struct(kind: &str, value: Message) -> Message {
    any("udpa.type.v1.TypedStruct", any(kind, value))
}

/// The metadata that names the object a resource was made of.
fn metadata(config: &str) -> Message {
    let entry = new()
        .text(1, "istio")
        .message(2, text_struct("config", config));
    new().message(1, entry)
}

/// A cluster of a Service, with its DestinationRule: TLS off, keepalive, locality, outliers.
pub(super) fn cluster(name: &str) -> Message {
    let ads = new().message(3, new()).message(4, new()).number(6, 2);
    let limits = new()
        .message(2, wrapped(UNLIMITED))
        .message(3, wrapped(UNLIMITED))
        .message(4, wrapped(UNLIMITED))
        .message(5, wrapped(UNLIMITED))
        .number(6, 1);
    let keepalive = new().message(2, wrapped(7200)).message(3, wrapped(75));
    let outliers = new()
        .message(4, wrapped(100))
        .message(5, wrapped(0))
        .message(6, wrapped(0));
    let exchange = typed_struct(
        "envoy.tcp.metadataexchange.config.MetadataExchange",
        text_struct("protocol", "istio-peer-exchange"),
    );
    new()
        .text(1, name)
        .number(2, 3)
        .message(3, new().message(1, ads).text(2, name))
        .message(4, seconds(10))
        .message(5, wrapped(32_768))
        .number(6, 1)
        .message(10, new().message(1, limits))
        .message(19, outliers)
        .message(
            25,
            metadata("/apis/networking.istio.io/v1/destination-rule/x"),
        )
        .message(27, new().message(1, new()).message(3, new()))
        .text(28, &format!("{name};"))
        .message(30, new().message(1, keepalive))
        .message(
            40,
            new()
                .text(1, "istio.metadata_exchange")
                .message(2, exchange),
        )
}

/// The cluster that leads nowhere, which every gateway has.
pub(super) fn black_hole() -> Message {
    new()
        .text(1, "BlackHoleCluster")
        .message(4, seconds(10))
        .text(28, "BlackHoleCluster;")
}

/// A cluster whose connections are TLS's, as of a DestinationRule with `SIMPLE`.
pub(super) fn tls_cluster(name: &str) -> Message {
    let tls = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let socket = new()
        .text(1, "envoy.transport_sockets.tls")
        .message(3, any(tls, new().text(2, "kubernetes.default")));
    cluster(name).message(24, socket)
}

pub(super) fn assignment(name: &str, endpoints: &[SocketAddr]) -> Message {
    let endpoint = |addr: &SocketAddr| {
        let address = new().message(
            1,
            new().message(1, socket(&addr.ip().to_string(), addr.port())),
        );
        new()
            .message(1, address)
            .number(2, 1)
            .message(3, metadata("kube-apiserver-0"))
            .message(4, wrapped(1))
    };
    let locality = new()
        .message(1, new().text(1, "eu-1").text(2, "eu-1a"))
        .each(2, endpoints.iter().map(endpoint))
        .message(3, wrapped(1));
    new()
        .text(1, name)
        .message(2, locality)
        .message(4, new().message(3, wrapped(140)))
}

fn socket(address: &str, port: u16) -> Message {
    new().text(2, address).number(3, port.into())
}

/// The name of a gateway's listener.
pub(super) fn listener_name(port: u16) -> String {
    format!("0.0.0.0_{port}")
}

fn listener(port: u16, chains: Vec<Message>) -> Message {
    let keepalive = new().number(2, 1).number(3, 9).number(4, 1).number(6, 2);
    new()
        .text(1, &listener_name(port))
        .message(2, new().message(1, socket("0.0.0.0", port)))
        .each(3, chains)
        .message(5, wrapped(32_768))
        .message(13, keepalive)
        .number(16, 2)
        .message(29, wrapped(1))
}

fn filter(name: &str, config: Message) -> Message {
    new().text(1, name).message(4, config)
}

fn tcp_filters(cluster: &str) -> Vec<Message> {
    let proxy = new()
        .text(1, cluster)
        .text(2, cluster)
        .message(13, seconds(86_400));
    vec![
        filter("istio.stats", any("stats.PluginConfig", new())),
        filter(
            "envoy.filters.network.tcp_proxy",
            any(
                "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                proxy,
            ),
        ),
    ]
}

fn inspector(name: &str, kind: &str) -> Message {
    new().text(1, name).message(3, any(kind, new()))
}

/// The listener of TLS that is passed through, of Gateways and VirtualServices: names and clusters.
pub(super) fn sni_listener(port: u16, routes: &[(String, String)]) -> Message {
    let chain = |(name, cluster): &(String, String)| {
        new()
            .message(1, new().text(11, name))
            .each(3, tcp_filters(cluster))
            .message(
                5,
                metadata("/apis/networking.istio.io/v1/virtual-service/kube-apiserver"),
            )
    };
    let inspector = inspector(
        "envoy.filters.listener.tls_inspector",
        "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
    );
    listener(port, routes.iter().map(chain).collect()).message(9, inspector)
}

/// The listener of node proxies (GEP-8): a chain for each API server's address.
pub(super) fn node_listener(port: u16, routes: &[(String, String)]) -> Message {
    let chain = |(address, cluster): &(String, String)| {
        let range = new().text(1, address).message(2, wrapped(32));
        let matches = new().message(3, range).message(8, wrapped(443));
        new().message(1, matches).each(3, tcp_filters(cluster))
    };
    let inspector = inspector(
        "envoy.filters.listener.proxy_protocol",
        "envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
    );
    listener(port, routes.iter().map(chain).collect()).message(9, inspector)
}

/// The listener of tunnels: an HTTP server's, into which EnvoyFilters have merged routes of CONNECT.
pub(super) fn tunnel_listener(port: u16) -> Message {
    let route = |header: &str, regex: &str| {
        let matcher = new().message(5, new().text(2, regex));
        let header_matcher = new().text(1, header).message(13, matcher);
        let connect = new().text(1, "CONNECT").message(3, new());
        new()
            .message(1, new().message(6, header_matcher).message(12, new()))
            .message(2, new().text(2, header).message(25, connect))
    };
    let redirected = |matches: Message| {
        let redirect = new().number(4, 1).number(8, 443);
        new().message(1, matches).message(3, redirect)
    };
    let host = new()
        .text(1, "reversed-vpn")
        .text(2, "*")
        .message(3, route("Reversed-VPN", VPN))
        .message(3, route("X-Gardener-Destination", BOTH))
        .message(3, redirected(new().message(12, new())))
        .message(3, redirected(new().text(1, "/")));
    let routes = new().message(2, host);
    let manager = manager(port, &[]).message(4, routes);
    listener(port, vec![http_chain(manager)])
}

/// The listener of Gardener's metrics, with routes of plain HTTP and a filter of its own.
pub(super) fn metrics_listener(port: u16) -> Message {
    let ads = new().message(3, new()).message(4, new()).number(6, 2);
    let rds = new().message(1, ads).text(2, &format!("http.{port}"));
    let gzip = "envoy.extensions.compression.gzip.compressor.v3.Gzip";
    let library = new().text(1, "text_optimized").message(3, any(gzip, new()));
    let compressor = any(
        "envoy.extensions.filters.http.compressor.v3.Compressor",
        new().message(6, library),
    );
    let filters = [filter("envoy.filters.http.compressor", compressor)];
    let manager = manager(port, &filters).message(3, rds);
    listener(port, vec![http_chain(manager)])
}

fn http_chain(manager: Message) -> Message {
    let kind = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let filter = filter(
        "envoy.filters.network.http_connection_manager",
        any(kind, manager),
    );
    new().message(3, filter)
}

/// A connection manager without its routes.
fn manager(port: u16, more: &[Message]) -> Message {
    let peer_metadata = typed_struct(
        "io.istio.http.peer_metadata.Config",
        text_struct("upstream_propagation", "istio_headers"),
    );
    let http = |kind: &str| format!("envoy.extensions.filters.http.{kind}");
    let alpn = any(
        "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
        new().message(1, new().number(1, 1).text(2, "istio-http/1.1")),
    );
    let request_id = any(
        "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
        new(),
    );
    new()
        .text(2, &format!("outbound_{};", listener_name(port)))
        .each(5, more.iter().cloned())
        .message(5, filter("istio.metadata_exchange", peer_metadata))
        .message(
            5,
            filter(
                "envoy.filters.http.grpc_stats",
                any(&http("grpc_stats.v3.FilterConfig"), new().number(1, 1)),
            ),
        )
        .message(5, filter("istio.alpn", alpn))
        .message(
            5,
            filter(
                "envoy.filters.http.fault",
                any(&http("fault.v3.HTTPFault"), new()),
            ),
        )
        .message(
            5,
            filter("envoy.filters.http.cors", any(&http("cors.v3.Cors"), new())),
        )
        .message(5, filter("istio.stats", any("stats.PluginConfig", new())))
        .message(
            5,
            filter(
                "envoy.filters.http.router",
                any(&http("router.v3.Router"), new()),
            ),
        )
        .message(8, new().number(2, 1))
        .message(9, new().message(2, wrapped(100)))
        .text(10, "istio-envoy")
        .message(14, wrapped(1))
        .number(16, 3)
        .message(17, new().message(1, wrapped(1)).number(4, 1).number(6, 1))
        .message(23, new().text(1, "websocket"))
        .message(23, new().text(1, "CONNECT"))
        .message(24, new())
        .message(30, wrapped(1))
        .message(36, new().message(1, request_id))
}
