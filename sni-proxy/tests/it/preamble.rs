//! Peers that take their time, give up, or send anything at all.

use std::time::Duration;

use testkit::client_hello::ClientHello;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Client, Gateway, routes_of};

const LISTENERS: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect }
- { name: vpn, address: "127.0.0.1:0", protocol: connect }
- { name: lb, address: "127.0.0.1:0", protocol: tls, proxyProtocol: required }
trustedProxies: ["127.0.0.0/8"]
"#;

fn start(limits: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::start(Behavior::Echo).unwrap();
    let config = format!("{LISTENERS}limits: {{ {limits} }}\n");
    let gateway = Gateway::start(&config, &routes_of(&[("a", upstream.addr())]));
    (gateway, upstream)
}

/// Sends a byte every now and then until the gateway has had enough; returns how long that took.
fn drip_until_cut(client: &mut Client, bytes: &[u8]) -> Duration {
    let clock = Stopwatch::start();
    for byte in bytes {
        if client.try_send(&[*byte]).is_err() || clock.elapsed() > Duration::from_secs(15) {
            break;
        }
        wait::pause(Duration::from_millis(40));
    }
    clock.elapsed()
}

#[test]
fn slow_preambles_are_cut_at_the_deadline() {
    let (gateway, upstream) = start("preambleTimeout: 1s");
    let head = [b"CONNECT a:443 HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 400]].concat();
    let header = proxy_header::v2("10.0.0.1:1".parse().unwrap(), gateway.addr("lb"), &[]);
    let hello = ClientHello {
        key_share_bytes: 1216,
        ..ClientHello::for_name("a.test")
    };
    let after_header = [header, hello.encode()].concat();
    let cases: [(&str, Vec<u8>); 4] = [
        ("tls", hello.encode()),
        ("node", b"PROXY TCP4 127.0.0.1 ".to_vec()),
        ("vpn", head),
        ("lb", after_header),
    ];
    std::thread::scope(|scope| {
        for (listener, bytes) in &cases {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut client = Client::open(gateway.addr(listener));
                let taken = drip_until_cut(&mut client, bytes);
                client.end();
                assert!(taken < Duration::from_secs(5), "{listener}: {taken:?}");
            });
        }
        scope.spawn(|| {
            let clock = Stopwatch::start();
            Client::open(gateway.addr("vpn")).end();
            let taken = clock.elapsed();
            assert!(taken >= Duration::from_millis(900), "{taken:?}");
            assert!(taken < Duration::from_secs(5), "{taken:?}");
        });
    });
    for (listener, count) in [("tls", 1), ("node", 1), ("vpn", 2), ("lb", 1)] {
        gateway.wait_closed(listener, "preamble_timeout", count);
    }
    assert_eq!(upstream.accepted(), 0);
}

#[test]
fn early_closes_are_counted_by_reason() {
    let (gateway, upstream) = start("preambleTimeout: 10s");
    for listener in ["tls", "node", "vpn", "lb"] {
        drop(Client::open(gateway.addr(listener)));
        gateway.wait_closed(listener, "closed", 1);
    }
    let hello = ClientHello::for_name("a.test").encode();
    let mut half = Client::open(gateway.addr("tls"));
    half.send(&hello[..hello.len() / 2]);
    half.finish();
    half.end();
    gateway.wait_closed("tls", "malformed", 1);
    let mut half = Client::open(gateway.addr("tls"));
    half.send(&hello[..hello.len() / 2]);
    gateway.wait_value("rhizome_listener_connections_active", &[], 1.0);
    half.reset();
    gateway.wait_closed("tls", "downstream_reset", 1);
    assert_eq!(upstream.accepted(), 0);
}

#[test]
fn garbage_is_closed_counted_and_forgotten() {
    let (gateway, upstream) = start("preambleTimeout: 1s");
    // xorshift64 from a fixed seed: the same garbage each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut garbage = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..50 {
        for listener in ["tls", "node", "vpn", "lb"] {
            let length = usize::try_from(garbage() % 300).unwrap() + 32;
            let bytes: Vec<u8> = (0..length).map(|_| garbage().to_le_bytes()[0]).collect();
            let mut client = Client::open(gateway.addr(listener));
            let _ = client.try_send(&bytes);
            client.end();
        }
    }
    gateway.wait_value("rhizome_connections_closed_total", &[], 200.0);
    gateway.wait_idle();
    assert_eq!(upstream.accepted(), 0);
    Client::established(gateway.addr("tls"), "a.test").finish();
}
