//! The server of a shoot's tunnel, in the seed: API servers ask it by HTTP CONNECT for connections
//! into the shoot, and clients in the shoot connect to it.
//!
//! ```text
//!   kube-apiserver ── CONNECT, mTLS ──▶ :9443 ─▶ socket bound to the TUN device ─▶ tunnel ─▶ shoot
//! ```
//!
//! The keys and certificates that both ends need are made by `vpn-provision`, a package of its own.
//!
//! Packets are the `tunnel` crate's, CONNECT requests the `connect` crate's, the kernel's tables
//! `net_config`'s.
#![forbid(unsafe_code)]

mod config;
mod error;
mod identity;
mod link;
mod links;
mod metrics;
mod network;
mod process;
mod proxy;
mod server;
mod view;

pub use config::{Command, Config, Environment, Flags, PeersFile, environment};
pub use error::ServerError;
pub use link::Link;
pub use metrics::describe_metrics;
pub use process::run;
pub use proxy::Shoot;
pub use server::{Parts, Server};
pub use tunnel::keys::keygen;
