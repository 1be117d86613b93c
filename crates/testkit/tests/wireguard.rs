//! Others' WireGuards among themselves: whatever fails here is not our tunnel's fault.
#![cfg(all(feature = "netns-tests", feature = "peer-tests"))]
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails where its step fails"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use testkit::netns::{End, Namespace, cable};
use testkit::peers::wireguard::{KeyPair, Program, Wireguard};
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};

/// One end of a tunnel: `192.0.2.NUMBER` outside, `198.51.100.NUMBER` inside.
struct Side {
    namespace: Namespace,
    wireguard: Wireguard,
    keys: KeyPair,
    number: u8,
}

impl Side {
    fn new(program: Program, number: u8, dir: &TempDir) -> Self {
        let namespace = Namespace::new("wireguard").unwrap();
        let wireguard = program.start(&namespace, dir.path()).unwrap();
        let keys = KeyPair::generate().unwrap();
        let key = dir.write(format!("key-{number}"), &keys.private).unwrap();
        let key = key.to_str().unwrap();
        wireguard
            .set(&["private-key", key, "listen-port", "51820"])
            .unwrap();
        let inside = format!("198.51.100.{number}/24");
        namespace.add_address(wireguard.device(), &inside).unwrap();
        Self {
            namespace,
            wireguard,
            keys,
            number,
        }
    }

    fn outside(&self) -> End<'_> {
        self.namespace.end("eth0")
    }

    fn knows(&self, other: &Self) {
        let endpoint = format!("192.0.2.{}:51820", other.number);
        let allowed = format!("198.51.100.{}/32", other.number);
        let words = [
            "peer",
            &other.keys.public,
            "endpoint",
            &endpoint,
            "allowed-ips",
            &allowed,
        ];
        self.wireguard.set(&words).unwrap();
    }
}

#[test]
fn every_wireguard_talks_to_every_other() {
    for (index, program) in Program::ALL.into_iter().enumerate() {
        for other in &Program::ALL[index..] {
            talk(program, *other);
        }
    }
}

fn talk(one: Program, other: Program) {
    let dir = TempDir::new("wireguard").unwrap();
    let sides = [Side::new(one, 1, &dir), Side::new(other, 2, &dir)];
    let [left, right] = &sides;
    cable(left.outside(), right.outside()).unwrap();
    for side in &sides {
        let outside = format!("192.0.2.{}/24", side.number);
        side.namespace.add_address("eth0", &outside).unwrap();
    }
    left.knows(right);
    right.knows(left);

    let bind = || TcpListener::bind("198.51.100.2:4000");
    let listener = right.namespace.run(bind).unwrap().unwrap();
    let _upstream = Upstream::serve(listener, Behavior::Echo).unwrap();
    let connect = || TcpStream::connect("198.51.100.2:4000");
    let mut stream = left.namespace.run(connect).unwrap().unwrap();
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    stream.write_all(b"through").unwrap();
    stream.read_exact(&mut [0; 7]).unwrap();
}
