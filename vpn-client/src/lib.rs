//! The client of a shoot's tunnel, in the shoot: connects to the servers in the seed through its
//! gateway, and carries what API servers send to the shoot's networks.
//!
//! ```text
//!   gateway:8132, CONNECT ◀── tunnel ──▶ TUN device ─▶ forwarding, masquerade ─▶ nodes, pods, services
//!   gateway:51820/udp ◀───────┘
//! ```
//!
//! The tunnel itself is the `tunnel` crate's. Accepts no connection and opens none into the shoot:
//! what comes out of the tunnel is the kernel's to forward.
#![forbid(unsafe_code)]

mod client;
mod config;
mod connect;
mod dial;
mod metrics;
mod network;
mod status;

pub use client::{Client, ClientError, Source};
pub use config::{Command, Config, Environment, File, Flags, environment};
pub use metrics::describe_metrics;
pub use network::{NetworkError, clean_up, set_up};
