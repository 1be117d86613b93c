//! Every profile that comes with this program works with the program it is for: it starts, routes,
//! and takes one more name, by each of its listeners.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not see as such"
)]

mod programs;

use std::process::Command;

use testkit::command;

#[test]
fn every_profile_routes_and_takes_one_more_name() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_rhizome-bench"));
    let gateway = format!("sni-proxy={}", programs::gateway().display());
    bench.args(["profiles", "--try", "--program", &gateway]);
    let text = command::run(&mut bench).unwrap();
    // Three each of direct, rhizome, rhizome-2, envoy, envoy-32k; two of haproxy, haproxy-splice and
    // nginx; one of haproxy-map and sniproxy.
    assert_eq!(text.lines().count(), 5 * 3 + 3 * 2 + 2, "{text}");
    let silent = text.lines().find(|line| !line.contains(" routes"));
    assert_eq!(silent, None);
}
