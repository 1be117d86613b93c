//! HAProxy, nginx and Envoy behind us take our PROXY header, of either version, and say whom they
//! believe they talk to: exactly what curl says of its own socket, whatever lies between.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::certs::{Authority, Identity};
use testkit::netns::Place;
use testkit::peers::envoy::Envoy;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use crate::gateway::{self, CLUSTER, HEADER, NAME, listener};
use crate::haproxy::{self, Hop};
use crate::ours::Ours;
use crate::programs::{announce, free};
use crate::web::{self, Kind};
use crate::who;

/// How a connection reaches the gateway.
#[derive(Clone, Copy, Debug)]
enum Way {
    Connect,
    Name,
    NameBehindBalancer,
    NodeProxy,
    NodeProxyBehindBalancer,
}

const WAYS: [Way; 5] = [
    Way::Connect,
    Way::Name,
    Way::NameBehindBalancer,
    Way::NodeProxy,
    Way::NodeProxyBehindBalancer,
];

/// The server's name and key, and who vouches for them.
struct Names {
    authority: Authority,
    identity: Identity,
}

impl Names {
    fn new() -> Self {
        let authority = Authority::new("receivers").unwrap();
        let identity = authority.server(&[NAME]).unwrap();
        Self {
            authority,
            identity,
        }
    }
}

/// A gateway that sends headers of one version, and HAProxy in front of it in its two roles.
struct Stage {
    dir: TempDir,
    gateway: Ours,
    /// Before the TLS listener, a load balancer.
    balancer: SocketAddr,
    /// Before the node listener, a node's proxy.
    node_proxy: SocketAddr,
    /// The same with a load balancer between.
    far_node_proxy: SocketAddr,
    _haproxy: ChildGuard,
}

impl Stage {
    fn new(ip: IpAddr, server: SocketAddr, version: &str) -> Self {
        let dir = TempDir::new("receivers").unwrap();
        let gateway = start(&dir, ip, server, version);
        let text = ip.to_string();
        let [balancer, node_proxy, far_node_proxy, between] = [(); 4].map(|()| free(&text));
        let hops = [
            Hop::new(balancer, gateway.listener("tls-behind"), "send-proxy-v2"),
            Hop::new(node_proxy, gateway.listener("node"), "send-proxy-v2"),
            Hop::new(far_node_proxy, between, "send-proxy"),
            Hop::new(between, gateway.listener("node-behind"), "send-proxy-v2"),
        ];
        let haproxy = haproxy::sender(dir.path(), &hops);
        Self {
            dir,
            gateway,
            balancer,
            node_proxy,
            far_node_proxy,
            _haproxy: haproxy,
        }
    }

    /// Prepares curl to go that way.
    fn curl(&self, way: Way) -> Command {
        let mut curl = who::curl();
        let first = match way {
            Way::Connect => {
                let proxy = format!("http://{}", self.gateway.listener("node"));
                curl.args(["--proxy", &proxy]);
                curl.args(["--proxy-header", &format!("{HEADER}: {CLUSTER}")]);
                return curl;
            }
            Way::Name => self.gateway.listener("tls"),
            Way::NameBehindBalancer => self.balancer,
            Way::NodeProxy => self.node_proxy,
            Way::NodeProxyBehindBalancer => self.far_node_proxy,
        };
        curl.args(["--connect-to", &format!("{NAME}:443:{first}")]);
        curl
    }

    fn both_ends_agree(&self, authority: &Authority) {
        let ca = authority.write(&self.dir.join("ca.crt")).unwrap();
        for way in WAYS {
            let mut curl = self.curl(way);
            curl.arg("--cacert").arg(&ca);
            let said = who::ask(curl.arg(format!("https://{NAME}/who")));
            assert_eq!(said.body, said.socket, "{way:?}");
        }
    }
}

fn start(dir: &TempDir, ip: IpAddr, server: SocketAddr, version: &str) -> Ours {
    let mut routes = gateway::to_one(server);
    routes["clusters"][0]["sendProxyProtocol"] = json!(version);
    // Whatever port a node proxy listens on.
    let own = json!({ "destinations": [ip.to_string()], "cluster": CLUSTER });
    routes["routes"].as_array_mut().unwrap().push(own);
    let at = |name, protocol, proxy_protocol| {
        let mut listener = listener(name, protocol, proxy_protocol);
        listener["address"] = json!(SocketAddr::new(ip, 0).to_string());
        listener
    };
    let listeners = json!([
        at("tls", "tls", "off"),
        at("tls-behind", "tls", "required"),
        at("node", "proxy-or-connect", "off"),
        at("node-behind", "proxy-or-connect", "required"),
    ]);
    let trusted = json!({ "trustedProxies": ["127.0.0.0/8", "::1/128"] });
    gateway::start(dir, &listeners, &routes, &trusted)
}

/// Walks every way to `server`, for both versions and both families.
fn every_way_agrees(server: SocketAddr, authority: &Authority) {
    announce("haproxy");
    announce("curl");
    for ip in ["127.0.0.1", "::1"] {
        let ip: IpAddr = ip.parse().unwrap();
        if let Err(error) = TcpListener::bind(SocketAddr::new(ip, 0)) {
            assert!(ip.is_ipv6(), "{error}");
            eprintln!("this host has no IPv6 ({error}): the ways of IPv4 alone are walked");
            continue;
        }
        for version in ["v1", "v2"] {
            eprintln!("a header {version} that tells of {ip}");
            Stage::new(ip, server, version).both_ends_agree(authority);
        }
    }
}

#[test]
fn haproxy_believes_our_header() {
    let names = Names::new();
    let dir = TempDir::new("receivers").unwrap();
    let server = free("127.0.0.1");
    let _haproxy = haproxy::receiver(dir.path(), server, &names.identity);
    every_way_agrees(server, &names.authority);
}

#[test]
fn nginx_believes_our_header() {
    announce("nginx");
    let names = Names::new();
    let dir = TempDir::new("receivers").unwrap();
    let server = free("127.0.0.1");
    let _nginx = web::start(dir.path(), server, Kind::TlsBehindHeader, &names.identity);
    every_way_agrees(server, &names.authority);
}

#[test]
fn envoy_believes_our_header() {
    announce("envoy");
    let names = Names::new();
    let dir = TempDir::new("receivers").unwrap();
    let server = free("127.0.0.1");
    let resources = envoy_resources(dir.path(), server, &names.identity);
    let _envoy = Envoy::start(Place::Here, dir.path(), "receiver", &resources).unwrap();
    every_way_agrees(server, &names.authority);
}

/// An Envoy that ends TLS behind a PROXY header and answers with what the header told.
fn envoy_resources(dir: &Path, listen: SocketAddr, identity: &Identity) -> Value {
    let files = identity.write(dir, "envoy").unwrap();
    let any = |kind: &str, mut fields: Value| {
        fields["@type"] = json!(format!("type.googleapis.com/envoy.extensions.{kind}"));
        fields
    };
    let said = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_REMOTE_PORT% \
                %DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_PORT%";
    let manager = json!({
        "stat_prefix": "who",
        "local_reply_config": {
            "body_format": { "text_format_source": { "inline_string": said } },
        },
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": any("filters.http.router.v3.Router", json!({})),
        }],
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "direct_response": { "status": 200 } }],
        }]},
    });
    let kind = "filters.network.http_connection_manager.v3.HttpConnectionManager";
    let tls = json!({ "common_tls_context": { "tls_certificates": [{
        "certificate_chain": { "filename": files.cert },
        "private_key": { "filename": files.key },
    }]}});
    let (ip, port) = (listen.ip().to_string(), listen.port());
    json!({ "listeners": [{
        "name": "who",
        "address": { "socket_address": { "address": ip, "port_value": port } },
        "listener_filters": [{
            "name": "envoy.filters.listener.proxy_protocol",
            "typed_config": any("filters.listener.proxy_protocol.v3.ProxyProtocol", json!({})),
        }],
        "filter_chains": [{
            "transport_socket": {
                "name": "envoy.transport_sockets.tls",
                "typed_config":
                    any("transport_sockets.tls.v3.DownstreamTlsContext", tls),
            },
            "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": any(kind, manager),
            }],
        }],
    }]})
}
