//! A bad line between two namespaces, as the sockets at its ends see it.
#![cfg(feature = "netns-tests")]
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails where its step fails"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use testkit::impair::{BlackHole, Direction, Impairment, Link};
use testkit::netns::{End, Namespace};
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

const LIMIT: Duration = Duration::from_secs(20);

/// Two namespaces with a line between them.
struct World {
    left: Namespace,
    right: Namespace,
    link: Link,
}

impl World {
    fn new() -> Self {
        let left = Namespace::new("left").unwrap();
        let right = Namespace::new("right").unwrap();
        let end = |namespace| End {
            namespace,
            device: "line",
        };
        let link = Link::lay(end(&left), end(&right), 1500, 1).unwrap();
        for (namespace, number) in [(&left, 1), (&right, 2)] {
            for cidr in [
                format!("192.0.2.{number}/24"),
                format!("2001:db8::{number}/64"),
            ] {
                namespace.add_address("line", &cidr).unwrap();
            }
        }
        Self { left, right, link }
    }

    fn udp(&self) -> (UdpSocket, UdpSocket) {
        let bind = |addr: &str| {
            let socket = UdpSocket::bind(addr).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket
        };
        let left = self.left.run(|| bind("192.0.2.1:4000")).unwrap();
        let right = self.right.run(|| bind("192.0.2.2:4000")).unwrap();
        left.connect("192.0.2.2:4000").unwrap();
        right.connect("192.0.2.1:4000").unwrap();
        (left, right)
    }

    fn echo(&self, addr: &str) -> (Upstream, TcpStream) {
        let listener = self.right.run(|| TcpListener::bind(addr)).unwrap().unwrap();
        let upstream = Upstream::serve(listener, Behavior::Echo).unwrap();
        let stream = self.left.run(|| TcpStream::connect(addr)).unwrap().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (upstream, stream)
    }
}

fn round_trip(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn a_long_line_takes_its_time_both_ways() {
    let world = World::new();
    world
        .link
        .set_both(Impairment::long(Duration::from_millis(25), 0.0));
    for addr in ["192.0.2.2:5000", "[2001:db8::2]:5000"] {
        let (_upstream, mut stream) = world.echo(addr);
        let clock = Stopwatch::start();
        round_trip(&mut stream);
        let took = clock.elapsed();
        assert!(took >= Duration::from_millis(50), "{took:?}");
    }
}

#[test]
fn connections_survive_impaired_line() {
    let world = World::new();
    let (_upstream, mut stream) = world.echo("192.0.2.2:5000");
    world.link.set_both(Impairment {
        loss: 0.02,
        duplicate: 0.05,
        reorder: 0.05,
        ..Impairment::default()
    });
    let sent: Vec<u8> = (0..500_000_u32).map(|number| number as u8).collect();
    let mut back = vec![0; sent.len()];
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || writer.write_all(sent).unwrap());
        stream.read_exact(&mut back).unwrap();
    });
    assert!(sent == back, "the bytes are others than were sent");
    for direction in Direction::BOTH {
        assert!(world.link.counts(direction).lost > 0);
    }
}

#[test]
fn udp_black_hole_spares_tcp() {
    let world = World::new();
    let (_upstream, mut stream) = world.echo("192.0.2.2:5000");
    let (left, right) = world.udp();
    left.send(b"before").unwrap();
    assert_eq!(right.recv(&mut [0; 9]).unwrap(), 6);

    let hole = Impairment::swallowing(BlackHole::Udp);
    world.link.set(Direction::Forth, hole);
    assert_eq!(world.link.impairment(Direction::Forth), hole);
    wait::until("a datagram to be swallowed", LIMIT, || {
        left.send(b"into the hole").unwrap();
        world.link.counts(Direction::Forth).swallowed > 0
    })
    .unwrap();
    right.send(b"back").unwrap();
    assert_eq!(left.recv(&mut [0; 9]).unwrap(), 4);
    round_trip(&mut stream);

    world.link.set_both(Impairment::default());
    right
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    wait::until("the hole to be closed", LIMIT, || {
        left.send(b"after").unwrap();
        let mut received = [0; 20];
        match right.recv(&mut received) {
            Ok(length) => &received[..length] == b"after",
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    })
    .unwrap();
}

#[test]
fn a_narrow_line_that_tells_is_fitted_by_tcp() {
    let world = World::new();
    for addr in ["192.0.2.2:5000", "[2001:db8::2]:5000"] {
        let (_upstream, mut stream) = world.echo(addr);
        world.link.set_both(Impairment {
            largest: Some(1300),
            tells: true,
            ..Impairment::default()
        });
        let sent = vec![7; 50_000];
        let mut back = vec![0; sent.len()];
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert!(world.link.counts(Direction::Forth).too_large > 0);
        world.link.set_both(Impairment::default());
    }
}

#[test]
fn a_line_goes_with_its_value() {
    let world = World::new();
    assert!(world.left.ip(&["link", "show", "line"]).is_ok());
    drop(world.link);
    for namespace in [&world.left, &world.right] {
        // A child of another test that has not yet become its program holds the device meanwhile.
        wait::until("the device to go", LIMIT, || {
            namespace.ip(&["link", "show", "line"]).is_err()
        })
        .unwrap();
    }
}
