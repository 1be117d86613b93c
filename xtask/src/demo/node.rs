//! A shoot's node: `apiserver-proxy` with the API server's address on a device of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use testkit::http::{self, Target};
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;

use super::gateway;
use super::shoot::Shoot;

/// How the node tells the gateway which API server is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the header of an HTTP CONNECT.
    Connect,
    /// By the destination address of a PROXY header.
    Proxy,
}

/// A running node proxy.
#[derive(Debug)]
pub(super) struct NodeProxy {
    pub(super) child: ChildGuard,
}

impl NodeProxy {
    /// Starts the proxy of `shoot` on `node`, listening on port 443 of `address`.
    pub(super) fn start(
        program: &Path,
        node: &Namespace,
        dir: &Path,
        shoot: &Shoot,
        (mode, address): (Mode, IpAddr),
    ) -> Result<Self> {
        let listen = SocketAddr::new(address, 443);
        let name = format!("apiserver-proxy-{}", shoot.letter);
        let config = dir.join(format!("{name}.yaml"));
        let text = format!("{:#}\n", configuration(shoot, mode, listen));
        std::fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let mut command = Place::In(node).command(program);
        command.arg("--config").arg(&config);
        let child = ChildGuard::spawn(&name, &command, &dir.join(format!("{name}.log")))?;
        let mut proxy = Self { child };
        let probe = Target::plain(PROBES).timeout(Duration::from_secs(1));
        proxy.child.wait_ready(READY_LIMIT, || {
            matches!(node.run(|| http::get(&probe, "/readyz")), Ok(Ok(answer)) if answer.status == 200)
        })?;
        Ok(proxy)
    }
}

/// JSON is YAML.
fn configuration(shoot: &Shoot, mode: Mode, listen: SocketAddr) -> serde_json::Value {
    let upstream = match mode {
        Mode::Connect => json!({
            "address": gateway::NODE.to_string(),
            "mode": "http-connect",
            "destination": shoot.cluster(),
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
const READY_LIMIT: Duration = Duration::from_secs(10);
