//! The longest network decides, against a table that is searched from end to end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;
use tunnel_proto::allowed::{
    AllowedError, AllowedIps, Builder, PeerIndex, PeerSet, Sharing, parse_network,
};

fn peer(number: u8) -> PeerIndex {
    PeerIndex::new(number).unwrap()
}

fn network(text: &str) -> IpNet {
    parse_network(text).unwrap()
}

fn table(networks: &[(&str, u8)]) -> AllowedIps {
    let mut builder = Builder::default();
    for (text, number) in networks {
        builder
            .insert(network(text), peer(*number), Sharing::Shared)
            .unwrap();
    }
    builder.build()
}

fn peers(table: &AllowedIps, address: &str) -> Vec<u8> {
    let found = table.peers(address.parse().unwrap());
    found.iter().map(PeerIndex::get).collect()
}

#[test]
fn longest_network_counts_alone() {
    let table = table(&[
        ("0.0.0.0/0", 0),
        ("10.0.0.0/8", 1),
        ("10.0.0.0/16", 2),
        ("10.255.255.0/24", 3),
        ("255.255.255.255", 4),
        ("2001:db8::/32", 5),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", 6),
    ]);
    for (address, expected) in [
        ("9.255.255.255", 0),
        ("10.0.0.0", 2),
        ("10.0.255.255", 2),
        ("10.1.0.0", 1),
        ("10.255.254.255", 1),
        ("10.255.255.255", 3),
        ("11.0.0.0", 0),
        ("255.255.255.254", 0),
        ("255.255.255.255", 4),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", 5),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 6),
    ] {
        assert_eq!(peers(&table, address), [expected], "{address}");
    }
    assert_eq!(peers(&table, "2001:db9::"), [0; 0]);
    assert!(table.allows(peer(2), "10.0.0.1".parse().unwrap()));
    assert!(!table.allows(peer(1), "10.0.0.1".parse().unwrap()));
}

#[test]
fn shared_and_exclusive_networks_have_owners() {
    let table = table(&[
        ("100.64.0.0/13", 0),
        ("100.64.0.0/13", 1),
        ("100.64.0.0/13", 1),
    ]);
    assert_eq!(peers(&table, "100.71.255.255"), [0, 1]);
    assert_eq!(peers(&table, "100.72.0.0"), [0; 0]);
    let host = network("fd00::1");
    let mut builder = Builder::default();
    builder.insert(host, peer(0), Sharing::Exclusive).unwrap();
    builder.insert(host, peer(0), Sharing::Shared).unwrap();
    let conflict = Err(AllowedError::Conflict(host));
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        assert_eq!(builder.insert(host, peer(1), sharing).map(|_| ()), conflict);
    }
    assert_eq!(peers(&builder.build(), "fd00::1"), [0]);
    let mut builder = Builder::default();
    builder.insert(host, peer(0), Sharing::Shared).unwrap();
    assert_eq!(
        builder
            .insert(host, peer(1), Sharing::Exclusive)
            .map(|_| ()),
        conflict
    );
}

#[test]
fn mapped_addresses_belong_to_no_peer() {
    let table = table(&[("::/0", 0), ("0.0.0.0/0", 1)]);
    assert_eq!(peers(&table, "::ffff:10.0.0.1"), [0; 0]);
    assert_eq!(peers(&table, "::1:0:0:1"), [0]);
    let mapped = parse_network("::ffff:10.0.0.0/104");
    assert!(matches!(mapped, Err(AllowedError::Mapped { .. })));
}

#[test]
fn networks_are_read_strictly_and_shown_as_read() {
    assert_eq!(network("10.0.0.0/8").to_string(), "10.0.0.0/8");
    assert_eq!(network("fd00::1").to_string(), "fd00::1/128");
    assert!(network("10.0.0.0/8").contains(&"10.255.0.1".parse::<IpAddr>().unwrap()));
    assert!(!network("0.0.0.0/0").contains(&"::1".parse::<IpAddr>().unwrap()));
    for (text, error) in [
        ("10.0.0.1/8", None),
        ("10.0.0.0/33", Some(AllowedError::PrefixLength(33))),
        ("10.0.0.0/", Some(AllowedError::Syntax)),
        ("10.0.0/8", Some(AllowedError::Syntax)),
        ("010.0.0.0/8", Some(AllowedError::Syntax)),
        ("", Some(AllowedError::Syntax)),
    ] {
        let found = parse_network(text).unwrap_err();
        match error {
            Some(error) => assert_eq!(found, error),
            None => assert!(matches!(found, AllowedError::HostBits(net) if net.prefix_len() == 8)),
        }
    }
}

#[test]
fn sets_of_peers_are_sets() {
    let set = PeerSet::EMPTY.with(peer(0)).with(peer(63)).with(peer(0));
    assert!(set.iter().eq([peer(0), peer(63)]));
    assert!(set.contains(peer(63)) && !set.contains(peer(1)));
    assert!(PeerSet::EMPTY.is_empty() && PeerIndex::new(64).is_none());
}

#[test]
fn builder_refuses_invalid_networks() {
    let refused = |text: &str| {
        let network: IpNet = text.parse().unwrap();
        let mut builder = Builder::default();
        builder.insert(network, peer(0), Sharing::Shared).err()
    };
    let host_bits = refused("10.0.0.1/8");
    assert!(
        matches!(host_bits, Some(AllowedError::HostBits { .. })),
        "{host_bits:?}"
    );
    let mapped = refused("::ffff:10.0.0.0/104");
    assert!(
        matches!(mapped, Some(AllowedError::Mapped { .. })),
        "{mapped:?}"
    );
}

/// A network of either family, of few bits that differ, so that many nest.
fn any_network() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<[bool; 6]>(), 0_u8..=32).prop_map(|(bits, len)| {
        let address = bits
            .iter()
            .fold(0_u32, |sum, bit| sum << 1 | u32::from(*bit));
        let address = address << 26 | address;
        let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        IpNet::new(Ipv4Addr::from_bits(address & mask).into(), len).unwrap()
    });
    let v6 = (any::<u8>(), 0_u8..=128).prop_map(|(bits, len)| {
        let address = u128::from(bits | 1) << 120 | u128::from(bits);
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        IpNet::new(Ipv6Addr::from_bits(address & mask).into(), len).unwrap()
    });
    prop_oneof![v4, v6]
}

proptest! {
    #[test]
    fn lookup_agrees_with_a_search_of_all_networks(
        networks in prop::collection::vec((any_network(), 0_u8..64), 0..40),
        probes in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        offsets in prop::collection::vec(-2_i8..3, 20),
    ) {
        let mut builder = Builder::default();
        for (network, number) in &networks {
            builder.insert(*network, peer(*number), Sharing::Shared).unwrap();
        }
        let table = builder.build();
        for (probe, offset) in probes.iter().zip(offsets) {
            let Some((near, _)) = networks.get(probe.index(networks.len().max(1))) else {
                break;
            };
            let address: IpAddr = match near.addr() {
                IpAddr::V4(address) => {
                    Ipv4Addr::from_bits(address.to_bits().wrapping_add_signed(offset.into())).into()
                }
                IpAddr::V6(address) => {
                    Ipv6Addr::from_bits(address.to_bits().wrapping_add_signed(offset.into())).into()
                }
            };
            let holding = networks.iter().filter(|(network, _)| network.contains(&address));
            let longest = holding.clone().map(|(network, _)| network.prefix_len()).max();
            let expected = holding
                .filter(|(network, _)| Some(network.prefix_len()) == longest)
                .fold(PeerSet::EMPTY, |set, (_, number)| set.with(peer(*number)));
            if address == address.to_canonical() {
                prop_assert_eq!(table.peers(address), expected, "{}", address);
            }
        }
    }
}
