//! Mode `proxy-protocol`: what the gateway sees first.

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::json;
use testkit::proxy_header;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::gateway::{Clogged, Scripted};
use crate::proxy::{LIMIT, Running, by_proxy_header, config, finish, with};

/// Sends `hello` through a proxy with these upstream keys and returns its address, the client's,
/// and what the gateway was sent.
fn seen(listen: &str, upstream: serde_json::Value) -> (SocketAddr, SocketAddr, Vec<u8>) {
    let gateway = Upstream::start(Behavior::Sink).unwrap();
    let upstream = with(by_proxy_header(gateway.addr()), upstream);
    let proxy = Running::start(&config(upstream, json!({ "listen": [listen] })));
    let mut client = proxy.connect();
    let from = client.local_addr().unwrap();
    client.write_all(b"hello").unwrap();
    assert_eq!(finish(client), b"");
    gateway.wait_closed(LIMIT).unwrap();
    (proxy.addr(), from, gateway.beginnings().remove(0))
}

#[test]
fn header_names_client_and_local_address() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        for (version, write) in [
            (
                2,
                (|src, dst| proxy_header::v2(src, dst, &[])) as fn(_, _) -> _,
            ),
            (1, proxy_header::v1),
        ] {
            let (to, from, sent) = seen(listen, json!({ "version": version }));
            assert_eq!(sent, [write(from, to), b"hello".to_vec()].concat(), "{to}");
        }
    }
}

#[test]
fn ipv4_client_of_dual_stack_stays_ipv4() {
    let gateway = Upstream::start(Behavior::Sink).unwrap();
    let listen = json!({ "listen": ["[::]:0"] });
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), listen));
    let to = SocketAddr::new("127.0.0.1".parse().unwrap(), proxy.addr().port());
    let client = crate::proxy::connect(to);
    let from = client.local_addr().unwrap();
    finish(client);
    gateway.wait_closed(LIMIT).unwrap();
    assert_eq!(
        gateway.beginnings().remove(0),
        proxy_header::v2(from, to, &[])
    );
}

#[test]
fn configured_destination_replaces_local_address() {
    for (version, destination) in [
        (1, "10.1.2.3:443"),
        (2, "10.1.2.3:443"),
        (2, "[fd00:10::3]:443"),
    ] {
        let upstream = json!({ "version": version, "destination": destination });
        let (_, from, sent) = seen("127.0.0.1:0", upstream);
        let to = destination.parse().unwrap();
        let header = match version {
            1 => proxy_header::v1(from, to),
            _ => proxy_header::v2(from, to, &[]),
        };
        assert_eq!(sent, [header, b"hello".to_vec()].concat());
    }
}

#[test]
fn header_is_sent_before_client_bytes() {
    let gateway = Upstream::start(Behavior::Sink).unwrap();
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), json!({})));
    let client = proxy.connect();
    let header = proxy_header::v2(client.local_addr().unwrap(), proxy.addr(), &[]);
    let arrived = || gateway.beginnings().first() == Some(&header);
    wait::until("the header", LIMIT, arrived).unwrap();
}

#[test]
fn header_and_early_data_share_one_segment() {
    // The gateway accepts no connection yet, so the client's bytes arrive before it is established.
    let clogged = Clogged::bind("127.0.0.1:0".parse().unwrap());
    let proxy = Running::start(&config(by_proxy_header(clogged.addr), json!({})));
    let mut client = proxy.connect();
    client.write_all(b"early").unwrap();
    let accepted = || {
        let active = proxy
            .metrics()
            .value("rhizome_listener_connections_active", &[]);
        active == Some(1.0)
    };
    wait::until("the client to be accepted", LIMIT, accepted).unwrap();
    let gateway = Scripted::on(clogged.clear(), |mut stream| {
        let mut first = vec![0; 4096];
        let count = stream.read(&mut first).unwrap();
        first.truncate(count);
        first
    });
    // What filled the queue has said nothing.
    let header = proxy_header::v2(client.local_addr().unwrap(), proxy.addr(), &[]);
    let mut first = gateway.outcome();
    while first.is_empty() {
        first = gateway.outcome();
    }
    assert_eq!(first, [header, b"early".to_vec()].concat());
}
