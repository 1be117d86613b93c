//! A shoot's node: `apiserver-proxy` with the API server's address on a device of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use serde_json::json;
use testkit::netns::Namespace;
use testkit::process::ChildGuard;

use super::gateway;
use super::process;
use super::shoot::Shoot;

/// How the node tells the gateway which API server is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the header of an HTTP CONNECT.
    Connect,
    /// By the destination address of a PROXY header.
    Proxy,
}

/// Starts the proxy of `shoot` on `node`, listening on port 443 of `address`.
pub(super) fn start(
    program: &Path,
    node: &Namespace,
    dir: &Path,
    shoot: &Shoot,
    (mode, address): (Mode, IpAddr),
) -> Result<ChildGuard> {
    let config = configuration(shoot, mode, SocketAddr::new(address, 443));
    let name = format!("apiserver-proxy-{}", shoot.letter);
    process::start(
        (node, dir),
        (&name, program),
        &format!("{config:#}\n"),
        || matches!(process::probe(node, PROBES, "/readyz"), Ok(200)),
    )
}

fn configuration(shoot: &Shoot, mode: Mode, listen: SocketAddr) -> serde_json::Value {
    let upstream = match mode {
        Mode::Connect => json!({
            "address": gateway::NODE.to_string(),
            "mode": "http-connect",
            "destination": shoot.cluster,
        }),
        Mode::Proxy => json!({
            "address": gateway::NODE.to_string(),
            "mode": "proxy-protocol",
            "version": 2,
        }),
    };
    json!({
        "listen": [listen.to_string()],
        "upstream": upstream,
        "interface": { "name": "apiserver-proxy", "kind": "auto", "cleanup": true },
        "probes": { "address": PROBES.to_string() },
        "drain": { "delay": "0s", "timeout": "1s" },
    })
}

/// Inside the node.
const PROBES: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 16910);
