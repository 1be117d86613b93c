//! Routes from a server, over xDS: when they are there, how they change, what is refused, and what
//! goes on when the server is gone.
//!
//! ```text
//!     client ─▶ gateway ─▶ fake upstream
//!                  ▲ xDS: the server of our own crate, on a thread of the test
//! ```
//!
//! What travels is the matter of the crate that encodes and decodes; here a gateway lives with it.

mod config;
mod control;
mod foreign;
mod handover;
mod lifecycle;
mod rotation;
mod updates;
mod wireguard;
