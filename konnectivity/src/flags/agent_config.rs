//! The checked configuration of an agent, from its flags.

use std::time::Duration;

use knp_proto::{Identifiers, LinkConfig, TenantLimits};
use serde_json::Value;

use super::agent::AgentFlags;
use super::checks::{Checks, path, unbracketed};
use crate::agent::{AgentConfig, AllowedRange, ConnectParams, DialParams};
use crate::lease::LeaseCountParams;

/// Minimum time between pings of a server; that of upstream's library too.
const MIN_KEEPALIVE: Duration = Duration::from_secs(10);

pub(super) fn configure(
    flags: &AgentFlags,
    effective: &Value,
    checks: &mut Checks<'_>,
) -> AgentConfig {
    let names = ("agent-cert", "agent-key");
    let pair = checks.key_pair(names, &flags.agent_cert, &flags.agent_key);
    let (cert, key) = pair.map(|pair| (pair.cert, pair.key)).unzip();
    let admin = checks.port("admin-server-port", flags.admin_server_port, 0);
    let health = checks.port("health-server-port", flags.health_server_port, 0);
    let variable = checks.environment.agent_id.as_deref();
    let identifiers = Identifiers::parse_flag(&flags.agent_identifiers);
    let identifiers = identifiers.map_err(|error| checks.refuse("agent-identifiers", error));
    let dial = dial(flags, checks);
    // Rejected as upstream does, though nothing here is polled.
    checks.positive_time("probe-interval", flags.probe_interval);
    checks.upstream_rules(flags.xfr_channel_size, &flags.idle);
    let keepalive = flags.keepalive_time.get();
    AgentConfig {
        admin: checks.address("admin-bind-address", &flags.admin_bind_address, admin),
        agent_id: checks.name("agent-id", &flags.agent_id, variable),
        alpn: flags.alpn_proto.clone(),
        ca: path(&flags.ca_cert),
        cert,
        key,
        connect: connect(flags, checks),
        effective: effective.clone(),
        grace: flags.grace_period.get(),
        health: checks.address("health-server-host", &flags.health_server_host, health),
        identifiers: identifiers.unwrap_or_default(),
        link: LinkConfig {
            dial_timeout: dial.timeout,
            stall_timeout: checks
                .positive_time("slow-consumer-timeout", flags.buffers.slow_consumer_timeout),
            ..LinkConfig::default()
        },
        leases: leases(flags, checks),
        limits: TenantLimits {
            buffered_bytes: checks.buffered(&flags.buffers),
            dials_per_second: 0,
            pending_dials: dial.max_pending,
            tunnels: checks.positive("max-tunnels", flags.max_tunnels),
            ..TenantLimits::default()
        },
        dial,
        keepalive: (!keepalive.is_zero()).then(|| keepalive.max(MIN_KEEPALIVE)),
        server_host: server_host(&flags.proxy_server_host, checks),
        server_port: checks.port("proxy-server-port", flags.proxy_server_port, 1),
        token: path(&flags.service_account_token_path),
    }
}

fn dial(flags: &AgentFlags, checks: &mut Checks<'_>) -> DialParams {
    if flags.allow_destinations.is_empty() && checks.given.has("allow-destinations") {
        // A list is given to allow less than everything; an empty one is a mistake.
        let message = "is empty, which would allow everything: leave it out if that is meant";
        checks.refuse("allow-destinations", message);
    }
    let mut allowed = Vec::new();
    for text in &flags.allow_destinations {
        match text.trim().parse::<AllowedRange>() {
            Ok(range) => allowed.push(range),
            Err(error) => checks.refuse("allow-destinations", error),
        }
    }
    DialParams {
        allowed,
        max_pending: checks.positive("max-pending-dials", flags.max_pending_dials),
        timeout: checks.positive_time("dial-timeout", flags.dial_timeout),
    }
}

fn server_host(host: &str, checks: &mut Checks<'_>) -> String {
    let host = unbracketed(host);
    if let Err(error) = rustls::pki_types::ServerName::try_from(host) {
        let message = format!("{host:?} is neither host name nor address: {error}");
        checks.refuse("proxy-server-host", message);
    }
    host.to_owned()
}

fn leases(flags: &AgentFlags, checks: &mut Checks<'_>) -> Option<LeaseCountParams> {
    if !flags.count_server_leases {
        return None;
    }
    let given = |flag| checks.given.has(flag);
    let (flag, selector) = match given("lease-label") && !given("lease-label-selector") {
        true => ("lease-label", &flags.lease_label),
        false => ("lease-label-selector", &flags.lease_label_selector),
    };
    if selector.trim().is_empty() {
        checks.refuse(flag, "is empty, which would match every lease");
    }
    Some(LeaseCountParams {
        kubeconfig: checks.api_server("count-server-leases", &flags.kubeconfig),
        namespace: flags.lease_namespace.clone(),
        selector: selector.clone(),
    })
}

fn connect(flags: &AgentFlags, checks: &mut Checks<'_>) -> ConnectParams {
    let interval = checks.positive_time("sync-interval", flags.sync_interval);
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
        source: flags.server_count_source,
    }
}
