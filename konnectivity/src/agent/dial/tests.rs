//! Tests of the dialler against this host's loopback.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn dialer(allowed: &[&str]) -> Dialer {
    Dialer::new(DialParams {
        allowed: allowed.iter().map(|text| text.parse().unwrap()).collect(),
        ..DialParams::default()
    })
}

async fn listener(ip: impl Into<IpAddr>) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip.into(), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns a socket that is bound and does not listen, and its address.
fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Returns the text of a dial that fails.
async fn failure(dialer: &Dialer, protocol: &str, address: &str) -> String {
    let dialed = dialer.dial(protocol, address).await;
    dialed.unwrap_err().to_string()
}

#[tokio::test]
async fn connection_has_nodelay_and_keepalive() {
    let (listener, address) = listener(Ipv4Addr::LOCALHOST).await;
    let stream = dialer(&[]).dial("tcp", &address.to_string()).await.unwrap();
    let (_accepted, peer) = listener.accept().await.unwrap();
    assert_eq!(stream.local_addr().unwrap(), peer);
    assert!(stream.nodelay().unwrap());
    assert!(SockRef::from(&stream).keepalive().unwrap());
}

#[tokio::test]
async fn unsent_bytes_are_bounded_toward_servers_alone() {
    let (_listener, address) = listener(Ipv4Addr::LOCALHOST).await;
    let dialer = dialer(&[]);
    let limit = Duration::from_secs(5);
    let server = dialer.dial_server("127.0.0.1", address.port(), 0, limit);
    let server = server.await.unwrap();
    let destination = dialer.dial("tcp", &address.to_string()).await.unwrap();
    let unsent = |stream| SockRef::from(stream).tcp_notsent_lowat().unwrap();
    assert_eq!(unsent(&server), NOTSENT_LOWAT);
    assert_ne!(unsent(&destination), NOTSENT_LOWAT);
}

#[tokio::test]
async fn ipv6_is_dialed_where_there_is_ipv6() {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        return;
    };
    let address = listener.local_addr().unwrap().to_string();
    let dialer = dialer(&[]);
    assert!(dialer.dial("tcp", &address).await.is_ok());
    let text = failure(&dialer, "tcp4", &address).await;
    assert_eq!(text, "dial tcp4: lookup ::1: no such host");
}

#[tokio::test]
async fn specific_failure_is_reported() {
    let (_kept, closed) = closed_port();
    // A connection to a group is one to nowhere, on every host and without a packet.
    let [nowhere, nowhere_v6] = ["224.0.0.1:1", "[ff0e::1]:1"].map(|text| text.parse().unwrap());
    let (_socket, _filling, silent) = full().await;
    let refused = format!(" {closed}: connect: connection refused");
    let timeout = format!(" {silent}: i/o timeout");
    for (addresses, expected) in [
        (vec![nowhere_v6, closed], &refused),
        (vec![nowhere, closed], &refused),
        (vec![closed, nowhere], &refused),
        (vec![nowhere_v6, nowhere, closed], &refused),
        (vec![nowhere_v6, silent], &timeout),
        (vec![nowhere, silent, nowhere], &timeout),
    ] {
        let deadline = Instant::now() + Duration::from_millis(200);
        let connecting = connect(&addresses, deadline);
        let error = connecting.await.unwrap_err();
        assert_eq!(&error.to_string(), expected, "{addresses:?}");
    }
}

#[tokio::test]
async fn names_and_no_host_lead_to_this_host() {
    let (listener, address) = listener(Ipv4Addr::LOCALHOST).await;
    let port = address.port();
    for (allowed, target) in [
        // In both families, of which one is served or allowed.
        (&[][..], format!("localhost:{port}")),
        (&["127.0.0.1/32"], format!("localhost:{port}")),
        (&[], format!(":{port}")),
    ] {
        let stream = dialer(allowed).dial("tcp", &target).await.unwrap();
        listener.accept().await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
    }
}

/// Returns a listener whose queue is full, with what fills it: the kernel drops further SYNs.
async fn full() -> (Socket, Vec<TcpStream>, SocketAddr) {
    let (socket, address) = closed_port();
    socket.listen(0).unwrap();
    let mut filling = Vec::new();
    for _ in 0..64 {
        let connecting = TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(300), connecting).await {
            Ok(stream) => filling.push(stream.unwrap()),
            Err(_) => return (socket, filling, address),
        }
    }
    panic!("the queue of a listener does not fill");
}

#[tokio::test]
async fn silent_destination_is_given_up_in_time() {
    let (_socket, _filling, address) = full().await;
    let dialer = Dialer::new(DialParams {
        timeout: Duration::from_millis(50),
        ..DialParams::default()
    });
    let error = dialer.dial("tcp", &address.to_string()).await.unwrap_err();
    let expected = format!("dial tcp {address}: i/o timeout");
    assert_eq!(error.to_string(), expected);
    assert!(error.fault.is_timeout());
    assert_eq!(dialer.pending.available_permits(), 1000);
}

#[tokio::test]
async fn dropped_dial_frees_its_slot() {
    let (_socket, _filling, address) = full().await;
    let dialer = Dialer::new(DialParams {
        max_pending: 1,
        ..DialParams::default()
    });
    let address = address.to_string();
    let mut waiting = Box::pin(dialer.dial("tcp", &address));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    let expected = format!("dial tcp {address}: more than 1 dials under way");
    assert_eq!(failure(&dialer, "tcp", &address).await, expected);
    drop(waiting);
    let (_listener, address) = listener(Ipv4Addr::LOCALHOST).await;
    assert!(dialer.dial("tcp", &address.to_string()).await.is_ok());
}

#[tokio::test]
async fn disallowed_address_is_refused() {
    let (_listener, address) = listener(Ipv4Addr::LOCALHOST).await;
    let port = address.port();
    let text = address.to_string();
    assert!(dialer(&["127.0.0.0/8"]).dial("tcp", &text).await.is_ok());
    for disguised in [
        text,
        format!("localhost:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("0.0.0.0:{port}"),
        format!(":{port}"),
        format!("[::]:{port}"),
    ] {
        let dialer = dialer(&["10.0.0.0/8", "0.0.0.0/32"]);
        let error = dialer.dial("tcp", &disguised).await.unwrap_err();
        assert!(matches!(error.fault, DialFault::Forbidden(..)), "{error}");
        let expected = format!(": destination {disguised} is not allowed");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}

#[test]
fn each_dial_begins_at_another_address() {
    let addresses = ["10.0.0.2:1", "[fd00::1]:1", "10.0.0.1:1"].map(|text| text.parse().unwrap());
    let mut chosen = std::collections::BTreeSet::new();
    for first in u64::MAX - 3..u64::MAX {
        // Resolvers may name them in another order each time.
        let mut named = addresses;
        named.rotate_left(usize::try_from(first % 2).unwrap());
        rotate(&mut named, first);
        chosen.insert(named[0]);
    }
    assert_eq!(chosen, addresses.into());
    rotate(&mut [], 7);
}

#[tokio::test]
async fn no_list_applies_to_servers() {
    let (_listener, address) = listener(Ipv4Addr::LOCALHOST).await;
    let dialer = dialer(&["10.0.0.0/8"]);
    let limit = Duration::from_secs(5);
    let dialing = dialer.dial_server("localhost", address.port(), 0, limit);
    assert!(dialing.await.is_ok());
}
