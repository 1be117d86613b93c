//! Probes through the tunnel and their answers.

use std::net::IpAddr;

use tunnel_proto::echo::{Echo, ProbeInfo, answer, parse, request};
use tunnel_proto::ip::checksum::checksum;
use tunnel_proto::ip::icmp::{echo_request, make_echo_reply};
use tunnel_proto::ip::transport::checksum_is_right;
use tunnel_proto::ip::{Header, protocol};

const TOLD: ProbeInfo = ProbeInfo {
    active: true,
    draining: false,
    ended: true,
    unsettled: false,
    large: true,
    mtu: 1404,
    flows: 7,
};

fn addresses() -> [(IpAddr, IpAddr); 2] {
    let parse = |text: &str| text.parse().expect("an address");
    [
        (parse("192.168.123.1"), parse("192.168.123.64")),
        (parse("fd00::1"), parse("fd00::b:0")),
    ]
}

fn checksum_right(header: &Header, packet: &[u8]) -> bool {
    match header.protocol {
        protocol::ICMP => checksum(header.segment(packet)) == 0,
        _ => checksum_is_right(header, packet),
    }
}

#[test]
fn probe_arrives_as_written() {
    for pair in addresses() {
        for size in [0, 300, 1280] {
            let mut out = [0; 1500];
            let len = request(pair, 0x1234_5678, TOLD, size, &mut out).expect("room");
            let packet = &out[..len];
            assert!(len == size || size == 0, "{len}");
            let header = Header::parse(packet).expect("a packet");
            assert!(checksum_right(&header, packet));
            assert_eq!(parse(&header, packet), Some(Echo::Request(TOLD)));
        }
    }
}

#[test]
fn answer_carries_id_and_state_of_peer() {
    let other = ProbeInfo {
        active: false,
        draining: true,
        ended: false,
        unsettled: true,
        large: false,
        mtu: 1280,
        flows: 40_000,
    };
    for pair in addresses() {
        let mut out = [0; 1500];
        let len = request(pair, 77, TOLD, 900, &mut out).expect("room");
        let packet = &mut out[..len];
        let header = Header::parse(packet).expect("a packet");
        assert!(answer(&header, packet, other));
        let header = Header::parse(packet).expect("a packet");
        assert_eq!((header.src, header.dst), (pair.1, pair.0));
        assert!(checksum_right(&header, packet));
        let reply = Echo::Reply {
            id: 77,
            info: Some(other),
        };
        assert_eq!(parse(&header, packet), Some(reply));
        assert!(!answer(&header, packet, other), "an answer is not answered");
    }
}

#[test]
fn reflecting_peer_reports_nothing() {
    let mut out = [0; 1500];
    let len = request(addresses()[0], 9, TOLD, 0, &mut out).expect("room");
    let packet = &mut out[..len];
    let header = Header::parse(packet).expect("a packet");
    assert!(make_echo_reply(&header, packet));
    let header = Header::parse(packet).expect("a packet");
    assert_eq!(
        parse(&header, packet),
        Some(Echo::Reply { id: 9, info: None })
    );
}

#[test]
fn other_echoes_and_cut_off_ones_are_no_probes() {
    let mut out = [0; 1500];
    let (from, to) = addresses()[0];
    let len = echo_request(from, to, 1, 2, 56, &mut out).expect("room");
    let header = Header::parse(&out[..len]).expect("a packet");
    assert_eq!(parse(&header, &out[..len]), None);
    let len = echo_request(from, to, 1, 2, 3, &mut out).expect("room");
    let header = Header::parse(&out[..len]).expect("a packet");
    assert_eq!(parse(&header, &out[..len]), None);
}
