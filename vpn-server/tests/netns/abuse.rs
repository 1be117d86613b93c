//! What the shoot's side may not do: reach the seed.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use testkit::inject::{Injector, Payload, packet};
use testkit::netns::End;
use testkit::tunnel_world::{Params, Part, World};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::world::{converse, start};

/// Tries to connect from the client's namespace; `None` when there was no answer.
fn answered(world: &World, addr: SocketAddr) -> Option<ErrorKind> {
    let limit = Duration::from_secs(1);
    let connect = || TcpStream::connect_timeout(&addr, limit);
    let outcome = world.namespace(Part::Client(0)).run(connect).unwrap();
    match outcome.map_err(|error| error.kind()) {
        Ok(_) => panic!("{addr} was reached from the shoot"),
        Err(kind) => (kind == ErrorKind::ConnectionRefused).then_some(kind),
    }
}

#[test]
fn shoot_cannot_reach_server_sockets() {
    let (world, _echo) = start(Params::default());
    for address in ["192.168.123.1", "fd8f:6d53:b97a:1::1"] {
        let address: IpAddr = address.parse().unwrap();
        for port in [9443, 1194, 15000] {
            // Not even a refusal comes back: that would be a scanner's answer too.
            assert_eq!(answered(&world, SocketAddr::new(address, port)), None);
        }
    }
    converse(&world, 0);
}

#[test]
fn shoot_cannot_reach_seed_network() {
    let (world, _echo) = start(Params::default());
    let namespace = world.namespace(Part::Client(0));
    let seed = ["route", "add", "10.0.0.0/16", "dev", "rhizome0"];
    namespace.ip(&seed).unwrap();
    let bind = || std::net::TcpListener::bind("10.0.0.20:7000");
    let listener = world.network.api_server.run(bind).unwrap().unwrap();
    let upstream = Upstream::serve(listener, Behavior::Echo).unwrap();
    for addr in ["10.0.0.20:7000", "10.0.0.11:9443", "10.0.0.2:8132"] {
        assert_eq!(answered(&world, addr.parse().unwrap()), None);
    }
    assert_eq!(upstream.accepted(), 0);
    converse(&world, 0);
}

#[test]
fn made_up_packets_of_the_shoot_go_nowhere() {
    let (world, _echo) = start(Params {
        clients: 2,
        ..Params::default()
    });
    let namespace = world.namespace(Part::Client(0));
    let end = End {
        namespace,
        device: "stray",
    };
    let injector = Injector::new(end).unwrap();
    for prefix in ["10.0.0.0/16", "::ffff:0:0/96"] {
        namespace
            .ip(&["route", "add", prefix, "dev", "rhizome0"])
            .unwrap();
    }
    let bind = || std::net::UdpSocket::bind("[::]:7000");
    let server = world.namespace(Part::Server(0));
    let socket = server.run(bind).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    let payload = Payload::Udp {
        from: 53,
        to: 7000,
        data: b"stray",
    };
    for (source, destination) in [
        // Another client's inner address, a pod's, the server's own, a stranger's.
        ("192.168.123.65", "192.168.123.1"),
        ("100.96.0.11", "192.168.123.1"),
        ("192.168.123.1", "192.168.123.1"),
        ("203.0.113.77", "10.0.0.11"),
        ("fd8f:6d53:b97a:1::b:1", "fd8f:6d53:b97a:1::1"),
        ("fd8f:6d53:b97a:1::b:0", "::ffff:10.0.0.11"),
    ] {
        let made = packet(
            source.parse().unwrap(),
            destination.parse().unwrap(),
            payload,
        );
        injector.send(&made.unwrap()).unwrap();
    }
    // What was sent before has been judged when this connection is through: packets keep their
    // order in the tunnel.
    converse(&world, 0);
    let mut received = [0; 9];
    let error = socket.recv(&mut received).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{received:?}");
}

#[test]
fn replayed_and_junk_datagrams_are_harmless() {
    let (world, _echo) = start(Params {
        transport: "udp",
        ..Params::default()
    });
    let held = crate::world::hold(&world, 0);
    held.begin_anew();
    let bind = || std::net::UdpSocket::bind("198.51.100.10:0");
    let socket = world.namespace(Part::Client(0)).run(bind).unwrap().unwrap();
    let gateway: SocketAddr = "203.0.113.1:51820".parse().unwrap();
    for number in 0..2_000_u32 {
        // The sizes of WireGuard's four kinds, with a server's route id and nonsense behind it.
        let (kind, size) = [(1, 148), (2, 92), (3, 64), (4, 96)][number as usize % 4];
        let mut datagram = vec![number as u8; size];
        datagram[..4].copy_from_slice(&[kind, 0, 0, 17]);
        socket.send_to(&datagram, gateway).unwrap();
        if number % 100 == 0 {
            wait::pause(Duration::from_millis(5));
        }
    }
    crate::world::lived(&held, "junk at the gateway", crate::world::NOTICED);
    converse(&world, 0);
}
