//! The node proxy's program on nodes of its own: network namespaces that a test makes.
//!
//! ```text
//!     pod namespace ─▶ node namespace: apiserver-proxy, 10.1.2.3:443 ─▶ gateway ─▶ API server
//! ```
//!
//! Needs root, or a user, network and mount namespace of its own. `ip` and `nft` stand in for the
//! operator and for other programs on the node, and tell what the kernel holds; the proxy itself
//! starts no program.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests tell what they measured, and a failed set-up is a failed test"
)]

mod addresses;
mod capabilities;
mod dns;
mod handover;
mod keep;
mod life;
mod names;
mod node;
mod notrack;
mod service;
mod shoots;
