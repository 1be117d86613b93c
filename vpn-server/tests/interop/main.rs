//! Our server with other people's WireGuard clients, and our client with their servers.
//!
//! ```text
//!   shoot: a client ─▶ NAT (the test) ═ cable ═▶ seed: a server, an API server (the test)
//!     └── cable ── pod: an echo
//! ```
//!
//! The others are boringtun, gotatun and two versions of wireguard-go, configured with `wg`. They
//! know neither route ids nor what our probes tell; their kernels answer the probes, being ICMP
//! echoes. Each test runs with all of them at once. One that is missing fails the test with a text
//! that says how it is installed; `cargo xtask test` installs them all.
//!
//! Needs root, or a user, network and mount namespace of its own. What two ends of ours do with each
//! other, and what passes a gateway, is tried in `netns`.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests tell whom they meet, and a failed set-up is a failed test"
)]

mod addresses;
mod client;
mod everyone;
mod field;
mod nat;
mod programs;
mod renewal;
mod server;
