//! The node proxy under test, on a loopback address: no device, no rules, nothing to clean up.
//!
//! Shared with `sni-proxy/tests/peers`.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::ours::Ours;

/// A running node proxy.
pub(crate) struct Node {
    pub(crate) process: Ours,
    /// Where pods would connect to.
    pub(crate) addr: SocketAddr,
}

impl Node {
    /// Starts the node proxy at a free port of `address`, with `upstream` as in its configuration.
    pub(crate) fn start(binary: &Path, dir: &Path, address: &str, upstream: &Value) -> Self {
        let listen = format!("{address}:0");
        let config = json!({
            "listen": [listen],
            "upstream": upstream,
            "interface": { "manage": false },
            "noTrack": "off",
            "probes": { "address": "127.0.0.1:0" },
            "accessLog": { "format": "json" },
            "drain": { "delay": "0s", "timeout": "0s" },
        });
        let process = Ours::start(&format!("node-{address}"), binary, dir, &config);
        let addr = process.listener(&listen);
        Self { process, addr }
    }
}

/// The upstream of a proxy that sends a PROXY header of `version`.
pub(crate) fn by_proxy_header(gateway: SocketAddr, version: u8) -> Value {
    json!({ "address": gateway.to_string(), "mode": "proxy-protocol", "version": version })
}

/// The upstream of a proxy that asks by CONNECT for `destination`.
pub(crate) fn by_connect(gateway: SocketAddr, destination: &str) -> Value {
    json!({
        "address": gateway.to_string(), "mode": "http-connect", "destination": destination,
    })
}
