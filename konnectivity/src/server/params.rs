//! What flags mean to the parts of a server.
//!
//! Translates, and reads what the configuration points to; decides nothing.

use std::sync::Arc;
use std::time::Duration;

use knp_proto::{LinkConfig, TenantId};
use route::TcpOptions;
use tokio::sync::watch;

use super::context::Limits;
use crate::api_server;
use crate::flags::{self, AgentIdentity, ClusterSource, ServerConfig};
use crate::lease::{ServerLease, ServerLeaseParams};
use crate::metrics::{ReloadResult, ServerMetrics};
use crate::process::Failed;
use crate::pump::Liveness;
use crate::registry::{
    FrontendMode, PairPaths, Port, Registry, SingleParams, TlsParams, TokenSpec, UdsSpec,
};

/// Connections of agents and frontends at most; descriptors allow fewer in most places.
pub(super) const CONNECTIONS: u64 = 100_000;
/// Sockets that may wait for a worker to take them.
pub(super) const SOCKETS: usize = 10_000;
/// Bytes to an agent that may wait in the kernel: packets of other tunnels wait behind them.
const NOTSENT_LOWAT: u32 = 128 << 10;
/// For TLS, HTTP/2 and a token.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// Reads who is served.
pub(super) fn registry(config: &ServerConfig) -> Result<Registry, Failed> {
    let pair = |port: &flags::TlsPort| PairPaths {
        cert: port.identity.cert.clone(),
        key: port.identity.key.clone(),
    };
    let tls = TlsParams {
        agents_pair: Some(pair(&config.agents)),
        frontends_pair: config.frontends.as_ref().map(pair),
        frontend_mode: mode(config.mode),
        only_tls13: config.tls.only_tls13,
        cipher_suites: config.tls.cipher_suites.clone(),
    };
    let registry = match &config.clusters {
        ClusterSource::Registry(directory) => Registry::open(directory, &tls),
        ClusterSource::Single(single) => {
            let (agents_ca, tokens) = match &single.agents {
                AgentIdentity::Anyone => (None, None),
                AgentIdentity::Certificate { ca } => (Some(ca.clone()), None),
                AgentIdentity::Token(token) => (None, Some(token_spec(token))),
            };
            let params = SingleParams {
                id: TenantId::new(SINGLE),
                agents_ca,
                frontends_ca: single.frontend_ca.clone(),
                strategies: single.strategies.clone(),
                server_count: single.server_count,
                limits: single.limits,
                tokens,
                uds: single.uds.clone().map(|path| UdsSpec {
                    path,
                    mode: mode(config.mode),
                }),
            };
            Registry::single(params, &tls)
        }
    };
    registry.map_err(Failed::configuration)
}

/// What the one tenant of a server without a registry is called.
const SINGLE: &str = "default";

fn token_spec(token: &flags::TokenSettings) -> TokenSpec {
    TokenSpec {
        issuer: None,
        audience: token.audience.clone(),
        jwks: None,
        jwks_bytes: None,
        kubeconfig: token.kubeconfig.clone(),
        kubeconfig_digest: None,
        namespace: token.namespace.clone(),
        service_account: token.service_account.clone(),
    }
}

/// Counts what the registry reads.
pub(super) fn observe(registry: &Registry, metrics: &ServerMetrics, all: &telemetry::Registry) {
    registry.count_pairs_in(&tls::Metrics::new(all));
    let generation = registry.changes();
    let metrics = metrics.registry();
    registry.observe(move |loaded| {
        metrics.active(*generation.borrow(), loaded.tenants, loaded.broken);
        if loaded.changed > 0 || loaded.refused > 0 {
            metrics.reloaded(match (loaded.refused, loaded.changed) {
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
pub(super) fn lease(config: &ServerConfig, metrics: &ServerMetrics) -> Option<Leased> {
    let ClusterSource::Single(single) = &config.clusters else {
        return None;
    };
    let place = single.lease.as_ref()?;
    let params = ServerLeaseParams {
        server_id: config.id.clone(),
        namespace: place.namespace.clone(),
        labels: place.labels.clone(),
    };
    let api = api_server::ApiServer::new(place.kubeconfig.clone());
    let metrics = Arc::new(metrics.clone());
    Some(ServerLease::new(api, params, metrics))
}

/// Bounds and times.
pub(super) fn limits(config: &ServerConfig) -> Limits {
    let liveness = |keepalive: &flags::Keepalive| Liveness {
        interval: keepalive.time,
        timeout: keepalive.timeout,
    };
    Limits {
        dial: config.dial_timeout,
        handshake: HANDSHAKE,
        agents: liveness(&config.agent_keepalive),
        frontends: liveness(&config.frontend_keepalive),
        link: LinkConfig {
            dial_timeout: config.dial_timeout,
            overflow: config.overflow,
            ..LinkConfig::default()
        },
    }
}

/// The same word of the registry.
pub(super) fn mode(mode: flags::FrontendMode) -> FrontendMode {
    match mode {
        flags::FrontendMode::Grpc => FrontendMode::Grpc,
        flags::FrontendMode::HttpConnect => FrontendMode::HttpConnect,
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
