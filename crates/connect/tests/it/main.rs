//! The frontend as a client sees it: over pipes in memory with a clock that tests turn, and over
//! real sockets.
#![expect(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod answers;
mod bounds;
mod dialling;
mod doubles;
mod property;
mod sockets;
mod tls;
