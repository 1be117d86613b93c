//! The configuration of a seed's gateway: what istiod would send for Gardener's objects.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::{filter, load_assignment, socket_address};

#[derive(Clone, Debug, Default)]
pub struct Gateway {
    pub listeners: Vec<GatewayListener>,
    pub clusters: Vec<(String, Vec<SocketAddr>)>,
}

#[derive(Clone, Debug)]
pub enum GatewayListener {
    /// HTTP CONNECT, the cluster named by a header: Gardener's port 8443 today, and 8132.
    Connect {
        listen: SocketAddr,
        /// The header, `X-Gardener-Destination` or `Reversed-VPN`.
        header: String,
    },
    /// PROXY protocol, the cluster found by the header's destination address: Gardener's port
    /// 8443 of old.
    ProxyProtocol {
        listen: SocketAddr,
        routes: Vec<(IpAddr, String)>,
    },
    /// TLS that is passed through by its server name: port 443.
    Tls {
        listen: SocketAddr,
        routes: Vec<(Vec<String>, String)>,
    },
}

impl Gateway {
    /// Returns the value of `static_resources`.
    pub fn resources(&self) -> Value {
        let cluster = |(name, endpoints): &(String, Vec<SocketAddr>)| {
            json!({
                "name": name,
                "type": "STATIC",
                "connect_timeout": "10s",
                "lb_policy": "LEAST_REQUEST",
                "per_connection_buffer_limit_bytes": 32_768,
                "load_assignment": load_assignment(name, endpoints),
                "upstream_connection_options": {
                    "tcp_keepalive": { "keepalive_time": 7200, "keepalive_interval": 75 },
                },
            })
        };
        let clusters: Vec<Value> = self.clusters.iter().map(cluster).collect();
        let listeners: Vec<Value> = self.listeners.iter().map(listener).collect();
        json!({ "listeners": listeners, "clusters": clusters })
    }
}

fn listener(listener: &GatewayListener) -> Value {
    let (name, listen, filters, chains) = match listener {
        GatewayListener::Connect { listen, header } => (
            "http-proxy",
            listen,
            json!([]),
            vec![json!({ "filters": [connection_manager(header)] })],
        ),
        GatewayListener::ProxyProtocol { listen, routes } => {
            let chains = routes.iter().map(|(address, cluster)| {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                let range = json!({ "address_prefix": address.to_string(), "prefix_len": bits });
                chain(json!({ "prefix_ranges": [range] }), cluster)
            });
            let filter = filter("listener.proxy_protocol", "ProxyProtocol", json!({}));
            ("node", listen, json!([filter]), chains.collect())
        }
        GatewayListener::Tls { listen, routes } => {
            let chains = routes.iter().map(|(names, cluster)| {
                let matched = json!({ "server_names": names });
                chain(matched, cluster)
            });
            let filter = filter("listener.tls_inspector", "TlsInspector", json!({}));
            ("tls", listen, json!([filter]), chains.collect())
        }
    };
    json!({
        "name": format!("{name}-{}", listen.port()),
        "address": socket_address(*listen),
        "per_connection_buffer_limit_bytes": 32_768,
        "listener_filters": filters,
        "filter_chains": chains,
        // SO_KEEPALIVE, TCP_KEEPIDLE and TCP_KEEPINTVL of Linux.
        "socket_options": [
            { "level": 1, "name": 9, "int_value": 1, "state": "STATE_LISTENING" },
            { "level": 6, "name": 4, "int_value": 55, "state": "STATE_LISTENING" },
            { "level": 6, "name": 5, "int_value": 55, "state": "STATE_LISTENING" },
        ],
    })
}

/// A chain that passes what is `matched` on to `cluster`.
fn chain(matched: Value, cluster: &str) -> Value {
    json!({ "filter_chain_match": matched, "filters": [tcp_proxy(cluster)] })
}

fn tcp_proxy(cluster: &str) -> Value {
    let fields = json!({
        "stat_prefix": cluster,
        "cluster": cluster,
        "max_downstream_connection_duration": "86400s",
    });
    filter("network.tcp_proxy", "TcpProxy", fields)
}

/// Tunnels a CONNECT whose header has the right form to the cluster it names, and redirects
/// everything else.
fn connection_manager(header: &str) -> Value {
    let redirect = json!({ "https_redirect": true, "port_redirect": 443 });
    let tunnel = json!({
        "cluster_header": header,
        "upgrade_configs": [{ "upgrade_type": "CONNECT", "connect_config": {} }],
    });
    let destination = json!({
        "name": header,
        "string_match": { "safe_regex": { "regex": DESTINATION } },
    });
    let hosts = json!([{
        "name": "all",
        "domains": ["*"],
        "routes": [
            { "match": { "connect_matcher": {}, "headers": [destination] }, "route": tunnel },
            { "match": { "connect_matcher": {} }, "redirect": redirect },
            { "match": { "prefix": "/" }, "redirect": redirect },
        ],
    }]);
    let router = filter("http.router", "Router", json!({}));
    let fields = json!({
        "stat_prefix": "http_proxy",
        "http_protocol_options": { "accept_http_10": true },
        "upgrade_configs": [{ "upgrade_type": "CONNECT" }],
        "http_filters": [router],
        "route_config": { "name": "http_proxy", "virtual_hosts": hosts },
    });
    let name = "network.http_connection_manager";
    filter(name, "HttpConnectionManager", fields)
}

/// What Gardener lets a header name: API servers and VPN servers.
const DESTINATION: &str = r"^outbound\|(1194\|\|vpn-seed-server(-[0-4])?|443\|\|kube-apiserver)\..+\.svc\.cluster\.local$";
