//! Our tunnel: vpn-server, vpn-client, and sni-proxy between them.
//!
//! ```text
//!   vpn-client ── UDP ──────────────────────────────────▶ SERVER:51820 ┐
//!   vpn-client ── UDP ──▶ GATEWAY:51820 ── wrapped ─────▶ SERVER:51821 ┼ vpn-server
//!   vpn-client ── CONNECT ──▶ GATEWAY:8132 ── TCP ──────▶ SERVER:1194  ┘
//! ```
//!
//! A server's routes into the shoot are for sockets bound to its device alone, so load is bound to it.
//! Configurations have what must be given and what a path needs that carries a tunnel; everything
//! else is the default.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::certs::Authority;
use testkit::http::Target;
use testkit::keys::KeyFile;
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::tunnel_world::{self, destination, merge, route};

use super::network::{GATEWAY, GATEWAY_INSIDE, Network, POD, SERVER};
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
    transport: &str,
    gateway: bool,
) -> Result<Parts> {
    let key = |name: &str| KeyFile::generate(&programs.server, dir.join(name));
    let (far, near) = (vec![key("server-key")?.public], key("client-key")?.public);
    let authority = Authority::new("tunnel")?;
    authority.write(&dir.join("ca.crt"))?;
    authority.server(&["server"])?.write(dir.path(), "proxy")?;
    write(dir, "peers.yaml", &peers(&near))?;
    let mut tcp = json!({ "congestion": "bbr", "notsentLowat": "64KiB" });
    write(dir, "gateway.yaml", &tunnel_world::gateway(&tcp))?;
    // What waits unread toward the server is beyond its queue.
    tcp["receiveBuffer"] = json!("128KiB");
    let routes = tunnel_world::routes([(SERVER.into(), &far)], &tcp);
    write(dir, "routes.yaml", &routes)?;
    write(dir, "server.yaml", &merge(server(), &programs.set)?)?;
    let endpoint = if gateway { GATEWAY } else { SERVER };
    let client = client(&far, endpoint, transport);
    write(dir, "client.yaml", &merge(client, &programs.set)?)?;
    let start = |namespace: &Namespace, program: &Path, name: &str, probes: u16| {
        let command = with_config(namespace, program, dir, name);
        let log = dir.join(format!("{name}.log"));
        let mut child = ChildGuard::spawn(name, &command, &log)?;
        let target = Target::plain(SocketAddr::from(([127, 0, 0, 1], probes)));
        child.wait_ready(LIMIT, || Place::In(namespace).is_ok(&target, "/healthz"))?;
        anyhow::Ok(Guard::Child(child))
    };
    let server = start(&network.server, &programs.server, "server", SERVER_PROBES)?;
    let mut running = vec![(Role::Server, server)];
    if gateway {
        let guard = start(
            &network.gateway,
            &programs.gateway,
            "gateway",
            GATEWAY_PROBES,
        )?;
        running.push((Role::Gateway, guard));
    }
    let command = with_config(&network.client, &programs.client, dir, "client");
    let inner = Inner {
        address: POD,
        device: Some("rhizome0"),
    };
    Ok(Parts::new(running, inner, command, dir.join("client.log")))
}

fn with_config(namespace: &Namespace, program: &Path, dir: &TempDir, name: &str) -> Command {
    let mut command = namespace.command(program);
    command
        .arg("--config")
        .arg(dir.join(format!("{name}.yaml")));
    command
}

fn write(dir: &TempDir, name: &str, value: &Value) -> Result<()> {
    dir.write(name, format!("{value:#}")).map(drop)
}

fn peers(near: &str) -> Value {
    json!({ "peers": [{ "name": "vpn-shoot", "publicKeys": [near], "addresses": [INNER] }] })
}

fn server() -> Value {
    json!({
        "routeId": route(0),
        "addresses": [format!("{OUTER}/24")],
        "networks": networks(),
        "keys": { "private": ["server-key"], "peers": "peers.yaml" },
        "trustedGateways": [format!("{GATEWAY_INSIDE}/32")],
        "proxy": { "ca": "ca.crt", "cert": "proxy.crt", "key": "proxy.key" },
        "probes": { "address": format!("[::]:{SERVER_PROBES}") },
        "drain": { "delay": "0s", "timeout": "0s" },
    })
}

fn client(far: &[String], endpoint: Ipv4Addr, transport: &str) -> Value {
    json!({
        "addresses": [format!("{INNER}/24")],
        "endpoint": {
            "address": endpoint, "tcpPort": 8132, "udpPort": 51820, "transport": transport,
        },
        "servers": [{
            "name": "vpn-seed-server", "publicKeys": far, "routeId": route(0), "value": destination(0),
            "addresses": [OUTER],
        }],
        "keys": { "private": "client-key" },
        "networks": networks(),
        // Nothing goes on from the client here, and the rule costs what the peers do not pay.
        "masquerade": false,
        "probes": { "address": "[::]:8080" },
        "drain": { "delay": "0s", "timeout": "0s" },
    })
}

fn networks() -> Value {
    json!({ "pods": ["100.96.0.0/11"], "services": ["100.64.0.0/13"], "nodes": ["10.250.0.0/16"] })
}

const OUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 123, 1);
const INNER: Ipv4Addr = Ipv4Addr::new(192, 168, 123, 64);
const SERVER_PROBES: u16 = 15000;
const GATEWAY_PROBES: u16 = 15021;
const LIMIT: Duration = Duration::from_secs(20);
