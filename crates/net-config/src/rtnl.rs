//! Links, addresses, routes and rules by the `rtnetlink` crate: a connection that answers one
//! request after the other, and the requests about addresses. [`device`] has one device's settings,
//! [`route`] routes and rules.
//!
//! Over a socket of our own go what is read of links, for which [`link`] and [`device`] give the reason,
//! the kernel's events, and what the node proxy asks, for which [`node`] does.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "messages and attributes of `rtnetlink` have dozens of variants, and more to come"
)]

pub(crate) mod device;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod route;

use std::{net::IpAddr, pin::pin};

use futures_util::StreamExt;
use ipnet::IpNet;
use netlink_sys::{AsyncSocket, protocols::NETLINK_ROUTE};
use rtnetlink::{
    Handle, LinkUnspec,
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST,
        NetlinkMessage, NetlinkPayload, Parseable,
    },
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::LinkMessage,
        route::{RouteMessage, RouteType},
    },
};

use crate::{
    error::NetlinkError,
    netlink::{self, DUMP_ATTEMPTS, failed, refusal, within},
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

/// A message with the flags of its header.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    message: RouteNetlinkMessage,
    flags: u16,
}

/// A connection for requests. Its socket is read and written only while an answer is awaited, by
/// the task that awaits it: there is no task beside it.
pub(crate) struct Connection {
    handle: Handle,
    driver: rtnetlink::proto::Connection<RouteNetlinkMessage>,
}

impl Connection {
    pub(crate) fn open() -> Result<Self, NetlinkError> {
        let (mut driver, handle, _) = rtnetlink::new_connection().map_err(failed("socket"))?;
        let socket = driver.socket_mut().socket_mut();
        // Both only improve error answers: the reason in words, without our request repeated.
        // Old kernels lack them.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        driver.set_forward_done(true);
        Ok(Self { handle, driver })
    }

    /// Sends `request` and waits until it is acknowledged or refused.
    pub(crate) async fn acknowledged(&mut self, request: Request) -> Result<(), NetlinkError> {
        self.exchange(request, |_| {}).await?;
        Ok(())
    }

    /// Sends `request` and returns what `decode` finds in the answers, reading anew while the
    /// kernel reports a change in between.
    pub(crate) async fn read<T>(
        &mut self,
        request: &Request,
        decode: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let each = |message| found.extend(decode(message));
            if self.exchange(request.clone(), each).await? {
                return Ok(found);
            }
        }
        Err(NetlinkError::Inconsistent)
    }

    /// Hands every answer to `each`; returns whether they are consistent.
    async fn exchange(
        &mut self,
        request: Request,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<bool, NetlinkError> {
        let mut message = NetlinkMessage::from(request.message);
        message.header.flags = NLM_F_REQUEST | request.flags;
        let answers = self.handle.request(message);
        let mut answers = pin!(answers.map_err(|_| NetlinkError::Closed)?);
        let mut consistent = true;
        loop {
            let next = async {
                tokio::select! {
                    biased;
                    answer = answers.next() => Ok(answer),
                    () = &mut self.driver => Err(NetlinkError::Closed),
                }
            };
            let Some(answer) = within(next).await?? else {
                return Ok(consistent);
            };
            let flags = answer.header.flags;
            consistent &= flags & NLM_F_DUMP_INTR == 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => each(message),
                NetlinkPayload::Error(error) => refusal(error.raw_code(), flags, &error.header)?,
                NetlinkPayload::Done(done) => refusal(done.code, 0, &[])?,
                NetlinkPayload::Overrun(_) => consistent = false,
                _ => {}
            }
        }
    }
}

/// Opens a connection that receives link and address events of both families.
pub(crate) fn subscribe() -> Result<netlink::Connection, NetlinkError> {
    netlink::Connection::open(NETLINK_ROUTE, GROUPS)
}

/// Opens a connection that receives the changes of IPv6 routes.
pub(crate) fn subscribe_routes() -> Result<netlink::Connection, NetlinkError> {
    netlink::Connection::open(NETLINK_ROUTE, ROUTE_GROUPS)
}

/// All addresses of the namespace.
pub(crate) async fn addresses(
    connection: &mut Connection,
) -> Result<Vec<HeldAddress>, NetlinkError> {
    let request = Request {
        message: RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        flags: NLM_F_DUMP,
    };
    let decode = |message| match message {
        RouteNetlinkMessage::NewAddress(address) => held_address(&address),
        _ => None,
    };
    connection.read(&request, decode).await
}

pub(crate) fn set_up(index: u32) -> Request {
    set_link(LinkUnspec::new_with_index(index).up().build())
}

/// Changes what `link` names of a device and nothing else.
fn set_link(link: LinkMessage) -> Request {
    Request {
        message: RouteNetlinkMessage::NewLink(link),
        flags: NLM_F_ACK,
    }
}

/// Adds the address `prefix`, with a route to the whole of it on request, without duplicate
/// address detection.
pub(crate) fn add_prefix(index: u32, prefix: IpNet, prefix_route: bool) -> Request {
    Request {
        message: RouteNetlinkMessage::NewAddress(new_address(index, prefix, prefix_route)),
        flags: NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
    }
}

pub(crate) fn delete_address(index: u32, prefix: IpNet) -> Request {
    Request {
        message: RouteNetlinkMessage::DelAddress(address_message(index, prefix)),
        flags: NLM_F_ACK,
    }
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
