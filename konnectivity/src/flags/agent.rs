//! The flags of `konnectivity-agent`, with their defaults.
//!
//! Upstream's flags have upstream's names and, except for pings, upstream's defaults.
//! `agent_config` checks what they mean together.

use clap::Parser;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use settings::{GoDuration, RelPath};

use super::read::Flags;
use super::shared::{
    BufferFlags, ENDPOINTS, LIMITS, LogFlags, NO_EFFECT, NoEffectFlags, RunFlags, SERVERS, SHUTDOWN,
};
use crate::agent::CountSource;

const AGENT: &str = "This agent";

/// The flags of `konnectivity-agent`, which are the keys of its configuration file.
#[derive(Clone, Debug, Parser, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[command(name = "konnectivity-agent", version, after_help = EXAMPLES)]
#[command(
    about = "Opens connections inside a cluster for the konnectivity servers it connects to."
)]
#[command(args_override_self = true, next_line_help = true)]
pub(crate) struct AgentFlags {
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) run: RunFlags,

    /// Host name or address of the servers, or of the load balancer in front of them.
    #[arg(long, default_value = "127.0.0.1", help_heading = SERVERS)]
    pub(crate) proxy_server_host: String,
    /// Port of the servers.
    #[arg(long, default_value = "8091", help_heading = SERVERS)]
    pub(crate) proxy_server_port: u32,
    /// CA bundle that verifies servers; empty is the system's.
    #[arg(long, default_value = "", help_heading = SERVERS)]
    pub(crate) ca_cert: RelPath,
    /// Protocols offered to servers besides h2.
    #[arg(long, help_heading = SERVERS)]
    pub(crate) alpn_proto: Vec<String>,
    /// Time without traffic after which a server is pinged, at least 10s; 0 is 10s for our servers
    /// and 35s for upstream's, which close links that are pinged more often than every 30s.
    #[arg(long, default_value = "0s", help_heading = SERVERS)]
    pub(crate) keepalive_time: GoDuration,
    /// Time between attempts to connect to one more server; about a fifth of it for the first 5 attempts
    /// per server, 25 at most, while one is missing.
    #[arg(long, default_value = "1s", help_heading = SERVERS)]
    pub(crate) sync_interval: GoDuration,
    /// Maximum time between attempts when they fail.
    #[arg(long, default_value = "10s", help_heading = SERVERS)]
    pub(crate) sync_interval_cap: GoDuration,
    /// Keep looking for more servers when all are connected.
    #[arg(long, help_heading = SERVERS)]
    pub(crate) sync_forever: bool,
    /// How the number of servers is determined.
    #[arg(long, default_value = "default", help_heading = SERVERS)]
    pub(crate) server_count_source: CountSource,
    /// Count servers by their leases.
    #[arg(long, help_heading = SERVERS)]
    pub(crate) count_server_leases: bool,
    /// Former name of --lease-label-selector.
    #[arg(long, default_value = "", hide = true, help_heading = SERVERS)]
    pub(crate) lease_label: String,
    /// Labels of the leases of servers.
    #[arg(long, default_value = "k8s-app=konnectivity-server", help_heading = SERVERS)]
    pub(crate) lease_label_selector: String,
    /// Namespace of the leases of servers.
    #[arg(long, default_value = "kube-system", help_heading = SERVERS)]
    pub(crate) lease_namespace: String,
    /// Kubeconfig of the API server with the leases; empty is the pod's own.
    #[arg(long, default_value = "", help_heading = SERVERS)]
    pub(crate) kubeconfig: RelPath,

    /// Name of this agent; empty is PROXY_AGENT_ID or a random one.
    #[arg(long, default_value = "", help_heading = AGENT)]
    pub(crate) agent_id: String,
    /// Destinations this agent is for: ipv4, ipv6, host, cidr and default-route, as in
    /// host=node-1&default-route=true.
    #[arg(long, default_value = "", help_heading = AGENT)]
    pub(crate) agent_identifiers: String,
    /// Certificate presented to servers.
    #[arg(long, default_value = "", help_heading = AGENT)]
    pub(crate) agent_cert: RelPath,
    /// Key of the certificate presented to servers.
    #[arg(long, default_value = "", help_heading = AGENT)]
    pub(crate) agent_key: RelPath,
    /// File with the token that is sent to servers; empty is none.
    #[arg(long, default_value = "", help_heading = AGENT)]
    pub(crate) service_account_token_path: RelPath,

    /// Destinations that may be dialed, each CIDR, CIDR:PORT or CIDR:FIRST-LAST, with an IPv6 CIDR
    /// before a port in brackets; without the flag all, and never an empty list.
    #[arg(long, help_heading = LIMITS)]
    pub(crate) allow_destinations: Vec<String>,
    /// Maximum time of a dial, name resolution included.
    #[arg(long, default_value = "5s", help_heading = LIMITS)]
    pub(crate) dial_timeout: GoDuration,
    /// Maximum dials that wait for an answer.
    #[arg(long, default_value = "1000", help_heading = LIMITS)]
    pub(crate) max_pending_dials: u32,
    /// Maximum tunnels.
    #[arg(long, default_value = "10000", help_heading = LIMITS)]
    pub(crate) max_tunnels: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) buffers: BufferFlags,

    /// Time that tunnels may continue after SIGTERM; the agent ends once idle for 5s. Choose less
    /// than the pod's grace period, which is 30s by default.
    #[arg(long, default_value = "25s", help_heading = SHUTDOWN)]
    pub(crate) grace_period: GoDuration,

    /// Address of the admin endpoint; empty is all addresses.
    #[arg(long, default_value = "127.0.0.1", help_heading = ENDPOINTS)]
    pub(crate) admin_bind_address: String,
    /// Port of the admin endpoint; 0 selects a free port.
    #[arg(long, default_value = "8094", help_heading = ENDPOINTS)]
    pub(crate) admin_server_port: u32,
    /// Address of health and metrics; empty is all addresses.
    #[arg(long, default_value = "", help_heading = ENDPOINTS)]
    pub(crate) health_server_host: String,
    /// Port of health and metrics; 0 selects a free port.
    #[arg(long, default_value = "8093", help_heading = ENDPOINTS)]
    pub(crate) health_server_port: u32,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) log: LogFlags,

    /// Accepted, has no effect: the end of a link is noticed at once.
    #[arg(long, default_value = "1s", help_heading = NO_EFFECT)]
    pub(crate) probe_interval: GoDuration,
    /// Accepted, has no effect: nothing blocks that could be warned about.
    #[arg(long, help_heading = NO_EFFECT)]
    warn_on_channel_limit: bool,
    /// Accepted, has no effect: --max-buffered-bytes bounds what is buffered.
    #[arg(long, default_value = "150", help_heading = NO_EFFECT)]
    pub(crate) xfr_channel_size: i64,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) idle: NoEffectFlags,
}

impl Flags for AgentFlags {
    fn run(&self) -> &RunFlags {
        &self.run
    }

    fn log(&self) -> &LogFlags {
        &self.log
    }

    fn lists(&mut self) -> Vec<&mut Vec<String>> {
        vec![
            &mut self.allow_destinations,
            &mut self.alpn_proto,
            &mut self.log.vmodule,
        ]
    }

    fn effective(&self) -> Result<Value, serde_json::Error> {
        let mut effective = settings::redact(self)?;
        if let Some(keys) = effective.as_object_mut()
            && self.allow_destinations.is_empty()
        {
            // An empty list is rejected when it is given.
            keys.remove("allow-destinations");
        }
        Ok(effective)
    }
}

const EXAMPLES: &str = "\
Examples:
  # With the token of a service account.
  konnectivity-agent --ca-cert=ca.crt --proxy-server-host=konnectivity.example.com \\
    --proxy-server-port=8132 --service-account-token-path=/var/run/secrets/tokens/token
  # With a certificate, for one port of nodes only.
  konnectivity-agent --ca-cert=ca.crt --agent-cert=tls.crt --agent-key=tls.key \\
    --proxy-server-host=a.kn.example.com --proxy-server-port=443 \\
    --allow-destinations=10.250.0.0/16:10250,[fd00:10::/64]:10250
  # Print what is in effect, or what is wrong.
  konnectivity-agent --config=agent.yaml --check

Signals:
  SIGTERM, SIGINT  refer new dials to other agents, and end once idle; the second time at once
  SIGHUP           reload certificates

Environment:
  PROXY_AGENT_ID  name of this agent, unless --agent-id is on the command line
  RUST_LOG        log levels, such as info or info,konnectivity=debug; wins over -v

Exit codes: 0 ended as requested, 64 configuration rejected, 1 anything else.";
