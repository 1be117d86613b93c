//! Which ports sockets get.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use udp::{BufferSizes, bind};

const SIZES: BufferSizes = BufferSizes {
    receive: 4096,
    send: 4096,
};

/// Sockets enough for some of them to meet by chance: 11 pairs among Linux's 28,232 ports.
const MANY: usize = 800;

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("a bound socket").port()
}

#[test]
fn chosen_port_is_not_shared() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let any: SocketAddr = any.parse().unwrap();
        let bound = (0..MANY).map(|_| bind(any, 1, SIZES).unwrap().remove(0));
        let bound: Vec<UdpSocket> = bound.collect();
        let ports: BTreeSet<u16> = bound.iter().map(port).collect();
        assert_eq!(ports.len(), MANY, "{any}");
    }
}

#[test]
fn workers_share_chosen_port() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let workers = bind(any, 2, SIZES).unwrap();
    assert_eq!(port(&workers[0]), port(&workers[1]));
    // Each client belongs to one of them, and each of them has some.
    let limit = Duration::from_secs(10);
    for worker in &workers {
        testkit::wait::until("a client of the worker", limit, || {
            let client = UdpSocket::bind(any).unwrap();
            let gateway = worker.local_addr().unwrap();
            client.send_to(b"a", gateway).unwrap();
            worker.recv(&mut [0]).is_ok()
        })
        .unwrap();
    }
}

#[test]
fn taken_ipv6_port_is_not_bound_for_ipv4_alone() {
    let other = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
    other.set_only_v6(true).unwrap();
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    other.bind(&any.into()).unwrap();
    let taken = port(&UdpSocket::from(other.try_clone().unwrap()));
    let error = bind((Ipv6Addr::UNSPECIFIED, taken).into(), 1, SIZES).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}
