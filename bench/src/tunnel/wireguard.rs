//! Other people's WireGuard at both ends, from end to end.
//!
//! ```text
//!   client 10.8.0.2 ── wg, UDP ──▶ SERVER:51820 ── 10.8.0.1 server
//! ```

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use anyhow::{Context, Result};
use testkit::netns::Namespace;
use testkit::peers::wireguard::{KeyPair, Program, Wireguard};
use testkit::tempdir::TempDir;

use super::network::{Network, SERVER};
use super::running::{Guard, Inner, Parts, Role};

pub(super) fn prepare(program: Program, network: &Network, dir: &TempDir) -> Result<Parts> {
    let (near, far) = (KeyPair::generate()?, KeyPair::generate()?);
    let near_key = dir.write("near", &near.private)?;
    let far_key = dir.write("far", &far.private)?;
    let server = start(program, &network.server, dir.path(), OUTER, &far_key)?;
    server.set(&["peer", &near.public, "allowed-ips", &format!("{INNER}/32")])?;
    let dir = dir.path().to_owned();
    let near = move |network: &Network| -> Result<Guard> {
        let client = start(program, &network.client, &dir, INNER, &near_key)?;
        let (allowed, endpoint) = (format!("{OUTER}/32"), format!("{SERVER}:{PORT}"));
        let peer = ["peer", &far.public, "allowed-ips", &allowed];
        // What makes it dial at once.
        let dials = ["endpoint", &endpoint, "persistent-keepalive", "25"];
        client.set(&[peer, dials].concat())?;
        // BoringTun waits for its first keepalive, or for a packet.
        let packet = || UdpSocket::bind((INNER, 0))?.send_to(&[0], (OUTER, 9));
        let sent = network.client.run(packet)?;
        sent.context("sending a packet into the tunnel")?;
        Ok(Guard::Wireguard(client))
    };
    Ok(Parts {
        running: vec![(Role::Server, Guard::Wireguard(server))],
        inner: Inner::routed(INNER),
        near: Some(Box::new(near)),
    })
}

fn start(
    program: Program,
    namespace: &Namespace,
    dir: &Path,
    address: Ipv4Addr,
    key: &Path,
) -> Result<Wireguard> {
    let wireguard = program.start(namespace, dir)?;
    let (device, port) = (wireguard.device(), PORT.to_string());
    namespace.ip(&["link", "set", "dev", device, "mtu", "1420"])?;
    namespace.add_address(device, &format!("{address}/24"))?;
    let key = key.to_string_lossy();
    wireguard.set(&["listen-port", &port, "private-key", &key])?;
    Ok(wireguard)
}

const OUTER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const INNER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const PORT: u16 = 51820;
