//! Tests of messages about links and addresses: requests decode to themselves, odd bytes do no harm.

use proptest::prelude::*;

use super::*;
use crate::attributes::messages;

/// What the kernel would send: the bytes behind `struct nlmsghdr`.
pub(super) fn payload(request: &Request) -> Vec<u8> {
    let mut found = messages(request.bytes());
    found.next().unwrap().unwrap().payload.to_vec()
}

fn decoded(request: &Request) -> Option<HeldAddress> {
    match decode_event(NEW_ADDRESS, &payload(request)) {
        Some(Event::AddressSet(held)) => Some(held),
        _ => None,
    }
}

#[test]
fn an_added_prefix_decodes_to_itself() {
    for (text, prefix_route) in [
        ("192.168.123.1/24", true),
        ("10.1.2.3/32", true),
        ("fd00::1/96", false),
        ("fd00::3/128", false),
    ] {
        let prefix: IpNet = text.parse().unwrap();

        let held = decoded(&add_address(Request::new(1), 9, prefix, prefix_route));

        assert_eq!(
            held,
            Some(HeldAddress {
                index: 9,
                prefix,
                prefix_route,
                usable: true
            })
        );
    }
}

#[test]
fn a_created_link_decodes_to_itself() {
    let link = decode_link(&payload(&create_link(Request::new(1), "proxy0", "ifb"))).unwrap();

    assert_eq!(
        (link.name.as_str(), link.kind.as_deref()),
        ("proxy0", Some("ifb"))
    );
    assert!(link.up);
}

#[test]
fn tentative_and_failed_addresses_are_unusable() {
    let usable = |flags: AddressFlags| {
        let mut message = address_message(1, "fd00::1/128".parse().unwrap());
        message.attributes.push(AddressAttribute::Flags(flags));
        held_address(&message).unwrap().usable
    };

    assert!(usable(AddressFlags::empty()));
    assert!(usable(AddressFlags::Tentative | AddressFlags::Optimistic));
    assert!(!usable(AddressFlags::Tentative));
    assert!(!usable(AddressFlags::Dadfailed | AddressFlags::Tentative));
}

#[test]
fn point_to_point_address_is_its_local_end() {
    let mut message = address_message(1, "10.0.0.1/32".parse().unwrap());
    let other = AddressAttribute::Address(IpAddr::from([10, 0, 0, 2]));
    message.attributes.insert(0, other);

    let held = held_address(&message).unwrap();

    assert_eq!(held.prefix.addr(), IpAddr::from([10, 0, 0, 1]));
}

#[test]
fn local_route_makes_address_local() {
    let address: IpAddr = "fd00::3".parse().unwrap();
    let local = |kind, to: &str| {
        let mut message = route::message_to(to.parse().unwrap());
        message.header.kind = kind;
        let request = append(Request::new(1), NEW_ROUTE, 0, &message);
        makes_local(NEW_ROUTE, &payload(&request), address)
    };

    assert!(local(RouteType::Local, "fd00::3/128"));
    assert!(!local(RouteType::Unicast, "fd00::3/128"));
    assert!(!local(RouteType::Local, "fd00::3/64"));
    assert!(!local(RouteType::Local, "fd00::4/128"));
}

proptest! {
    #[test]
    fn any_bytes_decode_or_do_not(
        kind in 16_u16..24,
        bytes in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        let _ = decode_event(kind, &bytes);
        let _ = makes_local(NEW_ROUTE, &bytes, IpAddr::from([10, 1, 2, 3]));
    }
}
