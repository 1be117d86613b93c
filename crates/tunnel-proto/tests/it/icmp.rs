//! Messages the tunnel makes itself.

use std::net::IpAddr;

use tunnel_proto::ip::icmp::{MAX_ERROR_LEN, echo_request, make_echo_reply, packet_too_big};
use tunnel_proto::ip::transport::{Icmp, checksum_is_right};
use tunnel_proto::ip::{Header, Version};

use super::packets::{fragments, icmp, naive_checksum, udp};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn too_big(packet: &[u8], from: &str) -> Option<Vec<u8>> {
    let header = Header::parse(packet).unwrap_or_else(|error| panic!("{error}"));
    let mut out = vec![0xee; MAX_ERROR_LEN];
    let len = packet_too_big(&header, packet, 1280, address(from), &mut out)?;
    out.truncate(len);
    Some(out)
}

/// Header and message, both checksums verified.
fn read(packet: &[u8]) -> (Header, Icmp<'_>) {
    let header = Header::parse(packet).unwrap();
    match header.version {
        Version::V4 => {
            assert_eq!(naive_checksum(&packet[..20]), 0);
            assert_eq!(naive_checksum(&packet[20..]), 0);
        }
        Version::V6 => assert!(checksum_is_right(&header, packet)),
    }
    (header, Icmp::new(header.segment(packet)).unwrap())
}

#[test]
fn v4_error_has_size_and_start_of_packet() {
    let packet = udp("10.0.0.1", "10.9.9.9", (1, 2), &[7; 1400]);
    let error = too_big(&packet, "192.168.123.1").unwrap();
    let (header, message) = read(&error);
    assert_eq!(error.len(), 576);
    assert_eq!(header.src, address("192.168.123.1"));
    assert_eq!(header.dst, address("10.0.0.1"));
    assert_eq!((message.kind, message.code), (3, 4));
    assert_eq!(message.rest, [0, 0, 5, 0]);
    assert_eq!(message.body, &packet[..548]);
}

#[test]
fn v6_packet_is_answered_within_the_least_mtu() {
    let packet = udp("fd00::1", "fd00::9", (1, 2), &[7; 1400]);
    let error = too_big(&packet, "fd00::ffff").unwrap();
    let (header, message) = read(&error);
    assert_eq!(error.len(), 1280);
    assert_eq!(header.dst, address("fd00::1"));
    assert_eq!((message.kind, message.code), (2, 0));
    assert_eq!(message.rest, [0, 0, 5, 0]);
    assert_eq!(message.body, &packet[..1232]);
}

#[test]
fn errors_never_answer_errors_groups_fragments() {
    let not_for = |packet: &[u8], from: &str| assert_eq!(too_big(packet, from), None);
    let (v4, v6) = ("10.0.0.9", "fd00::9");
    not_for(&icmp("10.0.0.1", "10.0.0.2", 3, 4, [0; 4], &[0; 28]), v4);
    not_for(&icmp("fd00::1", "fd00::2", 2, 0, [0; 4], &[0; 48]), v6);
    not_for(&udp("10.0.0.1", "224.0.0.5", (1, 2), b""), v4);
    not_for(&udp("fd00::1", "ff02::1", (1, 2), b""), v6);
    not_for(&udp("0.0.0.0", "10.0.0.2", (1, 2), b""), v4);
    for part in fragments(&udp("fd00::1", "fd00::2", (1, 2), &[1; 90]), 48)
        .iter()
        .skip(1)
    {
        not_for(part, v6);
    }
    let mut may_be_cut = udp("10.0.0.1", "10.0.0.2", (1, 2), b"");
    may_be_cut[6] = 0;
    not_for(&may_be_cut, v4);
    let echo = icmp("fd00::1", "fd00::2", 128, 0, [0; 4], &[0; 48]);
    assert!(too_big(&echo, v6).is_some());
    assert_eq!(too_big(&echo, v4), None);
    let header = Header::parse(&echo).unwrap();
    let mut out = [0; 40];
    let short = packet_too_big(&header, &echo, 1280, address(v6), &mut out);
    assert_eq!(short, None);
}

#[test]
fn echo_is_made_and_answered_in_place() {
    for (from, to, kinds, total) in [
        ("10.0.0.1", "10.0.0.2", (8, 0), 1420),
        ("fd00::1", "fd00::2", (128, 129), 1420),
    ] {
        let data = total - if from.contains(':') { 48 } else { 28 };
        let mut out = [0xee; 1500];
        let len = echo_request(address(from), address(to), 0x1234, 9, data, &mut out).unwrap();
        assert_eq!(len, total);
        let (header, message) = read(&out[..len]);
        assert_eq!((message.kind, message.rest), (kinds.0, [0x12, 0x34, 0, 9]));
        assert!(make_echo_reply(&header, &mut out));
        let (header, message) = read(&out[..len]);
        assert_eq!((header.src, header.dst), (address(to), address(from)));
        assert_eq!((message.kind, message.rest), (kinds.1, [0x12, 0x34, 0, 9]));
        assert!(
            !make_echo_reply(&header, &mut out),
            "a reply is not answered"
        );
    }
}

#[test]
fn reply_is_made_of_unicast_requests_only() {
    for packet in [
        udp("10.0.0.1", "10.0.0.2", (8, 8), b"12345678"),
        icmp("10.0.0.1", "224.0.0.1", 8, 0, [0; 4], b""),
        icmp("fd00::1", "fd00::2", 8, 0, [0; 4], b""),
        fragments(&icmp("10.0.0.1", "10.0.0.2", 8, 0, [0; 4], &[0; 64]), 40).remove(0),
    ] {
        let mut after = packet.clone();
        assert!(!make_echo_reply(
            &Header::parse(&packet).unwrap(),
            &mut after
        ));
        assert_eq!(after, packet);
    }
}

#[test]
fn echo_that_fits_nowhere_is_refused() {
    let (a, b) = (address("10.0.0.1"), address("10.0.0.2"));
    assert_eq!(echo_request(a, b, 0, 0, 100, &mut [0; 127]), None);
    assert_eq!(echo_request(a, b, 0, 0, 65_508, &mut [0; 70_000]), None);
    assert_eq!(echo_request(a, b, 0, 0, usize::MAX, &mut [0; 100]), None);
    let mixed = echo_request(a, address("fd00::1"), 0, 0, 0, &mut [0; 100]);
    assert_eq!(mixed, None);
}
