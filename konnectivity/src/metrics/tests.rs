//! Names, types, labels and buckets are upstream's; gauges and series come and go as they should.

use std::time::Duration;

use knp_proto::{
    Budget, DialRefused, EndReason, PacketKind, Strategy, Tenant, TenantId, TenantLimits,
};
use telemetry::metrics::Exposition;

use super::*;
use crate::lease::LeaseMetrics;

const LATENCY: &[&str] = &[
    "0.000001", "0.00001", "0.0001", "0.005", "0.025", "0.1", "0.5", "2.5", "12.5",
];
const AGENT_LATENCY: &[&str] = &["0.005", "0.025", "0.1", "0.5", "2.5", "10", "30"];
const LIFETIME: &[&str] = &[
    "1", "5", "15", "30", "60", "300", "900", "1800", "3600", "14400", "43200", "86400",
];

/// Families: name after the prefix, type, labels, bounds of buckets.
const SERVER: &str = "\
connection_duration_seconds histogram - LIFETIME
culled_leases_count counter -
dial_duration_seconds histogram - LATENCY
dial_failure_count counter reason
established_connections gauge -
frontend_write_duration_seconds histogram - LATENCY
full_receive_channels gauge service_method
grpc_connections gauge service_method
http_connections gauge -
lease_delete_latency_seconds histogram http_status_code LATENCY
lease_delete_total counter http_status_code,reason
lease_list_latency_seconds histogram http_status_code LATENCY
lease_list_total counter http_status_code,reason
pending_backend_dials gauge -
ready_backend_connections gauge -
ready_backends gauge proxy_strategy
stream_errors_total counter segment,code,packet_type
stream_packets_total counter segment,packet_type
";

const AGENT: &str = "\
dial_duration_seconds histogram - AGENT_LATENCY
endpoint_dial_failure_total counter reason
known_server_count gauge -
lease_list_latency_seconds histogram http_response_code AGENT_LATENCY
lease_lists_total counter http_response_code,reason
lease_watches_total counter http_response_code,reason
open_endpoint_connections gauge -
open_server_connections gauge -
server_connection_failure_count counter direction
stream_errors_total counter segment,code,packet_type
stream_packets_total counter segment,packet_type
";

const SERVER_PREFIX: &str = "konnectivity_network_proxy_server_";
const AGENT_PREFIX: &str = "konnectivity_network_proxy_agent_";

#[test]
fn the_server_has_upstreams_families_and_only_those_under_its_prefix() {
    let registry = Registry::new();
    let metrics = ServerMetrics::new(&registry, true);
    metrics.listed(200, "", Duration::ZERO);
    metrics.deleted(200, "", Duration::ZERO);
    assert_families(&registry, SERVER_PREFIX, SERVER);
}

#[test]
fn the_agent_has_upstreams_families_and_only_those_under_its_prefix() {
    let registry = Registry::new();
    let metrics = AgentMetrics::new(&registry);
    metrics.listed(200, "", Duration::ZERO);
    assert_families(&registry, AGENT_PREFIX, AGENT);
}

#[test]
fn all_other_families_have_our_prefix() {
    for family in describe_server_metrics()
        .into_iter()
        .chain(describe_agent_metrics())
    {
        let known = [SERVER_PREFIX, AGENT_PREFIX, "rhizome_", "process_"];
        let name = &family.name;
        assert!(
            known.iter().any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
        let tenant = family.labels.iter().any(|label| label == "cluster");
        let own = name.starts_with("rhizome_konnectivity_cluster_");
        assert_eq!(tenant, own, "{name}");
    }
}

#[test]
fn packets_are_counted_when_they_come_and_not_before() {
    let registry = Registry::new();
    let metrics = ServerMetrics::new(&registry, false);
    let name = format!("{SERVER_PREFIX}stream_packets_total");
    assert_eq!(samples(&registry, &name), [""; 0]);
    metrics
        .received_from_client()
        .packet(PacketKind::DialRequest);
    metrics
        .received_from_client()
        .packet(PacketKind::DialRequest);
    metrics.sent_to_client().packet(PacketKind::Unknown);
    let link = metrics.tenant(&tenant("a")).link().clone();
    link.received().packet(PacketKind::Data);
    link.sent().packet(PacketKind::CloseRequest);
    let expected = [
        r#"{segment="from_agent",packet_type="DATA"} 1"#,
        r#"{segment="from_client",packet_type="DIAL_REQ"} 2"#,
        r#"{segment="to_agent",packet_type="CLOSE_REQ"} 1"#,
        r#"{segment="to_client",packet_type="Unknown"} 1"#,
    ];
    assert_eq!(samples(&registry, &name), expected);
}

#[test]
fn an_agents_packets_have_upstreams_segments() {
    let registry = Registry::new();
    let metrics = AgentMetrics::new(&registry);
    metrics.link().received().packet(PacketKind::DialRequest);
    metrics.link().sent().packet(PacketKind::DialResponse);
    let expected = [
        r#"{segment="from_agent",packet_type="DIAL_RSP"} 1"#,
        r#"{segment="to_agent",packet_type="DIAL_REQ"} 1"#,
    ];
    let name = format!("{AGENT_PREFIX}stream_packets_total");
    assert_eq!(samples(&registry, &name), expected);
}

#[test]
fn errors_carry_gos_name_of_the_code() {
    let registry = Registry::new();
    let metrics = AgentMetrics::new(&registry);
    let counters = metrics.link().sent();
    counters.error(GrpcCode::UNAVAILABLE, Some(PacketKind::Data));
    counters.error(GrpcCode::from_number(1), None);
    counters.error(GrpcCode::from_number(4711), None);
    let expected = [
        r#"{segment="from_agent",code="Canceled",packet_type="Unknown"} 1"#,
        r#"{segment="from_agent",code="Unavailable",packet_type="DATA"} 1"#,
        r#"{segment="from_agent",code="Unknown",packet_type="Unknown"} 1"#,
    ];
    let name = format!("{AGENT_PREFIX}stream_errors_total");
    assert_eq!(samples(&registry, &name), expected);
}

#[test]
fn codes_are_found_by_their_number() {
    for number in 0..17 {
        assert_eq!(GrpcCode::from_number(number).number(), number);
    }
    assert_eq!(GrpcCode::from_number(17), GrpcCode::UNKNOWN);
    assert_eq!(GrpcCode::from_number(14), GrpcCode::UNAVAILABLE);
}

#[test]
fn dial_failures_have_upstreams_reasons() {
    let registry = Registry::new();
    let metrics = ServerMetrics::new(&registry, false);
    for failure in DialFailure::ALL {
        metrics.dial_failure(failure);
    }
    let expected = [
        r#"{reason="backend_close"} 1"#,
        r#"{reason="backend_dial_timeout"} 1"#,
        r#"{reason="error_response"} 1"#,
        r#"{reason="frontend_close"} 1"#,
        r#"{reason="no_agent"} 1"#,
        r#"{reason="send_rsp"} 1"#,
        r#"{reason="unrecognized_response"} 1"#,
    ];
    let name = format!("{SERVER_PREFIX}dial_failure_count");
    assert_eq!(samples(&registry, &name), expected);
}

#[test]
fn held_bytes_return_to_zero() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, true);
    let tenant = server.tenant(&tenant("a"));
    let link = tenant.link();
    let held = [
        server.grpc_connection(Service::Proxy),
        server.grpc_connection(Service::Connect),
        server.http_connection(),
        tenant.pending_dial(),
        tenant.established(),
        link.link(),
        link.stalled(),
        link.blocked(),
    ];
    let up = gauges(&registry);
    for sample in [
        r#"konnectivity_network_proxy_server_established_connections 1"#,
        r#"konnectivity_network_proxy_server_full_receive_channels{service_method="Connect"} 1"#,
        r#"konnectivity_network_proxy_server_grpc_connections{service_method="Connect"} 1"#,
        r#"konnectivity_network_proxy_server_grpc_connections{service_method="Proxy"} 1"#,
        r#"konnectivity_network_proxy_server_http_connections 1"#,
        r#"konnectivity_network_proxy_server_pending_backend_dials 1"#,
        r#"rhizome_konnectivity_blocked_links 1"#,
        r#"rhizome_konnectivity_cluster_established_connections{cluster="a"} 1"#,
        r#"rhizome_konnectivity_cluster_links{cluster="a"} 1"#,
        r#"rhizome_konnectivity_cluster_pending_dials{cluster="a"} 1"#,
        r#"rhizome_konnectivity_cluster_stalled_tunnels{cluster="a"} 1"#,
        r#"rhizome_konnectivity_links 1"#,
        r#"rhizome_konnectivity_stalled_tunnels 1"#,
    ] {
        assert!(up.iter().any(|line| line == sample), "{sample} in {up:#?}");
    }
    drop(held);
    let left = gauges(&registry);
    assert!(left.iter().all(|line| line.ends_with(" 0")), "{left:#?}");
    assert_eq!(left.len(), up.len());
}

#[test]
fn an_agents_connections_return_to_zero() {
    let registry = Registry::new();
    let agent = AgentMetrics::new(&registry);
    let held = [
        agent.server_connection(),
        agent.endpoint_connection(),
        agent.endpoint_connection(),
    ];
    let name = format!("{AGENT_PREFIX}open_endpoint_connections");
    assert_eq!(samples(&registry, &name), [" 2"]);
    drop(held);
    assert_eq!(samples(&registry, &name), [" 0"]);
    let name = format!("{AGENT_PREFIX}open_server_connections");
    assert_eq!(samples(&registry, &name), [" 0"]);
}

#[test]
fn ready_backends_are_the_sum_over_tenants_that_are_left() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, false);
    let (a, b) = (server.tenant(&tenant("a")), server.tenant(&tenant("b")));
    a.ready_backends(Strategy::Default, 3);
    a.ready_backends(Strategy::Default, 2);
    a.ready_connections(4);
    b.ready_backends(Strategy::Default, 5);
    b.ready_backends(Strategy::DestHost, 7);
    b.ready_connections(5);
    let name = format!("{SERVER_PREFIX}ready_backends");
    let expected = [
        r#"{proxy_strategy="default"} 7"#,
        r#"{proxy_strategy="destHost"} 7"#,
    ];
    assert_eq!(samples(&registry, &name), expected);
    drop(b);
    let expected = [
        r#"{proxy_strategy="default"} 2"#,
        r#"{proxy_strategy="destHost"} 0"#,
    ];
    assert_eq!(samples(&registry, &name), expected);
    let name = format!("{SERVER_PREFIX}ready_backend_connections");
    assert_eq!(samples(&registry, &name), [" 4"]);
}

#[test]
fn series_of_a_removed_tenant_go_away() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, true);
    let kept = server.tenant(&tenant("kept"));
    let gone = server.tenant(&tenant("gone"));
    use_everything(&kept);
    use_everything(&gone);
    let link = gone.link().clone();
    drop(gone);
    // A link that is still there keeps them.
    assert!(!clusters_lines(&registry, "gone").is_empty());
    drop(link);
    assert_eq!(clusters_lines(&registry, "gone"), [""; 0]);
    assert_eq!(clusters_lines(&registry, "kept").len(), 10);
}

#[test]
fn a_tenant_that_comes_back_keeps_its_series_when_its_last_life_ends() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, true);
    let before = server.tenant(&tenant("a"));
    let after = server.tenant(&tenant("a"));
    let held = after.established();
    drop(before);
    let name = "rhizome_konnectivity_cluster_established_connections";
    assert_eq!(samples(&registry, name), [r#"{cluster="a"} 1"#]);
    drop((held, after));
    assert_eq!(samples(&registry, name), [""; 0]);
}

#[test]
fn no_tenant_is_named_unless_asked_for() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, false);
    let tenant = server.tenant(&tenant("secret"));
    use_everything(&tenant);
    let text = registry.encode(Exposition::Text);
    assert!(!text.contains("secret") && !text.contains("cluster="));
}

#[test]
fn limits_are_counted_and_other_refusals_are_not() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, false);
    let tenant = server.tenant(&tenant("a"));
    for refused in [
        DialRefused::DuplicateId,
        DialRefused::Ended,
        DialRefused::PendingDials,
        DialRefused::Rate,
        DialRefused::Tunnels,
    ] {
        tenant.dial_refused(refused);
    }
    let expected = [
        r#"{limit="pending_dials"} 1"#,
        r#"{limit="rate"} 1"#,
        r#"{limit="tunnels"} 1"#,
    ];
    let name = "rhizome_konnectivity_refused_dials_total";
    assert_eq!(samples(&registry, name), expected);
}

#[test]
fn a_lease_answer_of_an_unheard_of_reason_makes_no_series_of_its_own() {
    let registry = Registry::new();
    let agent = AgentMetrics::new(&registry);
    for (code, reason) in [(403, "Forbidden"), (409, "evil\n"), (9999, "Gone")] {
        agent.listed(code, reason, Duration::ZERO);
    }
    let expected = [
        r#"{http_response_code="0",reason="Gone"} 1"#,
        r#"{http_response_code="403",reason="Forbidden"} 1"#,
        r#"{http_response_code="409",reason="Unknown"} 1"#,
    ];
    let name = format!("{AGENT_PREFIX}lease_lists_total");
    assert_eq!(samples(&registry, &name), expected);
}

#[test]
fn every_reason_a_tunnel_ends_for_is_there_from_the_start() {
    let registry = Registry::new();
    let agent = AgentMetrics::new(&registry);
    let name = "rhizome_konnectivity_tunnels_ended_total";
    let before = samples(&registry, name);
    assert_eq!(before.len(), link::END_REASONS.len());
    let error = String::new;
    for reason in [
        EndReason::Canceled,
        EndReason::CloseTimeout,
        EndReason::DialFailed { error: error() },
        EndReason::DialTimeout,
        EndReason::Finished,
        EndReason::LingerTimeout,
        EndReason::LinkLost,
        EndReason::LocalClosed,
        EndReason::OverBudget,
        EndReason::PeerClosed { error: error() },
        EndReason::PeerReset { error: error() },
        EndReason::SlowConsumer,
        EndReason::Violation(knp_proto::Violation::DataAfterFin),
    ] {
        agent.link().ended(&reason);
    }
    let after = samples(&registry, name);
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|line| line.ends_with(" 1")), "{after:?}");
}

#[test]
fn buffered_bytes_are_read_from_the_budget() {
    let registry = Registry::new();
    let agent = AgentMetrics::new(&registry);
    let name = "rhizome_konnectivity_buffered_bytes";
    assert_eq!(samples(&registry, name), [" 0"]);
    agent.budget(&Budget::new(1 << 20));
    assert_eq!(samples(&registry, name), [" 0"]);
}

fn tenant(name: &str) -> std::sync::Arc<Tenant> {
    let limits = TenantLimits::default();
    Tenant::new(TenantId::new(name), limits, Budget::new(1 << 20))
}

fn use_everything(tenant: &TenantMetrics) {
    tenant.dial_failure(DialFailure::NoAgent);
    tenant.dial_refused(DialRefused::Rate);
    tenant.link().bytes(Direction::FromDestination, 1);
    tenant.link().bytes(Direction::ToDestination, 1);
    drop((tenant.established(), tenant.pending_dial()));
}

fn clusters_lines(registry: &Registry, tenant: &str) -> Vec<String> {
    let wanted = format!("cluster=\"{tenant}\"");
    let text = registry.encode(Exposition::Text);
    let lines = text.lines().filter(|line| line.contains(&wanted));
    lines.map(str::to_owned).collect()
}

/// The samples of one family, without its name.
fn samples(registry: &Registry, name: &str) -> Vec<String> {
    let text = registry.encode(Exposition::Text);
    let rest = text.lines().filter_map(|line| line.strip_prefix(name));
    let samples = rest.filter(|rest| rest.starts_with([' ', '{']));
    samples.map(str::to_owned).collect()
}

fn gauges(registry: &Registry) -> Vec<String> {
    let text = registry.encode(Exposition::Text);
    let families = registry.describe();
    let is_gauge = |line: &&str| {
        let name = line.split([' ', '{']).next();
        families
            .iter()
            .any(|family| Some(family.name.as_str()) == name && family.kind.as_str() == "gauge")
    };
    text.lines().filter(is_gauge).map(str::to_owned).collect()
}

fn assert_families(registry: &Registry, prefix: &str, expected: &str) {
    let families = registry.describe();
    let mut found: Vec<_> = families
        .iter()
        .filter_map(|family| {
            let name = family.name.strip_prefix(prefix)?;
            Some((name, family.kind.as_str(), family.labels.clone()))
        })
        .collect();
    found.sort();
    let rows: Vec<_> = expected.lines().map(row).collect();
    let wanted: Vec<_> = rows
        .iter()
        .map(|row| (row.0, row.1, row.2.clone()))
        .collect();
    assert_eq!(found, wanted);
    for (name, _, _, buckets) in rows {
        let bounds = bounds(registry, &format!("{prefix}{name}_bucket"));
        let expected: Vec<f64> = buckets.iter().map(|bound| bound.parse().unwrap()).collect();
        assert_eq!(bounds, expected, "{name}");
    }
}

fn row(line: &str) -> (&str, &str, Vec<String>, &[&str]) {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let (name, kind, labels) = (next(), next(), next());
    let labels = labels.split(',').filter(|label| *label != "-");
    let bounds = match next() {
        "" => &[],
        "AGENT_LATENCY" => AGENT_LATENCY,
        "LATENCY" => LATENCY,
        "LIFETIME" => LIFETIME,
        other => panic!("{other}"),
    };
    (name, kind, labels.map(str::to_owned).collect(), bounds)
}

fn bounds(registry: &Registry, name: &str) -> Vec<f64> {
    let samples = samples(registry, name);
    let bounds = samples.iter().filter_map(|sample| {
        let (_, rest) = sample.split_once("le=\"")?;
        let (bound, _) = rest.split_once('"')?;
        (bound != "+Inf").then(|| bound.parse().unwrap())
    });
    bounds.collect()
}
