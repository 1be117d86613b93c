//! What flags mean to the parts of a server.
//!
//! Translates, and reads what the configuration points to; decides nothing.

use std::sync::Arc;
use std::time::Duration;

use knp_proto::LinkConfig;
use route::TcpOptions;
use serve::Failure;
use tokio::sync::watch;

use super::context::Limits;
use crate::flags::{ServerConfig, TenantSource};
use crate::lease::ServerLease;
use crate::metrics::{ReloadResult, ServerMetrics};
use crate::registry::{Port, Registry};

/// Connections of agents and frontends at most; descriptors allow fewer in most places.
pub(super) const CONNECTIONS: u64 = 100_000;
/// Sockets that may wait for a worker to take them.
pub(super) const SOCKETS: usize = 10_000;
/// Bytes to an agent that may wait in the kernel: packets of other tunnels wait behind them.
const NOTSENT_LOWAT: u32 = 128 << 10;
/// For TLS, HTTP/2 and a token.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// Reads who is served.
pub(super) fn registry(config: &ServerConfig) -> Result<Arc<Registry>, Failure> {
    let registry = match &config.tenants {
        TenantSource::Registry(directory) => Registry::open(directory, &config.tls),
        TenantSource::Single { params, .. } => Registry::single((**params).clone(), &config.tls),
    };
    registry.map_err(Failure::configuration)
}

/// Counts what the registry reads.
pub(super) fn observe(
    registry: &Registry,
    metrics: &Arc<ServerMetrics>,
    all: &telemetry::Registry,
) {
    registry.count_pairs_in(&tls::Metrics::new(all));
    let generation = registry.changes();
    let metrics = Arc::clone(metrics);
    registry.observe(move |loaded| {
        metrics.registry_active(*generation.borrow(), loaded.tenants, loaded.broken);
        if loaded.changed > 0 || loaded.refused > 0 {
            metrics.registry_reloaded(match (loaded.refused, loaded.changed) {
                (0, _) => ReloadResult::Taken,
                (_, 0) => ReloadResult::Failed,
                (_, _) => ReloadResult::Partly,
            });
        }
    });
}

/// A server's lease, and how many servers have one.
type Leased = (ServerLease, watch::Receiver<Option<u32>>);

/// Prepares the lease, when there is to be one.
pub(super) fn lease(config: &ServerConfig, metrics: &Arc<ServerMetrics>) -> Option<Leased> {
    let TenantSource::Single { lease, .. } = &config.tenants else {
        return None;
    };
    let metrics = Arc::<ServerMetrics>::clone(metrics);
    Some(ServerLease::new(lease.clone()?, metrics))
}

/// Bounds and times.
pub(super) fn limits(config: &ServerConfig) -> Limits {
    Limits {
        dial: config.dial_timeout,
        handshake: HANDSHAKE,
        agents: config.agent_liveness,
        frontends: config.frontend_liveness,
        link: LinkConfig {
            dial_timeout: config.dial_timeout,
            overflow: config.overflow,
            ..LinkConfig::default()
        },
    }
}

/// Options of accepted sockets.
pub(super) fn tcp(port: Port) -> TcpOptions {
    TcpOptions {
        notsent_lowat: match port {
            Port::Agents => NOTSENT_LOWAT,
            Port::Frontends => 0,
        },
        ..TcpOptions::default()
    }
}
