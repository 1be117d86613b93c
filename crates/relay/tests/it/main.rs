//! Drives a relay between two real loopback connections and plays both peers.
//!
//! Every test waits on an event (bytes, end of stream, the relay's outcome), never on a time.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tokio's paused clock is wanted here"
)]

mod relay;
mod reset;
mod stop;
mod streams;
mod support;
mod traffic;
mod urgent;
