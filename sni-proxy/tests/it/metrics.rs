//! The figures that dashboards hold on to: names, labels, and series that end with their cluster.

use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Client, Gateway, LIMIT, routes_of};

const LISTENER: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;

fn start() -> (Gateway, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let routes = routes_of(&[("a", upstream.addr()), ("b", upstream.addr())]);
    (Gateway::start(LISTENER, &routes), upstream)
}

#[test]
fn documented_metrics_exist() {
    let (gateway, upstream) = start();
    let refusing = testkit::ports::free(1).unwrap()[0];
    let gone = ([127, 0, 0, 1], refusing).into();
    let routes = routes_of(&[("a", upstream.addr()), ("b", gone)]);
    gateway.dir.replace("routes.yaml", routes).unwrap();
    gateway.wait_generation(2);
    let held = Client::established(gateway.addr("tls"), "a.test");
    Client::hello(gateway.addr("tls"), "b.test").end();
    gateway.wait_closed("tls", "connect_refused", 1);
    let bytes = testkit::client_hello::ClientHello::for_name("a.test")
        .encode()
        .len();
    let metrics = gateway.metrics();
    let listener = ("listener", "tls");
    for (name, labels, value) in [
        ("rhizome_listener_connections_total", vec![listener], 2.0),
        ("rhizome_listener_connections_active", vec![listener], 1.0),
        (
            "rhizome_connections_closed_total",
            vec![listener, ("reason", "connect_refused")],
            1.0,
        ),
        (
            "rhizome_relay_bytes_total",
            vec![listener, ("direction", "rx")],
            bytes as f64,
        ),
        (
            "rhizome_relay_bytes_total",
            vec![listener, ("direction", "tx")],
            bytes as f64,
        ),
        (
            "rhizome_relay_copied_bytes_total",
            vec![listener],
            2.0 * bytes as f64,
        ),
        (
            "rhizome_cluster_connections_active",
            vec![("cluster", "a")],
            1.0,
        ),
        (
            "rhizome_cluster_connect_failures_total",
            vec![("cluster", "b"), ("reason", "connect_refused")],
            1.0,
        ),
        (
            "rhizome_cluster_endpoints",
            vec![("cluster", "b"), ("state", "healthy")],
            1.0,
        ),
        ("rhizome_connect_seconds_count", vec![], 1.0),
        ("rhizome_snapshot_generation", vec![], 2.0),
        ("rhizome_snapshot_refused_total", vec![], 0.0),
        ("rhizome_accept_paused_total", vec![], 0.0),
        ("rhizome_build_info", vec![("binary", "sni-proxy")], 1.0),
    ] {
        assert_eq!(
            metrics.value(name, &labels),
            Some(value),
            "{name}{labels:?}"
        );
    }
    assert!(metrics.value("process_resident_memory_bytes", &[]).unwrap() > 0.0);
    drop(held);
}

#[test]
fn the_age_of_the_snapshot_grows_until_the_next() {
    let (gateway, upstream) = start();
    let age = || gateway.value("rhizome_snapshot_age_seconds", &[]);
    wait::until("the snapshot to age", LIMIT, || age() > 1.0).unwrap();
    gateway.dir.replace("routes.yaml", "broken: [").unwrap();
    gateway.wait_value("rhizome_snapshot_refused_total", &[], 1.0);
    let before = age();
    assert!(before > 1.0, "a refused update confirms nothing");
    gateway
        .dir
        .replace("routes.yaml", routes_of(&[("a", upstream.addr())]))
        .unwrap();
    gateway.wait_generation(2);
    assert!(age() < before, "{} after {before}", age());
}

#[test]
fn series_of_a_removed_cluster_go_with_it() {
    let (gateway, upstream) = start();
    let mut open = Client::established(gateway.addr("tls"), "b.test");
    let of = |cluster: &str| {
        let metrics = gateway.metrics();
        let label = ("cluster".to_owned(), cluster.to_owned());
        let samples = metrics.samples().iter();
        samples
            .filter(|sample| sample.labels.get(&label.0) == Some(&label.1))
            .count()
    };
    assert!(of("a") > 0 && of("b") > 0);
    gateway
        .dir
        .replace("routes.yaml", routes_of(&[("a", upstream.addr())]))
        .unwrap();
    gateway.wait_generation(2);
    assert!(of("a") > 0);
    assert_eq!(of("b"), 0);
    open.expect_echo(b"the connection lives on");
    // The name comes back: so does the count of what is still open.
    let routes = routes_of(&[("a", upstream.addr()), ("b", upstream.addr())]);
    gateway.dir.replace("routes.yaml", routes).unwrap();
    gateway.wait_generation(3);
    assert!(of("b") > 0);
    drop(open);
    gateway.wait_value("rhizome_cluster_connections_active", &[], 0.0);
}
