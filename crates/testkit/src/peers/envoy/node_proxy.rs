//! The configuration of the proxy on a shoot's nodes.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{extension, filter, load_assignment, socket_address};

/// One listener at the API server's address, one cluster: the gateway.
#[derive(Clone, Debug)]
pub struct NodeProxy {
    /// Where pods connect to, such as `10.1.2.3:443`.
    pub listen: SocketAddr,
    /// The gateway, port 8443.
    pub gateway: SocketAddr,
    pub mode: NodeProxyMode,
}

#[derive(Clone, Debug)]
pub enum NodeProxyMode {
    /// By a header of an HTTP/1.1 CONNECT, as today's Gardener does.
    Connect {
        /// The header's name, `X-Gardener-Destination`.
        header: String,
        value: String,
    },
    /// By the destination address of a PROXY header, version 2, as Gardener did before.
    ProxyV2,
}

impl NodeProxy {
    /// Returns the value of `static_resources`.
    pub fn resources(&self) -> Value {
        let mut tcp_proxy = json!({ "stat_prefix": "kube_apiserver", "cluster": "kube_apiserver" });
        let mut cluster = json!({
            "name": "kube_apiserver",
            "type": "STATIC",
            "connect_timeout": "5s",
            "per_connection_buffer_limit_bytes": 32_768,
            "load_assignment": load_assignment("kube_apiserver", &[self.gateway]),
            "upstream_connection_options": {
                "tcp_keepalive": { "keepalive_time": 7200, "keepalive_interval": 55 },
            },
        });
        match &self.mode {
            NodeProxyMode::Connect { header, value } => {
                tcp_proxy["tunneling_config"] = json!({
                    "hostname": "api.example.com:443",
                    "headers_to_add": [{ "header": { "key": header, "value": value } }],
                });
            }
            NodeProxyMode::ProxyV2 => cluster["transport_socket"] = proxy_v2(),
        }
        let filter = filter("network.tcp_proxy", "TcpProxy", tcp_proxy);
        json!({
            "listeners": [{
                "name": "kube_apiserver",
                "address": socket_address(self.listen),
                "per_connection_buffer_limit_bytes": 32_768,
                "filter_chains": [{ "filters": [filter] }],
            }],
            "clusters": [cluster],
        })
    }
}

fn proxy_v2() -> Value {
    let kind = "transport_sockets.raw_buffer.v3.RawBuffer";
    let raw = extension("transport_sockets.raw_buffer", kind, json!({}));
    let config = json!({ "config": { "version": "V2" }, "transport_socket": raw });
    let kind = "transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport";
    extension("transport_sockets.upstream_proxy_protocol", kind, config)
}
