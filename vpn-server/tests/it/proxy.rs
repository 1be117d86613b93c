//! What API servers ask for, and what they get.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::json;
use testkit::certs::Authority;
use testkit::konnectivity::Refusal;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Rig, one_client};

fn refusal(rig: &Rig, target: &str) -> Refusal {
    match rig.api_server().connect(target).unwrap() {
        Ok(_) => panic!("{target} was connected"),
        Err(refusal) => refusal,
    }
}

/// Returns an address that refuses.
fn refusing() -> SocketAddr {
    let port = testkit::ports::free(1).unwrap()[0];
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn destination_in_shoot_is_reached() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    for version in ["1.0", "1.1"] {
        let head = format!("CONNECT {} HTTP/{version}\r\n\r\n", echo.addr());
        let mut tunnel = rig.api_server().ask(head.as_bytes()).unwrap().unwrap();
        assert_eq!(tunnel.echo(b"hello").unwrap(), b"hello");
    }
    rig.wait_closed("closed", 2);
    let answers = "rhizome_vpn_proxy_answers_total";
    rig.wait_value(answers, &[("status", "200")], 2.0);
    rig.wait_value("rhizome_relay_bytes_total", &[("direction", "rx")], 10.0);
}

#[test]
fn half_close_keeps_other_direction_open() {
    let rig = Rig::start(&json!({}));
    let counting = Upstream::start(Behavior::AnswersAtEof).unwrap();
    let target = counting.addr().to_string();
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    tunnel.writer.write_all(&[7; 100_000]).unwrap();
    tunnel.writer.finish().unwrap();
    assert_eq!(tunnel.reader.rest().unwrap(), b"100000");
}

#[test]
fn early_bytes_arrive() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let head = format!("CONNECT {} HTTP/1.1\r\n\r\nearly", echo.addr());
    let mut tunnel = rig.api_server().ask(head.as_bytes()).unwrap().unwrap();
    let mut early = [0; 5];
    tunnel.reader.read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early");
}

#[test]
fn outside_destinations_are_refused_in_any_form() {
    let rig = Rig::start(&json!({}));
    for target in [
        "10.0.0.1:443",
        "[fd00::1]:443",
        "[::ffff:10.0.0.1]:443",
        "0.0.0.0:443",
        "[::]:443",
    ] {
        assert_eq!(refusal(&rig, target).status, 403, "{target}");
    }
    rig.wait_closed("unknown_destination", 5);
    // A mapped address is the IPv4 address, here too.
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let mapped = format!("[::ffff:127.0.0.1]:{}", echo.addr().port());
    let mut tunnel = rig.api_server().connect(&mapped).unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

#[test]
fn names_are_refused_without_dns_servers() {
    let rig = Rig::start(&json!({}));
    let refused = refusal(&rig, "metrics-server.kube-system.svc:443");
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("DNS"), "{}", refused.body);
}

#[test]
fn malformed_target_is_bad_request() {
    let rig = Rig::start(&json!({}));
    for target in ["127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", ":443"] {
        assert_eq!(refusal(&rig, target).status, 400, "{target}");
    }
    let refused = rig
        .api_server()
        .ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(refused.unwrap_err().status, 405);
}

#[test]
fn refusing_destination_is_bad_gateway() {
    let rig = Rig::start(&json!({}));
    assert_eq!(refusal(&rig, &refusing().to_string()).status, 502);
    rig.wait_closed("connect_refused", 1);
}

#[test]
fn silent_destination_is_timeout() {
    let rig = Rig::start(&json!({ "proxy": { "connectTimeout": "200ms" } }));
    // A queue that is full answers no one.
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap().as_socket().unwrap();
    let fill = || {
        let filler = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let filler = filler.unwrap();
        filler.set_nonblocking(true).unwrap();
        let _ = filler.connect(&addr.into());
        filler
    };
    let _fillers: Vec<_> = (0..4).map(|_| fill()).collect();
    assert_eq!(refusal(&rig, &addr.to_string()).status, 504);
    rig.wait_closed("connect_timeout", 1);
}

#[test]
fn missing_tunnel_prevents_dials() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.set_status(one_client(false, false));
    assert_eq!(refusal(&rig, &echo.addr().to_string()).status, 503);
    assert_eq!(echo.accepted(), 0);
    rig.wait_closed("no_endpoint", 1);
    // What lies outside is outside with or without.
    assert_eq!(refusal(&rig, "10.0.0.1:443").status, 403);
    rig.set_status(one_client(true, false));
    let target = echo.addr().to_string();
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
}

#[test]
fn dial_waits_while_tunnel_changes_path() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    rig.set_status(one_client(false, false));
    let (api_server, target) = (rig.api_server(), echo.addr().to_string());
    let dial = std::thread::spawn(move || api_server.connect(&target).unwrap().map(drop));
    let answered = wait::until("an answer", Duration::from_millis(300), || {
        dial.is_finished()
    });
    assert!(answered.is_err());
    rig.set_status(one_client(true, false));
    assert!(dial.join().unwrap().is_ok());
}

#[test]
fn clients_need_certificate_of_authority() {
    let rig = Rig::start(&json!({}));
    let other = Authority::new("other").unwrap();
    let stranger = other.client("kube-apiserver", &[], &[]).unwrap();
    let expired = rig.authority.expired_client("kube-apiserver", &[]).unwrap();
    for identity in [None, Some(&stranger), Some(&expired)] {
        // With TLS 1.3 a client learns of it when it reads.
        let opened = rig.client(identity).connect("127.0.0.1:1");
        assert!(opened.is_err());
    }
    rig.wait_closed("source_denied", 3);
    let failed = "rhizome_vpn_proxy_handshakes_failed_total";
    rig.wait_value(failed, &[("reason", "no_client_certificate")], 1.0);
    rig.wait_value(failed, &[("reason", "bad_client_certificate")], 2.0);
}

#[test]
fn silence_before_request_times_out() {
    let rig = Rig::start(&json!({ "limits": { "preambleTimeout": "200ms" } }));
    let mut silent = std::net::TcpStream::connect(rig.proxy).unwrap();
    let mut open = rig.api_server().open().unwrap();
    assert_eq!(open.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0);
    rig.wait_closed("preamble_timeout", 2);
}

#[test]
fn connections_are_bounded_and_released() {
    let rig = Rig::start(&json!({ "proxy": { "connections": 1 } }));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let mut held = rig.api_server().connect(&target).unwrap().unwrap();
    assert_eq!(held.echo(b"x").unwrap(), b"x");
    assert!(rig.api_server().connect(&target).is_err());
    rig.wait_closed("limit", 1);
    drop(held);
    rig.wait_value("rhizome_listener_connections_active", &[], 0.0);
    assert!(rig.api_server().connect(&target).unwrap().is_ok());
}

#[test]
fn connections_per_source_are_bounded() {
    let rig = Rig::start(&json!({ "proxy": { "connectionsPerSource": 1 } }));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let _held = rig.api_server().connect(&target).unwrap().unwrap();
    assert!(rig.api_server().connect(&target).is_err());
    rig.wait_closed("source_limit", 1);
}

#[test]
fn idle_connection_is_closed_if_set() {
    let rig = Rig::start(&json!({ "proxy": { "idleTimeout": "300ms" } }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    // Without TLS's closing alert: something is missing.
    let end = tunnel.reader.rest().map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::UnexpectedEof));
    rig.wait_closed("idle_timeout", 1);
}

#[test]
fn connections_are_listed_for_operators() {
    let rig = Rig::start(&json!({}));
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = echo.addr().to_string();
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    tunnel.echo(b"x").unwrap();
    let all = Rig::ask(rig.admin, "GET", "/connections");
    let all: serde_json::Value = all.json().unwrap();
    let one = &all["connections"][0];
    assert_eq!(one["connect"], target.as_str());
    assert_eq!(one["endpoint"], target.as_str());
    assert_eq!(one["serverName"], "localhost");
}
