//! The agent: runs where destinations can be reached, and opens connections for its servers.
//!
//! ```text
//!   server ◀── Connect stream ── session ──▶ one task per tunnel ──▶ dial ──▶ destination
//! ```
//!
//! It listens for nobody but probes and operators.

mod config;
#[cfg_attr(not(test), expect(dead_code, reason = "the agent's loop will ask it"))]
mod connect;
#[expect(dead_code, reason = "sessions will dial")]
mod dial;

pub use config::{
    AgentConfig, ConnectParams, CountSource, DrainParams, LeaseParams, LivenessParams,
};
pub use dial::{Allowed, AllowedRange, AllowedRangeError, DialParams};
