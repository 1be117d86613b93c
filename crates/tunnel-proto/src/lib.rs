//! The pure half of the tunnel: everything that is decided by bytes and time alone.
//!
//! ```text
//!              UDP                                      TCP stream
//!               │                                           │
//!   wrapped ◀── datagram ──▶ mac1                         frame ──▶ Control (hello, drain)
//!   (gateway    (route id,   (handshake for?)               ▲
//!    ⇄ server)   indices)                                 codel (what waits for the socket)
//!               │                                           │
//!               └──────────── path (which transport; how large) ──────────┘
//!                                      │
//!                     sealed and opened by WireGuard, elsewhere
//!                                      │
//!              allowed (which peer's address?) · filter (may it open a connection?)
//!                                      │
//!                 ip (views, checksums, segments, super-packets, ICMP) ⇄ TUN
//! ```
//!
//! Bytes and `now` go in; bytes, verdicts, events and the next deadline come out. There are no
//! sockets, devices, threads, clocks or random numbers in here, and no cryptography but the keyed
//! hash that identifies the receiver of a handshake. Sealing and opening packets is WireGuard's own
//! business and happens elsewhere.
//!
//! What comes from the network may be anything: it leads to an error value, never to a panic, and
//! every table and queue has a bound that the caller sets.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod bucket;
mod wire;

pub mod allowed;
pub mod codel;
pub mod datagram;
pub mod echo;
pub mod filter;
pub mod frame;
pub mod ip;
pub mod mac1;
pub mod path;
pub mod wrapped;

pub use bucket::{SourceBuckets, TokenBucket, network};
