//! A real Envoy that takes everything from the controller.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use testkit::certs::IdentityFiles;

/// How Envoy may ask: incrementally, and for the state of the world.
pub(crate) const VARIANTS: [&str; 2] = ["DELTA_GRPC", "GRPC"];

/// Returns the bootstrap of an Envoy that asks `server` for the resources of `gateway`.
pub(crate) fn bootstrap(
    variant: &str,
    gateway: &str,
    server: SocketAddr,
    tls: Option<(&Path, &IdentityFiles)>,
) -> Value {
    let ads = json!({ "ads": {}, "resource_api_version": "V3" });
    json!({
        "node": { "id": format!("envoy-{variant}"), "cluster": gateway },
        "dynamic_resources": {
            "ads_config": {
                "api_type": variant,
                "transport_api_version": "V3",
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "controller" } }],
            },
            "lds_config": ads,
            "cds_config": ads,
        },
        "static_resources": { "clusters": [controller(server, tls)] },
    })
}

fn controller(server: SocketAddr, tls: Option<(&Path, &IdentityFiles)>) -> Value {
    let http = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let address = json!({
        "address": server.ip().to_string(),
        "port_value": server.port(),
    });
    let endpoint = json!({ "endpoint": { "address": { "socket_address": address } } });
    let mut cluster = json!({
        "name": "controller",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "controller",
            "endpoints": [{ "lb_endpoints": [endpoint] }],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": http,
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        },
    });
    if let Some((ca, own)) = tls {
        cluster["transport_socket"] = mutual_tls(ca, own);
    }
    cluster
}

fn mutual_tls(ca: &Path, own: &IdentityFiles) -> Value {
    let kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let certificate = json!({
        "certificate_chain": { "filename": own.cert },
        "private_key": { "filename": own.key },
    });
    let context = json!({
        "tls_certificates": [certificate],
        "validation_context": { "trusted_ca": { "filename": ca } },
        "alpn_protocols": ["h2"],
    });
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": { "@type": kind, "common_tls_context": context },
    })
}
