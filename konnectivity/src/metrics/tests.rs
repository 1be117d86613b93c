//! Names, types, labels and buckets are upstream's; gauges and series come and go as they should.

use std::collections::BTreeSet;
use std::time::Duration;

use knp_proto::{
    Budget, DialRefused, EndReason, PacketKind, Strategy, Tenant, TenantId, TenantLimits,
};
use telemetry::metrics::Exposition;

use super::*;
use crate::lease::LeaseMetrics;

const LATENCY: &[f64] = &[
    0.000_001, 0.000_01, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5,
];
const AGENT_LATENCY: &[f64] = &[0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];
const LIFETIME: &[f64] = &[
    1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0, 43_200.0, 86_400.0,
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
fn families_are_upstreams_or_have_our_prefix() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, true);
    server.listed(200, "", Duration::ZERO);
    server.deleted(200, "", Duration::ZERO);
    let agent_registry = Registry::new();
    let agent = AgentMetrics::new(&agent_registry);
    agent.listed(200, "", Duration::ZERO);
    assert_families(&registry, SERVER_PREFIX, SERVER);
    assert_families(&agent_registry, AGENT_PREFIX, AGENT);
    let server = describe_server_metrics();
    for family in server.into_iter().chain(describe_agent_metrics()) {
        let known = [SERVER_PREFIX, AGENT_PREFIX, "rhizome_", "process_"];
        let name = &family.name;
        let is_known = known.iter().any(|prefix| name.starts_with(prefix));
        assert!(is_known, "{name}");
        let tenant = family.labels.iter().any(|label| label == "cluster");
        let own = name.starts_with("rhizome_konnectivity_cluster_");
        assert_eq!(tenant, own, "{name}");
    }
}

#[test]
fn server_counts_packets_and_dials_as_upstream() {
    let registry = Registry::new();
    let metrics = ServerMetrics::new(&registry, false);
    let packets = format!("{SERVER_PREFIX}stream_packets_total");
    // Not before they come.
    assert_samples(&registry, &packets, &[]);
    metrics.from_client.packet(PacketKind::DialRequest);
    metrics.from_client.packet(PacketKind::DialRequest);
    metrics.to_client.packet(PacketKind::Unknown);
    let tenant = metrics.tenant(&tenant("a"));
    tenant.link().received.packet(PacketKind::Data);
    tenant.link().sent.packet(PacketKind::CloseRequest);
    let expected = [
        r#"{segment="from_agent",packet_type="DATA"} 1"#,
        r#"{segment="from_client",packet_type="DIAL_REQ"} 2"#,
        r#"{segment="to_agent",packet_type="CLOSE_REQ"} 1"#,
        r#"{segment="to_client",packet_type="Unknown"} 1"#,
    ];
    assert_samples(&registry, &packets, &expected);

    for failure in DialFailure::ALL {
        tenant.dial_failure(failure);
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
    let failures = format!("{SERVER_PREFIX}dial_failure_count");
    assert_samples(&registry, &failures, &expected);

    // Limits are counted, and other refusals are not.
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
    let refused = "rhizome_konnectivity_refused_dials_total";
    assert_samples(&registry, refused, &expected);
}

#[test]
fn agent_counts_packets_as_upstream() {
    let registry = Registry::new();
    let metrics = AgentMetrics::new(&registry);
    let (received, sent) = (&metrics.link.received, &metrics.link.sent);
    received.packet(PacketKind::DialRequest);
    sent.packet(PacketKind::DialResponse);
    let expected = [
        r#"{segment="from_agent",packet_type="DIAL_RSP"} 1"#,
        r#"{segment="to_agent",packet_type="DIAL_REQ"} 1"#,
    ];
    let packets = format!("{AGENT_PREFIX}stream_packets_total");
    assert_samples(&registry, &packets, &expected);

    // Errors carry the name that Go has for the code.
    sent.error(GrpcCode::UNAVAILABLE, Some(PacketKind::Data));
    sent.error(GrpcCode::from_number(1), None);
    sent.error(GrpcCode::from_number(4711), None);
    let expected = [
        r#"{segment="from_agent",code="Canceled",packet_type="Unknown"} 1"#,
        r#"{segment="from_agent",code="Unavailable",packet_type="DATA"} 1"#,
        r#"{segment="from_agent",code="Unknown",packet_type="Unknown"} 1"#,
    ];
    let errors = format!("{AGENT_PREFIX}stream_errors_total");
    assert_samples(&registry, &errors, &expected);

    // An unknown reason makes no series of its own.
    for (code, reason) in [(403, "Forbidden"), (409, "evil\n"), (9999, "Gone")] {
        metrics.listed(code, reason, Duration::ZERO);
    }
    let expected = [
        r#"{http_response_code="0",reason="Gone"} 1"#,
        r#"{http_response_code="403",reason="Forbidden"} 1"#,
        r#"{http_response_code="409",reason="Unknown"} 1"#,
    ];
    let lists = format!("{AGENT_PREFIX}lease_lists_total");
    assert_samples(&registry, &lists, &expected);

    let buffered = "rhizome_konnectivity_buffered_bytes";
    assert_samples(&registry, buffered, &[" 0"]);
    metrics.budget(&Budget::new(1 << 20));
    assert_samples(&registry, buffered, &[" 0"]);
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
fn held_gauges_return_to_zero() {
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
    let endpoints = format!("{AGENT_PREFIX}open_endpoint_connections");
    let servers = format!("{AGENT_PREFIX}open_server_connections");
    assert_samples(&registry, &endpoints, &[" 2"]);
    assert_samples(&registry, &servers, &[" 1"]);
    drop(held);
    assert_samples(&registry, &endpoints, &[" 0"]);
    assert_samples(&registry, &servers, &[" 0"]);
}

#[test]
fn ready_backends_sum_over_tenants() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, false);
    let (a, b) = (server.tenant(&tenant("a")), server.tenant(&tenant("b")));
    a.ready_backends(Strategy::Default, 3);
    a.ready_backends(Strategy::Default, 2);
    a.ready_connections(4);
    b.ready_backends(Strategy::Default, 5);
    b.ready_backends(Strategy::DestHost, 7);
    b.ready_connections(5);
    let backends = format!("{SERVER_PREFIX}ready_backends");
    let expected = [
        r#"{proxy_strategy="default"} 7"#,
        r#"{proxy_strategy="destHost"} 7"#,
    ];
    assert_samples(&registry, &backends, &expected);
    drop(b);
    let expected = [
        r#"{proxy_strategy="default"} 2"#,
        r#"{proxy_strategy="destHost"} 0"#,
    ];
    assert_samples(&registry, &backends, &expected);
    let connections = format!("{SERVER_PREFIX}ready_backend_connections");
    assert_samples(&registry, &connections, &[" 4"]);
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
fn returning_tenant_keeps_its_series() {
    let registry = Registry::new();
    let server = ServerMetrics::new(&registry, true);
    let before = server.tenant(&tenant("a"));
    let after = server.tenant(&tenant("a"));
    let held = after.established();
    drop(before);
    let name = "rhizome_konnectivity_cluster_established_connections";
    assert_samples(&registry, name, &[r#"{cluster="a"} 1"#]);
    drop((held, after));
    assert_samples(&registry, name, &[]);
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
fn tunnel_end_reasons_exist_from_start() {
    let registry = Registry::new();
    let agent = AgentMetrics::new(&registry);
    let name = "rhizome_konnectivity_tunnels_ended_total";
    let before = samples(&registry, name);
    assert_eq!(before.len(), link::END_REASONS.len());
    let page = include_str!("../../../docs/konnectivity.md");
    let (_, list) = page.split_once("Why tunnels end:").unwrap();
    let list = list.split("\n## ").next().unwrap();
    let words = list.split('`').skip(1).step_by(2);
    let documented: BTreeSet<&str> = words.collect();
    assert_eq!(documented, link::END_REASONS.into());
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
        agent.link.ended(&reason);
    }
    let after = samples(&registry, name);
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|line| line.ends_with(" 1")), "{after:?}");
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

fn assert_samples(registry: &Registry, name: &str, expected: &[&str]) {
    assert_eq!(samples(registry, name), expected, "{name}");
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
    let families = registry.describe().into_iter();
    let gauges = families.filter(|family| family.kind.as_str() == "gauge");
    let gauges: BTreeSet<_> = gauges.map(|family| family.name).collect();
    let is_gauge = |line: &&str| gauges.contains(line.split([' ', '{']).next().unwrap());
    text.lines().filter(is_gauge).map(str::to_owned).collect()
}

fn assert_families(registry: &Registry, prefix: &str, expected: &str) {
    let mut found = Vec::new();
    for family in registry.describe() {
        if let Some(name) = family.name.strip_prefix(prefix) {
            let labels = match family.labels.as_slice() {
                [] => "-".to_owned(),
                labels => labels.join(","),
            };
            let bounds = match bounds(registry, &format!("{}_bucket", family.name)).as_slice() {
                [] => "",
                LATENCY => " LATENCY",
                AGENT_LATENCY => " AGENT_LATENCY",
                LIFETIME => " LIFETIME",
                other => panic!("{name} has {other:?}"),
            };
            found.push(format!(
                "{name} {} {labels}{bounds}\n",
                family.kind.as_str()
            ));
        }
    }
    found.sort();
    assert_eq!(found.concat(), expected);
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
