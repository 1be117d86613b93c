//! Arbitrary bytes lead to an answer, never to a panic.

use proptest::prelude::*;
use tunnel_proto::allowed::PeerIndex;
use tunnel_proto::datagram::{self, RouteId};
use tunnel_proto::filter::{Filter, Params};
use tunnel_proto::frame::Decoder;
use tunnel_proto::ip::coalesce::Coalescer;
use tunnel_proto::ip::segment::Segments;
use tunnel_proto::ip::transport::{Icmp, Tcp, Udp, checksum_is_right};
use tunnel_proto::ip::vnet::VnetHeader;
use tunnel_proto::ip::{Header, icmp, mss};
use tunnel_proto::{mac1, wrapped};

use super::start;

/// Looks at the bytes in every way there is.
fn poke(bytes: &[u8]) {
    let mut copy = bytes.to_vec();
    let _ = datagram::Header::parse(bytes).map(|header| header.destination());
    let _ = datagram::counter(bytes);
    let _ = datagram::set_route(&mut copy, RouteId::new(1).unwrap());
    let _ = datagram::clear_route(&mut copy);
    let _ = mac1::Mac1Key::new(&[7; 32]).verify(bytes);
    let _ = wrapped::parse(bytes);
    let mut decoder = Decoder::new(1500);
    let mut input = bytes;
    while let Ok(Some(_)) = decoder.next(&mut input) {}
    let (_, _, _) = (Tcp::new(bytes), Udp::new(bytes), Icmp::new(bytes));
    if let Ok(vnet) = VnetHeader::parse(bytes) {
        let mut packet = bytes[10..].to_vec();
        if let Ok(mut segments) = Segments::new(&vnet, &mut packet) {
            let most = segments.max_len();
            while let Some(segment) = segments.next() {
                assert!(segment.len() <= most);
            }
        }
    }
    let mut coalescer = Coalescer::new();
    for packet in [bytes, bytes, &bytes[bytes.len() / 2..]] {
        coalescer.push(packet);
    }
    for group in coalescer.groups() {
        group.finish(&mut copy.clone());
        assert!(group.members().count() < 3);
    }
    let Ok(header) = Header::parse_quoted(bytes) else {
        return;
    };
    let _ = checksum_is_right(&header, bytes);
    let _ = mss::clamp(&header, &mut copy, 1280);
    let _ = icmp::make_echo_reply(&header, &mut copy);
    let _ = icmp::packet_too_big(&header, bytes, 1280, header.dst, &mut [0; 1280]);
    let small = Params {
        max_flows: 4,
        ..Params::default()
    };
    let mut filter = Filter::new(small, 1, start());
    for _ in 0..2 {
        let _ = filter.inbound(start(), &header, bytes);
        let _ = filter.outbound(start(), &header, bytes, |_, _| PeerIndex::new(1));
    }
}

/// Bytes that get past the first checks more often than random ones.
fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let tail = || prop::collection::vec(prop_oneof![0_u8..3, any::<u8>()], 0..200);
    let v4 = (tail(), prop::sample::select(vec![1_u8, 6, 17, 58])).prop_map(|(tail, protocol)| {
        let len = (20 + tail.len()) as u8;
        let fixed = [
            0x45, 0, 0, len, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        [&fixed[..], &tail].concat()
    });
    let next = prop::sample::select(vec![0_u8, 6, 17, 43, 44, 51, 58, 60]);
    let v6 = (tail(), next).prop_map(|(tail, next)| {
        let mut fixed = [0xfd; 40];
        fixed[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, tail.len() as u8, next, 64]);
        [&fixed[..], &tail].concat()
    });
    prop_oneof![v4, v6]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        poke(&bytes);
    }

    #[test]
    fn near_packets_do_no_harm(bytes in nearly_a_packet(), vnet in any::<[u8; 10]>()) {
        poke(&bytes);
        let mut vnet = vnet;
        vnet[0] &= 1;
        vnet[1] %= 6;
        vnet[4] |= 1;
        vnet[6..10].copy_from_slice(&[20, 0, 16, 0]);
        poke(&[&vnet[..], &bytes].concat());
    }
}
