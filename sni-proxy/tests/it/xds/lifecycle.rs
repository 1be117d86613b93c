//! A gateway before its first routes, without its server, and after a restart.

use std::fs;
use std::path::Path;
use std::time::Duration;

use route::RouteSpec;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::{ports, wait};

use super::control::{Control, LISTENERS, asking, by_name, cluster, gateway, wait_ready};
use crate::handover::directory;
use crate::support::{Child, Client, End, Gateway, LIMIT};

const AGE: &str = "rhizome_snapshot_age_seconds";
const CONNECTED: &str = "rhizome_xds_connected";
const GENERATION: &str = "rhizome_snapshot_generation";

/// A stream that is alive confirms its routes within this, with some time to spare.
const CONFIRMED: f64 = 7.0;

fn echo() -> Upstream {
    Upstream::start(Behavior::Echo).unwrap()
}

/// Starts a gateway whose cache outlives it.
fn with_cache(control_at: std::net::SocketAddr, cache: &Path) -> Gateway {
    let config = asking(control_at).replace("cache: cache", &cached(cache));
    Gateway::start_with(TempDir::new("xds").unwrap(), None, &config)
}

fn cached(cache: &Path) -> String {
    format!("cache: {}", cache.display())
}

#[test]
fn connections_wait_for_first_routes() {
    let upstream = echo();
    let control = Control::start();
    control.publish_one("a", &[upstream.addr()]);
    let gateway = gateway(&control);
    // Everything is there but the word that this is all.
    control.wait_clients(1);
    assert_eq!(gateway.readiness(), 503);
    let trace = gateway.admin_json("/trace?sni=a.test");
    assert_eq!(trace["state"], "waiting for its first routes");
    assert_eq!(
        (&trace["routed"], &trace["reason"]),
        (&false.into(), &"no_endpoint".into())
    );
    let mut by_name = Client::hello(gateway.addr("tls"), "a.test");
    let mut by_connect = Client::open(gateway.addr("vpn"));
    by_connect.send(crate::support::connect_head("a").as_bytes());
    let active = |listener| {
        let labels = [("listener", listener)];
        gateway.wait_value("rhizome_listener_connections_active", &labels, 1.0);
    };
    active("tls");
    active("vpn");
    assert_eq!(gateway.readiness(), 503);
    assert_eq!(upstream.accepted(), 0);

    control.complete();
    assert_eq!(by_name.receive(1), [0x16]);
    assert!(by_connect.read_head().starts_with("HTTP/1.1 200 "));
    wait_ready(&gateway);
}

#[test]
fn without_routes_in_time_there_is_no_endpoint() {
    let control = Control::start();
    let config = asking(control.addr) + "limits: { preambleTimeout: 1s }\n";
    let gateway = Gateway::start_with(TempDir::new("xds").unwrap(), None, &config);
    let mut by_name = Client::hello(gateway.addr("tls"), "a.test");
    let mut by_connect = Client::open(gateway.addr("vpn"));
    let answer = by_connect.connect("a");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(by_name.end(), End::Closed);
    gateway.wait_closed("tls", "no_endpoint", 1);
    gateway.wait_closed("vpn", "no_endpoint", 1);
    assert_eq!(gateway.readiness(), 503);

    // Having everything there is, nothing at all, is being ready.
    control.complete();
    wait_ready(&gateway);
    let mut client = Client::open(gateway.addr("vpn"));
    assert!(client.connect("a").starts_with("HTTP/1.1 404 "));
}

#[test]
fn gateway_survives_loss_of_xds_server() {
    let upstream = echo();
    let control = Control::start();
    let addr = control.addr;
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    gateway.wait_value(CONNECTED, &[], 1.0);
    let mut old = Client::established(gateway.addr("tls"), "a.test");
    let generation = gateway.value(GENERATION, &[]);

    drop(control);
    gateway.wait_value(CONNECTED, &[], 0.0);
    wait::until("the routes to age", LIMIT, || {
        gateway.value(AGE, &[]) > CONFIRMED
    })
    .unwrap();
    assert_eq!(gateway.readiness(), 200);
    assert_eq!(gateway.value(GENERATION, &[]), generation);
    Client::established(gateway.addr("tls"), "a.test");
    old.expect_echo(b"never noticed");

    // One that has just begun knows nothing yet, and takes nothing away.
    let control = Control::start_at(addr, None);
    control.wait_clients(1);
    Client::established(gateway.addr("tls"), "a.test");
    assert!(gateway.value(AGE, &[]) > CONFIRMED);
    control.publish_one("a", &[upstream.addr()]);
    control.publish_one("b", &[upstream.addr()]);
    control.complete();
    wait::until("the routes to be confirmed", LIMIT, || {
        gateway.value(AGE, &[]) < CONFIRMED
    })
    .unwrap();
    gateway.wait_value(CONNECTED, &[], 1.0);
    wait::until("the new routes", LIMIT, || {
        let mut client = Client::open(gateway.addr("vpn"));
        client.connect("b").starts_with("HTTP/1.1 200 ")
    })
    .unwrap();
    Client::established(gateway.addr("tls"), "a.test");
    old.expect_echo(b"still there");
}

#[test]
fn restart_without_server_uses_cache() {
    let upstream = echo();
    let cache = TempDir::new("xds-cache").unwrap();
    let control = Control::start();
    let addr = control.addr;
    control.publish_one("a", &[upstream.addr()]);
    control.publish_one("b", &[upstream.addr()]);
    control.complete();
    let first = with_cache(addr, cache.path());
    wait_ready(&first);
    let written = [("result", "ok")];
    first.wait_value("rhizome_xds_cache_writes_total", &written, 1.0);
    // What changed since the last write is written at the end.
    control.withdraw("b");
    wait::until("the removal", LIMIT, || {
        let mut client = Client::open(first.addr("vpn"));
        client.connect("b").starts_with("HTTP/1.1 404 ")
    })
    .unwrap();
    drop(control);
    drop(first);

    let second = with_cache(addr, cache.path());
    assert_eq!(second.readiness(), 200);
    Client::established(second.addr("tls"), "a.test");
    let mut client = Client::open(second.addr("vpn"));
    assert!(client.connect("b").starts_with("HTTP/1.1 404 "));
    assert_eq!(second.value(CONNECTED, &[]), 0.0);

    // The server is back, and has other routes than the cache.
    let control = Control::start_at(addr, None);
    control.publish_one("c", &[upstream.addr()]);
    control.complete();
    wait::until("the server's routes", LIMIT, || {
        let mut client = Client::open(second.addr("vpn"));
        client.connect("c").starts_with("HTTP/1.1 200 ")
    })
    .unwrap();
    wait::until("the cache's routes to go", LIMIT, || {
        let mut client = Client::open(second.addr("vpn"));
        client.connect("a").starts_with("HTTP/1.1 404 ")
    })
    .unwrap();
    assert_eq!(second.value("rhizome_snapshot_refused_total", &[]), 0.0);
}

#[test]
fn damaged_cache_is_reported_and_ignored() {
    let upstream = echo();
    let control = Control::start();
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let good = TempDir::new("xds-cache").unwrap();
    wait_ready(&with_cache(control.addr, good.path()));
    let good = fs::read(good.join("routes.cache")).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let other_version = [b"RHIZXDS\xff".as_slice(), &good[8..]].concat();
    let damaged: [&[u8]; 5] = [
        b"",
        b"garbage",
        &good[..good.len() / 2],
        &flipped,
        &other_version,
    ];
    for bytes in damaged {
        let cache = TempDir::new("xds-cache").unwrap();
        let file = cache.write("routes.cache", bytes).unwrap();
        let config = asking(control.addr).replace("cache: cache", &cached(cache.path()));
        let child = Child::start(&config, "");
        wait::until("the gateway to be ready", LIMIT, || {
            child.readiness() == 200
        })
        .unwrap();
        Client::established(child.addr("tls"), "a.test");
        let file = file.display().to_string();
        let warned = |event: &serde_json::Value| {
            event["level"] == "WARN" && event.to_string().contains(&file)
        };
        assert!(child.events().iter().any(warned), "{}", child.stderr());
    }
}

#[test]
fn a_cache_that_cannot_be_written_stops_nothing() {
    let upstream = echo();
    let control = Control::start();
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let gateway = with_cache(control.addr, Path::new("/proc/nowhere"));
    wait_ready(&gateway);
    Client::established(gateway.addr("tls"), "a.test");
    wait::until("a failed write", LIMIT, || {
        gateway.value("rhizome_xds_cache_writes_total", &[("result", "failed")]) > 0.0
    })
    .unwrap();
    Client::established(gateway.addr("tls"), "a.test");
}

#[test]
fn unreachable_server_is_retried() {
    let upstream = echo();
    let port = ports::free(1).unwrap()[0];
    let addr = ([127, 0, 0, 1], port).into();
    let config = format!(
        "{LISTENERS}routing: {{ xds: {{ server: \"http://localhost:{port}\", node: gateway-0 }} }}\n"
    );
    let gateway = Gateway::start_with(TempDir::new("xds").unwrap(), None, &config);
    let attempts = || gateway.value("rhizome_xds_connects_total", &[("result", "connect")]);
    wait::until("two attempts", LIMIT, || attempts() >= 2.0).unwrap();
    assert_eq!(gateway.readiness(), 503);
    let control = Control::start_at(addr, None);
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    wait_ready(&gateway);
    Client::established(gateway.addr("tls"), "a.test");
}

#[test]
fn connections_stay_open_when_the_server_stops() {
    let upstream = echo();
    let control = Control::start();
    control.publish_one("a", &[upstream.addr()]);
    control.complete();
    let gateway = gateway(&control);
    wait_ready(&gateway);
    let clients: Vec<Client> = (0..20)
        .map(|_| Client::established(gateway.addr("tls"), "a.test"))
        .collect();
    drop(control);
    gateway.wait_value(CONNECTED, &[], 0.0);
    for mut client in clients {
        client.expect_echo(b"here");
    }
}

#[test]
fn moved_relays_keep_limits_of_their_own_route() {
    let (upstream, control) = (echo(), Control::start());
    let limited = RouteSpec {
        // Longer than a process takes to start on a busy machine.
        idle_timeout: Some(Duration::from_secs(8)),
        ..by_name("b", "a")
    };
    let routes = [by_name("a", "a"), limited];
    control.publish("a", &[cluster("a", &[upstream.addr()])], &routes);
    control.complete();
    let (place, ports) = (directory(), ports::free(1).unwrap());
    let config = asking(control.addr).replace(", cache: cache", "").replacen(
        "127.0.0.1:0",
        &format!("127.0.0.1:{}", ports[0]),
        1,
    );
    let socket = place.join("handover.sock");
    let own = format!(
        "handover: {{ socket: {} }}\naccessLog: {{ format: json }}\n",
        socket.display()
    );
    let first = Child::start(&format!("{config}{own}"), "");
    wait::until("the routes", LIMIT, || first.readiness() == 200).unwrap();
    let tls = first.addr("tls");
    let mut unlimited = Client::established(tls, "a.test");
    let idle = Client::established(tls, "b.test");
    let second = Child::start(&format!("{config}{own}"), "");
    let moved = || {
        let labels = [("direction", "in"), ("outcome", "moved")];
        let name = "rhizome_handover_connections_total";
        second.metrics().value(name, &labels) == Some(2.0)
    };
    wait::until("the relays to move", LIMIT, moved).unwrap();
    let line = second.access_line(idle.addr());
    assert_eq!(line["reason"], "idle_timeout", "{line}");
    // As long, and more.
    wait::pause(Duration::from_secs(1));
    unlimited.expect_echo(b"still here");
}
