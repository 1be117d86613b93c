//! What the shoot's side may not do: reach the seed.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use testkit::inject::{Injector, Payload, packet};
use testkit::netns::End;
use testkit::tunnel_world::{LIMIT, Params, Part};
use testkit::wait;

use crate::world::{Hearing, OPENING, converse, dropped, start, wait_dropped};

#[test]
fn shoot_cannot_reach_server_sockets() {
    let (world, _echo) = start(Params::default());
    let before = dropped(&world, 0, OPENING);
    let addresses = ["192.168.123.1", "fd8f:6d53:b97a:1::1"].map(|own| own.parse().unwrap());
    let ports = [9443, 1194, 15000];
    let all = addresses.map(|own: IpAddr| ports.map(|port| SocketAddr::new(own, port)));
    for (number, addr) in all.into_iter().flatten().enumerate() {
        // Ends before the first retransmission, so that each attempt is one packet.
        let limit = Duration::from_millis(500);
        let connect = || TcpStream::connect_timeout(&addr, limit);
        let outcome = world.namespace(Part::Client(0)).run(connect).unwrap();
        // Not even a refusal comes back: that would be a scanner's answer too.
        let error = outcome.expect_err("a server's socket");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{addr}: {error}");
        wait_dropped(&world, 0, OPENING, before + number as f64);
    }
    converse(&world, 0);
}

#[test]
fn made_up_packets_of_the_shoot_go_nowhere() {
    let (world, _echo) = start(Params::default());
    let end = End {
        namespace: world.namespace(Part::Client(0)),
        device: "stray",
    };
    let injector = Injector::new(end).unwrap();
    let server = world.namespace(Part::Server(0));
    let hearing = Hearing::bind(server);
    let payload = Payload::Udp {
        from: 53,
        to: Hearing::PORT,
        data: b"stray",
    };
    for (source, destination, reason) in [
        // Another client's inner address, the server's own, a stranger's, a pod's.
        ("192.168.123.65", "192.168.123.1", "source"),
        ("192.168.123.1", "192.168.123.1", "source"),
        ("203.0.113.77", "192.168.123.1", "source"),
        ("fd8f:6d53:b97a:1::b:1", "fd8f:6d53:b97a:1::1", "source"),
        ("100.96.0.11", "192.168.123.1", "filter_no_flow"),
    ] {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let before = dropped(&world, 0, reason);
        let made = packet(source, destination, payload).unwrap();
        injector.send(&made).unwrap();
        wait_dropped(&world, 0, reason, before);
    }
    hearing.expect_nothing();
    converse(&world, 0);
}

#[test]
fn junk_datagrams_are_harmless() {
    let (world, _echo) = start(Params {
        transport: "udp",
        ..Params::default()
    });
    let held = crate::world::hold(&world, 0);
    held.begin_anew();
    let bind = || std::net::UdpSocket::bind("198.51.100.10:0");
    let socket = world.namespace(Part::Client(0)).run(bind).unwrap().unwrap();
    let gateway: SocketAddr = "203.0.113.1:51820".parse().unwrap();
    let dropped = || {
        let name = "rhizome_wireguard_dropped_total";
        world.metric(Part::Gateway, name, &[]).unwrap_or_default()
    };
    let before = dropped();
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
    // All but what a full socket buffer has lost.
    wait::until("the junk to be dropped", LIMIT, || {
        dropped() >= before + 1_900.0
    })
    .unwrap();
    crate::world::lived(&held, "junk at the gateway", crate::world::NOTICED);
    converse(&world, 0);
}
