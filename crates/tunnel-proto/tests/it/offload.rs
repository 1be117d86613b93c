//! Super-packets: cut, joined, and both.

use proptest::prelude::*;
use tunnel_proto::ip::Header;
use tunnel_proto::ip::coalesce::Coalescer;
use tunnel_proto::ip::segment::Segments;
use tunnel_proto::ip::transport::{Tcp, checksum_is_right, flags};
use tunnel_proto::ip::vnet::{Gso, OffloadError, VnetHeader};

use super::packets::{Segment, fragments, naive_checksum, pseudo_header, tcp, udp};

const ADDRESSES: [(&str, &str); 2] = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];

/// What a kernel hands over: the packet with the sum of its pseudo-header where the checksum goes.
fn as_super(mut packet: Vec<u8>, gso_size: u16) -> (VnetHeader, Vec<u8>) {
    let header = Header::parse(&packet).unwrap();
    let tcp = header.protocol == 6;
    let csum_offset = if tcp { 16 } else { 6 };
    let len = packet.len() - header.transport;
    let covered = pseudo_header(header.src, header.dst, header.protocol, len);
    let at = header.transport + csum_offset;
    packet[at..at + 2].copy_from_slice(&(!naive_checksum(&covered)).to_be_bytes());
    let gso = match (tcp, header.transport) {
        (false, _) => Gso::Udp,
        (true, 20) => Gso::TcpV4,
        (true, _) => Gso::TcpV6,
    };
    let vnet = VnetHeader {
        needs_csum: true,
        gso,
        hdr_len: 9999, // not to be trusted
        gso_size,
        csum_start: header.transport as u16,
        csum_offset: csum_offset as u16,
    };
    (vnet, packet)
}

fn cut(vnet: &VnetHeader, mut packet: Vec<u8>) -> Vec<Vec<u8>> {
    let mut segments = Segments::new(vnet, &mut packet).unwrap();
    let mut out = Vec::new();
    let most = segments.max_len();
    while let Some(segment) = segments.next() {
        assert!(segment.len() <= most);
        out.push(segment.to_vec());
        segment.fill(0xee); // the packet is the caller's until the next
    }
    assert!(segments.next().is_none());
    out
}

/// Joins a batch and writes out each group, as a TUN device would be given it.
fn join(batch: &[Vec<u8>]) -> Vec<(VnetHeader, Vec<u8>)> {
    let mut coalescer = Coalescer::new();
    coalescer.push(&[0x99; 30]);
    coalescer.clear();
    batch.iter().for_each(|packet| coalescer.push(packet));
    let write = |group: tunnel_proto::ip::coalesce::GroupRef<'_>| {
        let mut packet = batch[group.head()].clone();
        let vnet = group.finish(&mut packet);
        let members: Vec<_> = group.members().collect();
        assert_eq!(members.len() + 1, group.packets());
        for (index, data_at) in members {
            packet.extend(&batch[index][data_at..]);
        }
        (vnet, packet)
    };
    coalescer.groups().map(write).collect()
}

fn verify(packet: &[u8]) {
    let header = Header::parse(packet).unwrap();
    assert_eq!(header.total_len, packet.len());
    assert!(checksum_is_right(&header, packet));
    assert!(header.transport != 20 || naive_checksum(&packet[..20]) == 0);
}

#[test]
fn tcp_super_packet_becomes_finished_segments() {
    let payload: Vec<u8> = (0..2500_u32).map(|i| i as u8).collect();
    for (src, dst) in ADDRESSES {
        let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let packet = tcp(
            src,
            dst,
            (1, 2),
            Segment {
                seq: u32::MAX - 999,
                ack: 5,
                flags: flags::ACK | flags::PSH | flags::FIN | flags::CWR,
                options: &options,
                payload: &payload,
            },
        );
        let (vnet, packet) = as_super(packet, 1000);
        let segments = cut(&vnet, packet);
        assert_eq!(segments.len(), 3);
        let mut data: Vec<u8> = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            verify(segment);
            let header = Header::parse(segment).unwrap();
            let view = Tcp::new(header.segment(segment)).unwrap();
            let start = (u32::MAX - 999).wrapping_add(1000 * index as u32);
            assert_eq!((view.seq(), view.options), (start, &options[..]));
            assert_eq!(header.segment(segment)[8..12], [0, 0, 0, 5]);
            let expected = match index {
                0 => flags::ACK | flags::CWR,
                1 => flags::ACK,
                _ => flags::ACK | flags::PSH | flags::FIN,
            };
            assert_eq!(view.flags(), expected);
            if header.transport == 20 {
                assert_eq!(segment[4..6], (7 + index as u16).to_be_bytes());
            }
            data.extend(view.payload);
        }
        assert_eq!(data, payload);
    }
}

#[test]
fn udp_super_packet_is_cut_into_datagrams() {
    for (src, dst) in ADDRESSES {
        let (vnet, packet) = as_super(udp(src, dst, (1, 2), &[9; 1300]), 600);
        let segments = cut(&vnet, packet);
        let lens = [600, 600, 100];
        assert_eq!(segments.len(), 3);
        for (segment, len) in segments.iter().zip(lens) {
            verify(segment);
            assert_eq!(
                segment,
                &tcp_id(udp(src, dst, (1, 2), &vec![9; len]), segment)
            );
        }
    }
}

/// The packet with the identification of `other`.
fn tcp_id(mut packet: Vec<u8>, other: &[u8]) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[4..6].copy_from_slice(&other[4..6]);
        packet[10..12].copy_from_slice(&[0, 0]);
        let sum = naive_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

#[test]
fn ordinary_packet_is_finished_and_returned_once() {
    let whole = udp("fd00::1", "fd00::2", (1, 2), b"question");
    let (vnet, packet) = as_super(whole.clone(), 0);
    let vnet = VnetHeader {
        gso: Gso::None,
        ..vnet
    };
    assert_eq!(cut(&vnet, packet), std::slice::from_ref(&whole));
    assert_eq!(cut(&VnetHeader::default(), whole.clone()), [whole]);
    assert_eq!(cut(&VnetHeader::default(), Vec::new()), [[0; 0]; 0]);
}

#[test]
fn udp_checksum_is_never_zero() {
    // Two bytes that bring the sum to ffff, so that its complement would be zero.
    let mut payload = [0, 0];
    let zero = udp("10.0.0.1", "10.0.0.2", (1, 2), &payload);
    payload.copy_from_slice(&zero[26..28]);
    let whole = udp("10.0.0.1", "10.0.0.2", (1, 2), &payload);
    assert_eq!(whole[26..28], [0xff, 0xff]);
    let (vnet, packet) = as_super(whole.clone(), 100);
    assert_eq!(cut(&vnet, packet.clone()), std::slice::from_ref(&whole));
    let vnet = VnetHeader {
        gso: Gso::None,
        ..vnet
    };
    assert_eq!(cut(&vnet, packet), [whole]);
}

#[test]
fn offload_headers_that_lie_are_refused() {
    let segment = Segment {
        flags: flags::ACK,
        payload: &[1; 99],
        ..Segment::default()
    };
    let (vnet, packet) = as_super(tcp("10.0.0.1", "10.0.0.2", (1, 2), segment), 10);
    let check = |vnet: VnetHeader, packet: &[u8], error| {
        let found = Segments::new(&vnet, &mut packet.to_vec()).map(|_| ());
        assert_eq!(found, Err(error), "{vnet:?}");
    };
    check(
        VnetHeader {
            gso: Gso::TcpV6,
            ..vnet
        },
        &packet,
        OffloadError::Mismatch,
    );
    check(
        VnetHeader {
            gso: Gso::Udp,
            ..vnet
        },
        &packet,
        OffloadError::Mismatch,
    );
    check(
        VnetHeader {
            gso_size: 0,
            ..vnet
        },
        &packet,
        OffloadError::Mismatch,
    );
    check(
        VnetHeader {
            csum_start: 21,
            ..vnet
        },
        &packet,
        OffloadError::Checksum,
    );
    check(
        VnetHeader {
            csum_offset: 6,
            ..vnet
        },
        &packet,
        OffloadError::Checksum,
    );
    check(
        VnetHeader {
            needs_csum: false,
            ..vnet
        },
        &packet,
        OffloadError::Checksum,
    );
    check(vnet, &packet[..40], OffloadError::Mismatch);
    check(vnet, &packet[..30], OffloadError::Mismatch);
    let beyond = VnetHeader {
        gso: Gso::None,
        csum_start: 138,
        csum_offset: 2,
        ..vnet
    };
    check(beyond, &packet, OffloadError::Checksum);
    check(
        VnetHeader {
            csum_start: 65_535,
            ..beyond
        },
        &packet,
        OffloadError::Checksum,
    );
}

#[test]
fn vnet_header_comes_back_as_it_went() {
    for gso in [Gso::None, Gso::TcpV4, Gso::TcpV6, Gso::Udp] {
        let header = VnetHeader {
            needs_csum: gso != Gso::None,
            gso,
            hdr_len: 54,
            gso_size: 1360,
            csum_start: 20,
            csum_offset: 16,
        };
        assert_eq!(VnetHeader::parse(&header.encode()), Ok(header));
    }
    let ecn = [1, 0x81, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(VnetHeader::parse(&ecn).unwrap().gso, Gso::TcpV4);
    let fragmentation = VnetHeader::parse(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fragmentation, Err(OffloadError::Kind(3)));
    assert_eq!(VnetHeader::parse(&[0; 9]), Err(OffloadError::Short));
}

/// Data of one flow, from `seq` on.
fn data(seq: u32, len: usize, flags: u8) -> Vec<u8> {
    let payload = vec![seq as u8; len];
    let flags = flags | flags::ACK;
    let segment = Segment {
        seq,
        flags,
        payload: &payload,
        ..Segment::default()
    };
    tcp("10.0.0.1", "10.0.0.2", (1, 2), segment)
}

fn sizes(batch: &[Vec<u8>]) -> Vec<usize> {
    let mut coalescer = Coalescer::new();
    batch.iter().for_each(|packet| coalescer.push(packet));
    coalescer.groups().map(|group| group.packets()).collect()
}

#[test]
fn short_push_or_fin_packet_ends_its_group() {
    let psh = flags::PSH;
    assert_eq!(
        sizes(&[data(0, 100, 0), data(100, 100, 0), data(200, 50, 0)]),
        [3]
    );
    assert_eq!(
        sizes(&[data(0, 100, 0), data(100, 50, 0), data(150, 50, 0)]),
        [2, 1]
    );
    assert_eq!(
        sizes(&[data(0, 100, 0), data(100, 100, psh), data(200, 100, 0)]),
        [2, 1]
    );
    assert_eq!(sizes(&[data(0, 100, psh), data(100, 100, 0)]), [1, 1]);
    assert_eq!(sizes(&[data(0, 100, 0), data(100, 100, flags::FIN)]), [2]);
    assert_eq!(sizes(&[data(0, 50, 0), data(50, 100, 0)]), [1, 1]);
}

#[test]
fn packets_keep_order_within_flow() {
    let ack = data(100, 0, 0);
    assert_eq!(sizes(&[data(0, 100, 0), ack, data(100, 100, 0)]), [1, 1, 1]);
    assert_eq!(
        sizes(&[data(0, 100, 0), data(200, 100, 0), data(100, 100, 0)]),
        [1, 1, 1]
    );
    assert_eq!(sizes(&[data(0, 100, 0), data(0, 100, 0)]), [1, 1]);
    let fragment = fragments(&data(9, 100, 0), 80).remove(1);
    assert_eq!(
        sizes(&[data(0, 100, 0), fragment, data(100, 100, 0)]),
        [1, 1, 1]
    );
}

#[test]
fn flows_are_joined_independently() {
    let other = |seq| {
        let segment = Segment {
            seq,
            flags: flags::ACK,
            payload: &[1; 100],
            ..Segment::default()
        };
        tcp("10.0.0.1", "10.0.0.2", (1, 3), segment)
    };
    let question = |payload: &[u8]| udp("10.0.0.1", "10.0.0.2", (1, 2), payload);
    let batch = [
        data(0, 100, 0),
        other(0),
        question(&[1; 40]),
        data(100, 100, 0),
        question(&[2; 40]),
        other(100),
        question(&[3; 10]),
        question(&[4; 40]),
    ];
    assert_eq!(sizes(&batch), [2, 2, 3, 1]);
}

#[test]
fn packets_with_differing_headers_are_not_joined() {
    let mut changed = data(100, 100, 0);
    changed[60] ^= 1; // the checksum is wrong now
    assert_eq!(sizes(&[data(0, 100, 0), changed]), [1, 1]);
    let with = |change: fn(&mut Segment<'_>)| {
        let mut segment = Segment {
            seq: 100,
            flags: flags::ACK,
            payload: &[1; 100],
            ..Segment::default()
        };
        change(&mut segment);
        tcp("10.0.0.1", "10.0.0.2", (1, 2), segment)
    };
    assert_eq!(sizes(&[data(0, 100, 0), with(|_| {})]), [2]);
    for packet in [
        with(|segment| segment.ack = 1),
        with(|segment| segment.flags |= flags::ECE),
        with(|segment| segment.flags |= 0x20),
        with(|segment| segment.flags |= flags::CWR),
        with(|segment| segment.options = &[1, 1, 1, 1]),
    ] {
        assert_eq!(sizes(&[data(0, 100, 0), packet]), [1, 1]);
    }
    for at in [1, 8] {
        // service and time to live
        let mut packet = data(100, 100, 0);
        packet[at] ^= 4;
        packet = tcp_id(packet.clone(), &packet);
        assert_eq!(sizes(&[data(0, 100, 0), packet]), [1, 1]);
    }
    let mut no_checksum = udp("10.0.0.1", "10.0.0.2", (1, 2), b"1234");
    no_checksum[26..28].copy_from_slice(&[0, 0]);
    assert_eq!(sizes(&[no_checksum.clone(), no_checksum]), [1, 1]);
}

#[test]
fn ip_ids_matter_only_without_dont_fragment() {
    let with_id = |seq, id: u16| {
        let mut packet = data(seq, 100, 0);
        packet[6] = 0;
        let mut other = packet.clone();
        other[4..6].copy_from_slice(&id.to_be_bytes());
        packet = tcp_id(packet, &other);
        packet
    };
    assert_eq!(
        sizes(&[with_id(0, 65_535), with_id(100, 0), with_id(200, 1)]),
        [3]
    );
    assert_eq!(sizes(&[with_id(0, 5), with_id(100, 5)]), [1, 1]);
}

#[test]
fn groups_end_at_what_a_super_packet_can_hold() {
    let batch: Vec<_> = (0..70).map(|i| data(i * 1000, 1000, 0)).collect();
    assert_eq!(sizes(&batch), [65, 5]);
    let batch = vec![udp("10.0.0.1", "10.0.0.2", (1, 2), &[1; 10]); 130];
    assert_eq!(sizes(&batch), [64, 64, 2]);
}

proptest! {
    #[test]
    fn cutting_and_joining_are_inverse(
        payload in prop::collection::vec(any::<u8>(), 1..20_000),
        size in 200_u16..1400,
        v6 in any::<bool>(),
        as_udp in any::<bool>(),
        seq in any::<u32>(),
        fin in any::<bool>(),
    ) {
        let (src, dst) = ADDRESSES[usize::from(v6)];
        let flags = flags::ACK | if fin { flags::FIN | flags::PSH } else { 0 };
        let most = if as_udp { 60 * usize::from(size) } else { payload.len() };
        let payload = &payload[..payload.len().min(most)];
        let whole = if as_udp {
            udp(src, dst, (5, 6), payload)
        } else {
            tcp(src, dst, (5, 6), Segment { seq, flags, payload, ..Segment::default() })
        };
        let (vnet, packet) = as_super(whole, size);
        let segments = cut(&vnet, packet.clone());
        segments.iter().for_each(|segment| verify(segment));
        let groups = join(&segments);
        prop_assert_eq!(groups.len(), 1);
        let (joined, bytes) = &groups[0];
        if segments.len() > 1 {
            prop_assert_eq!(bytes, &packet);
            let header_len = (bytes.len() - payload.len()) as u16;
            prop_assert_eq!(*joined, VnetHeader { hdr_len: header_len, ..vnet });
            prop_assert_eq!(cut(joined, bytes.clone()), segments);
        } else {
            prop_assert_eq!(*joined, VnetHeader::default());
            prop_assert_eq!(bytes, &segments[0]);
        }
    }

    #[test]
    fn any_batch_yields_the_packets_put_in(
        choices in prop::collection::vec((0_u8..4, 0_u32..6, 1_usize..4, any::<bool>()), 0..60),
    ) {
        let batch: Vec<Vec<u8>> = choices
            .iter()
            .map(|(port, step, len, push)| {
                let flags = flags::ACK | if *push { flags::PSH } else { 0 };
                let payload = vec![*port; len * 10];
                if *port == 3 {
                    return udp("fd00::1", "fd00::2", (1, 2), &payload);
                }
                let seq = step * 10;
                let segment = Segment { seq, flags, payload: &payload, ..Segment::default() };
                tcp("10.0.0.1", "10.0.0.2", (u16::from(*port), 2), segment)
            })
            .collect();
        let mut out: Vec<Vec<u8>> = join(&batch)
            .into_iter()
            .flat_map(|(vnet, packet)| cut(&vnet, packet))
            .collect();
        // Within a flow the order is kept, so sorting by flow alone must not change the packets.
        let flow = |packet: &Vec<u8>| packet[20..24].to_vec();
        let mut sent: Vec<_> = batch.iter().map(|packet| tcp_id(packet.clone(), &[0; 6])).collect();
        out = out.into_iter().map(|packet| tcp_id(packet, &[0; 6])).collect();
        out.sort_by_key(flow);
        sent.sort_by_key(flow);
        prop_assert_eq!(out, sent);
    }
}
