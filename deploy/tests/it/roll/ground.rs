//! The machines of a seed whose pods follow each other, and of two shoots that have the same addresses.
//!
//! ```text
//!   seed 10.0.0.0/16                       internet 198.51.100.0/24       shoot: 100.96.0.0/11, 10.250.0.0/16
//!   gateways .50-.53 ── balancer .1 ═ 203.0.113.1, .1 ── vpn-shoot-n .20+n, agents .30+n, node .40 ── pod
//!   controllers .60-.63, servers .11-.25                 other shoot, the same networks:
//!   API servers .31 .32                                  vpn-shoot .130, node .140 ───────────── pod
//! ```

use crate::network::{GATEWAY, Network};

/// Who is in the seed.
const SEED: [&str; 22] = [
    "api",
    "prometheus",
    "shoot-api",
    "other-api",
    "netpol-controller-0",
    "netpol-controller-1",
    "netpol-controller-2",
    "netpol-controller-3",
    "sni-proxy-0",
    "sni-proxy-1",
    "sni-proxy-2",
    "sni-proxy-3",
    "vpn-seed-server-0",
    "vpn-seed-server-1",
    "vpn-seed-server-0b",
    "vpn-seed-server-1b",
    "konnectivity-server-0",
    "konnectivity-server-1",
    "konnectivity-server-2",
    "konnectivity-server-3",
    "other-vpn-seed-server-0",
    "balancer",
];

/// Who is in the shoot, and at which last byte.
const SHOOT: [(&str, u8); 7] = [
    ("vpn-shoot-0", 20),
    ("vpn-shoot-1", 21),
    ("konnectivity-agent-0", 30),
    ("konnectivity-agent-1", 31),
    ("konnectivity-agent-2", 32),
    ("konnectivity-agent-3", 33),
    ("node", 40),
];

/// Who is in the other one.
const OTHER: [(&str, u8); 2] = [("other-vpn-shoot-0", 130), ("other-node", 140)];

/// Lays everything.
pub(crate) fn lay() -> Network {
    let mut network = Network::with_bridges(&["seed", "internet", "shoot", "other"]);
    for name in SEED {
        network.add_to_seed(name);
    }
    for (name, host) in SHOOT {
        network.add_to_shoot("shoot", name, host);
    }
    for (name, host) in OTHER {
        network.add_to_shoot("other", name, host);
    }
    network.add_pod("shoot", "pod");
    network.add_pod("other", "other-pod");
    let balancer = network.at("balancer");
    network.plug(balancer, "internet", "inet");
    balancer.add_address("inet", "198.51.100.1/24").unwrap();
    balancer
        .add_address("lo", &format!("{GATEWAY}/32"))
        .unwrap();
    balancer.forward_ipv4().unwrap();
    for name in SEED.iter().filter(|name| name.starts_with("sni-proxy")) {
        let gateway = network.at(name);
        let back = Network::ip("balancer");
        gateway.add_route("198.51.100.0/24", &back).unwrap();
    }
    network
}
