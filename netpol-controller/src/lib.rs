//! NetworkPolicies from Services, and routes to every gateway, from one model of the cluster.
//!
//! ```text
//!     API server ─watch─▶ world ─┬─ plan ──▶ compare ──▶ write ─▶ API server
//!                                └─ routes ─▶ publish ──▶ xDS ──▶ gateways
//! ```
//!
//! What is routed is allowed and what is allowed is routed, because both come from the same
//! objects at the same moment. Forwards no connection, and reads no Secret.
#![forbid(unsafe_code)]

mod config;
mod controller;
mod dry_run;
mod engine;
mod events;
mod existing;
mod lease;
mod metrics;
pub mod plan;
mod publish;
mod queue;
mod resolve;
pub mod routes;
mod status;
mod sync;
mod touched;
mod watch;
pub mod world;
mod write;

pub use config::{CheckError, Config, Environment, File, Flags};
pub use controller::{Controller, Failed, StartError};
pub use dry_run::{DryRunError, dry_run};
pub use metrics::describe_metrics;
