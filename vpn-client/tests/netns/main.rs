//! The client's program in namespaces of its own: a shoot, and a seed behind one cable.
//!
//! ```text
//!   shoot: vpn-client, rhizome0 ─ eth0 ══ cable ══ eth0 ─ seed: a gateway, a server, a pod
//! ```
//!
//! Needs root, or a user, network and mount namespace of its own. `ip` and `nft` tell what the
//! kernel holds; the client itself starts no program. The server is the `tunnel` crate's, in the
//! test's own process; that programs understand each other is shown elsewhere.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod kernel;
mod keys;
mod life;
mod seed;
mod shoot;
