//! OpenVPN at both ends: by UDP from end to end, or by TCP through Envoy, as Gardener has it.
//!
//! ```text
//!   client 10.8.0.2 ── UDP ──────────────────────────────────────▶ SERVER:1194 ── 10.8.0.1 server
//!   client 10.8.0.2 ── CONNECT ──▶ GATEWAY:8132 Envoy ── TCP ────▶ SERVER:1194 ── 10.8.0.1 server
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use testkit::certs::{Authority, IdentityFiles};
use testkit::command;
use testkit::netns::{Namespace, Place};
use testkit::peers::envoy::{Envoy, Gateway, GatewayListener};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;

use super::network::{GATEWAY, Network, SERVER};
use super::running::{Guard, Inner, Parts, Role};

pub(super) fn prepare(network: &Network, dir: &TempDir, tcp: bool) -> Result<Parts> {
    let path = dir.path();
    let authority = Authority::new("openvpn")?;
    let ca = authority.write(&dir.join("ca.crt"))?;
    let far = authority.server(&["server"])?.write(path, "far")?;
    let near = authority.client("client", &[], &[])?.write(path, "near")?;
    let mut command = openvpn(&network.server, [OUTER, INNER], &ca, &far)?;
    command.args(["--port", "1194", "--tls-server", "--dh", "none"]);
    command.args(["--proto", if tcp { "tcp-server" } else { "udp" }]);
    let log = dir.join("openvpn-server.log");
    let mut server = ChildGuard::spawn("the OpenVPN server", &command, &log)?;
    // In this mode a server listens without saying so; before that it says that its device is up.
    if tcp {
        server.wait_listening(SocketAddr::from((SERVER, 1194)), LIMIT)?;
    } else {
        server.wait_log("link local (bound)", LIMIT)?;
    }
    let mut running = vec![(Role::Server, Guard::Child(server))];
    let mut command = openvpn(&network.client, [INNER, OUTER], &ca, &near)?;
    command.args(["--nobind", "--tls-client"]);
    command.args(["--remote", &SERVER.to_string(), "1194"]);
    command.args(["--proto", if tcp { "tcp-client" } else { "udp" }]);
    if tcp {
        running.push((Role::Gateway, Guard::Envoy(envoy(network, path)?)));
        command.args(["--http-proxy", &GATEWAY.to_string(), "8132"]);
        command.args(["--http-proxy-option", "CUSTOM-HEADER", HEADER, CLUSTER]);
    }
    let log = dir.join("openvpn-client.log");
    Ok(Parts::new(running, Inner::routed(INNER), command, log))
}

fn openvpn(
    namespace: &Namespace,
    [own, other]: [Ipv4Addr; 2],
    ca: &Path,
    files: &IdentityFiles,
) -> Result<Command> {
    let mut command = namespace.command(command::require("openvpn")?);
    command.args(["--dev", "tun", "--verb", "3"]);
    command.args(["--ifconfig", &own.to_string(), &other.to_string()]);
    command.arg("--ca").arg(ca);
    command.arg("--cert").arg(&files.cert);
    command.arg("--key").arg(&files.key);
    command.args(["--data-ciphers", "AES-256-GCM", "--cipher", "AES-256-GCM"]);
    command.args(["--keepalive", "10", "60"]);
    Ok(command)
}

fn envoy(network: &Network, dir: &Path) -> Result<Envoy> {
    let gateway = Gateway {
        listeners: vec![GatewayListener::Connect {
            listen: SocketAddr::from((GATEWAY, 8132)),
            header: HEADER.to_owned(),
        }],
        clusters: vec![(CLUSTER.to_owned(), vec![SocketAddr::from((SERVER, 1194))])],
    };
    let place = Place::In(&network.gateway);
    Envoy::start(place, dir, "envoy", &gateway.resources())
}

const OUTER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const INNER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const HEADER: &str = "Reversed-VPN";
const CLUSTER: &str = "outbound|1194||vpn-seed-server.shoot--foo--bar.svc.cluster.local";
const LIMIT: Duration = Duration::from_secs(20);
