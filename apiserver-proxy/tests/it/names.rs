//! The gateway by name, by family, absent, and back.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::json;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::gateway::Clogged;
use crate::proxy::{LIMIT, Running, by_proxy_header, config, finish, with};

/// `localhost` is one name with an address of each family, wherever tests run (RFC 6761 §6.3).
fn localhost(port: u16, family: &str) -> serde_json::Value {
    let upstream = by_proxy_header(format!("localhost:{port}"));
    with(upstream, json!({ "dns": { "family": family } }))
}

#[test]
fn name_is_dialed_at_wanted_family() {
    let four = Upstream::start(Behavior::Echo).unwrap();
    let port = four.addr().port();
    for (family, reason) in [
        ("auto", "closed"),
        ("ipv4", "closed"),
        ("ipv6", "connect_refused"),
    ] {
        let proxy = Running::start(&config(localhost(port, family), json!({})));
        let mut heard = Vec::new();
        let mut client = proxy.connect();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = client.read_to_end(&mut heard);
        assert_eq!(heard.is_empty(), reason != "closed", "{family}");
        proxy.wait_closed(reason, 1.0);
    }
}

#[test]
fn silent_address_costs_250_ms() {
    let four = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = four.local_addr().unwrap().port();
    // IPv6 comes first (RFC 8305 §4), and here it accepts no connection.
    let _six = Clogged::bind(SocketAddr::new("::1".parse().unwrap(), port));
    let gateway = Upstream::serve(four, Behavior::Echo).unwrap();
    let proxy = Running::start(&config(localhost(port, "auto"), json!({})));
    wait::until("the name to be resolved", LIMIT, || {
        proxy.probe("/readyz").status == 200
    })
    .unwrap();
    let watch = Stopwatch::start();
    assert!(!finish(proxy.connect()).is_empty());
    let took = watch.elapsed();
    println!("connected after {took:?}");
    // RFC 8305 §5: the next attempt starts 250 ms after the first.
    let expected = Duration::from_millis(240)..Duration::from_secs(4);
    assert!(expected.contains(&took), "{took:?}");
    assert_eq!(gateway.accepted(), 1);
}

#[test]
fn down_gateway_is_reported_and_found_again() {
    let free = testkit::ports::free(1).unwrap()[0];
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), free);
    let proxy = Running::start(&config(by_proxy_header(at), json!({})));
    for _ in 0..10 {
        let watch = Stopwatch::start();
        let mut client = proxy.connect();
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
        assert!(watch.elapsed() < Duration::from_secs(3));
    }
    proxy.wait_closed("connect_refused", 10.0);
    // It is the gateway's failing, not the proxy's: the probe keeps the pod in service.
    assert_eq!(proxy.probe("/readyz").status, 200);
    let labels = [("cluster", "gateway"), ("reason", "connect_refused")];
    let failures = proxy
        .metrics()
        .value("rhizome_cluster_connect_failures_total", &labels);
    assert_eq!(failures, Some(10.0));

    let _gateway = Upstream::serve(TcpListener::bind(at).unwrap(), Behavior::Echo).unwrap();
    assert!(!finish(proxy.connect()).is_empty());
    assert_eq!(proxy.closed("connect_refused"), 10.0);
}

#[test]
fn silent_gateway_is_given_up_at_timeout() {
    let clogged = Clogged::bind("127.0.0.1:0".parse().unwrap());
    let upstream = with(
        by_proxy_header(clogged.addr),
        json!({ "connectTimeout": "500ms" }),
    );
    let proxy = Running::start(&config(upstream, json!({})));
    let watch = Stopwatch::start();
    let mut client = proxy.connect();
    let ended = client.read(&mut [0]);
    assert!(
        !matches!(&ended, Err(error) if error.kind() == ErrorKind::WouldBlock),
        "{ended:?}"
    );
    let took = watch.elapsed();
    let expected = Duration::from_millis(450)..Duration::from_secs(4);
    assert!(expected.contains(&took), "{took:?}");
    proxy.wait_closed("connect_timeout", 1.0);
}
