//! Every component rolled once, one after the other, with requests on every path all the time.
//!
//! ```text
//!   seed, shoot, other shoot ─▶ pods of the manifests ─▶ Traffic on seven paths, connections held
//!                                 controller, gateway, node proxy, tunnel, egress proxy: rolled
//!                               ─▶ no request failed but on what ended in a process and outlived its drain
//! ```
//!
//! Deployments, StatefulSets and DaemonSets are rolled as their manifests say, by what `Fleet` plays of
//! their controllers; load balancer and Services by what their pods' probes say.

mod fleet;
mod ground;
mod plan;
mod pods;
mod seed;
mod services;
mod traffic;
mod witness;

use std::thread;

use testkit::tempdir::TempDir;

use crate::roll::fleet::Fleet;
use crate::roll::seed::Seed;
use crate::roll::traffic::{Traffic, UntilDropped};
use crate::roll::witness::Witness;
use crate::world::World;

/// Paths, by their names in what is told of failures.
const BY_NAME: &str = "by name";
const BY_NODE: &str = "by node proxy";
const BY_VPN: &str = "by vpn";
const BY_KONNECTIVITY: &str = "by konnectivity";
const OTHER_BY_NAME: &str = "other by name";
const OTHER_BY_NODE: &str = "other by node proxy";
const OTHER_BY_VPN: &str = "other by vpn";

#[test]
fn rolls_under_traffic_fail_no_request() {
    let network = ground::lay();
    let dirs = ["roll", "roll-other"].map(|name| TempDir::new(name).unwrap());
    let worlds = [dirs[0].join("pods"), dirs[1].join("pods")];
    let seed = Seed::new(&network, dirs);
    let worlds = worlds.map(|directory| World::new(directory, plan::hosts()));
    let services = plan::services(&network, &seed);
    let fleet = Fleet::new(
        &network,
        &seed.api,
        worlds,
        plan::workloads(&seed),
        services,
    );
    for keys in STARTED {
        fleet.start(keys);
    }
    let traffic = Traffic::new(plan::paths(&network, &seed));
    thread::scope(|scope| {
        let _end = UntilDropped(&traffic);
        for path in 0..traffic.paths.len() {
            let traffic = &traffic;
            scope.spawn(move || traffic.go_on(path));
        }
        scope.spawn(|| fleet.look_after(|| traffic.is_over()));
        let servers = fleet.places("konnectivity-server");
        let servers = servers.into_iter().map(|place| network.at(place));
        let mut witness = Witness::new(&traffic, servers.collect());
        for keys in ROLLED {
            witness.begin(keys);
            fleet.roll(keys, &mut witness);
            witness.end();
        }
    });
    fleet.kill();
}

/// Who is started, at once what needs one another.
const STARTED: [&[&str]; 3] = [
    &["controller", "gateway"],
    &[
        "vpn-server",
        "vpn-client",
        "other-vpn-server",
        "other-vpn-client",
    ],
    &[
        "konnectivity-server",
        "konnectivity-agent",
        "node",
        "other-node",
    ],
];

/// Who is rolled, one after the other; at once only what no request has in common.
const ROLLED: [&[&str]; 3] = [
    &["gateway"],
    &["vpn-server", "konnectivity-server", "node"],
    &["vpn-client", "konnectivity-agent", "controller"],
];
