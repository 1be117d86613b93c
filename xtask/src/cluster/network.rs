//! Where the machines are, and the lines between them.
//!
//! ```text
//!   seed-0 10.240.0.10 ──┐                          ┌── shoot-0 10.250.0.10
//!   pods 10.0.0.0/24     router: firewall, DNS ─────┤   pods 100.96.0.0/24
//!   balancer 203.0.113.0/24 (kube-proxy)            └── shoot-1 10.250.0.11
//!                        198.51.100.53                  pods 100.96.1.0/24
//! ```
//!
//! The shoot's side reaches the seed's balancer; from the seed no connection into the shoot begins.

use std::process::Command;

use anyhow::{Context, Result};
use testkit::command;

use super::machine::Machine;

/// A node of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) address: &'static str,
    pub(crate) pods: &'static str,
    pub(crate) zone: &'static str,
}

pub(crate) const SEED: [Node; 1] = [Node {
    name: "seed-0",
    address: "10.240.0.10",
    pods: "10.0.0.0/24",
    zone: "a",
}];

pub(crate) const SHOOT: [Node; 2] = [
    Node {
        name: "shoot-0",
        address: "10.250.0.10",
        pods: "100.96.0.0/24",
        zone: "a",
    },
    Node {
        name: "shoot-1",
        address: "10.250.0.11",
        pods: "100.96.1.0/24",
        zone: "b",
    },
];

pub(crate) const ROUTER: &str = "router";
/// The first address that Services of the type LoadBalancer get.
pub(crate) const BALANCER: &str = "203.0.113.1";
/// The DNS of the world.
pub(crate) const DNS: &str = "198.51.100.53";

/// Gives the router its addresses, before anything is connected to it.
pub(crate) fn prepare_router(router: &Machine) -> Result<()> {
    router.run(
        "ip link add shoot type bridge && ip link set shoot up && \
         ip address add 10.250.0.1/16 dev shoot && ip address add 198.51.100.53/32 dev lo && \
         nft -f - <<'END'\n\
         table inet firewall { chain forward { type filter hook forward priority 0;\n\
         iifname \"seed-0\" oifname \"shoot\" ct state new drop\n}\n}\nEND",
    )?;
    Ok(())
}

/// Connects a node to the router.
pub(crate) fn connect(router: &Machine, machine: &Machine, node: &Node) -> Result<()> {
    let pid = |own: &Machine| own.init().map(|pid| pid.to_string());
    let (near, far) = (
        pid(router).context("no router")?,
        pid(machine).context("no node")?,
    );
    // What a node had that lost its power goes a moment later than the node.
    let _ = router.run(&format!("ip link delete {} 2>/dev/null", node.name));
    let mut add = Command::new(command::require("ip")?);
    add.args(["link", "add", node.name, "netns", &near, "type", "veth"]);
    command::run(add.args(["peer", "name", "eth0", "netns", &far]))?;
    let Node {
        name,
        address,
        pods,
        ..
    } = node;
    let of_seed = SEED.iter().any(|own| own.name == *name);
    if of_seed {
        router.run(&format!(
            "ip link set {name} up && ip address add 10.240.0.1/24 dev {name} && \
             ip route add {pods} via {address} && ip route add 203.0.113.0/24 via {address}"
        ))?;
        machine.run(&format!(
            "ip address add {address}/24 dev eth0 && ip link set eth0 up && \
             ip route add default via 10.240.0.1"
        ))?;
        return Ok(());
    }
    router.run(&format!(
        "ip link set {name} master shoot up && ip route replace {pods} via {address}"
    ))?;
    machine.run(&format!(
        "ip address add {address}/16 dev eth0 && ip link set eth0 up && \
         ip route add default via 10.250.0.1"
    ))?;
    Ok(())
}
