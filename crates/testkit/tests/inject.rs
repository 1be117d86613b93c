//! Packets that are made up, as a namespace takes them.
#![cfg(feature = "netns-tests")]

use std::net::UdpSocket;
use std::time::Duration;

use testkit::inject::{Injector, Payload, packet};
use testkit::netns::Namespace;

#[test]
fn a_made_up_datagram_arrives_from_whom_it_names() {
    let namespace = Namespace::new("inject").unwrap();
    let end = namespace.end("stray");
    let injector = Injector::new(end).unwrap();
    for (number, local) in ["192.0.2.1", "2001:db8::1"].into_iter().enumerate() {
        let cidr = format!("{local}/{}", [24, 64][number]);
        namespace.add_address("stray", &cidr).unwrap();
        let local = local.parse().unwrap();
        let bind = || UdpSocket::bind((local, 4000)).unwrap();
        let socket = namespace.run(bind).unwrap();
        let limit = Some(Duration::from_secs(20));
        socket.set_read_timeout(limit).unwrap();
        let forged = ["198.51.100.7", "2001:db8:7::7"][number].parse().unwrap();
        let payload = Payload::Udp {
            from: 7,
            to: 4000,
            data: b"stray",
        };
        injector
            .send(&packet(forged, local, payload).unwrap())
            .unwrap();
        let (length, from) = socket.recv_from(&mut [0; 9]).unwrap();
        assert_eq!((length, from.ip()), (5, forged));
    }
}
