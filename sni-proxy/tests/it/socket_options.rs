//! Which TCP options dialed sockets have, by what the kernel says of them (`ss`).

use std::net::SocketAddr;
use std::time::Duration;

use testkit::upstream::{Behavior, Upstream};
use testkit::{sockets, wait};

use crate::support::{Client, Gateway};

/// Returns the receive buffer of the one connection toward `addr`, bytes as the kernel counts
/// them, which is twice what was asked for (socket(7)).
fn receive_buffer(addr: SocketAddr) -> u64 {
    let shown = sockets::toward(addr).unwrap();
    let all: Vec<u64> = shown
        .split(['(', ',', ')'])
        .filter_map(|word| word.strip_prefix("rb"))
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(all.len(), 1, "{shown}");
    all[0]
}

#[test]
fn upstream_options_follow_cluster_and_listener() {
    let (plain, own) = (
        Upstream::start(Behavior::Echo).unwrap(),
        Upstream::start(Behavior::Echo).unwrap(),
    );
    let gateway = Gateway::start(
        r#"
tcp: { receiveBuffer: 48KiB }
listeners:
- { name: node, address: "127.0.0.1:0", protocol: proxy-or-connect, tcp: { receiveBuffer: 96KiB } }
- { name: vpn, address: "127.0.0.1:0", protocol: connect, upstreamTcp: { receiveBuffer: 16KiB } }
"#,
        &format!(
            r#"
clusters:
- {{ name: plain, endpoints: [{{ address: "{}" }}] }}
- {{ name: own, endpoints: [{{ address: "{}" }}], tcp: {{ receiveBuffer: 32KiB }} }}
routes:
- {{ connectDestinations: ["plain"], cluster: plain }}
- {{ connectDestinations: ["own"], cluster: own }}
"#,
            plain.addr(),
            own.addr()
        ),
    );

    for (listener, value, addr, kib) in [
        ("node", "plain", plain.addr(), 48),
        ("node", "own", own.addr(), 32),
        ("vpn", "plain", plain.addr(), 16),
        ("vpn", "own", own.addr(), 16),
    ] {
        let mut client = Client::open(gateway.addr(listener));
        assert_eq!(client.connect(value), "HTTP/1.1 200 OK\r\n\r\n");
        let was = receive_buffer(addr);
        assert_eq!(was, 2 * (kib << 10), "{listener} to {value}");
        drop(client);
        gateway.wait_idle();
    }
}

#[test]
fn upstream_keepalive_follows_default_or_cluster() {
    let (kept, left) = (
        Upstream::start(Behavior::Echo).unwrap(),
        Upstream::start(Behavior::Echo).unwrap(),
    );
    let gateway = Gateway::start(
        r#"
tcp: { keepalive: 1s }
listeners:
- { name: vpn, address: "127.0.0.1:0", protocol: connect }
"#,
        &format!(
            r#"
clusters:
- {{ name: kept, endpoints: [{{ address: "{}" }}] }}
- {{ name: left, endpoints: [{{ address: "{}" }}], tcp: {{ keepalive: 0s }} }}
routes:
- {{ connectDestinations: ["kept"], cluster: kept }}
- {{ connectDestinations: ["left"], cluster: left }}
"#,
            kept.addr(),
            left.addr()
        ),
    );
    let mut clients = ["left", "kept"].map(|value| {
        let mut client = Client::open(gateway.addr("vpn"));
        assert_eq!(client.connect(value), "HTTP/1.1 200 OK\r\n\r\n");
        client
    });
    wait::until("keepalive", Duration::from_secs(10), || {
        sockets::keeps_alive(kept.addr()).unwrap()
    })
    .unwrap();
    assert!(!sockets::keeps_alive(left.addr()).unwrap());
    for client in &mut clients {
        client.expect_echo(b"still there");
    }
}
