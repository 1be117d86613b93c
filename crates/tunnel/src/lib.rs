//! The tunnel between the control plane of a shoot and its networks: WireGuard over UDP, or over a
//! TCP stream, between one TUN device at each end.
//!
//! ```text
//!   TUN ─▶ Device ─▶ Engine ─▶ Noise (seal) ─▶ udp::Outbox │ Stream ─▶ gateway ─▶ other end
//!   TUN ◀─ Batch ◀── Engine ◀─ Noise (open) ◀─ udp::Inbox  │ Stream ◀─ gateway ◀─ other end
//!                      ▲
//!             handle: Tunnel, Dials, Status          everything else: other threads
//! ```
//!
//! One thread carries all packets of a process, from the device to a socket and back, in batches
//! and to completion: no packet changes threads, nothing is locked, and one reader of the device
//! keeps packets in order. What may wait (resolving, connecting, TLS, probes, admin) is on other
//! threads and hands over sockets.
//!
//! The wire format is `tunnel_proto`'s, addresses and routes of the device are `net_config`'s, and access
//! control and dialing are the programs'.
#![forbid(unsafe_code)]

pub mod device;
mod engine;
mod handle;
pub mod keys;
mod noise;
mod runner;
pub mod settings;
mod status;
pub mod stream;

pub use handle::{
    Dial, Dials, Identity, IdentityError, Params, PeerSpec, Role, Sockets, StartError, Tunnel,
    TunnelError,
};
pub use runner::register_metrics;
pub use status::{LinkStatus, PeerStatus, Status, transport_name};
pub use tunnel_proto::codel;
pub use tunnel_proto::datagram::RouteId;
pub use tunnel_proto::filter;
pub use tunnel_proto::path::{self, Mode, Transport};
