//! The node proxy before a real Envoy as the seed's gateway, in both modes, as it meets one where
//! the gateway has not been replaced yet.
//!
//! Everything runs on loopback, so no privileges are needed. A program that is missing fails its
//! test with a text that says how it is installed; `cargo xtask test` installs them all. Every
//! test prints the versions it meets. What the node proxy does before our own gateway, with
//! kubectl and a real API server at the ends, is among the tests of `sni-proxy`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper of a test fails where its step fails, and says which peer it met"
)]

mod gateway;
mod node;
#[path = "../../../sni-proxy/tests/peers/ours.rs"]
mod ours;
#[path = "../../../sni-proxy/tests/peers/programs.rs"]
mod programs;
mod unclean;
