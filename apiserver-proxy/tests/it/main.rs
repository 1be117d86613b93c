//! The node proxy as a library and as a program, over the loopback device and without privileges.
//!
//! ```text
//!     client ─▶ proxy (in process, or the binary) ─▶ fake gateway that says what it saw
//! ```
//!
//! Addresses are not managed here (`interface.manage: false`); what the proxy does to a node is
//! proven in the target `netns`.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod access_log;
mod announce;
mod connect;
mod docs;
mod drain;
mod gateway;
mod handover;
mod limits;
mod names;
mod probes;
mod process;
mod proxy;
mod resets;
mod traffic;
