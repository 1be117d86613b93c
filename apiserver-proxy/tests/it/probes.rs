//! Probes, metrics, and the admin endpoint that is not there unless asked for.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::json;
use telemetry::EndpointAddr;
use testkit::http::{self, Target};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

use crate::proxy::{LIMIT, Running, by_proxy_header, config, finish};

#[test]
fn probes_answer_under_gardeners_path_too() {
    let proxy = Running::start(&config(by_proxy_header("127.0.0.1:9"), json!({})));
    for path in ["/healthz", "/readyz", "/ready"] {
        assert_eq!(proxy.probe(path).status, 200, "{path}");
    }
    assert_eq!(proxy.probe("/nothing").status, 404);
}

#[test]
fn proxy_reports_unready_if_name_is_unknown() {
    // RFC 6761 §6.4: no resolver knows a name below `invalid`.
    let proxy = Running::start(&config(by_proxy_header("gateway.invalid:8443"), json!({})));
    for path in ["/readyz", "/ready"] {
        let answer = proxy.probe(path);
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.text().contains("name"), "{}", answer.text());
    }
    assert_eq!(proxy.probe("/healthz").status, 200);
}

#[test]
fn the_probe_port_offers_nothing_to_operate() {
    let proxy = Running::start(&config(by_proxy_header("127.0.0.1:9"), json!({})));
    assert_eq!(proxy.admin, EndpointAddr::None);
    for path in [
        "/",
        "/config",
        "/snapshot",
        "/connections",
        "/drain",
        "/log",
    ] {
        assert_eq!(proxy.probe(path).status, 404, "{path}");
    }
}

#[test]
fn admin_socket_shows_connections() {
    let dir = TempDir::new("apiserver-proxy-admin").unwrap();
    let path = dir.join("admin.sock");
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let admin = json!({ "admin": { "address": format!("unix:{}", path.display()) } });
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), admin));
    let client = proxy.connect();
    gateway.wait_accepted(1, LIMIT).unwrap();

    let shown = over_unix(&path, "GET", "/connections");
    assert!(
        shown.contains(&client.local_addr().unwrap().to_string()),
        "{shown}"
    );
    assert!(over_unix(&path, "GET", "/config").contains("proxy-protocol"));
    assert!(over_unix(&path, "GET", "/snapshot").contains(&gateway.addr().to_string()));
    finish(client);
    over_unix(&path, "POST", "/drain");
    assert_eq!(proxy.probe("/ready").status, 503);
    proxy.wait_ended();
}

pub(crate) fn over_unix(path: &std::path::Path, method: &str, target: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 20"), "{target}: {answer}");
    answer
}

#[test]
fn the_metrics_others_hold_on_to_are_there() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let mut client = proxy.connect();
    client.write_all(b"hello").unwrap();
    assert!(finish(client).ends_with(b"hello"));
    proxy.wait_closed("closed", 1.0);

    let metrics = proxy.metrics();
    let listener = [("listener", "127.0.0.1:0")];
    for (name, labels, value) in [
        (
            "rhizome_listener_connections_total",
            listener.as_slice(),
            1.0,
        ),
        ("rhizome_listener_connections_active", &listener, 0.0),
        ("rhizome_connections_closed_total", &listener, 1.0),
        (
            "rhizome_cluster_connections_active",
            &[("cluster", "gateway")],
            0.0,
        ),
        ("rhizome_connect_seconds_count", &[], 1.0),
        ("rhizome_snapshot_generation", &[], 1.0),
        ("rhizome_accept_paused_total", &[], 0.0),
        ("rhizome_apiserver_proxy_addresses_settled", &[], 1.0),
        ("rhizome_apiserver_proxy_notrack_active", &[], 0.0),
    ] {
        assert_eq!(metrics.value(name, labels), Some(value), "{name}");
    }
    let rx = [("listener", "127.0.0.1:0"), ("direction", "rx")];
    assert_eq!(metrics.value("rhizome_relay_bytes_total", &rx), Some(5.0));
    for name in [
        "rhizome_build_info",
        "rhizome_relay_copied_bytes_total",
        "rhizome_cluster_endpoints",
        "rhizome_snapshot_age_seconds",
        "process_open_fds",
        "process_resident_memory_bytes",
    ] {
        assert!(metrics.value(name, &[]).is_some(), "{name}");
    }
    let target = Target::plain(proxy.probes).header("Accept", "application/openmetrics-text");
    let text = http::get(&target, "/metrics").unwrap().text();
    assert!(text.ends_with("# EOF\n"), "OpenMetrics has an end");
}
