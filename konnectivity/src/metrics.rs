//! What both binaries count, under upstream's names and ours.
//!
//! ```text
//!     Registry ──▶ ServerMetrics ──▶ TenantMetrics ──┐
//!              ──▶ AgentMetrics ─────────────────────┴──▶ LinkMetrics ──▶ StreamCounters
//! ```
//!
//! New ones: in the `families!` of `ServerMetrics`, `AgentMetrics`, `TenantFamilies` or `LinkFamilies`.
//!
//! Families that upstream has keep its names, labels and buckets, so that dashboards and alerts
//! go on working; all others start with `rhizome_konnectivity_`. As with upstream, a labelled
//! series of its families appears when it is first counted; ours are there from the start.
//! Whatever is touched per packet is a handle resolved once; what rises and falls is a [`Held`].
//!
//! Label values come from closed sets. The label `cluster` exists only in families of its own,
//! which are registered when asked for, and a tenant's series end with the tenant.

mod agent;
mod grpc_code;
mod leases;
mod link;
mod server;
mod stream;
mod tenant;

use telemetry::access_log::Sink;
use telemetry::metrics::{CounterFamily, Description, Gauge};
use telemetry::process::Build;
use telemetry::{AccessFormat, AccessLog, LogControl, Registry};

pub(crate) use agent::{AgentMetrics, ConnectResult, EndpointDialFailure};
pub(crate) use grpc_code::GrpcCode;
pub(crate) use link::{Direction, LinkMetrics};
pub(crate) use server::{DialFailure, PeerPort, ServerMetrics, Service, TokenResult};
pub(crate) use stream::StreamCounters;
pub(crate) use tenant::TenantMetrics;

/// What the server was built from.
pub(crate) const SERVER_BUILD: Build = build("konnectivity-server");
/// What the agent was built from.
pub(crate) const AGENT_BUILD: Build = build("konnectivity-agent");

const fn build(binary: &'static str) -> Build {
    Build {
        binary,
        version: env!("CARGO_PKG_VERSION"),
        revision: option_env!("RHIZOME_REVISION"),
    }
}

/// Returns every family that a running server exposes, with those per tenant, sorted by name.
#[must_use]
pub fn describe_server_metrics() -> Vec<Description> {
    let registry = Registry::new();
    let _ = ServerMetrics::new(&registry, true);
    if let Ok(access_log) = AccessLog::new(AccessFormat::Off, Sink::Stdout) {
        access_log.register(&registry);
    }
    describe(&registry, SERVER_BUILD)
}

/// Returns every family that a running agent exposes, sorted by name.
#[must_use]
pub fn describe_agent_metrics() -> Vec<Description> {
    let registry = Registry::new();
    let _ = AgentMetrics::new(&registry);
    describe(&registry, AGENT_BUILD)
}

/// Adds what every binary has.
fn describe(registry: &Registry, build: Build) -> Vec<Description> {
    LogControl::detached().register(registry);
    let _ = tls::Metrics::new(registry);
    telemetry::process::register(registry, build);
    registry.describe()
}

/// Makes the series of a family with one label for all its values, which are there from the start.
fn begin(family: &CounterFamily, values: &[&str]) {
    for value in values {
        let _ = family.with(&[value]);
    }
}

/// Counts something in for as long as it lives, in up to two gauges.
#[derive(Debug)]
#[must_use = "dropping it counts out again"]
pub(crate) struct Held {
    one: Gauge,
    other: Option<Gauge>,
}

impl Held {
    fn new(one: &Gauge, other: Option<&Gauge>) -> Self {
        one.inc();
        if let Some(other) = other {
            other.inc();
        }
        Self {
            one: one.clone(),
            other: other.cloned(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.one.dec();
        if let Some(other) = &self.other {
            other.dec();
        }
    }
}

#[cfg(test)]
mod tests;
