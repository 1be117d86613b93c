//! What an agent is told, checked: the library's [`AgentConfig`], and what the process is told.

use std::time::Duration;

use knp_proto::{Identifiers, LinkConfig, TenantLimits};
use telemetry::EndpointAddr;

use super::agent::AgentFlags;
use super::checks::{Checks, path};
use super::process::{ProcessConfig, directives, without_effect};
use super::read::Given;
use super::{Environment, FlagError};
use crate::agent::{
    AgentConfig, Allowed, AllowedRange, ConnectParams, DialParams, DrainParams, LeaseParams,
    LivenessParams,
};

/// All that an agent's process is told.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// Log and warnings.
    pub process: ProcessConfig,
    /// The agent itself.
    pub agent: AgentConfig,
}

impl AgentSetup {
    pub(crate) fn new(
        flags: &AgentFlags,
        given: &Given,
        check: bool,
        environment: &Environment,
    ) -> Result<Self, FlagError> {
        let mut checks = Checks::new(given);
        checks.channel_size(flags.xfr_channel_size);
        checks.profiling(flags.enable_profiling, flags.enable_contention_profiling);
        let effective = effective(flags)?;
        let agent = agent(flags, environment, effective.clone(), &mut checks);
        let mut warnings = checks.finish()?;
        warnings.extend(without_effect(flags, given));
        let log_directives = directives(flags.v, &flags.vmodule, environment, &mut warnings);
        let process = ProcessConfig {
            check,
            log_format: flags.log_format.into(),
            log_directives,
            warnings,
            effective,
        };
        Ok(Self { process, agent })
    }
}

/// What is in effect, such that it can be given as the file.
fn effective(flags: &AgentFlags) -> Result<serde_json::Value, serde_json::Error> {
    let mut effective = settings::redact(flags)?;
    if let Some(keys) = effective.as_object_mut()
        && flags.allow_destinations.is_empty()
    {
        // An empty list is refused when it is given.
        keys.remove("allow-destinations");
    }
    Ok(effective)
}

fn agent(
    flags: &AgentFlags,
    environment: &Environment,
    effective: serde_json::Value,
    checks: &mut Checks<'_>,
) -> AgentConfig {
    let pair = ("agent-cert", "agent-key");
    let pair = checks.key_pair(pair, &flags.agent_cert, &flags.agent_key);
    let (cert, key) = pair.map_or((None, None), |pair| (Some(pair.cert), Some(pair.key)));
    let admin = checks.port("admin-server-port", flags.admin_server_port, true);
    let admin = checks.address("admin-bind-address", &flags.admin_bind_address, admin);
    let health = checks.port("health-server-port", flags.health_server_port, true);
    let health = checks.address("health-server-host", &flags.health_server_host, health);
    let dial = dial(flags, checks);
    // Refused as upstream does, though nothing is looked at in intervals: an end is noticed as such.
    checks.lasting("probe-interval", flags.probe_interval.get());
    AgentConfig {
        admin: EndpointAddr::Tcp(admin),
        agent_id: checks.name("agent-id", &flags.agent_id, environment.agent_id.as_deref()),
        alpn: flags.alpn_proto.clone(),
        ca: path(&flags.ca_cert),
        cert,
        key,
        connect: connect(flags, checks),
        drain: DrainParams {
            grace: flags.grace_period.get(),
            ..DrainParams::default()
        },
        effective,
        health: EndpointAddr::Tcp(health),
        identifiers: identifiers(flags, checks),
        link: LinkConfig {
            dial_timeout: dial.timeout,
            overflow: flags.slow_consumer.into(),
            ..LinkConfig::default()
        },
        leases: leases(flags, environment, checks),
        limits: TenantLimits {
            buffered_bytes: checks.buffered(flags.max_buffered_bytes),
            dials_per_second: 0,
            pending_dials: dial.max_pending,
            tunnels: checks.positive("max-tunnels", flags.max_tunnels),
            ..TenantLimits::default()
        },
        dial,
        liveness: LivenessParams {
            // Upstream's library does not ping more often either.
            keepalive: (!flags.keepalive_time.get().is_zero())
                .then(|| flags.keepalive_time.get().max(MOST_OFTEN)),
        },
        server_host: server_host(flags, checks),
        server_port: checks.port("proxy-server-port", flags.proxy_server_port, false),
        token: path(&flags.service_account_token_path),
    }
}

fn identifiers(flags: &AgentFlags, checks: &mut Checks<'_>) -> Identifiers {
    let identifiers = Identifiers::parse_flag(&flags.agent_identifiers);
    identifiers.unwrap_or_else(|error| {
        checks.refuse("agent-identifiers", error);
        Identifiers::default()
    })
}

fn dial(flags: &AgentFlags, checks: &mut Checks<'_>) -> DialParams {
    if flags.allow_destinations.is_empty() && checks.given("allow-destinations") {
        // Who gives a list wants less than all; that it is empty is a mistake of what made it.
        let message = "is empty, which would allow everything: leave it out if that is meant";
        checks.refuse("allow-destinations", message);
    }
    let mut ranges = Vec::new();
    for text in &flags.allow_destinations {
        match text.trim().parse::<AllowedRange>() {
            Ok(range) => ranges.push(range),
            Err(error) => checks.refuse("allow-destinations", error),
        }
    }
    DialParams {
        allowed: Allowed::from_ranges(ranges),
        max_pending: checks.positive("max-pending-dials", flags.max_pending_dials),
        timeout: checks.lasting("dial-timeout", flags.dial_timeout.get()),
    }
}

fn server_host(flags: &AgentFlags, checks: &mut Checks<'_>) -> String {
    let host = flags.proxy_server_host.as_str();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    if let Err(error) = rustls::pki_types::ServerName::try_from(host) {
        let message = format!("{host:?} is neither host name nor address: {error}");
        checks.refuse("proxy-server-host", message);
    }
    host.to_owned()
}

fn leases(
    flags: &AgentFlags,
    environment: &Environment,
    checks: &mut Checks<'_>,
) -> Option<LeaseParams> {
    if !flags.count_server_leases {
        return None;
    }
    // The former name is for those who do not know the new one.
    let former = checks.given("lease-label") && !checks.given("lease-label-selector");
    let (flag, selector) = if former {
        ("lease-label", &flags.lease_label)
    } else {
        ("lease-label-selector", &flags.lease_label_selector)
    };
    if selector.trim().is_empty() {
        checks.refuse(flag, "is empty, which is every lease there is");
    }
    Some(LeaseParams {
        kubeconfig: checks.api_server("count-server-leases", &flags.kubeconfig, environment),
        namespace: flags.lease_namespace.clone(),
        selector: selector.clone(),
    })
}

fn connect(flags: &AgentFlags, checks: &mut Checks<'_>) -> ConnectParams {
    let interval = checks.lasting("sync-interval", flags.sync_interval.get());
    let interval_cap = flags.sync_interval_cap.get();
    if interval > interval_cap {
        let message = format!(
            "{} is longer than --sync-interval-cap, {}",
            flags.sync_interval, flags.sync_interval_cap
        );
        checks.refuse("sync-interval", message);
    }
    ConnectParams {
        interval,
        interval_cap,
        forever: flags.sync_forever,
        source: flags.server_count_source.into(),
    }
}

/// The most often that a server is pinged.
const MOST_OFTEN: Duration = Duration::from_secs(10);
