//! The gateway between other people's programs: kubectl and kube-apiserver, openssl and curl,
//! HAProxy, nginx and Envoy, on either side of it, each in the role it has in the field.
//!
//! Everything runs on loopback, so no privileges are needed. A program that is missing fails its
//! test with a text that says how it is installed; `cargo xtask test` installs them all. Every
//! test prints the versions it meets.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper of a test fails where its step fails, and says which peer it met"
)]

mod api_server;
mod envoy;
mod gateway;
mod haproxy;
#[path = "../../../apiserver-proxy/tests/peers/node.rs"]
mod node;
mod openssl;
mod ours;
mod programs;
mod receivers;
#[path = "../it/support/secrets.rs"]
mod secrets;
mod senders;
mod terminate;
mod transfers;
mod unclean;
mod web;
mod who;
