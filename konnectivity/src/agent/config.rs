//! What an agent is started with.
//!
//! Plain values: flags, environment and files are read elsewhere, and validated there.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use knp_proto::{Identifiers, LinkConfig, TenantLimits};
use schemars::JsonSchema;
use serde::Serialize;

use super::dial::DialParams;
use crate::lease::LeaseCountParams;

/// Everything an agent needs to know.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where operators look in.
    pub admin: SocketAddr,
    /// What the agent calls itself.
    pub agent_id: String,
    /// Protocols offered by ALPN after `h2`.
    pub alpn: Vec<String>,
    /// The authorities of servers, PEM; without it the host's own.
    pub ca: Option<PathBuf>,
    /// The agent's certificate and its chain, PEM.
    pub cert: Option<PathBuf>,
    /// The certificate's key, PEM.
    pub key: Option<PathBuf>,
    /// How servers are found.
    pub connect: ConnectParams,
    /// How destinations are dialed.
    pub dial: DialParams,
    /// What is shown at `/config`: the effective settings, without secrets.
    pub effective: serde_json::Value,
    /// How long a drain may take.
    pub grace: Duration,
    /// Where probes and scrapes are answered.
    pub health: SocketAddr,
    /// What the agent is meant for.
    pub identifiers: Identifiers,
    /// Bounds and times of the links to servers.
    pub link: LinkConfig,
    /// How servers are counted by their leases, if they are.
    pub leases: Option<LeaseCountParams>,
    /// What all links together may hold.
    pub limits: TenantLimits,
    /// Time between pings, if it was set; else it is chosen by what the server is.
    pub keepalive: Option<Duration>,
    /// The server's host: a name or an address without brackets, which its certificate must have.
    pub server_host: String,
    /// The server's port.
    pub server_port: u16,
    /// The service account's token, read at each connect.
    pub token: Option<PathBuf>,
}

/// How servers are found behind one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams {
    /// Time between two attempts.
    pub interval: Duration,
    /// The longest time between two attempts that led to nothing new.
    pub interval_cap: Duration,
    /// Looks for servers although as many are connected as there should be.
    pub forever: bool,
    /// Which count of servers is believed.
    pub source: CountSource,
}

/// How the number of servers is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CountSource {
    /// By leases if they are counted, else by what servers report.
    Default,
    /// The larger of both.
    Max,
}

impl Default for ConnectParams {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            interval_cap: Duration::from_secs(10),
            forever: false,
            source: CountSource::Default,
        }
    }
}
