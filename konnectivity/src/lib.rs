//! The konnectivity server and agent: connections into a cluster that accepts none.
#![forbid(unsafe_code)]

pub mod agent;
mod api_server;
mod endpoints;
mod fair_share;
pub mod flags;
mod grpc;
pub mod lease;
mod link;
mod metrics;
pub mod process;
mod pump;
mod read_budget;
mod registry;
mod relay;
pub mod server;
pub mod token;

pub use metrics::{describe_agent_metrics, describe_server_metrics};
