//! Links, addresses, routes and rules in the messages of the `rtnetlink` crate: the requests about
//! addresses, and events. [`device`] has one device's settings, [`link`] all links, [`route`] routes
//! and rules.
//!
//! They go over our own socket, a message decoded at a time. The connection of `rtnetlink` is not used:
//! it brings the decoder of every message there is, 1.4 MB of program and 1.2 MiB of an idle
//! process.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "messages and attributes of `rtnetlink` have dozens of variants, and more to come"
)]

pub(crate) mod device;
pub(crate) mod link;
pub(crate) mod route;

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_ROUTE;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec,
    packet_core::{Emitable, Parseable},
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::{InfoKind, LinkMessage},
        route::{RouteMessage, RouteType},
    },
};

use crate::{
    attributes::{ACK, CREATE, DUMP, EXCLUSIVE, Request},
    error::NetlinkError,
    netlink::Connection,
};
use link::{Link, decode_link};

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// `RTMGRP_IPV6_ROUTE`.
const ROUTE_GROUPS: u32 = 0x400;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;

/// An address on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldAddress {
    /// The device's index.
    pub(crate) index: u32,
    pub(crate) prefix: IpNet,
    /// The kernel keeps a route to the whole prefix.
    pub(crate) prefix_route: bool,
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

/// All addresses of the namespace.
pub(crate) async fn addresses(
    connection: &mut Connection,
) -> Result<Vec<HeldAddress>, NetlinkError> {
    let build = |request: Request| request.message(GET_ADDRESS, DUMP, &[0; 8], |_| {});
    connection.dump(build, NEW_ADDRESS, decode_address).await
}

/// Creates a device that is up from the start; `EEXIST` when the name is taken.
pub(crate) fn create_link(request: Request, name: &str, kind: &str) -> Request {
    let link = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::from(kind));
    let link = link.name(name).up().build();
    append(request, NEW_LINK, ACK | CREATE | EXCLUSIVE, &link)
}

pub(crate) fn set_up(request: Request, index: u32) -> Request {
    set_link(request, &LinkUnspec::new_with_index(index).up().build())
}

/// Changes what `link` names of a device and nothing else.
fn set_link(request: Request, link: &LinkMessage) -> Request {
    append(request, NEW_LINK, ACK, link)
}

pub(crate) fn delete_link(request: Request, index: u32) -> Request {
    let link = LinkUnspec::new_with_index(index).build();
    append(request, DELETE_LINK, ACK, &link)
}

/// Adds the address `prefix` with global scope, because some network plug-ins count only such
/// addresses as the node's own; with a route to the whole of it on request, without duplicate address
/// detection.
pub(crate) fn add_address(
    request: Request,
    index: u32,
    prefix: IpNet,
    prefix_route: bool,
) -> Request {
    let message = new_address(index, prefix, prefix_route);
    append(request, NEW_ADDRESS, ACK | CREATE | EXCLUSIVE, &message)
}

pub(crate) fn delete_address(request: Request, index: u32, prefix: IpNet) -> Request {
    let message = address_message(index, prefix);
    append(request, DELETE_ADDRESS, ACK, &message)
}

fn append(request: Request, kind: u16, flags: u16, message: &impl Emitable) -> Request {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    request.message(kind, flags, &bytes, |_| {})
}

fn new_address(index: u32, prefix: IpNet, prefix_route: bool) -> AddressMessage {
    let address = prefix.addr();
    let mut message = address_message(index, prefix);
    message.attributes.push(AddressAttribute::Address(address));
    let mut flags = AddressFlags::empty();
    flags.set(AddressFlags::Noprefixroute, !prefix_route);
    flags.set(AddressFlags::Nodad, address.is_ipv6());
    message.attributes.push(AddressAttribute::Flags(flags));
    message
}

fn address_message(index: u32, prefix: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family_of(prefix.addr());
    message.header.prefix_len = prefix.prefix_len();
    message.header.index = index;
    message.attributes = vec![AddressAttribute::Local(prefix.addr())];
    message
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn held_address(message: &AddressMessage) -> Option<HeldAddress> {
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => other = Some(*address),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let detecting =
        flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
    // On a point-to-point device IFA_ADDRESS is the other end's; IPv6 often has no IFA_LOCAL.
    let prefix = IpNet::new(local.or(other)?, message.header.prefix_len).ok()?;
    Some(HeldAddress {
        index: message.header.index,
        prefix,
        prefix_route: !flags.contains(AddressFlags::Noprefixroute),
        usable: !detecting && !flags.contains(AddressFlags::Dadfailed),
    })
}

fn decode_address(payload: &[u8]) -> Option<HeldAddress> {
    held_address(&AddressMessage::parse(payload).ok()?)
}

/// The event in a multicast message, if it is one that was subscribed to.
pub(crate) fn decode_event(kind: u16, payload: &[u8]) -> Option<Event> {
    let address = || decode_address(payload);
    match kind {
        NEW_LINK => decode_link(payload).map(Event::LinkSet),
        DELETE_LINK => decode_link(payload).map(Event::LinkGone),
        NEW_ADDRESS => address().map(Event::AddressSet),
        DELETE_ADDRESS => address().map(Event::AddressGone),
        _ => None,
    }
}

/// Whether a message tells that packets to `address` now stay on the node.
pub(crate) fn makes_local(kind: u16, payload: &[u8], address: IpAddr) -> bool {
    kind == NEW_ROUTE
        && RouteMessage::parse(payload).is_ok_and(|message| {
            message.header.kind == RouteType::Local
                && route::destination(&message) == Some(IpNet::from(address))
        })
}

#[cfg(test)]
mod tests;
