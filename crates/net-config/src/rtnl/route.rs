//! Routes and the rules that choose a routing table.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use rtnetlink::{
    packet_core::Parseable,
    packet_route::{
        AddressFamily,
        route::{
            RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope,
            RouteType,
        },
        rule::{RuleAction, RuleAttribute, RuleMessage},
    },
};

use super::{NEW_ROUTE, append, family_of};
use crate::{
    NetlinkError,
    attributes::{ACK, CREATE, DUMP, EXCLUSIVE, REPLACE, Request},
    netlink::Connection,
};

const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;
const GET_RULE: u16 = 34;

/// Marks routes and rules of ours (`RTA_PROTOCOL`, `FRA_PROTOCOL`), so that what an earlier start
/// left is told from what others set. A number that neither the kernel nor a routing daemon has
/// taken (iproute2's `rt_protos`).
pub(crate) const PROTOCOL: u8 = 82;

/// What a look-up answers where no route is, or one of type unreachable, blackhole or prohibit.
const NO_WAY: [i32; 4] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EINVAL,
    libc::EACCES,
];

/// A unicast route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub(crate) destination: IpNet,
    pub(crate) table: u32,
    pub(crate) protocol: u8,
    /// Indices of the devices it leads to, several if it has several ways.
    pub(crate) devices: Vec<u32>,
    /// The source for packets that have none yet.
    pub(crate) source: Option<IpAddr>,
}

/// A rule: what leaves by `device` looks into `table`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    pub(crate) ipv6: bool,
    pub(crate) priority: u32,
    pub(crate) table: u32,
    pub(crate) device: String,
    pub(crate) protocol: u8,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        write!(f, "{family} rule for table {}", self.table)
    }
}

/// All unicast routes of both families, of every table.
pub(crate) async fn routes(connection: &mut Connection) -> Result<Vec<Route>, NetlinkError> {
    let build = |request| append(request, GET_ROUTE, DUMP, &RouteMessage::default());
    connection.dump(build, NEW_ROUTE, unicast).await
}

/// The way to `address`, for a socket bound to the device `index`. `None` when there is none, or
/// none that leaves the namespace.
pub(crate) async fn look_up(
    connection: &mut Connection,
    address: IpAddr,
    index: u32,
) -> Result<Option<Route>, NetlinkError> {
    answer(connection, address, Some(index), unicast).await
}

/// Whether there is any way to `address`, one that stays in the namespace included.
pub(crate) async fn is_reachable(
    connection: &mut Connection,
    address: IpAddr,
) -> Result<bool, NetlinkError> {
    let way = |payload: &[u8]| {
        let way = RouteMessage::parse(payload).ok()?;
        matches!(way.header.kind, RouteType::Unicast | RouteType::Local).then_some(())
    };
    Ok(answer(connection, address, None, way).await?.is_some())
}

/// Asks the kernel to decide where a packet to `address` goes, and by which table.
async fn answer<T>(
    connection: &mut Connection,
    address: IpAddr,
    index: Option<u32>,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, NetlinkError> {
    let mut message = message_to(address.into());
    message.header.flags = RouteFlags::LookupTable;
    message.attributes.extend(index.map(RouteAttribute::Oif));
    let build = |request| append(request, GET_ROUTE, ACK, &message);
    match connection.dump(build, NEW_ROUTE, decode).await {
        Err(source) if source.errno().is_some_and(|errno| NO_WAY.contains(&errno)) => Ok(None),
        answers => Ok(answers?.into_iter().next()),
    }
}

/// Puts `route` into its table, over one to the same destination.
pub(crate) fn put_route(request: Request, route: &Route) -> Request {
    let mut message = route_message(route);
    let source = route.source.map(RouteAddress::from);
    let source = source.map(RouteAttribute::PrefSource);
    message.attributes.extend(source);
    append(request, NEW_ROUTE, ACK | CREATE | REPLACE, &message)
}

pub(crate) fn delete_route(request: Request, route: &Route) -> Request {
    append(request, DELETE_ROUTE, ACK, &route_message(route))
}

pub(crate) async fn rules(connection: &mut Connection) -> Result<Vec<Rule>, NetlinkError> {
    let build = |request| append(request, GET_RULE, DUMP, &RuleMessage::default());
    connection.dump(build, NEW_RULE, to_table).await
}

/// `EEXIST` when there is the same rule already.
pub(crate) fn add_rule(request: Request, rule: &Rule) -> Request {
    let message = rule_message(rule);
    append(request, NEW_RULE, ACK | CREATE | EXCLUSIVE, &message)
}

pub(crate) fn delete_rule(request: Request, rule: &Rule) -> Request {
    append(request, DELETE_RULE, ACK, &rule_message(rule))
}

/// A message about `destination` and nothing else.
pub(super) fn message_to(destination: IpNet) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(destination.addr());
    message.header.destination_prefix_length = destination.prefix_len();
    let address = RouteAddress::from(destination.addr());
    message.attributes = vec![RouteAttribute::Destination(address)];
    message
}

/// The table travels as an attribute, which has room for more than 255.
fn route_message(route: &Route) -> RouteMessage {
    let mut message = message_to(route.destination);
    message.header.protocol = RouteProtocol::from(route.protocol);
    message.header.kind = RouteType::Unicast;
    if route.destination.addr().is_ipv4() {
        message.header.scope = RouteScope::Link;
    }
    let device = route.devices.first().copied();
    message.attributes.extend(device.map(RouteAttribute::Oif));
    message.attributes.push(RouteAttribute::Table(route.table));
    message
}

fn rule_message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if rule.ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    };
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Oifname(rule.device.clone()),
        RuleAttribute::Protocol(RouteProtocol::from(rule.protocol)),
    ];
    message
}

fn unicast(payload: &[u8]) -> Option<Route> {
    let message = RouteMessage::parse(payload).ok()?;
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    let destination = destination(&message)?;
    let mut route = Route {
        destination,
        table: message.header.table.into(),
        protocol: message.header.protocol.into(),
        devices: Vec::new(),
        source: None,
    };
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => route.devices.push(index),
            RouteAttribute::MultiPath(ways) => {
                let indices = ways.iter().map(|way| way.interface_index);
                route.devices.extend(indices);
            }
            RouteAttribute::PrefSource(source) => route.source = ip(&source),
            RouteAttribute::Table(table) => route.table = table,
            _ => {}
        }
    }
    Some(route)
}

/// Where a route leads; a default route names no destination.
pub(super) fn destination(message: &RouteMessage) -> Option<IpNet> {
    let named = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(address) => Some(ip(address)),
            _ => None,
        });
    let everything = || match message.header.address_family {
        AddressFamily::Inet => Some(IpAddr::from([0; 4])),
        AddressFamily::Inet6 => Some(IpAddr::from([0; 16])),
        _ => None,
    };
    let address = named.unwrap_or_else(everything)?;
    IpNet::new(address, message.header.destination_prefix_length).ok()
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn to_table(payload: &[u8]) -> Option<Rule> {
    let message = RuleMessage::parse(payload).ok()?;
    let ipv6 = match message.header.family {
        AddressFamily::Inet => false,
        AddressFamily::Inet6 => true,
        _ => return None,
    };
    if message.header.action != RuleAction::ToTable {
        return None;
    }
    let mut table = message.header.table.into();
    let (mut device, mut priority, mut protocol) = (None, 0, 0);
    for attribute in message.attributes {
        match attribute {
            RuleAttribute::Oifname(name) => device = Some(name),
            RuleAttribute::Priority(number) => priority = number,
            RuleAttribute::Protocol(number) => protocol = number.into(),
            RuleAttribute::Table(number) => table = number,
            _ => {}
        }
    }
    Some(Rule {
        ipv6,
        priority,
        table,
        device: device?,
        protocol,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtnl::tests::payload;

    #[test]
    fn a_written_route_decodes_to_itself() {
        for (to, from) in [("10.96.0.0/11", "192.168.123.1"), ("fd00::/64", "fd8f::1")] {
            let route = Route {
                destination: to.parse().unwrap(),
                table: 51820,
                protocol: PROTOCOL,
                devices: vec![7],
                source: Some(from.parse().unwrap()),
            };

            let written = payload(&put_route(Request::new(1), &route));

            assert_eq!(unicast(&written), Some(route));
        }
    }

    #[test]
    fn a_written_rule_decodes_to_itself() {
        let rule = Rule {
            ipv6: true,
            priority: 5182,
            table: 51820,
            device: "rhizome0".to_owned(),
            protocol: PROTOCOL,
        };

        let written = payload(&add_rule(Request::new(1), &rule));

        assert_eq!(to_table(&written), Some(rule));
    }

    #[test]
    fn multipath_default_route_has_both_devices() {
        let header = [2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        let ways = [[16, 0, 0, 0], [4, 0, 0, 0], [8, 0, 5, 0], [10, 0, 0, 1]].concat();
        let second = [[8, 0, 0, 0], [9, 0, 0, 0]].concat();
        // RTA_MULTIPATH, in the byte order of most machines.
        let bytes = [&header[..], &[28, 0, 9, 0], &ways, &second].concat();

        let route = unicast(&bytes).unwrap();

        assert_eq!(route.destination, "0.0.0.0/0".parse().unwrap());
        assert_eq!((route.table, route.devices), (254, vec![4, 9]));
    }
}
