//! Our tunnel: vpn-server, vpn-client, and sni-proxy between them.
//!
//! ```text
//!   vpn-client ── UDP ──────────────────────────────────▶ SERVER:51820 ┐
//!   vpn-client ── UDP ──▶ GATEWAY:51820 ── wrapped ─────▶ SERVER:51821 ┼ vpn-server
//!   vpn-client ── CONNECT ──▶ GATEWAY:8132 ── TCP ──────▶ SERVER:1194  ┘
//! ```
//!
//! A server's routes into the shoot are for sockets bound to its device alone, so load is bound to it.
//! Keys and configurations are those of the tests' world (with a preshared key and inner addresses of
//! both families), but for what a path needs that carries a tunnel.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::http::Target;
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::{self, Addresses, Credentials, Keys, Params, merge};

use super::network::{GATEWAY, GATEWAY_INSIDE, GATEWAY_SECOND, Network, POD, SECOND, SERVER};
use super::running::{Guard, Inner, Parts, Role};

#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) server: PathBuf,
    pub(crate) client: PathBuf,
    pub(crate) gateway: PathBuf,
    /// What of both ends' configuration is otherwise.
    pub(crate) set: Value,
}

pub(super) fn prepare(
    programs: &Programs,
    network: &Network,
    dir: &TempDir,
    (transport, gateway): (&'static str, bool),
    servers: usize,
) -> Result<Parts> {
    let endpoint = if gateway { GATEWAY } else { SERVER };
    let tcp = json!({ "congestion": "bbr", "notsentLowat": "64KiB" });
    // What waits unread toward the server is beyond its queue.
    let to_servers = merge(tcp.clone(), &json!({ "receiveBuffer": "128KiB" }))?;
    // Nothing goes on from the client here, and the rule costs what the peers do not pay.
    let client = json!({
        "endpoint": { "address": endpoint }, "masquerade": false, "drain": { "timeout": "0s" },
    });
    let gateways = [GATEWAY_INSIDE, GATEWAY_SECOND].map(|address| format!("{address}/32"));
    let server = json!({ "drain": { "timeout": "0s" }, "trustedGateways": gateways });
    let params = Params {
        transport,
        tcp: [tcp, to_servers],
        server: merge(server, &programs.set)?,
        client: merge(client, &programs.set)?,
        servers,
        ..Params::default()
    };
    let addresses = Addresses::of(&params);
    let servers_are = [addresses.server(0), addresses.server(1)] == [SERVER, SECOND];
    let same = servers_are && addresses.gateway() == GATEWAY_INSIDE;
    ensure!(same, "the tests' world has other addresses");
    let keys = Keys::make(&programs.server, dir.path(), &params)?;
    Credentials::make(dir.path(), &addresses)?;
    tunnel_world::write(dir, &params, &addresses, &keys)?;
    let start = |namespace: &Namespace, program: &Path, name: &str, probes: u16| {
        let command = with_config(namespace, program, dir, name);
        let log = dir.join(format!("{name}.log"));
        let mut child = ChildGuard::spawn(name, &command, &log)?;
        let target = Target::plain(SocketAddr::from(([127, 0, 0, 1], probes)));
        child.wait_ready(LIMIT, || Place::In(namespace).is_ok(&target, "/healthz"))?;
        anyhow::Ok(Guard::Child(child))
    };
    let mut running = Vec::new();
    for (index, place) in [&network.server, &network.second]
        .into_iter()
        .enumerate()
        .take(servers)
    {
        let name = format!("server-{index}");
        let server = start(place, &programs.server, &name, SERVER_PROBES)?;
        running.push((Role::Server, server));
    }
    if gateway {
        let (place, program) = (&network.gateway, &programs.gateway);
        let guard = start(place, program, "gateway", GATEWAY_PROBES)?;
        running.push((Role::Gateway, guard));
    }
    let command = with_config(&network.client, &programs.client, dir, "client-0");
    let inner = Inner {
        address: POD,
        device: Some("rhizome0"),
    };
    let log = dir.join("client-0.log");
    Ok(Parts::new(running, inner, command, log))
}

fn with_config(namespace: &Namespace, program: &Path, dir: &TempDir, name: &str) -> Command {
    let mut command = namespace.command(program);
    let config = dir.join(format!("{name}.yaml"));
    command.arg("--config").arg(config);
    command
}

const SERVER_PROBES: u16 = 15000;
const GATEWAY_PROBES: u16 = 15021;
const LIMIT: Duration = Duration::from_secs(20);
