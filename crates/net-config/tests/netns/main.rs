//! The crate against the kernel, each test in a network namespace of its own.
//!
//! A test's body runs on a thread that has left the process's network namespace, with a runtime
//! inside, so whatever it creates goes away with the thread. Needs `CAP_SYS_ADMIN` and
//! `CAP_NET_ADMIN`: run as root, or the whole test process under `unshare --user --map-root-user`
//! (a process with several threads cannot enter a user namespace by itself).
//!
//! `ip` and `nft` stand in for the operator and for other programs on the node, and tell what the
//! kernel holds; the crate itself starts no program.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests tell what they measured, and a failed set-up is a failed test"
)]

mod keeper;
mod notrack;
mod running;
mod support;
mod tunnel_device;
mod tunnel_path;
mod tunnel_routes;
