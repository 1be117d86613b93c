//! Datagrams of all sizes, many at once, over IPv4 and IPv6.

use super::peers::{Peer, Server, config, data, data_of, index, numbered, wait_flows};
use crate::support::Gateway;

/// Datagrams that a loopback socket's default buffer holds at once.
const MANY: u8 = 100;

fn round_trips(gateway: &Gateway, server: &Server) {
    let client = Peer::new(gateway);
    for len in [32, 33, 1280, 1452, 1472, 1500, 8972, 9000, 20_000, 65_400] {
        client.send(&data_of(index(1), len, 1));
        let seen = server.receive();
        assert_eq!(seen.client, client.addr());
        assert!(seen.datagram == data_of(index(1), len, 1), "{len} bytes");
        seen.answer(&data_of(7, len, 2));
        assert!(client.receive() == data_of(7, len, 2), "{len} bytes back");
    }
    // Sizes and clients that change within a batch.
    let other = Peer::new(gateway);
    for mark in 0..MANY {
        let len = [1400, 1400, 1400, 32, 700][usize::from(mark) % 5];
        let sender = if mark.is_multiple_of(7) {
            &other
        } else {
            &client
        };
        sender.send(&data_of(index(1), len, mark));
    }
    let mut seen: Vec<_> = (0..MANY).map(|_| server.receive()).collect();
    for own in &seen {
        own.answer(&data_of(7, own.datagram.len(), own.datagram[31]));
    }
    for (peer, share) in [(&other, 15), (&client, 85)] {
        let mut marks: Vec<u8> = (0..share)
            .map(|_| *peer.receive().last().unwrap())
            .collect();
        marks.sort_unstable();
        let own = |mark: &u8| mark.is_multiple_of(7) == (peer.addr() == other.addr());
        assert_eq!(marks, (0..MANY).filter(own).collect::<Vec<u8>>());
    }
    seen.sort_by_key(|own| own.datagram[31]);
    for (mark, own) in (0..MANY).zip(&seen) {
        assert_eq!(own.datagram[31], mark);
    }
    wait_flows(gateway, 2);
}

#[test]
fn any_size_passes_over_ipv4() {
    let server = Server::start();
    let text = config("wireguard: { sourceRate: 100000, sourceBurst: 100000 }\n");
    round_trips(&Gateway::start(&text, &numbered(&[&server])), &server);
}

#[test]
fn any_size_passes_over_ipv6() {
    let server = Server::at("::1");
    let text = config("").replace("127.0.0.1:0", "[::1]:0");
    round_trips(&Gateway::start(&text, &numbered(&[&server])), &server);
}

#[test]
fn both_families_get_answer_from_asked_address() {
    let servers = [Server::start(), Server::at("::1")];
    let text = config("").replace("127.0.0.1:0", "[::]:0");
    let gateway = Gateway::start(&text, &numbered(&[&servers[0], &servers[1]]));
    let port = gateway.addr("wg").port();
    for (local, asked) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.77"),
        ("::1", "::1"),
    ] {
        let asked: std::net::IpAddr = asked.parse().unwrap();
        let client = Peer::at(local, (asked, port).into());
        client.exchange(&servers[0], 1, 1);
        client.exchange(&servers[1], 2, 2);
        // A run of several, which the kernel splits.
        for mark in 0..10 {
            client.send(&data(index(1), mark));
        }
        for mark in 0..10 {
            let seen = servers[0].receive();
            assert_eq!(seen.datagram, data(index(1), mark));
            seen.answer(&data(7, mark));
            assert_eq!(client.receive(), data(7, mark));
        }
    }
}
