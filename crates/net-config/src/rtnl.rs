//! Links, addresses, routes and rules: requests over [`Connection`], in messages of
//! `netlink-packet-route`, and the kernel's events. [`device`] has one device's settings, [`route`]
//! routes and rules.
//!
//! What is read of links is decoded by hand, for which [`link`] gives the reason.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "attributes of `netlink-packet-route` have dozens of variants, and more to come"
)]

pub(crate) mod device;
pub(crate) mod link;
pub(crate) mod route;

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    route::{RouteMessage, RouteType},
};
use netlink_sys::protocols::NETLINK_ROUTE;

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
pub(crate) async fn create_link(
    connection: &mut Connection,
    name: &str,
    kind: &str,
) -> Result<(), NetlinkError> {
    let link = new_link(name, kind);
    apply(connection, NEW_LINK, ACK | CREATE | EXCLUSIVE, &link).await
}

fn new_link(name: &str, kind: &str) -> LinkMessage {
    let mut link = with_flag_up(0);
    link.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::from(kind))]),
    ];
    link
}

pub(crate) async fn set_up(connection: &mut Connection, index: u32) -> Result<(), NetlinkError> {
    apply(connection, NEW_LINK, ACK, &with_flag_up(index)).await
}

fn with_flag_up(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link
}

/// Changes what `attributes` name of a device and nothing else.
async fn set_link(
    connection: &mut Connection,
    index: u32,
    attributes: Vec<LinkAttribute>,
) -> Result<(), NetlinkError> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.attributes = attributes;
    apply(connection, NEW_LINK, ACK, &link).await
}

pub(crate) async fn delete_link(
    connection: &mut Connection,
    index: u32,
) -> Result<(), NetlinkError> {
    let mut link = LinkMessage::default();
    link.header.index = index;
    apply(connection, DELETE_LINK, ACK, &link).await
}

/// Adds the address `prefix` with global scope, with a route to the whole of it on request, without
/// duplicate address detection. Global, because some network plug-ins count only such addresses as
/// the node's own.
pub(crate) async fn add_address(
    connection: &mut Connection,
    index: u32,
    prefix: IpNet,
    prefix_route: bool,
) -> Result<(), NetlinkError> {
    let message = new_address(index, prefix, prefix_route);
    apply(connection, NEW_ADDRESS, ACK | CREATE | EXCLUSIVE, &message).await
}

pub(crate) async fn delete_address(
    connection: &mut Connection,
    index: u32,
    prefix: IpNet,
) -> Result<(), NetlinkError> {
    let message = address_message(index, prefix);
    apply(connection, DELETE_ADDRESS, ACK, &message).await
}

/// Sends `message` and waits until it is acknowledged or refused.
async fn apply(
    connection: &mut Connection,
    kind: u16,
    flags: u16,
    message: &impl Emitable,
) -> Result<(), NetlinkError> {
    let request = connection.request().emit(kind, flags, message);
    connection.acknowledged(&request).await
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
