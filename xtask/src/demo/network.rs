//! The machines of the demo and the cables between them.
//!
//! ```text
//!                         ┌ user    192.0.2.100
//!  wire (a bridge) ───────┼ seed    192.0.2.1, API servers at 10.8.0.11 and 10.8.0.12,
//!                         │         konnectivity-server at 10.8.0.20
//!                         ├ node a  192.0.2.11 ── pod a  100.96.0.10
//!                         └ node b  192.0.2.12 ── pod b  100.96.0.10
//! ```
//!
//! 192.0.2.0/24 is set aside for documentation (RFC 5737), 100.64.0.0/10 for carriers (RFC 6598).

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use testkit::netns::{Namespace, cable};

#[derive(Debug)]
pub(super) struct Network {
    _wire: Namespace,
    pub(super) seed: Namespace,
    pub(super) user: Namespace,
    pub(super) shoots: [Machines; 2],
}

/// One shoot's share of them.
#[derive(Debug)]
pub(super) struct Machines {
    pub(super) node: Namespace,
    pub(super) pod: Namespace,
}

impl Network {
    pub(super) fn lay() -> Result<Self> {
        let wire = Namespace::new("wire")?;
        wire.add_bridge("br0")?;
        let seed = plug(&wire, "seed", 1)?;
        for address in API_SERVERS.into_iter().chain([KONNECTIVITY]) {
            seed.add_address("lo", &format!("{address}/32"))?;
        }
        let user = plug(&wire, "user", 100)?;
        let shoots = [machines(&wire, 'a', 11)?, machines(&wire, 'b', 12)?];
        Ok(Self {
            _wire: wire,
            seed,
            user,
            shoots,
        })
    }
}

fn machines(wire: &Namespace, letter: char, host: u8) -> Result<Machines> {
    let node = plug(wire, &format!("node-{letter}"), host)?;
    let pod = Namespace::new(&format!("pod-{letter}"))?;
    cable(pod.end("eth0"), node.end("pod0"))?;
    node.add_address("pod0", "100.96.0.1/24")?;
    pod.add_address("eth0", "100.96.0.10/24")?;
    pod.add_route("default", "100.96.0.1")?;
    Ok(Machines { node, pod })
}

fn plug(wire: &Namespace, label: &str, host: u8) -> Result<Namespace> {
    let machine = Namespace::new(label)?;
    cable(machine.end("eth0"), wire.end(label))?;
    wire.join_bridge("br0", label)?;
    machine.add_address("eth0", &format!("192.0.2.{host}/24"))?;
    Ok(machine)
}

pub(super) const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// The API servers' addresses inside the seed; no machine on the wire has a route to them.
pub(super) const API_SERVERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 8, 0, 11)),
    IpAddr::V4(Ipv4Addr::new(10, 8, 0, 12)),
];
/// The address of the konnectivity server, inside the seed as well.
pub(super) const KONNECTIVITY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 20));
/// A node's address towards its pods. No machine outside of the shoot has a route to it.
pub(super) const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(100, 96, 0, 1));
