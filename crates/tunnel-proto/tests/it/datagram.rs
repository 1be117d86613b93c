//! Route ids, the four kinds, `mac1`, and the buckets that bound its cost.

use std::net::IpAddr;

use proptest::prelude::*;
use tunnel_proto::datagram::{
    DatagramError, Header, Kind, RouteId, clear_route, counter, set_route,
};
use tunnel_proto::mac1::{Mac1Key, Mac1Table, ScanError};
use tunnel_proto::{SourceBuckets, TokenBucket};

use super::{ms, start};

fn route(number: u32) -> RouteId {
    RouteId::new(number).unwrap()
}

#[test]
fn route_ids_have_twenty_bits_and_are_not_zero() {
    assert_eq!(RouteId::new(0), None);
    assert_eq!(route(1).get(), 1);
    assert_eq!(route(0xf_ffff).get(), 1_048_575);
    assert_eq!(RouteId::new(0x10_0000), None);
}

#[test]
fn index_holds_route_in_upper_twenty_bits() {
    // boringtun shifts the number it is given by 8 bits and counts sessions in these.
    assert_eq!(RouteId::of_index(0x0001_15ab), Some(route(17)));
    assert_eq!(RouteId::of_index(0xfff), None);
}

#[test]
fn reserved_bytes_are_big_endian() {
    let mut datagram = [4, 9, 9, 9, 1];
    set_route(&mut datagram, route(0x1_2345)).unwrap();
    assert_eq!(datagram, [4, 0x01, 0x23, 0x45, 1]);
    clear_route(&mut datagram).unwrap();
    assert_eq!(datagram, [4, 0, 0, 0, 1]);
    let short = set_route(&mut datagram[..3], route(1));
    assert_eq!(short, Err(DatagramError::Size(3)));
}

#[test]
fn kinds_are_told_by_first_byte_and_size() {
    for (byte, len, kind) in [
        (1, 148, Kind::Initiation),
        (2, 92, Kind::Response),
        (3, 64, Kind::CookieReply),
        (4, 32, Kind::Data),
        (4, 65_507, Kind::Data),
    ] {
        let mut datagram = vec![0; len];
        datagram[0] = byte;
        assert_eq!(Header::parse(&datagram).unwrap().kind, kind);
        datagram.push(0);
        let longer = Header::parse(&datagram).is_ok();
        assert_eq!(longer, kind == Kind::Data && len == 32);
    }
    assert_eq!(Header::parse(&[4; 31]), Err(DatagramError::Size(31)));
    assert_eq!(Header::parse(&[5; 64]), Err(DatagramError::Kind(5)));
    assert_eq!(Header::parse(&[]), Err(DatagramError::Size(0)));
}

#[test]
fn indices_are_little_endian_in_each_kind() {
    let mut response = [0; 92];
    response[0] = 2;
    response[4..8].copy_from_slice(&[1, 2, 3, 4]);
    response[8..12].copy_from_slice(&[5, 6, 7, 8]);
    let header = Header::parse(&response).unwrap();
    assert_eq!(header.sender, Some(0x0403_0201));
    assert_eq!(header.receiver, Some(0x0807_0605));
    let mut data = [0; 32];
    data[0] = 4;
    data[4..16].copy_from_slice(&[5, 6, 7, 8, 1, 0, 0, 0, 0, 0, 0, 2]);
    let header = Header::parse(&data).unwrap();
    assert_eq!((header.sender, header.receiver), (None, Some(0x0807_0605)));
    assert_eq!(counter(&data), Some(0x0200_0000_0000_0001));
    assert_eq!(counter(&response), None);
}

#[test]
fn destination_is_route_or_index() {
    let data = |reserved: [u8; 3], index: u32| {
        let mut data = [0; 32];
        data[0] = 4;
        data[1..4].copy_from_slice(&reserved);
        data[4..8].copy_from_slice(&index.to_le_bytes());
        data
    };
    let to = |datagram: &[u8]| Header::parse(datagram).unwrap().destination();
    assert_eq!(to(&data([0, 0, 17], 17 << 12 | 3)), Ok(Some(route(17))));
    assert_eq!(to(&data([0, 0, 0], 17 << 12 | 3)), Ok(Some(route(17))));
    assert_eq!(to(&data([0, 0, 0], 3)), Ok(None));
    assert_eq!(
        to(&data([0, 0, 18], 17 << 12)),
        Err(DatagramError::Disagree)
    );
    assert_eq!(to(&data([0, 0, 18], 3)), Err(DatagramError::Disagree));
    let too_much = Header::parse(&data([0x10, 0, 0], 0));
    assert_eq!(too_much, Err(DatagramError::Reserved));
    let mut initiation = [0; 148];
    initiation[0] = 1;
    initiation[4..8].copy_from_slice(&[0xff; 4]); // the client's own index, which means nothing
    assert_eq!(to(&initiation), Ok(None));
    set_route(&mut initiation, route(9)).unwrap();
    assert_eq!(to(&initiation), Ok(Some(route(9))));
}

fn handshake(kind: u8) -> Vec<u8> {
    // mac1 computed with Python's hashlib: blake2s(body, digest_size=16,
    // key=blake2s(b"mac1----" + bytes(range(32)))).
    let (covered, factor, add, mac1) = match kind {
        1 => (116, 7, 3, MAC1_INITIATION),
        _ => (60, 5, 1, MAC1_RESPONSE),
    };
    let mut message: Vec<u8> = (0..covered)
        .map(|i: u32| (i * factor + add) as u8)
        .collect();
    message[..4].copy_from_slice(&[kind, 0, 0, 0]);
    message.extend(mac1.to_be_bytes());
    message.extend([0; 16]);
    message
}

fn public_key(first: u8) -> [u8; 32] {
    std::array::from_fn(|i| first.wrapping_add(i as u8))
}

#[test]
fn mac1_ignores_reserved_bytes() {
    let key = Mac1Key::new(&public_key(0));
    for kind in [1, 2] {
        let mut message = handshake(kind);
        assert!(key.verify(&message));
        set_route(&mut message, route(77)).unwrap();
        assert!(key.verify(&message));
        assert!(!Mac1Key::new(&public_key(1)).verify(&message));
        for at in [
            0,
            4,
            message.len() - 33,
            message.len() - 32,
            message.len() - 17,
        ] {
            let mut broken = message.clone();
            broken[at] ^= 1;
            assert!(!key.verify(&broken), "byte {at}");
        }
        message.push(0);
        assert!(!key.verify(&message));
    }
}

#[test]
fn scan_tries_last_match_first() {
    let now = start();
    let mut table = Mac1Table::new(TokenBucket::new(10, 12, now));
    table.replace([3, 2, 1, 0].map(|first| (public_key(first), first)));
    assert_eq!(table.find(now, &handshake(1)), Ok(0)); // four keys
    for _ in 0..8 {
        assert_eq!(table.find(now, &handshake(1)), Ok(0)); // one key each
    }
    assert_eq!(table.find(now, &handshake(1)), Err(ScanError::Budget));
    assert_eq!(table.find(now + ms(100), &handshake(1)), Ok(0));
}

#[test]
fn replaced_keys_keep_order_of_matches() {
    let now = start();
    let mut table = Mac1Table::new(TokenBucket::new(1, 6, now));
    let keys = |all: &[u8], server| {
        all.iter()
            .map(|first| (public_key(*first), server))
            .collect::<Vec<_>>()
    };
    table.replace(keys(&[3, 2, 1, 0], "old"));
    assert_eq!(table.find(now, &handshake(1)), Ok("old")); // four keys
    table.replace(keys(&[4, 3, 2, 0], "new"));
    assert_eq!(table.find(now, &handshake(1)), Ok("new")); // one key
    table.replace(keys(&[4, 3], "new"));
    let gone = table.find(now + ms(10_000), &handshake(1));
    assert_eq!(gone, Err(ScanError::Unknown));
}

#[test]
fn scan_of_junk_spends_the_budget_and_no_more() {
    let now = start();
    let mut table = Mac1Table::new(TokenBucket::new(1000, 100, now));
    table.replace((1..41).map(|first| (public_key(first), first)));
    let junk = handshake(1);
    assert_eq!(table.find(now, &junk), Err(ScanError::Unknown));
    assert_eq!(table.find(now, &junk), Err(ScanError::Unknown));
    assert_eq!(table.find(now, &junk), Err(ScanError::Budget)); // 20 keys were left
    assert_eq!(table.find(now, &junk[..147]), Err(ScanError::NotHandshake));
    assert_eq!(table.find(now + ms(40), &junk), Err(ScanError::Unknown));
}

#[test]
fn empty_table_finds_no_peer() {
    let mut table: Mac1Table<u8> = Mac1Table::new(TokenBucket::new(1, 1, start()));
    assert_eq!(table.find(start(), &handshake(1)), Err(ScanError::Unknown));
}

#[test]
fn bucket_fills_by_time_and_ignores_clock_steps() {
    let now = start();
    let mut bucket = TokenBucket::new(10, 5, now);
    assert!(bucket.take(now, 5) && !bucket.take(now, 1));
    assert!(!bucket.take(now + ms(99), 1) && bucket.take(now + ms(100), 1));
    assert!(!bucket.take(now, 1) && !bucket.take(now + ms(199), 1));
    assert_eq!(bucket.available(now + ms(86_400_000)), 5);
}

#[test]
fn sources_share_bucket_within_network_only() {
    let now = start();
    let mut buckets = SourceBuckets::new(1, 2, 1 << 16, 42, now);
    let mut take = |address: &str| buckets.take(now, address.parse::<IpAddr>().unwrap(), 1);
    assert!(take("192.0.2.1") && take("::ffff:192.0.2.200") && !take("192.0.2.3"));
    assert!(take("198.51.100.1"));
    assert!(take("2001:db8:0:1::1") && take("2001:db8:0:ff::2") && !take("2001:db8::3"));
    assert!(take("2001:db8:0:100::1"));
}

proptest! {
    #[test]
    fn route_survives_writing_and_reading(number in 1_u32..=RouteId::MAX, len in 32_usize..200) {
        let mut datagram = vec![0; len];
        datagram[0] = 4;
        datagram[4..8].copy_from_slice(&(number << 12).to_le_bytes());
        set_route(&mut datagram, route(number)).unwrap();
        let header = Header::parse(&datagram).unwrap();
        prop_assert_eq!(header.destination(), Ok(Some(route(number))));
        clear_route(&mut datagram).unwrap();
        let header = Header::parse(&datagram).unwrap();
        prop_assert_eq!(header.route, None);
        prop_assert_eq!(header.destination(), Ok(Some(route(number))));
    }
}

const MAC1_INITIATION: u128 = 0x57bab5330fd43228e33b81448f4a6012;
const MAC1_RESPONSE: u128 = 0x8fb30b2371fc08d7909bb4c7fe729753;
