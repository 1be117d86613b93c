//! What is measured with other people's programs.
//!
//! ```text
//! profiles --try         every profile ─▶ the program it is for
//! controller, in small   etcd, kube-apiserver ◀─ netpol-controller ═▶ two gateways
//! ```
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not see as such"
)]

mod controller;
mod https;
mod konnectivity;
mod programs;

use std::process::Command;

use testkit::command;

/// By each of its listeners: it starts, routes, and takes one more name.
#[test]
fn every_profile_routes_and_takes_one_more_name() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    let gateway = format!("sni-proxy={}", programs::of("sni-proxy").display());
    bench.args(["profiles", "--try", "--program", &gateway]);
    let text = command::run(&mut bench).unwrap();
    // Four of direct; three each of rhizome, rhizome-copy, rhizome-2, rhizome-yaml, envoy, envoy-32k; two of
    // haproxy, haproxy-splice and nginx; one of copy-loop, haproxy-map, sniproxy and those where TLS ends.
    assert_eq!(text.lines().count(), 4 + 6 * 3 + 3 * 2 + 5, "{text}");
    let silent = text.lines().find(|line| !line.contains(" routes"));
    assert_eq!(silent, None);
}
