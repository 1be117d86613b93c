//! Names of metrics, endpoints and flags that other people's manifests and alerts hold on to.

use std::collections::BTreeMap;

use testkit::upstream::{Behavior, Upstream};

use crate::support::{
    Agent, AgentFlags, Backend, Kind, Mode, Probe, Refusing, Rig, Server, ServerFlags, refusal,
};

/// Returns the types of all metrics by name.
fn types(probe: Probe) -> BTreeMap<String, String> {
    let text = probe.get("/metrics").text();
    let types = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    });
    types.collect()
}

fn assert_types(probe: Probe, prefix: &str, expected: &[(&str, &str)]) {
    let found = types(probe);
    for (name, kind) in expected {
        let name = format!("{prefix}{name}");
        let found = found.get(&name).map(String::as_str);
        // Families of labelled samples are not shown while there is no sample.
        let quiet = found.is_none() && is_quiet(&name);
        assert!(found == Some(*kind) || quiet, "{name}: {found:?}");
    }
    let strangers: Vec<_> = found
        .keys()
        .filter(|name| name.starts_with("konnectivity_"))
        .filter(|name| {
            let known = |(known, _): &(&str, &str)| **name == format!("{prefix}{known}");
            !expected.iter().any(known)
        })
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

/// Tells whether nothing has happened in these tests that a metric counts.
fn is_quiet(name: &str) -> bool {
    ["_lease_", "_errors_", "_failure_count"]
        .iter()
        .any(|part| name.contains(part))
}

#[test]
fn a_servers_metrics_are_upstreams() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.tunnel(echo.addr()).echo(b"x").unwrap();
    refusal(&rig.frontend, &Refusing::new().addr.to_string());
    assert_types(
        *rig.server,
        "konnectivity_network_proxy_server_",
        &[
            ("connection_duration_seconds", "histogram"),
            ("culled_leases_count", "counter"),
            ("dial_duration_seconds", "histogram"),
            ("dial_failure_count", "counter"),
            ("established_connections", "gauge"),
            ("frontend_write_duration_seconds", "histogram"),
            ("full_receive_channels", "gauge"),
            ("grpc_connections", "gauge"),
            ("http_connections", "gauge"),
            ("lease_delete_latency_seconds", "histogram"),
            ("lease_delete_total", "counter"),
            ("lease_list_latency_seconds", "histogram"),
            ("lease_list_total", "counter"),
            ("pending_backend_dials", "gauge"),
            ("ready_backend_connections", "gauge"),
            ("ready_backends", "gauge"),
            ("stream_errors_total", "counter"),
            ("stream_packets_total", "counter"),
        ],
    );
    let packets = "konnectivity_network_proxy_server_stream_packets_total";
    for (segment, packet_type, at_least) in [
        ("to_agent", "DIAL_REQ", 2.0),
        ("from_agent", "DIAL_RSP", 2.0),
        ("to_agent", "DATA", 1.0),
        ("from_agent", "DATA", 1.0),
    ] {
        let labels = [("segment", segment), ("packet_type", packet_type)];
        let found = rig.server.value(packets, &labels);
        assert!(found >= at_least, "{labels:?}: {found}");
    }
    let dials = "konnectivity_network_proxy_server_dial_duration_seconds_count";
    assert!(rig.server.value(dials, &[]) >= 1.0);
    let buckets = "konnectivity_network_proxy_server_dial_duration_seconds_bucket";
    assert!(rig.server.value(buckets, &[("le", "12.5")]) >= 1.0);
}

#[test]
fn packets_of_grpc_frontends_are_counted() {
    let rig = Rig::start(Mode::Grpc, Kind::Rust);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mut tunnel = rig.tunnel(echo.addr());
    tunnel.echo(b"x").unwrap();
    tunnel.writer.finish().unwrap();
    tunnel.reader.rest().unwrap();
    let packets = "konnectivity_network_proxy_server_stream_packets_total";
    for (segment, packet_type) in [
        ("from_client", "DIAL_REQ"),
        ("to_client", "DIAL_RSP"),
        ("from_client", "DATA"),
        ("to_client", "DATA"),
        ("from_client", "CLOSE_REQ"),
        ("to_client", "CLOSE_RSP"),
    ] {
        let labels = [("segment", segment), ("packet_type", packet_type)];
        rig.server.wait_value(packets, &labels, 1.0);
    }
}

#[test]
fn an_agents_metrics_are_upstreams() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let Backend::Rust(agent) = &rig.agent else {
        panic!("ours");
    };
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.tunnel(echo.addr()).echo(b"x").unwrap();
    refusal(&rig.frontend, &Refusing::new().addr.to_string());
    assert_types(
        ***agent,
        "konnectivity_network_proxy_agent_",
        &[
            ("dial_duration_seconds", "histogram"),
            ("endpoint_dial_failure_total", "counter"),
            ("known_server_count", "gauge"),
            ("lease_list_latency_seconds", "histogram"),
            ("lease_lists_total", "counter"),
            ("lease_watches_total", "counter"),
            ("open_endpoint_connections", "gauge"),
            ("open_server_connections", "gauge"),
            ("server_connection_failure_count", "counter"),
            ("stream_errors_total", "counter"),
            ("stream_packets_total", "counter"),
        ],
    );
}

#[test]
fn both_programs_expose_what_all_of_ours_do() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let Backend::Rust(agent) = &rig.agent else {
        panic!("ours");
    };
    for probe in [*rig.server, ***agent] {
        let found = types(probe);
        for name in ["process_open_fds", "rhizome_build_info", "rhizome_ready"] {
            assert_eq!(found.get(name).map(String::as_str), Some("gauge"), "{name}");
        }
        assert_eq!(probe.value("rhizome_ready", &[]), 1.0);
    }
}

#[test]
fn endpoints_answer_as_upstreams_do() {
    let rig = Rig::start(Mode::Http, Kind::Rust);
    let Backend::Rust(agent) = &rig.agent else {
        panic!("ours");
    };
    for path in ["/healthz", "/ready", "/readyz"] {
        let answer = rig.server.get(path);
        assert_eq!(
            (answer.status, answer.text().trim_end()),
            (200, "ok"),
            "{path}"
        );
        let answer = agent.get(path);
        assert_eq!(
            (answer.status, answer.text().trim_end()),
            (200, "ok"),
            "{path}"
        );
    }
    let verbose = agent.get("/readyz?verbose").text();
    assert!(verbose.contains("[+]ping ok"), "{verbose}");
}

/// Command lines as they stand in manifests of several distributions.
#[test]
fn flags_of_other_peoples_manifests_are_taken() {
    let flags = ServerFlags::new(Mode::Http);
    let flags = [
        "--logtostderr=true",
        "--log-file-max-size=0",
        "-v=2",
        "--stderrthreshold=INFO",
        "--vmodule=server=5",
        "--enable-profiling=false",
        "--enable-contention-profiling=false",
        "--kubeconfig-qps=75",
        "--kubeconfig-burst=150",
        "--keepalive-time=1h",
        "--frontend-keepalive-time=1h",
        "--delete-existing-uds-file",
        "--warn-on-channel-limit=false",
        "--xfr-channel-size=150",
        "--tls-min-version=VersionTLS12",
        "--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,\
         TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "--kube-api-content-type=application/json",
        "--server-count=3",
        "--server-id=abc",
        "--lease-namespace=kube-system",
        "--lease-label=k8s-app=konnectivity-server",
        "--graceful-shutdown-timeout=5s",
    ]
    .into_iter()
    .fold(flags, ServerFlags::flag);
    let server: Server = flags.start();
    let flags = AgentFlags::new(server.pki(), "agent", server.agents());
    let flags = [
        "--logtostderr=true",
        "--v=4",
        "--sync-interval=5s",
        "--sync-interval-cap=30s",
        "--sync-forever",
        "--probe-interval=5s",
        "--keepalive-time=30s",
        "--warn-on-channel-limit=true",
        "--xfr-channel-size=150",
        "--enable-profiling=true",
        "--server-count-source=max",
        "--lease-label=k8s-app=konnectivity-server",
        "--agent-identifiers=ipv4=10.0.0.1",
    ]
    .into_iter()
    .fold(flags, AgentFlags::flag);
    let _agent = Agent::connected(flags);
    server.wait_agents(1);
}

#[test]
fn upstream_refusals_are_refused() {
    for flag in [
        "--server-port=1",
        "--agent-port=80",
        "--xfr-channel-size=0",
        "--proxy-strategies=,",
        "--proxy-strategies=nearest",
        "--cipher-suites=TLS_RSA_WITH_RC4_128_SHA",
        "--agent-namespace=only-this",
        "--mode=udp",
        "--no-such-flag",
    ] {
        let flags = ServerFlags::new(Mode::Http).flag(flag);
        let output = testkit::command::output(&mut flags.command()).unwrap();
        assert_eq!(output.status.code(), Some(64), "{flag}");
    }
}
