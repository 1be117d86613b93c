//! The flags of `konnectivity-server`, with their defaults.
//!
//! Upstream's flags have upstream's names and, where upstream has a bound, upstream's defaults.
//! `server_config` checks what they mean together. A list also belongs in `Flags::lists`, each flag
//! in `tests/upstream.rs`.

use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use schemars::JsonSchema;
use serde::Serialize;
use settings::{GoDuration, RelPath};
use telemetry::AccessFormat;

use super::read::Flags;
use super::shared::{
    AGENTS, BufferFlags, ENDPOINTS, LIMITS, LOGS, LogFlags, NO_EFFECT, NoEffectFlags, RunFlags,
    SERVERS, SHUTDOWN,
};

use crate::registry::FrontendMode;

const API_SERVERS: &str = "API servers";
const TENANTS: &str = "Several tenants";
const TLS: &str = "TLS";

/// The flags of `konnectivity-server`, which are the keys of its configuration file.
#[derive(Clone, Debug, Parser, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[command(name = "konnectivity-server", version, after_help = EXAMPLES)]
#[command(about = "Passes connections of API servers to agents in clusters that accept none.")]
#[command(args_override_self = true, next_line_help = true)]
pub(crate) struct ServerFlags {
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) run: RunFlags,

    /// What API servers speak; with --registry on --server-port only.
    #[arg(long, default_value = "grpc", help_heading = API_SERVERS)]
    pub(crate) mode: FrontendMode,
    /// Unix socket for API servers, instead of --server-port. Not with --registry.
    #[arg(long, default_value = "", help_heading = API_SERVERS)]
    pub(crate) uds_name: RelPath,
    /// Remove an existing socket at --uds-name.
    #[arg(long, default_value = "true", help_heading = API_SERVERS)]
    pub(crate) delete_existing_uds_file: bool,
    /// Port for API servers; 0 with --uds-name or --registry is none, otherwise a free port.
    #[arg(long, default_value = "8090", help_heading = API_SERVERS)]
    pub(crate) server_port: u32,
    /// Address to listen on for API servers; empty is all addresses.
    #[arg(long, default_value = "", help_heading = API_SERVERS)]
    pub(crate) server_bind_address: String,
    /// Certificate presented to API servers.
    #[arg(long, default_value = "", help_heading = API_SERVERS)]
    pub(crate) server_cert: RelPath,
    /// Key of the certificate presented to API servers.
    #[arg(long, default_value = "", help_heading = API_SERVERS)]
    pub(crate) server_key: RelPath,
    /// CA bundle that verifies certificates of API servers. Not with --registry.
    #[arg(long, default_value = "", help_heading = API_SERVERS)]
    pub(crate) server_ca_cert: RelPath,
    /// Time without traffic after which a gRPC frontend is pinged; 0 is the default.
    #[arg(long, default_value = "1h", help_heading = API_SERVERS)]
    pub(crate) frontend_keepalive_time: GoDuration,

    /// Port for agents; 0 selects a free port.
    #[arg(long, default_value = "8091", help_heading = AGENTS)]
    pub(crate) agent_port: u32,
    /// Address to listen on for agents; empty is all addresses.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) agent_bind_address: String,
    /// Certificate presented to agents.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) cluster_cert: RelPath,
    /// Key of the certificate presented to agents.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) cluster_key: RelPath,
    /// CA bundle that verifies certificates of agents; without it agents need none. Not with
    /// --registry.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) cluster_ca_cert: RelPath,
    /// Namespace of the service account of agents that authenticate by token. Not with --registry.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) agent_namespace: String,
    /// Service account of agents that authenticate by token. Not with --registry.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) agent_service_account: String,
    /// Audience of the tokens of agents. Not with --registry.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) authentication_audience: String,
    /// Kubeconfig of the API server for token reviews and leases; empty is the pod's own. Not with
    /// --registry.
    #[arg(long, default_value = "", help_heading = AGENTS)]
    pub(crate) kubeconfig: RelPath,
    /// How an agent is selected, in order: default, destHost, defaultRoute, destCIDR. Not with
    /// --registry.
    #[arg(long, default_value = "default", help_heading = AGENTS)]
    pub(crate) proxy_strategies: Vec<String>,
    /// Time without traffic after which an agent is pinged; 0 is the default.
    #[arg(long, default_value = "30s", help_heading = AGENTS)]
    pub(crate) keepalive_time: GoDuration,
    /// Time an agent or frontend has to answer a ping.
    #[arg(long, default_value = "10s", help_heading = AGENTS)]
    pub(crate) keepalive_timeout: GoDuration,

    /// Directory with one file per tenant: one server for many tenants.
    #[arg(long, default_value = "", help_heading = TENANTS)]
    pub(crate) registry: RelPath,
    /// Also export metrics of tunnels and dials per tenant, with a label.
    #[arg(long, help_heading = TENANTS)]
    pub(crate) per_cluster_metrics: bool,
    /// Threads that carry data; 0 is one per CPU with --registry and one without.
    #[arg(long, default_value = "0", help_heading = TENANTS)]
    pub(crate) workers: u32,

    /// Name of this server, unique among all servers; empty is PROXY_SERVER_ID or a random one.
    #[arg(long, default_value = "", help_heading = SERVERS)]
    pub(crate) server_id: String,
    /// Number of servers, as reported to agents. Not with --registry.
    #[arg(long, default_value = "1", help_heading = SERVERS)]
    pub(crate) server_count: u32,
    /// Hold a lease for this server and count the leases of others. Not with --registry.
    #[arg(long, help_heading = SERVERS)]
    pub(crate) enable_lease_controller: bool,
    /// Labels of the leases of servers. Not with --registry.
    #[arg(long, default_value = "k8s-app=konnectivity-server", help_heading = SERVERS)]
    pub(crate) lease_label: String,
    /// Namespace of the leases of servers. Not with --registry.
    #[arg(long, default_value = "kube-system", help_heading = SERVERS)]
    pub(crate) lease_namespace: String,

    /// Cipher suites of TLS 1.2, by Go's names; empty is all. Those of TLS 1.3 are always on.
    #[arg(long, help_heading = TLS)]
    pub(crate) cipher_suites: Vec<String>,
    /// Oldest version of TLS: VersionTLS12, also if empty, or VersionTLS13.
    #[arg(long, default_value = "", help_heading = TLS)]
    pub(crate) tls_min_version: String,

    /// Maximum time of a dial; 0, no limit upstream, is the maximum of 1h.
    #[arg(long, default_value = "10s", help_heading = LIMITS)]
    pub(crate) backend_dial_timeout: GoDuration,
    /// Maximum streams from agents. Not with --registry.
    #[arg(long, default_value = "10000", help_heading = LIMITS)]
    pub(crate) max_agents: u32,
    /// Maximum dials per second; 0 is unlimited. Not with --registry.
    #[arg(long, default_value = "0", help_heading = LIMITS)]
    pub(crate) max_dials_per_second: u32,
    /// Maximum dials that wait for an answer. Not with --registry.
    #[arg(long, default_value = "1000", help_heading = LIMITS)]
    pub(crate) max_pending_dials: u32,
    /// Maximum tunnels. Not with --registry.
    #[arg(long, default_value = "10000", help_heading = LIMITS)]
    pub(crate) max_tunnels: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) buffers: BufferFlags,

    /// Time after SIGTERM during which the server is unready but still accepts connections, for
    /// load balancers to notice.
    #[arg(long, default_value = "0s", help_heading = SHUTDOWN)]
    pub(crate) graceful_shutdown_delay: GoDuration,
    /// Time that tunnels may continue after SIGTERM; 0 closes them at once.
    #[arg(long, default_value = "0s", help_heading = SHUTDOWN)]
    pub(crate) graceful_shutdown_timeout: GoDuration,

    /// Address of the admin endpoint; empty is all addresses.
    #[arg(long, default_value = "127.0.0.1", help_heading = ENDPOINTS)]
    pub(crate) admin_bind_address: String,
    /// Port of the admin endpoint; 0 selects a free port.
    #[arg(long, default_value = "8095", help_heading = ENDPOINTS)]
    pub(crate) admin_port: u32,
    /// Address of health and metrics; empty is all addresses.
    #[arg(long, default_value = "", help_heading = ENDPOINTS)]
    pub(crate) health_bind_address: String,
    /// Port of health and metrics; 0 selects a free port.
    #[arg(long, default_value = "8092", help_heading = ENDPOINTS)]
    pub(crate) health_port: u32,

    /// Format of the access log on standard output, one line per tunnel.
    #[arg(long, default_value = "off", value_parser = access_formats(), help_heading = LOGS)]
    pub(crate) access_log: AccessFormat,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) log: LogFlags,

    /// Accepted, has no effect: requests to the API server are few and bounded.
    #[arg(long, default_value = "0", help_heading = NO_EFFECT)]
    kubeconfig_burst: u32,
    /// Accepted, has no effect: requests to the API server are few and bounded.
    #[arg(long, default_value = "0.0", help_heading = NO_EFFECT)]
    kubeconfig_qps: f64,
    /// Accepted, has no effect: nothing blocks that could be warned about.
    #[arg(long, default_value = "true", hide = true, help_heading = NO_EFFECT)]
    warn_on_channel_limit: bool,
    /// Accepted, has no effect: --max-buffered-bytes bounds what is buffered.
    #[arg(long, default_value = "10", help_heading = NO_EFFECT)]
    pub(crate) xfr_channel_size: i64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) idle: NoEffectFlags,
}

impl Flags for ServerFlags {
    fn run(&self) -> &RunFlags {
        &self.run
    }

    fn log(&self) -> &LogFlags {
        &self.log
    }

    fn lists(&mut self) -> Vec<&mut Vec<String>> {
        vec![
            &mut self.cipher_suites,
            &mut self.log.vmodule,
            &mut self.proxy_strategies,
        ]
    }
}

fn access_formats() -> impl TypedValueParser<Value = AccessFormat> {
    PossibleValuesParser::new(["json", "off", "text"])
        .try_map(|word| serde_json::from_value::<AccessFormat>(word.into()))
}

const EXAMPLES: &str = "\
Examples:
  # Beside one API server, over a socket.
  konnectivity-server --uds-name=/run/konnectivity/server.sock --server-port=0 --mode=grpc \\
    --cluster-cert=tls.crt --cluster-key=tls.key --kubeconfig=kubeconfig \\
    --agent-namespace=kube-system --agent-service-account=konnectivity-agent \\
    --authentication-audience=system:konnectivity-server
  # For one API server elsewhere.
  konnectivity-server --mode=http-connect --server-ca-cert=ca.crt --server-cert=tls.crt \\
    --server-key=tls.key --cluster-ca-cert=ca.crt --cluster-cert=tls.crt --cluster-key=tls.key
  # For many tenants.
  konnectivity-server --registry=/etc/konnectivity/clusters --mode=http-connect \\
    --server-cert=tls.crt --server-key=tls.key --cluster-cert=tls.crt --cluster-key=tls.key
  # Print what is in effect, or what is wrong.
  konnectivity-server --config=server.yaml --check

Signals:
  SIGTERM, SIGINT  end gracefully; the second time at once
  SIGHUP           reload certificates and the registry

Environment:
  PROXY_SERVER_ID  name of this server, unless --server-id is on the command line
  RUST_LOG         log levels, such as info or info,konnectivity=debug; wins over -v

Exit codes: 0 ended as requested, 64 configuration rejected, 1 anything else.";
