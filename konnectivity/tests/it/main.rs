//! Server and agent as programs, with each other and with fakes of upstream's, over loopback.
//!
//! ```text
//!     fake API server ─▶ konnectivity-server ─▶ konnectivity-agent or fake agent ─▶ destination
//!                        fake server ──────────▶ konnectivity-agent ──────────────▶ destination
//! ```
//!
//! Holds what other people's programs rely on: statuses, texts, packets, metric names; and that
//! what upstream loses, leaks or mixes up is neither lost nor leaked nor mixed up here. Every wait
//! is for an event and has an end.
#![expect(
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "a failed set-up is a failed test"
)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "any packet but the one awaited is a failure"
)]

mod agent;
mod choice;
mod closing;
mod drain;
mod frontends;
mod frozen;
mod identity;
mod limits;
mod lost_agents;
mod packets;
mod parity;
mod plenty;
mod registry;
mod reload;
mod resets;
mod servers;
mod slow;
mod stalls;
mod streams;
mod support;
mod tokens;
mod traffic;
