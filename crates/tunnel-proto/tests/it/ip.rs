//! Headers and checksums.

use proptest::prelude::*;
use tunnel_proto::ip::checksum::{Sum, checksum, update, update_bytes};
use tunnel_proto::ip::transport::{Icmp, Tcp, Udp, checksum_is_right, flags};
use tunnel_proto::ip::{Header, IpError, Version, mss};

use super::packets::{self, Segment, naive_checksum, tcp, udp};

#[test]
fn checksum_of_the_rfc_example() {
    // RFC 1071 §3: 00 01 f2 03 f4 f5 f6 f7 sums to ddf2.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::default().bytes(&bytes).partial(), 0xddf2);
    assert_eq!(checksum(&bytes), !0xddf2);
    assert_eq!(checksum(&[]), 0xffff);
    assert_eq!(checksum(&[0x12]), !0x1200);
}

#[test]
fn incremental_update_of_the_rfc_example() {
    // RFC 1624 §4: checksum dd2f, a field changes from 5555 to 3285; the sum of the rest stays.
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    assert_eq!(update_bytes(0xdd2f, &[0x55, 0x55], &[0x32, 0x85]), 0x0000);
}

#[test]
fn parts_of_a_v4_header_are_found() {
    let packet = tcp(
        "10.0.0.1",
        "10.9.8.7",
        (443, 50_000),
        Segment {
            seq: 1,
            ack: 2,
            flags: flags::ACK | flags::PSH,
            options: &[1, 1, 1, 0],
            payload: b"data",
        },
    );
    let padded = [&packet[..], &[0; 12]].concat();
    let header = Header::parse(&padded).unwrap();
    assert_eq!(header.version, Version::V4);
    assert_eq!(header.src.to_string(), "10.0.0.1");
    assert_eq!(header.dst.to_string(), "10.9.8.7");
    assert_eq!(
        (header.protocol, header.transport, header.total_len),
        (6, 20, 48)
    );
    let view = Tcp::new(header.segment(&padded)).unwrap();
    assert_eq!((view.seq(), view.flags(), view.header_len()), (1, 0x18, 24));
    assert_eq!(view.payload, b"data");
    assert!(checksum_is_right(&header, &padded));
    let mut broken = padded;
    broken[30] ^= 4;
    assert!(!checksum_is_right(&header, &broken));
}

#[test]
fn v6_extension_headers_are_stepped_over() {
    let plain = udp("fd00::1", "fd00::2", (53, 9), b"answer");
    let hop_by_hop_destination_auth = [
        &[60, 0, 1, 4, 0, 0, 0, 0][..],          // hop-by-hop, 8 bytes
        &[51, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0], // destination options, first 12 of 16 bytes
        &[0, 0, 0, 0],
        &[17, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0], // authentication, 16 bytes
    ];
    let packet = packets::extended(&plain, 0, &hop_by_hop_destination_auth.concat());
    let header = Header::parse(&packet).unwrap();
    assert_eq!((header.protocol, header.transport), (17, 80));
    assert!(checksum_is_right(&header, &packet));
    assert_eq!(
        Udp::new(header.segment(&packet)).unwrap().payload,
        b"answer"
    );
    assert!(!header.source_routed && header.fragment.is_none());
}

#[test]
fn too_many_extension_headers_are_refused() {
    let plain = udp("fd00::1", "fd00::2", (53, 9), b"");
    for (count, ok) in [(8, true), (9, false)] {
        let mut extensions = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        extensions[(count - 1) * 8] = 17;
        let packet = packets::extended(&plain, 60, &extensions);
        let expected = if ok { Ok(17) } else { Err(IpError::Extensions) };
        assert_eq!(
            Header::parse(&packet).map(|header| header.protocol),
            expected
        );
    }
}

#[test]
fn fragments_are_told_from_whole_packets() {
    for (src, dst, start) in [("10.0.0.1", "10.0.0.2", 20), ("fd00::1", "fd00::2", 48)] {
        let packet = udp(src, dst, (1, 2), &[5; 100]);
        let parts = packets::fragments(&packet, 48);
        let found: Vec<_> = parts
            .iter()
            .map(|part| {
                let header = Header::parse(part).unwrap();
                let fragment = header.fragment.unwrap();
                assert_eq!(
                    (fragment.data_at, header.transport, header.protocol),
                    (start, start, 17)
                );
                (
                    fragment.offset,
                    fragment.more,
                    header.has_transport_header(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [(0, true, true), (48, true, false), (96, false, false)]
        );
    }
    let atomic = packets::extended(
        &udp("fd00::1", "fd00::2", (1, 2), b""),
        44,
        &[17, 0, 0, 0, 0, 0, 0, 1],
    );
    assert_eq!(Header::parse(&atomic).unwrap().fragment, None);
}

#[test]
fn source_routes_are_noticed() {
    let packet = udp("10.0.0.1", "10.0.0.2", (1, 2), b"");
    for (options, routed) in [
        ([1, 1, 1, 0], false),
        ([7, 4, 4, 0], false),   // record route
        ([131, 3, 4, 0], true),  // loose
        ([1, 137, 3, 4], true),  // strict
        ([0, 131, 3, 4], false), // behind the end
        ([7, 1, 0, 0], true),    // cannot be read
        ([7, 40, 0, 0], true),
    ] {
        let mut with = packet[..20].to_vec();
        with[0] = 0x46;
        with[3] += 4;
        with.extend(options);
        with.extend(&packet[20..]);
        assert_eq!(
            Header::parse(&with).unwrap().source_routed,
            routed,
            "{options:?}"
        );
    }
    let plain = udp("fd00::1", "fd00::2", (1, 2), b"");
    for (left, routed) in [(0, false), (1, true)] {
        let mut routing = vec![17, 2, 0, left];
        routing.extend([0; 20]);
        let packet = packets::extended(&plain, 43, &routing);
        assert_eq!(Header::parse(&packet).unwrap().source_routed, routed);
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let packet = udp("10.0.0.1", "10.0.0.2", (1, 2), b"abc");
    for len in 0..packet.len() {
        assert_eq!(Header::parse(&packet[..len]), Err(IpError::Length), "{len}");
    }
    assert!(Header::parse_quoted(&packet[..20]).is_ok());
    let mut short_header = packet.clone();
    short_header[0] = 0x44;
    assert_eq!(Header::parse(&short_header), Err(IpError::Length));
    assert_eq!(Header::parse(&[0x50; 40]), Err(IpError::Version));
    let v6 = udp("fd00::1", "fd00::2", (1, 2), b"abc");
    for len in 0..v6.len() {
        assert_eq!(Header::parse(&v6[..len]), Err(IpError::Length), "{len}");
    }
    let mut segment = packet[20..].to_vec();
    segment[5] = 7; // a UDP length shorter than its header
    assert!(Udp::new(&segment).is_none());
    assert!(Tcp::new(&[0; 20]).is_none()); // a header of no words
    assert!(Icmp::new(&[8; 7]).is_none());
}

fn syn(src: &str, dst: &str, options: &[u8]) -> Vec<u8> {
    let flags = flags::SYN;
    tcp(
        src,
        dst,
        (1, 2),
        Segment {
            flags,
            options,
            ..Segment::default()
        },
    )
}

#[test]
fn segment_size_is_lowered_and_never_raised() {
    for (src, dst, overhead) in [("10.0.0.1", "10.0.0.2", 40), ("fd00::1", "fd00::2", 60)] {
        let mut packet = syn(src, dst, &[2, 4, 0x23, 0, 1, 3, 3, 7]);
        let header = Header::parse(&packet).unwrap();
        assert_eq!(mss::clamp(&header, &mut packet, 1420), Some(0x2300));
        assert!(checksum_is_right(&header, &packet));
        let at = header.transport + 22;
        let lowered = u16::from_be_bytes([packet[at], packet[at + 1]]);
        assert_eq!(lowered, 1420 - overhead);
        assert_eq!(mss::clamp(&header, &mut packet, 1500), None);
    }
}

#[test]
fn mss_at_odd_offset_keeps_checksum_right() {
    let mut packet = syn("10.0.0.1", "10.0.0.2", &[1, 2, 4, 5, 0xb4, 1, 1, 0]);
    let header = Header::parse(&packet).unwrap();
    assert_eq!(mss::clamp(&header, &mut packet, 1280), Some(1460));
    assert_eq!(packet[43..45], 1240_u16.to_be_bytes());
    assert!(checksum_is_right(&header, &packet));
}

#[test]
fn only_a_readable_syn_is_changed() {
    let options = [2, 4, 0x23, 0];
    let data = Segment {
        flags: flags::ACK,
        options: &options,
        ..Segment::default()
    };
    for mut packet in [
        tcp("10.0.0.1", "10.0.0.2", (1, 2), data),
        syn("10.0.0.1", "10.0.0.2", &[3, 0, 2, 4, 0x23, 0, 0, 0]), // an option without length
        syn("10.0.0.1", "10.0.0.2", &[0, 2, 4, 0x23]),             // behind the end
        syn("10.0.0.1", "10.0.0.2", &[1, 1, 2, 4]),                // cut off
        syn("10.0.0.1", "10.0.0.2", &[]),
    ] {
        let header = Header::parse(&packet).unwrap();
        let before = packet.clone();
        assert_eq!(mss::clamp(&header, &mut packet, 1280), None);
        assert_eq!(packet, before);
    }
}

proptest! {
    #[test]
    fn checksum_agrees_with_the_slow_one(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        cut in any::<prop::sample::Index>(),
    ) {
        prop_assert_eq!(checksum(&bytes), naive_checksum(&bytes));
        let even = cut.index(bytes.len() + 1) & !1;
        let parts = Sum::default().bytes(&bytes[..even]).bytes(&bytes[even..]);
        prop_assert_eq!(parts.checksum(), naive_checksum(&bytes));
    }

    #[test]
    fn update_agrees_with_a_new_sum(
        mut bytes in prop::collection::vec(any::<u8>(), 16..64),
        new in any::<[u8; 8]>(),
        at in 0_usize..4,
    ) {
        let at = at * 2;
        bytes[14] |= 1; // a packet has at least one byte that is not zero
        let before = checksum(&bytes);
        let old: Vec<u8> = bytes[at..at + 8].to_vec();
        bytes[at..at + 8].copy_from_slice(&new);
        prop_assert_eq!(update_bytes(before, &old, &new), checksum(&bytes));
    }
}
