//! The checked configuration of a server: [`ServerConfig`].
//!
//! One server has one tenant, which upstream's flags describe, or those of a registry. Both
//! are a [`TenantSource`]; the rest of the configuration is the same.

use std::net::SocketAddr;
use std::time::Duration;

use knp_proto::{Strategy, TenantId, TenantLimits};
use serde_json::Value;
use serve::DrainParams;
use telemetry::AccessFormat;

use crate::lease::ServerLeaseParams;
use crate::pump::Liveness;
use crate::registry::{
    PairPaths, SingleParams, TenantSource, TenantSpec, TlsParams, TokenSpec, UdsSpec,
};
use crate::token::TokenRules;

use super::checks::{Checks, path};
use super::server::ServerFlags;
use super::tls::versions_and_suites;
use settings::GoDuration;

/// Maximum time of a dial: what 0 means, for no dial waits indefinitely.
const MAX_DIAL_TIMEOUT: Duration = Duration::from_secs(3600);

/// Far more than machines have CPUs, and each worker has memory of its own.
const MAX_WORKERS: u32 = 1024;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub(crate) access_log: AccessFormat,
    /// Address of the admin endpoint.
    pub(crate) admin: SocketAddr,
    pub(crate) agent_liveness: Liveness,
    /// Where agents connect.
    pub(crate) agents: SocketAddr,
    pub(crate) tenants: TenantSource,
    /// Whether existing files at the paths of sockets are removed.
    pub(crate) delete_existing_sockets: bool,
    pub(crate) dial_timeout: Duration,
    pub(crate) drain: DrainParams,
    /// The configuration as it is shown: keys are flags, without secrets.
    pub(crate) effective: Value,
    pub(crate) frontend_liveness: Liveness,
    /// Where API servers connect, if over TCP.
    pub(crate) frontends: Option<SocketAddr>,
    /// Address of health and metrics.
    pub(crate) health: SocketAddr,
    /// This server's name, unique among all servers.
    pub(crate) id: String,
    /// This server's lease, by which it counts servers.
    pub(crate) lease: Option<ServerLeaseParams>,
    /// Bytes that may be buffered for all tunnels together.
    pub(crate) max_buffered_bytes: usize,
    /// How long a reader may accept nothing, where the peer knows no flow control.
    pub(crate) stall_timeout: Duration,
    pub(crate) per_cluster_metrics: bool,
    /// Certificates, versions and cipher suites of both ports.
    pub(crate) tls: TlsParams,
    /// Threads that carry data, at least one.
    pub(crate) workers: usize,
}

pub(super) fn configure(
    flags: &ServerFlags,
    effective: &Value,
    checks: &mut Checks<'_>,
) -> ServerConfig {
    let variable = checks.environment.server_id.as_deref();
    let id = checks.name("server-id", &flags.server_id, variable);
    let registry = path(&flags.registry);
    let frontends = frontends(flags, registry.is_some(), checks);
    let (frontends, frontends_pair) = frontends.unzip();
    let (agents, agents_pair) = agent_port(flags, checks);
    let (tenants, lease) = match registry {
        Some(directory) => {
            for (flag, instead) in NOT_WITH_REGISTRY {
                if checks.given.has(flag) {
                    let message = "must not be given with --registry: it is";
                    checks.refuse(flag, format!("{message} `{instead}` of a file there"));
                }
            }
            (TenantSource::Registry(directory), None)
        }
        None => (single(flags, checks), lease(flags, &id, checks)),
    };
    let timeout = checks.positive_time("keepalive-timeout", flags.keepalive_timeout);
    let liveness = |time: GoDuration, default: u64| Liveness {
        interval: match time.get() {
            Duration::ZERO => Duration::from_secs(default),
            time => time,
        },
        timeout,
    };
    checks.upstream_rules(flags.xfr_channel_size, &flags.idle);
    let admin = checks.own_port("admin-port", flags.admin_port);
    let health = checks.own_port("health-port", flags.health_port);
    let (only_tls13, cipher_suites) =
        versions_and_suites(&flags.tls_min_version, &flags.cipher_suites, checks);
    ServerConfig {
        access_log: flags.access_log,
        admin: checks.address("admin-bind-address", &flags.admin_bind_address, admin),
        agent_liveness: liveness(flags.keepalive_time, 30),
        agents,
        delete_existing_sockets: flags.delete_existing_uds_file,
        dial_timeout: dial_timeout(flags.backend_dial_timeout, checks),
        drain: DrainParams {
            delay: flags.graceful_shutdown_delay.get(),
            timeout: flags.graceful_shutdown_timeout.get(),
        },
        effective: effective.clone(),
        frontend_liveness: liveness(flags.frontend_keepalive_time, 3600),
        frontends,
        health: checks.address("health-bind-address", &flags.health_bind_address, health),
        id,
        lease,
        max_buffered_bytes: checks.buffered(&flags.buffers),
        stall_timeout: checks
            .positive_time("slow-consumer-timeout", flags.buffers.slow_consumer_timeout),
        per_cluster_metrics: flags.per_cluster_metrics,
        tls: TlsParams {
            agents_pair: Some(agents_pair),
            frontends_pair,
            frontend_mode: flags.mode,
            only_tls13,
            cipher_suites,
        },
        workers: workers(flags.workers, &tenants, checks),
        tenants,
    }
}

/// The TCP port of API servers, unless there is none.
fn frontends(
    flags: &ServerFlags,
    registry: bool,
    checks: &mut Checks<'_>,
) -> Option<(SocketAddr, PairPaths)> {
    let names = ("server-cert", "server-key");
    let pair = checks.key_pair(names, &flags.server_cert, &flags.server_key);
    let port = checks.own_port("server-port", flags.server_port);
    let address = checks.address("server-bind-address", &flags.server_bind_address, port);
    if !flags.uds_name.is_empty() && !registry {
        if flags.server_port != 0 {
            let message = format!("{} is not 0, as --uds-name needs", flags.server_port);
            checks.refuse("server-port", message);
        }
        for (flag, file) in [
            ("server-ca-cert", &flags.server_ca_cert),
            ("server-cert", &flags.server_cert),
            ("server-key", &flags.server_key),
        ] {
            if !file.is_empty() {
                checks.refuse(flag, "must not be given with --uds-name");
            }
        }
        return None;
    }
    if registry && port == 0 {
        return None;
    }
    if flags.server_cert.is_empty() && flags.server_key.is_empty() {
        checks.refuse("server-cert", "must be given for --server-port");
    }
    if !registry && flags.server_ca_cert.is_empty() {
        let message = "must be given for --server-port; or give --uds-name and --server-port=0";
        checks.refuse("server-ca-cert", message);
    }
    pair.map(|pair| (address, pair))
}

fn agent_port(flags: &ServerFlags, checks: &mut Checks<'_>) -> (SocketAddr, PairPaths) {
    let names = ("cluster-cert", "cluster-key");
    let pair = checks.key_pair(names, &flags.cluster_cert, &flags.cluster_key);
    if flags.cluster_cert.is_empty() && flags.cluster_key.is_empty() {
        let message = "must be given: agents connect with TLS only";
        checks.refuse("cluster-cert", message);
    }
    let port = checks.own_port("agent-port", flags.agent_port);
    let address = checks.address("agent-bind-address", &flags.agent_bind_address, port);
    (address, pair.unwrap_or_default())
}

fn dial_timeout(timeout: GoDuration, checks: &mut Checks<'_>) -> Duration {
    if timeout.get() > MAX_DIAL_TIMEOUT {
        let message = format!("{timeout} is longer than 1h");
        checks.refuse("backend-dial-timeout", message);
    }
    match timeout.get() {
        Duration::ZERO => MAX_DIAL_TIMEOUT,
        timeout => timeout,
    }
}

fn workers(workers: u32, tenants: &TenantSource, checks: &mut Checks<'_>) -> usize {
    if workers > MAX_WORKERS {
        checks.refuse("workers", format!("{workers} is more than {MAX_WORKERS}"));
    }
    match (workers, tenants) {
        (0, TenantSource::Registry(_)) => {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        }
        (0, TenantSource::Single(_)) => 1,
        (workers, _) => usize::try_from(workers).unwrap_or(1),
    }
}

fn single(flags: &ServerFlags, checks: &mut Checks<'_>) -> TenantSource {
    let strategies = Strategy::parse_list(&flags.proxy_strategies.join(","));
    if let Err(error) = &strategies {
        checks.refuse("proxy-strategies", error);
    }
    let limits = TenantLimits {
        agents: checks.positive("max-agents", flags.max_agents),
        buffered_bytes: usize::try_from(flags.buffers.max_buffered_bytes.get())
            .unwrap_or(usize::MAX),
        dials_per_second: flags.max_dials_per_second,
        pending_dials: checks.positive("max-pending-dials", flags.max_pending_dials),
        tunnels: checks.positive("max-tunnels", flags.max_tunnels),
    };
    TenantSource::Single(Box::new(SingleParams {
        agents_ca: path(&flags.cluster_ca_cert),
        frontends_ca: path(&flags.server_ca_cert),
        spec: TenantSpec {
            id: TenantId::new("default"),
            server_names: Vec::new(),
            strategies: strategies.unwrap_or_default(),
            server_count: flags.server_count,
            limits,
            agent_certificates: None,
            tokens: tokens(flags, checks),
            frontend_certificates: None,
            uds: path(&flags.uds_name).map(|path| UdsSpec {
                path,
                mode: flags.mode,
            }),
        },
    }))
}

fn lease(flags: &ServerFlags, id: &str, checks: &mut Checks<'_>) -> Option<ServerLeaseParams> {
    if !flags.enable_lease_controller {
        return None;
    }
    let kubeconfig = checks.api_server("enable-lease-controller", &flags.kubeconfig);
    let labels = flags.lease_label.parse();
    let labels = labels.map_err(|error| checks.refuse("lease-label", error));
    Some(ServerLeaseParams {
        kubeconfig,
        server_id: id.to_owned(),
        namespace: flags.lease_namespace.clone(),
        labels: labels.ok()?,
    })
}

/// How agents authenticate by token, unless they do by certificate or not at all.
fn tokens(flags: &ServerFlags, checks: &mut Checks<'_>) -> Option<TokenSpec> {
    let token = [
        ("agent-namespace", &flags.agent_namespace),
        ("agent-service-account", &flags.agent_service_account),
        ("authentication-audience", &flags.authentication_audience),
    ];
    if token.iter().all(|(_, value)| value.is_empty()) {
        if flags.cluster_ca_cert.is_empty() {
            checks.warn(ANY_AGENT.to_owned());
        }
        return None;
    }
    for (flag, value) in token {
        if value.is_empty() {
            let message = "must be given: namespace, service account and audience go together";
            checks.refuse(flag, message);
        }
    }
    if !flags.cluster_ca_cert.is_empty() {
        let message = "must not be given with --agent-namespace: agents have certificate or token";
        checks.refuse("cluster-ca-cert", message);
    }
    Some(TokenSpec {
        rules: TokenRules {
            issuer: None,
            audience: flags.authentication_audience.clone(),
            namespace: flags.agent_namespace.clone(),
            service_account: flags.agent_service_account.clone(),
        },
        keys: None,
        kubeconfig: checks.api_server("agent-namespace", &flags.kubeconfig),
        kubeconfig_digest: None,
    })
}

const ANY_AGENT: &str = "agents are not authenticated: every peer that reaches their port is \
                         accepted; give --cluster-ca-cert or --agent-namespace";

/// Flags of a single tenant, and what they are in a registry's file.
pub(crate) const NOT_WITH_REGISTRY: [(&str, &str); 16] = [
    ("agent-namespace", "agents.tokens.namespace"),
    ("agent-service-account", "agents.tokens.serviceAccount"),
    ("authentication-audience", "agents.tokens.audience"),
    ("cluster-ca-cert", "agents.certificates.ca"),
    ("enable-lease-controller", "serverCount"),
    ("kubeconfig", "agents.tokens.kubeconfig"),
    ("lease-label", "serverCount"),
    ("lease-namespace", "serverCount"),
    ("max-agents", "limits.agents"),
    ("max-dials-per-second", "limits.dialsPerSecond"),
    ("max-pending-dials", "limits.pendingDials"),
    ("max-tunnels", "limits.tunnels"),
    ("proxy-strategies", "strategies"),
    ("server-ca-cert", "frontends.certificates.ca"),
    ("server-count", "serverCount"),
    ("uds-name", "frontends.uds"),
];
