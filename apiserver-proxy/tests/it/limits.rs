//! The limits of connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;
use socket2::{Domain, Socket, Type};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::proxy::{LIMIT, Running, by_proxy_header, config, finish};

#[test]
fn connection_above_limit_is_closed_and_counted() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let limits = json!({ "limits": { "connections": 2 } });
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), limits));
    let (one, mut two) = (proxy.connect(), proxy.connect());
    gateway.wait_accepted(2, LIMIT).unwrap();

    let mut refused = proxy.connect();
    assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)));
    wait::until("the refusal to be counted", LIMIT, || {
        proxy.closed("limit") == 1.0
    })
    .unwrap();
    assert_eq!(gateway.accepted(), 2);
    two.write_all(b"still here").unwrap();
    assert!(finish(two).ends_with(b"still here"));

    finish(one);
    let active = || {
        let active = proxy
            .metrics()
            .value("rhizome_listener_connections_active", &[]);
        active == Some(0.0)
    };
    wait::until("both places to be free", LIMIT, active).unwrap();
    let mut again = proxy.connect();
    again.write_all(b"room").unwrap();
    assert!(finish(again).ends_with(b"room"));
    let accepted = proxy
        .metrics()
        .value("rhizome_listener_connections_total", &[]);
    assert_eq!(accepted, Some(4.0));
}

fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn one_pod_leaves_places_for_others() {
    let gateway = Upstream::start(Behavior::Echo).unwrap();
    let limits = json!({ "limits": { "connections": 10, "connectionsPerSource": 2 } });
    let proxy = Running::start(&config(by_proxy_header(gateway.addr()), limits));
    let mut held: Vec<_> = (0..2)
        .map(|_| connect_from([127, 0, 0, 2], proxy.addr()))
        .collect();
    gateway.wait_accepted(2, LIMIT).unwrap();
    for _ in 0..20 {
        let mut refused = connect_from([127, 0, 0, 2], proxy.addr());
        assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)));
    }
    wait::until("all refusals to be counted", LIMIT, || {
        proxy.closed("source_limit") == 20.0
    })
    .unwrap();
    let mut other = connect_from([127, 0, 0, 3], proxy.addr());
    other.write_all(b"kubelet").unwrap();
    assert!(finish(other).ends_with(b"kubelet"));

    finish(held.pop().unwrap());
    let serves_again = || {
        let mut again = connect_from([127, 0, 0, 2], proxy.addr());
        let _ = again.write_all(b"room");
        let mut answer = [0; 64];
        matches!(again.read(&mut answer), Ok(1..))
    };
    wait::until("its place to be free", LIMIT, serves_again).unwrap();
}
