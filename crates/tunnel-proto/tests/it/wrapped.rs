//! The wrapping between gateway and server.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use tunnel_proto::wrapped::{HEADER_LEN, WrappedError, header, parse};

fn wrap(client: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    [&header(client)[..], datagram].concat()
}

#[test]
fn header_is_as_written_down() {
    let v4 = header("192.0.2.7:51820".parse().unwrap());
    assert_eq!(&v4[..8], b"RZW1\x04\x00\xca\x6c");
    assert_eq!(&v4[8..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!(&v4[20..], [192, 0, 2, 7]);
    let v6 = header("[2001:db8::1]:1".parse().unwrap());
    assert_eq!(&v6[..8], b"RZW1\x06\x00\x00\x01");
    assert_eq!(
        &v6[8..],
        "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets()
    );
    assert_eq!(header("[::ffff:192.0.2.7]:51820".parse().unwrap()), v4);
}

#[test]
fn impossible_client_address_is_refused() {
    for client in [
        "192.0.2.1:0",
        "0.0.0.0:1",
        "224.0.0.1:1",
        "255.255.255.255:1",
        "[::]:1",
        "[ff02::1]:1",
    ] {
        let bytes = wrap(client.parse().unwrap(), b"x");
        assert_eq!(parse(&bytes), Err(WrappedError::Address), "{client}");
    }
}

#[test]
fn damage_has_its_own_errors() {
    let good = wrap("192.0.2.7:9".parse().unwrap(), b"x");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        parse(&bytes).unwrap_err()
    };
    assert_eq!(with(0, b'S'), WrappedError::Magic);
    assert_eq!(with(4, 5), WrappedError::Family);
    assert_eq!(with(5, 1), WrappedError::Family);
    assert_eq!(with(4, 6), WrappedError::Address); // mapped, but said to be IPv6
    assert_eq!(with(18, 0), WrappedError::Address); // IPv4, but not mapped
    for len in 0..=HEADER_LEN {
        assert_eq!(parse(&good[..len]), Err(WrappedError::Short));
    }
}

proptest! {
    #[test]
    fn parse_undoes_header(
        ip in prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()),
        ],
        port in 1_u16..,
        datagram in prop::collection::vec(any::<u8>(), 1..100),
    ) {
        let client = SocketAddr::new(ip, port);
        let bytes = wrap(client, &datagram);
        if let Ok(wrapped) = parse(&bytes) {
            prop_assert_eq!(wrapped.client, client);
            prop_assert_eq!(wrapped.datagram, &datagram[..]);
        } else {
            let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
            prop_assert!(ip.is_multicast() || ip.is_unspecified() || broadcast);
        }
    }
}
