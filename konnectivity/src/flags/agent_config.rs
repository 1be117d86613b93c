//! What an agent is told, checked: [`AgentConfig`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use knp_proto::{Identifiers, Overflow};

use super::agent::AgentFlags;
use super::checks::{Checks, KeyPair, LeasePlace, path};
use super::destinations::{AllowList, Destination};
use super::process::{ProcessConfig, directives, without_effect};
use super::read::Given;
use super::value::ServerCountSource;
use super::{Environment, FlagError};

/// All that an agent is told.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Log, warnings, what is in effect.
    pub process: ProcessConfig,
    /// Where the admin endpoint answers.
    pub admin: SocketAddr,
    /// Where connections may be opened to.
    pub allow: AllowList,
    /// How long a dial may take, the look-up of a name included.
    pub dial_timeout: Duration,
    /// How long tunnels may go on after the first signal to end.
    pub grace_period: Duration,
    /// Where health and metrics answer.
    pub health: SocketAddr,
    /// This agent's name.
    pub id: String,
    /// What this agent is meant for.
    pub identifiers: Identifiers,
    /// Pings to servers.
    pub keepalive: AgentKeepalive,
    /// Bounds.
    pub limits: AgentLimits,
    /// What happens to tunnels with slow readers and peers without flow control.
    pub overflow: Overflow,
    /// Where the servers are, and how many.
    pub servers: Servers,
    /// How connections to servers are come by.
    pub sync: SyncSettings,
    /// How servers are verified, and what they are shown.
    pub tls: AgentTls,
    /// The file with the token that is sent to servers.
    pub token: Option<PathBuf>,
}

/// Where servers are, and how their number is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Host name or address, without brackets; what is verified, too.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Where leases are counted, if they are.
    pub leases: Option<LeasePlace>,
    /// Which number counts.
    pub count_source: ServerCountSource,
}

impl Servers {
    /// Returns `host:port`, an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }
}

/// How connections to servers are come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncSettings {
    /// Time between attempts.
    pub interval: Duration,
    /// Longest time between attempts that fail.
    pub interval_cap: Duration,
    /// Whether to look for more servers when all are connected.
    pub forever: bool,
    /// How often links are looked at.
    pub probe_interval: Duration,
}

/// How servers are verified, and what they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTls {
    /// Verifies servers; none is what the system trusts.
    pub ca: Option<PathBuf>,
    /// What servers are shown.
    pub identity: Option<KeyPair>,
    /// Protocols offered besides `h2`.
    pub alpn: Vec<String>,
}

/// Pings on links to servers that have been without traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentKeepalive {
    /// After how long a server is pinged that may be upstream's.
    pub time: Duration,
    /// After how long one is pinged that is known to be ours.
    pub time_for_ours: Duration,
    /// How long the answer may take.
    pub timeout: Duration,
}

/// Bounds of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLimits {
    /// Octets that may be held for tunnels.
    pub buffered_bytes: usize,
    /// Dials that wait for an answer.
    pub pending_dials: usize,
    /// Tunnels, those being dialled included.
    pub tunnels: usize,
}

impl AgentConfig {
    pub(crate) fn new(
        flags: &AgentFlags,
        given: &Given,
        check: bool,
        environment: &Environment,
    ) -> Result<Self, FlagError> {
        let mut checks = Checks::new(given);
        let pair = ("agent-cert", "agent-key");
        let identity = checks.key_pair(pair, &flags.agent_cert, &flags.agent_key);
        let identifiers = Identifiers::parse_flag(&flags.agent_identifiers);
        if let Err(error) = &identifiers {
            checks.refuse("agent-identifiers", error);
        }
        checks.channel_size(flags.xfr_channel_size);
        if flags.enable_contention_profiling && !flags.enable_profiling {
            let message = "must not be given without --enable-profiling";
            checks.refuse("enable-contention-profiling", message);
        }
        let admin_port = checks.port("admin-server-port", flags.admin_server_port, true);
        let health_port = checks.port("health-server-port", flags.health_server_port, true);
        let config = Self {
            admin: checks.address("admin-bind-address", &flags.admin_bind_address, admin_port),
            allow: allow(flags, &mut checks),
            dial_timeout: checks.lasting("dial-timeout", flags.dial_timeout.get()),
            grace_period: flags.grace_period.get(),
            health: checks.address("health-server-host", &flags.health_server_host, health_port),
            id: checks.name("agent-id", &flags.agent_id, environment.agent_id.as_deref()),
            identifiers: identifiers.unwrap_or_default(),
            keepalive: keepalive(flags, &mut checks),
            limits: AgentLimits {
                buffered_bytes: checks.buffered(flags.max_buffered_bytes),
                pending_dials: checks.positive("max-pending-dials", flags.max_pending_dials),
                tunnels: checks.positive("max-tunnels", flags.max_tunnels),
            },
            overflow: flags.slow_consumer.into(),
            servers: servers(flags, environment, &mut checks),
            sync: sync(flags, &mut checks),
            tls: AgentTls {
                ca: path(&flags.ca_cert),
                identity,
                alpn: flags.alpn_proto.clone(),
            },
            token: path(&flags.service_account_token_path),
            process: ProcessConfig {
                check,
                log_format: flags.log_format.into(),
                log_directives: String::new(),
                warnings: Vec::new(),
                effective: settings::redact(flags).unwrap_or_default(),
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

fn allow(flags: &AgentFlags, checks: &mut Checks<'_>) -> AllowList {
    let mut destinations = Vec::new();
    for text in &flags.allow_destinations {
        match text.trim().parse::<Destination>() {
            Ok(destination) => destinations.push(destination),
            Err(error) => {
                checks.refuse("allow-destinations", format!("{text:?}: {error}"));
            }
        }
    }
    destinations.into_iter().collect()
}

fn keepalive(flags: &AgentFlags, checks: &mut Checks<'_>) -> AgentKeepalive {
    let given = flags.keepalive_time.get();
    let default = AgentFlags::default().keepalive_time.get();
    // Upstream's library does not ping more often either.
    let time = if given.is_zero() {
        default
    } else {
        given.max(OFTEN)
    };
    AgentKeepalive {
        time,
        time_for_ours: if checks.given("keepalive-time") && !given.is_zero() {
            time
        } else {
            OFTEN
        },
        timeout: checks.lasting("keepalive-timeout", flags.keepalive_timeout.get()),
    }
}

fn servers(flags: &AgentFlags, environment: &Environment, checks: &mut Checks<'_>) -> Servers {
    let host = flags.proxy_server_host.as_str();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    if let Err(error) = rustls::pki_types::ServerName::try_from(host) {
        let message = format!("{host:?} is neither host name nor address: {error}");
        checks.refuse("proxy-server-host", message);
    }
    // The former name is for those who do not know the new one.
    let renamed = checks.given("lease-label") && !checks.given("lease-label-selector");
    let (flag, labels) = if renamed {
        ("lease-label", &flags.lease_label)
    } else {
        ("lease-label-selector", &flags.lease_label_selector)
    };
    Servers {
        host: host.to_owned(),
        port: checks.port("proxy-server-port", flags.proxy_server_port, false),
        leases: flags.count_server_leases.then(|| LeasePlace {
            api_server: checks.api_server("count-server-leases", &flags.kubeconfig, environment),
            namespace: flags.lease_namespace.clone(),
            labels: checks.labels(flag, labels.clone()),
        }),
        count_source: flags.server_count_source,
    }
}

fn sync(flags: &AgentFlags, checks: &mut Checks<'_>) -> SyncSettings {
    let interval = checks.lasting("sync-interval", flags.sync_interval.get());
    let interval_cap = flags.sync_interval_cap.get();
    if interval > interval_cap {
        let message = format!(
            "{} is longer than --sync-interval-cap, {}",
            flags.sync_interval, flags.sync_interval_cap
        );
        checks.refuse("sync-interval", message);
    }
    SyncSettings {
        interval,
        interval_cap,
        forever: flags.sync_forever,
        probe_interval: checks.lasting("probe-interval", flags.probe_interval.get()),
    }
}

/// How often a server of ours is pinged, and the most often that any is.
const OFTEN: Duration = Duration::from_secs(10);
