//! What a server is told, checked: [`ServerConfig`].
//!
//! One server is for one cluster, which upstream's flags describe, or for those of a registry. Both
//! are a [`ClusterSource`]; the rest of the configuration is the same.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use knp_proto::{Overflow, Strategy, TenantLimits};
use telemetry::AccessFormat;

use crate::lease::LeaseLabels;

use super::checks::{Checks, Keepalive, KeyPair, path};
use super::process::{ProcessConfig, directives, without_effect};
use super::read::Given;
use super::server::ServerFlags;
use super::tls::TlsSettings;
use super::value::FrontendMode;
use super::{Environment, FlagError};

/// Longest that a dial may take: what 0 means, for there is no waiting for ever.
pub(crate) const LONGEST_DIAL: Duration = Duration::from_secs(3600);

/// All that a server is told.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Log, warnings, what is in effect.
    pub process: ProcessConfig,
    /// How the line that each tunnel leaves is written.
    pub access_log: AccessFormat,
    /// Where the admin endpoint answers.
    pub admin: SocketAddr,
    /// Pings to agents.
    pub agent_keepalive: Keepalive,
    /// Where agents connect.
    pub agents: TlsPort,
    /// Whom this server is for.
    pub clusters: ClusterSource,
    /// Whether sockets that are in the way are removed.
    pub delete_existing_sockets: bool,
    /// How long a dial may take.
    pub dial_timeout: Duration,
    /// How long it accepts once it was told to end.
    pub drain_delay: Duration,
    /// How long tunnels may go on after the first signal to end; zero is not at all.
    pub drain_timeout: Duration,
    /// Whether TLS without ALPN `h2` is refused, as by upstream's servers.
    pub enforce_alpn: bool,
    /// Pings to gRPC frontends.
    pub frontend_keepalive: Keepalive,
    /// Where API servers connect, if over TCP.
    pub frontends: Option<TlsPort>,
    /// Where health and metrics answer.
    pub health: SocketAddr,
    /// This server's name, different from all others'.
    pub id: String,
    /// Octets that may be held for tunnels, all together.
    pub max_buffered_bytes: usize,
    /// What API servers speak: on the TCP port, and without a registry on the socket.
    pub mode: FrontendMode,
    /// What happens to tunnels with slow readers and peers without flow control.
    pub overflow: Overflow,
    /// Whether there are metrics with a label per cluster.
    pub per_cluster_metrics: bool,
    /// Versions and cipher suites of both ports.
    pub tls: TlsSettings,
    /// Threads that carry data, at least one.
    pub workers: usize,
}

/// An address with the certificate shown there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPort {
    /// Where; port 0 picks one.
    pub address: SocketAddr,
    /// What is shown.
    pub identity: KeyPair,
}

/// Whom a server is for.
#[derive(Clone, Debug)]
pub enum ClusterSource {
    /// The clusters of a directory.
    Registry(PathBuf),
    /// One cluster.
    Single(Box<SingleCluster>),
}

/// The cluster of a server that is for one.
#[derive(Clone, Debug)]
pub struct SingleCluster {
    /// Who is an agent.
    pub agents: AgentIdentity,
    /// Verifies API servers on the TCP port; given exactly when there is one.
    pub frontend_ca: Option<PathBuf>,
    /// Where this server keeps its lease and counts others'.
    pub lease: Option<LeasePlace>,
    /// Bounds.
    pub limits: TenantLimits,
    /// Number of servers that agents are told of, unless leases are counted.
    pub server_count: u32,
    /// How an agent is chosen, in order; at least one.
    pub strategies: Vec<Strategy>,
    /// The socket for API servers.
    pub uds: Option<PathBuf>,
}

/// Who is an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentIdentity {
    /// Whoever connects, which upstream allows.
    Anyone,
    /// Who has a certificate of this CA bundle.
    Certificate {
        /// The bundle.
        ca: PathBuf,
    },
    /// Who has a token.
    Token(TokenSettings),
}

/// Whose tokens are accepted, and who says that they are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// Audience that tokens are for.
    pub audience: String,
    /// Leads to the API server that reviews tokens; none is that of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub service_account: String,
}

/// Where servers keep their leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasePlace {
    /// Leads to the API server; none is that of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Their labels.
    pub labels: LeaseLabels,
    /// Their namespace.
    pub namespace: String,
}

impl ServerConfig {
    pub(crate) fn new(
        flags: &ServerFlags,
        given: &Given,
        check: bool,
        environment: &Environment,
    ) -> Result<Self, FlagError> {
        let mut checks = Checks::new(given);
        let id = checks.name(
            "server-id",
            &flags.server_id,
            environment.server_id.as_deref(),
        );
        let registry = path(&flags.registry);
        let frontends = frontends(flags, registry.is_some(), &mut checks);
        let clusters = match registry {
            Some(directory) => {
                refuse_single(&mut checks);
                ClusterSource::Registry(directory)
            }
            None => ClusterSource::Single(Box::new(single(flags, environment, &mut checks))),
        };
        let keepalive = |time: Duration, default: u64| Keepalive {
            time: if time.is_zero() {
                Duration::from_secs(default)
            } else {
                time
            },
            timeout: flags.keepalive_timeout.get(),
        };
        checks.lasting("keepalive-timeout", flags.keepalive_timeout.get());
        checks.channel_size(flags.xfr_channel_size);
        checks.profiling(flags.enable_profiling, flags.enable_contention_profiling);
        let admin_port = checks.own_port("admin-port", flags.admin_port);
        let health_port = checks.own_port("health-port", flags.health_port);
        let config = Self {
            access_log: flags.access_log.into(),
            admin: checks.address("admin-bind-address", &flags.admin_bind_address, admin_port),
            agent_keepalive: keepalive(flags.keepalive_time.get(), 30),
            agents: agent_port(flags, &mut checks),
            delete_existing_sockets: flags.delete_existing_uds_file,
            dial_timeout: dial_timeout(flags, &mut checks),
            drain_delay: flags.graceful_shutdown_delay.get(),
            drain_timeout: flags.graceful_shutdown_timeout.get(),
            enforce_alpn: environment.enforce_alpn,
            frontend_keepalive: keepalive(flags.frontend_keepalive_time.get(), 3600),
            frontends,
            health: checks.address(
                "health-bind-address",
                &flags.health_bind_address,
                health_port,
            ),
            id,
            max_buffered_bytes: checks.buffered(flags.max_buffered_bytes),
            mode: flags.mode,
            overflow: flags.slow_consumer.into(),
            per_cluster_metrics: flags.per_cluster_metrics,
            tls: TlsSettings::new(&flags.cipher_suites, &flags.tls_min_version, &mut checks),
            workers: workers(flags, &clusters, &mut checks),
            clusters,
            process: ProcessConfig {
                check,
                log_format: flags.log_format.into(),
                log_directives: String::new(),
                warnings: Vec::new(),
                effective: settings::redact(flags)?,
            },
        };
        let mut warnings = checks.finish()?;
        warnings.extend(without_effect(flags, given));
        let log = directives(flags.v, &flags.vmodule, environment, &mut warnings);
        let process = ProcessConfig {
            log_directives: log,
            warnings,
            ..config.process
        };
        Ok(Self { process, ..config })
    }
}

/// The TCP port of API servers, unless there is none.
fn frontends(flags: &ServerFlags, registry: bool, checks: &mut Checks<'_>) -> Option<TlsPort> {
    let pair = ("server-cert", "server-key");
    let identity = checks.key_pair(pair, &flags.server_cert, &flags.server_key);
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
    if identity.is_none() && flags.server_cert.is_empty() && flags.server_key.is_empty() {
        checks.refuse("server-cert", "must be given for --server-port");
    }
    if !registry && flags.server_ca_cert.is_empty() {
        let message = "must be given for --server-port; or give --uds-name and --server-port=0";
        checks.refuse("server-ca-cert", message);
    }
    identity.map(|identity| TlsPort { address, identity })
}

fn agent_port(flags: &ServerFlags, checks: &mut Checks<'_>) -> TlsPort {
    let pair = ("cluster-cert", "cluster-key");
    let identity = checks.key_pair(pair, &flags.cluster_cert, &flags.cluster_key);
    if flags.cluster_cert.is_empty() && flags.cluster_key.is_empty() {
        checks.refuse(
            "cluster-cert",
            "must be given: agents connect with TLS only",
        );
    }
    let port = checks.own_port("agent-port", flags.agent_port);
    TlsPort {
        address: checks.address("agent-bind-address", &flags.agent_bind_address, port),
        identity: identity.unwrap_or(KeyPair {
            cert: PathBuf::new(),
            key: PathBuf::new(),
        }),
    }
}

fn dial_timeout(flags: &ServerFlags, checks: &mut Checks<'_>) -> Duration {
    let timeout = flags.backend_dial_timeout.get();
    if timeout > LONGEST_DIAL {
        let message = format!("{} is longer than 1h", flags.backend_dial_timeout);
        checks.refuse("backend-dial-timeout", message);
    }
    if timeout.is_zero() {
        LONGEST_DIAL
    } else {
        timeout
    }
}

fn workers(flags: &ServerFlags, clusters: &ClusterSource, checks: &mut Checks<'_>) -> usize {
    if flags.workers > MOST_WORKERS {
        let message = format!("{} is more than {MOST_WORKERS}", flags.workers);
        checks.refuse("workers", message);
    }
    match (flags.workers, clusters) {
        (0, ClusterSource::Registry(_)) => {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        }
        (0, ClusterSource::Single(_)) => 1,
        (workers, ClusterSource::Registry(_) | ClusterSource::Single(_)) => {
            usize::try_from(workers).unwrap_or(1)
        }
    }
}

/// A cluster's own flags are in the registry.
fn refuse_single(checks: &mut Checks<'_>) {
    for (flag, instead) in NOT_WITH_REGISTRY {
        if checks.given(flag) {
            let message =
                format!("must not be given with --registry: it is `{instead}` of a file there");
            checks.refuse(flag, message);
        }
    }
}

fn single(
    flags: &ServerFlags,
    environment: &Environment,
    checks: &mut Checks<'_>,
) -> SingleCluster {
    let strategies = Strategy::parse_list(&flags.proxy_strategies.join(","));
    if let Err(error) = &strategies {
        checks.refuse("proxy-strategies", error);
    }
    SingleCluster {
        agents: agent_identity(flags, environment, checks),
        frontend_ca: path(&flags.server_ca_cert),
        lease: lease(flags, environment, checks),
        limits: TenantLimits {
            agents: checks.positive("max-agents", flags.max_agents),
            buffered_bytes: usize::try_from(flags.max_buffered_bytes.get()).unwrap_or(usize::MAX),
            dials_per_second: flags.max_dials_per_second,
            pending_dials: checks.positive("max-pending-dials", flags.max_pending_dials),
            tunnels: checks.positive("max-tunnels", flags.max_tunnels),
        },
        server_count: flags.server_count,
        strategies: strategies.unwrap_or_default(),
        uds: path(&flags.uds_name),
    }
}

fn lease(
    flags: &ServerFlags,
    environment: &Environment,
    checks: &mut Checks<'_>,
) -> Option<LeasePlace> {
    let flag = "enable-lease-controller";
    if !flags.enable_lease_controller {
        return None;
    }
    let kubeconfig = checks.api_server(flag, &flags.kubeconfig, environment);
    match flags.lease_label.parse() {
        Ok(labels) => Some(LeasePlace {
            kubeconfig,
            labels,
            namespace: flags.lease_namespace.clone(),
        }),
        Err(error) => {
            checks.refuse("lease-label", error);
            None
        }
    }
}

fn agent_identity(
    flags: &ServerFlags,
    environment: &Environment,
    checks: &mut Checks<'_>,
) -> AgentIdentity {
    let token = [
        ("agent-namespace", &flags.agent_namespace),
        ("agent-service-account", &flags.agent_service_account),
        ("authentication-audience", &flags.authentication_audience),
    ];
    let ca = path(&flags.cluster_ca_cert);
    if token.iter().all(|(_, value)| value.is_empty()) {
        return ca.map_or_else(
            || {
                checks.warn(ANYONE.to_owned());
                AgentIdentity::Anyone
            },
            |ca| AgentIdentity::Certificate { ca },
        );
    }
    for (flag, value) in token {
        if value.is_empty() {
            let message = "must be given: namespace, service account and audience go together";
            checks.refuse(flag, message);
        }
    }
    if ca.is_some() {
        let message = "must not be given with --agent-namespace: agents have certificate or token";
        checks.refuse("cluster-ca-cert", message);
    }
    AgentIdentity::Token(TokenSettings {
        audience: flags.authentication_audience.clone(),
        kubeconfig: checks.api_server("agent-namespace", &flags.kubeconfig, environment),
        namespace: flags.agent_namespace.clone(),
        service_account: flags.agent_service_account.clone(),
    })
}

/// Far more than machines have CPUs, and each worker has memory of its own.
const MOST_WORKERS: u32 = 1024;

const ANYONE: &str = "agents need neither certificate nor token: whoever reaches the port for \
                      agents is one; give --cluster-ca-cert or --agent-namespace";

/// Flags of one cluster, and what they are in a registry's file.
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
