//! Routes from the objects of a real API server, served to real gateways: a real Envoy and ours.
//!
//! ```text
//!   kubectl ─▶ kube-apiserver ─▶ netpol-controller ══xDS, mTLS══▶ Envoy ────┐
//!                                       └══════════xDS, mTLS══▶ sni-proxy ─┴─▶ shoots' API servers
//! ```
//!
//! Everything runs in a network namespace of the test's own, because an API server takes no
//! loopback addresses as endpoints and Envoy wants the ports that objects name: this needs root, or
//! a user namespace of one's own. A program that is missing fails the test with a text that says
//! how it is installed; `cargo xtask test` installs them all.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper of a test fails where its step fails, and says which peer it met"
)]

mod access;
mod alike;
mod ask;
mod changes;
mod control;
mod envoy;
mod fake_api;
mod judged;
mod objects;
mod program;
#[path = "../../../sni-proxy/tests/peers/programs.rs"]
mod programs;
mod seed;
mod slices;
mod sources;
mod terminate;

use testkit::wait::Stopwatch;

/// One seed for all steps: an API server takes longer to start than all of them together.
#[test]
fn both_gateways_route_alike() {
    for program in ["etcd", "kube-apiserver", "kubectl", "envoy"] {
        programs::announce(program);
    }
    let begun = Stopwatch::start();
    seed::in_namespace(|seed| {
        eprintln!("the seed is there after {:?}", begun.elapsed());
        let gateway = seed.gateway("default", "default");
        for variant in envoy::VARIANTS {
            let envoy = seed.envoy(variant);
            step(variant, || alike::both_lead_alike(seed, &gateway, &envoy));
            step("Envoy follows", || changes::envoy_follows(seed, &envoy));
        }
        step("a change", || {
            changes::a_change_is_sent_alone(seed, &gateway)
        });
        step("a shoot", || {
            changes::a_shoot_comes_and_goes(seed, &gateway)
        });
        step("another gateway", || {
            access::gateway_gets_only_its_own_routes(seed)
        });
        step("other gateways", || {
            access::gateways_come_and_go(seed, &gateway)
        });
        step("no controller", || {
            access::our_gateway_goes_on_without_the_controller(seed, &gateway);
        });
    });
}

/// Does a step and says how long it took.
fn step(name: &str, job: impl FnOnce()) {
    let begun = Stopwatch::start();
    job();
    eprintln!("{name}: {:?}", begun.elapsed());
}
