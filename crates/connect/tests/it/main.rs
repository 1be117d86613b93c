//! The frontend as a client sees it: over pipes in memory with a paused clock, and over
//! real sockets.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod answers;
mod bounds;
mod dialing;
mod doubles;
mod forwarding;
mod property;
mod sockets;
mod tls;
