//! NetworkPolicies from Services, and routes to every gateway, from one model of the cluster.
//!
//! ```text
//!     API server ─watch─▶ state ─┬─ plan ──▶ compare ──▶ write ─▶ API server
//!                                └─ routes ─▶ publish ──▶ xDS ──▶ gateways
//! ```
//!
//! What is routed is allowed and what is allowed is routed, because both come from the same
//! objects at the same moment. Forwards no connection, and reads Secrets only for
//! TLS that ends in gateways.
#![forbid(unsafe_code)]

mod affected;
mod config;
mod controller;
mod dry_run;
mod events;
mod lease;
mod metrics;
mod observed;
pub mod plan;
mod publish;
mod queue;
mod reconciler;
mod resolve;
pub mod routes;
mod secrets;
pub mod state;
mod status;
mod sync;
mod watch;
mod write;

pub use config::{Config, Environment, Flags};
pub use controller::{Controller, Failed, StartError};
pub use dry_run::{DryRunError, dry_run};
pub use metrics::describe_metrics;
