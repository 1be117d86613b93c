//! Names that API servers ask for.

use std::net::{SocketAddr, TcpListener};
use std::thread::ScopedJoinHandle;

use serde_json::json;
use testkit::konnectivity::HttpFrontend;
use testkit::upstream::{Behavior, Upstream};

use crate::support::{Dns, Rig};

fn status(rig: &Rig, target: &str) -> u16 {
    asked(&rig.api_server(), target)
}

fn asked(proxy: &HttpFrontend, target: &str) -> u16 {
    match proxy.connect(target).unwrap() {
        Ok(_) => 200,
        Err(refusal) => refusal.status,
    }
}

fn lookups(rig: &Rig, result: &str, count: u32) {
    let labels = [("result", result)];
    rig.wait_value("rhizome_vpn_proxy_lookups_total", &labels, count.into());
}

#[test]
fn names_are_resolved_in_shoot_and_cached() {
    let dns = Dns::start(&[("echo.ns.svc.cluster.local", &["127.0.0.1", "::1"])]);
    let rig = Rig::start_with(&json!({}), &[dns.addr]);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let port = echo.addr().port();
    let target = format!("echo.ns.svc:{port}");
    let mut tunnel = rig.api_server().connect(&target).unwrap().unwrap();
    assert_eq!(tunnel.echo(b"x").unwrap(), b"x");
    let asked = dns.asked();
    assert!(asked > 0);
    let whole = format!("echo.ns.svc.cluster.local:{port}");
    assert_eq!(status(&rig, &whole), 200);
    assert_eq!(dns.asked(), asked, "the answer was not kept");
    lookups(&rig, "found", 2);
}

#[test]
fn resolved_addresses_must_be_in_shoot() {
    let dns = Dns::start(&[
        ("outside.example.com", &["10.0.0.1", "fd00::1"]),
        ("mixed.example.com", &["10.0.0.1", "127.0.0.1"]),
    ]);
    let rig = Rig::start_with(&json!({}), &[dns.addr]);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let port = echo.addr().port();
    assert_eq!(status(&rig, &format!("outside.example.com:{port}")), 403);
    assert_eq!(status(&rig, &format!("mixed.example.com:{port}")), 200);
}

#[test]
fn next_address_is_tried_after_refusal() {
    let dns = Dns::start(&[("two.example.com", &["::1", "127.0.0.1"])]);
    let rig = Rig::start_with(&json!({}), &[dns.addr]);
    // Listens on IPv4 alone, so IPv6, which is tried first, is refused.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(status(&rig, &format!("two.example.com:{port}")), 200);
}

#[test]
fn missing_name_is_bad_gateway() {
    let dns = Dns::start(&[]);
    let rig = Rig::start_with(&json!({}), &[dns.addr]);
    assert_eq!(status(&rig, "nowhere.example.com:443"), 502);
    lookups(&rig, "not_found", 1);
    // Not a name, so no server is asked.
    let asked = dns.asked();
    assert_eq!(status(&rig, "a..b:443"), 502);
    assert_eq!(dns.asked(), asked);
    lookups(&rig, "malformed", 1);
}

#[test]
fn silent_dns_server_is_timeout() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr: SocketAddr = silent.local_addr().unwrap();
    let rig = Rig::start_with(&json!({ "proxy": { "connectTimeout": "300ms" } }), &[addr]);
    assert_eq!(status(&rig, "slow.example.com:443"), 504);
    lookups(&rig, "timeout", 1);
}

#[test]
fn unanswered_name_leaves_others_their_lookups() {
    let dns = Dns::start(&[("echo.example.com", &["127.0.0.1"])]);
    let rig = Rig::start_with(&json!({ "proxy": { "connectTimeout": "3s" } }), &[dns.addr]);
    let echo = Upstream::start(Behavior::Echo).unwrap();
    let target = format!("echo.example.com:{}", echo.addr().port());
    let proxy = rig.api_server();
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..100)
            .map(|_| scope.spawn(|| asked(&proxy, "silent.example.com:443")))
            .collect();
        rig.wait_value("rhizome_listener_connections_active", &[], 100.0);
        let mut others = 0;
        while !asks.iter().any(ScopedJoinHandle::is_finished) {
            assert_eq!(asked(&proxy, &target), 200);
            others += 1;
        }
        assert!(others > 5, "{others} connections to others meanwhile");
        for ask in asks {
            assert_eq!(ask.join().unwrap(), 504);
        }
    });
}
