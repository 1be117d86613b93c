//! The few rtnetlink messages this crate needs: links and addresses, read and changed; [`device`]
//! has one device's settings, [`route`] routes and rules.
//!
//! Decoding is total and takes only the attributes that are used, so what other devices carry
//! cannot make it fail. Numbers are from include/uapi/linux/{rtnetlink,if_link,if_addr}.h.

pub(crate) mod device;
pub(crate) mod route;

use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::{
    attributes::{self, ACK, CREATE, DUMP, EXCLUSIVE, Request, attribute, attributes},
    error::NetlinkError,
    netlink::Connection,
};

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// `RTMGRP_IPV6_ROUTE`.
const ROUTE_GROUPS: u32 = 0x400;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;

const IFLA_IFNAME: u16 = 3;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_INFO_KIND: u16 = 1;
/// Leaves the counters out of a link dump: most of its bytes.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

const RTA_DST: u16 = 1;
const RTN_LOCAL: u8 = 2;

const IFF_UP: u32 = 0x1;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    /// `IFLA_INFO_KIND`; hardware and the loopback device have none.
    pub(crate) kind: Option<String>,
    /// The bridge or bond it belongs to.
    pub(crate) master: Option<u32>,
}

/// An address on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldAddress {
    /// The device's index.
    pub(crate) index: u32,
    pub(crate) address: IpAddr,
    pub(crate) prefix_length: u8,
    /// Not waiting for duplicate address detection, nor refused by it.
    pub(crate) usable: bool,
}

/// What the kernel reported without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    AddressGone(HeldAddress),
    AddressSet(HeldAddress),
    LinkGone(Link),
    LinkSet(Link),
}

/// Opens a connection for requests.
pub(crate) fn connect() -> Result<Connection, NetlinkError> {
    Connection::open(NETLINK_ROUTE, 0)
}

/// Opens a connection that receives link and address events of both families.
pub(crate) fn subscribe() -> Result<Connection, NetlinkError> {
    Connection::open(NETLINK_ROUTE, GROUPS)
}

/// Opens a connection that receives the changes of IPv6 routes.
pub(crate) fn subscribe_routes() -> Result<Connection, NetlinkError> {
    Connection::open(NETLINK_ROUTE, ROUTE_GROUPS)
}

pub(crate) async fn links(connection: &mut Connection) -> Result<Vec<Link>, NetlinkError> {
    connection
        .dump(
            |request| {
                request.message(GET_LINK, DUMP, &link_header(0, 0), |out| {
                    out.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
                })
            },
            |kind, payload| (kind == NEW_LINK).then(|| decode_link(payload)).flatten(),
        )
        .await
}

pub(crate) async fn addresses(
    connection: &mut Connection,
) -> Result<Vec<HeldAddress>, NetlinkError> {
    connection
        .dump(
            |request| request.message(GET_ADDRESS, DUMP, &[0; 8], |_| {}),
            |kind, payload| {
                (kind == NEW_ADDRESS)
                    .then(|| decode_address(payload))
                    .flatten()
            },
        )
        .await
}

/// Creates a device that is up from the start; `EEXIST` when the name is taken.
pub(crate) fn create_link(request: Request, name: &str, kind: &str) -> Request {
    request.message(
        NEW_LINK,
        ACK | CREATE | EXCLUSIVE,
        &link_header(0, IFF_UP),
        |out| {
            out.put_str(IFLA_IFNAME, name);
            out.nest(IFLA_LINKINFO, |out| {
                out.put(IFLA_INFO_KIND, kind.as_bytes())
            });
        },
    )
}

pub(crate) fn set_up(request: Request, index: u32) -> Request {
    request.message(NEW_LINK, ACK, &link_header(index, IFF_UP), |_| {})
}

pub(crate) fn delete_link(request: Request, index: u32) -> Request {
    request.message(DELETE_LINK, ACK, &link_header(index, 0), |_| {})
}

/// Adds `address` with its full prefix length and global scope, without duplicate address
/// detection. Global, because some network plug-ins count only such addresses as the node's own.
///
/// IPv6 would also get a route of 128 bits out of the device, into which connections go that come
/// before the kernel's own local route: neighbor discovery then fails them after 3 s.
pub(crate) fn add_address(request: Request, index: u32, address: IpAddr) -> Request {
    let header = address_header(index, address, host_prefix(address));
    request.message(NEW_ADDRESS, ACK | CREATE | EXCLUSIVE, &header, |out| {
        put_ip(out, IFA_LOCAL, address);
        put_ip(out, IFA_ADDRESS, address);
        if address.is_ipv6() {
            out.put_u32(IFA_FLAGS, IFA_F_NODAD | IFA_F_NOPREFIXROUTE);
        }
    })
}

pub(crate) fn delete_address(
    request: Request,
    index: u32,
    address: IpAddr,
    prefix_length: u8,
) -> Request {
    let header = address_header(index, address, prefix_length);
    request.message(DELETE_ADDRESS, ACK, &header, |out| {
        put_ip(out, IFA_LOCAL, address)
    })
}

/// 32 or 128.
pub(crate) fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The event that a multicast message tells, if it is one that was subscribed to.
pub(crate) fn decode_event(kind: u16, payload: &[u8]) -> Option<Event> {
    match kind {
        NEW_LINK => decode_link(payload).map(Event::LinkSet),
        DELETE_LINK => decode_link(payload).map(Event::LinkGone),
        NEW_ADDRESS => decode_address(payload).map(Event::AddressSet),
        DELETE_ADDRESS => decode_address(payload).map(Event::AddressGone),
        _ => None,
    }
}

/// Whether a message tells that packets to `address` now stay on the node.
pub(crate) fn makes_local(kind: u16, payload: &[u8], address: IpAddr) -> bool {
    // `struct rtmsg`: family, destination length, …, type at 7, flags.
    let (Some([family, length, .., route_type]), Some(rest)) =
        (payload.first_chunk::<8>(), payload.get(12..))
    else {
        return false;
    };
    kind == NEW_ROUTE
        && *route_type == RTN_LOCAL
        && *length == host_prefix(address)
        && attribute(rest, RTA_DST).and_then(|value| decode_ip(*family, value)) == Some(address)
}

/// `struct ifinfomsg`; `flags` are the ones to set, and nothing else changes.
fn link_header(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// `struct ifaddrmsg`; scope 0 is global.
fn address_header(index: u32, address: IpAddr, prefix_length: u8) -> [u8; 8] {
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let [a, b, c, d] = index.to_ne_bytes();
    [family, prefix_length, 0, 0, a, b, c, d]
}

fn put_ip(out: &mut attributes::Writer<'_>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => out.put(kind, &address.octets()),
        IpAddr::V6(address) => out.put(kind, &address.octets()),
    }
}

fn decode_link(payload: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: attributes::u32_at(payload, 4)?,
        name: String::new(),
        up: attributes::u32_at(payload, 8)? & IFF_UP != 0,
        kind: None,
        master: None,
    };
    for (kind, value) in attributes(payload.get(16..)?) {
        match kind {
            IFLA_IFNAME => attributes::text(value)?.clone_into(&mut link.name),
            IFLA_MASTER => link.master = attributes::u32_at(value, 0),
            IFLA_LINKINFO => {
                link.kind = attribute(value, IFLA_INFO_KIND)
                    .and_then(attributes::text)
                    .map(str::to_owned);
            }
            _ => {}
        }
    }
    Some(link)
}

fn decode_address(payload: &[u8]) -> Option<HeldAddress> {
    let [family, prefix_length, short_flags, _] = *payload.first_chunk()?;
    let mut flags = u32::from(short_flags);
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(payload.get(8..)?) {
        match kind {
            IFA_LOCAL => local = decode_ip(family, value),
            IFA_ADDRESS => address = decode_ip(family, value),
            IFA_FLAGS => flags = attributes::u32_at(value, 0)?,
            _ => {}
        }
    }
    let waiting = flags & (IFA_F_TENTATIVE | IFA_F_OPTIMISTIC) == IFA_F_TENTATIVE;
    Some(HeldAddress {
        index: attributes::u32_at(payload, 4)?,
        // On a point-to-point device IFA_ADDRESS is the other end's; IPv6 often has no IFA_LOCAL.
        address: local.or(address)?,
        prefix_length,
        usable: !waiting && flags & IFA_F_DADFAILED == 0,
    })
}

fn decode_ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attributes::messages;

    fn payload(request: &Request) -> Vec<u8> {
        messages(request.bytes())
            .next()
            .unwrap()
            .unwrap()
            .payload
            .to_vec()
    }

    #[test]
    fn an_added_address_decodes_to_itself() {
        for text in ["10.1.2.3", "fd00::3"] {
            let address: IpAddr = text.parse().unwrap();

            let held = decode_address(&payload(&add_address(Request::new(1), 9, address)));

            let prefix_length = host_prefix(address);
            assert_eq!(
                held,
                Some(HeldAddress {
                    index: 9,
                    address,
                    prefix_length,
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
    fn an_address_that_waits_for_detection_or_failed_it_is_not_usable() {
        let usable = |flags: u32| {
            let request =
                Request::new(1).message(NEW_ADDRESS, 0, &[10, 128, 0, 0, 1, 0, 0, 0], |out| {
                    out.put(IFA_ADDRESS, &[0xfd; 16]);
                    out.put_u32(IFA_FLAGS, flags);
                });
            decode_address(&payload(&request)).unwrap().usable
        };

        assert!(usable(0));
        assert!(usable(IFA_F_TENTATIVE | IFA_F_OPTIMISTIC));
        assert!(!usable(IFA_F_TENTATIVE));
        assert!(!usable(IFA_F_DADFAILED | IFA_F_TENTATIVE));
    }

    #[test]
    fn the_local_end_of_a_point_to_point_address_counts() {
        let request = Request::new(1).message(NEW_ADDRESS, 0, &[2, 32, 0, 0, 1, 0, 0, 0], |out| {
            out.put(IFA_ADDRESS, &[10, 0, 0, 2]);
            out.put(IFA_LOCAL, &[10, 0, 0, 1]);
        });

        let held = decode_address(&payload(&request)).unwrap();

        assert_eq!(held.address, IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn only_the_local_route_of_the_address_makes_it_local() {
        let address: IpAddr = "fd00::3".parse().unwrap();
        let local = |length, route_type, to: &str| {
            let header = [10, length, 0, 0, 255, 2, 0, route_type, 0, 0, 0, 0];
            let request = Request::new(1).message(NEW_ROUTE, 0, &header, |out| {
                put_ip(out, RTA_DST, to.parse().unwrap());
            });
            makes_local(NEW_ROUTE, &payload(&request), address)
        };

        assert!(local(128, RTN_LOCAL, "fd00::3"));
        assert!(!local(128, 1, "fd00::3"));
        assert!(!local(64, RTN_LOCAL, "fd00::3"));
        assert!(!local(128, RTN_LOCAL, "fd00::4"));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(
            kind in 16_u16..24,
            bytes in proptest::collection::vec(any::<u8>(), 0..128),
        ) {
            let _ = decode_event(kind, &bytes);
            let _ = makes_local(NEW_ROUTE, &bytes, IpAddr::from([10, 1, 2, 3]));
        }
    }
}
