//! Known answers, races and properties of two ends that speak to each other.
#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "tests: what is not expected fails them"
)]

mod flow;
mod frames;
mod garbage;
mod go_peer;
mod memory;
mod model;
mod packets;
mod pulses;
mod races;
mod world;
