//! The gateway under test, and the few words its routing file is written with.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::command;
use testkit::tempdir::TempDir;

use crate::ours::Ours;

/// The API server's name in every certificate and route.
pub(crate) const NAME: &str = "api.foo.example.com";

/// The API server's cluster, which is also what today's node proxies ask for.
pub(crate) const CLUSTER: &str = "outbound|443||kube-apiserver.shoot--foo--bar.svc.cluster.local";

/// The header they ask with.
pub(crate) const HEADER: &str = "X-Gardener-Destination";

/// Starts the gateway in `dir` with `listeners` and what of the configuration `more` says.
pub(crate) fn start(dir: &TempDir, listeners: &Value, routes: &Value, more: &Value) -> Ours {
    dir.write("routes.yaml", routes.to_string()).unwrap();
    let mut config = json!({
        "workers": 2,
        "probes": { "address": "127.0.0.1:0" },
        "admin": { "address": "" },
        "listeners": listeners,
        "routing": { "file": "routes.yaml" },
        "accessLog": { "format": "json" },
        "drain": { "delay": "0s", "timeout": "0s" },
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_sni-proxy"));
    Ours::start("gateway", binary, dir.path(), &config)
}

/// A gateway with the listeners `tls`, `node` and `vpn` that takes no load balancer's header.
pub(crate) fn plain(dir: &TempDir, routes: &Value) -> Ours {
    let listeners = json!([
        listener("tls", "tls", "off"),
        listener("node", "proxy-or-connect", "off"),
        listener("vpn", "connect", "off"),
    ]);
    start(dir, &listeners, routes, &json!({}))
}

/// A listener at a free port.
pub(crate) fn listener(name: &str, protocol: &str, proxy_protocol: &str) -> Value {
    json!({
        "name": name,
        "address": "127.0.0.1:0",
        "protocol": protocol,
        "proxyProtocol": proxy_protocol,
    })
}

/// Routes that lead to one API server by name, by the destinations of `127.0.9.0/24`, by CONNECT.
pub(crate) fn to_one(endpoint: SocketAddr) -> Value {
    json!({
        "clusters": [cluster(CLUSTER, endpoint)],
        "routes": [
            { "serverNames": [NAME], "cluster": CLUSTER },
            { "destinations": ["127.0.9.0/24"], "cluster": CLUSTER },
            { "connectDestinations": [CLUSTER], "cluster": CLUSTER },
        ],
    })
}

/// A cluster with one endpoint.
pub(crate) fn cluster(name: &str, endpoint: SocketAddr) -> Value {
    json!({ "name": name, "endpoints": [{ "address": endpoint.to_string() }] })
}

/// Returns the node proxy's binary.
pub(crate) fn node_proxy() -> PathBuf {
    let own = env!("CARGO_BIN_EXE_sni-proxy");
    command::sibling(own, "apiserver-proxy", "apiserver-proxy").unwrap()
}
