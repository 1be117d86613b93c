//! The server as a library and as a program, over the loopback device and without privileges.
//!
//! ```text
//!   fake API server ─▶ proxy ─▶ fake destinations        tunnels: a stand-in that records its calls
//! ```
//!
//! There is no TUN device here; what goes through one is proven in network namespaces.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod docs;
mod drain;
mod forwarding;
mod links;
mod names;
mod probes;
mod process;
mod proxy;
mod reload;
mod resets;
mod support;
