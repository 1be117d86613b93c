//! Routes and the rules that choose a routing table.
//!
//! Numbers are from include/uapi/linux/{rtnetlink,fib_rules}.h.

use std::net::IpAddr;

use super::{AF_INET, AF_INET6, NEW_ROUTE, RTA_DST, RTN_LOCAL, decode_ip, put_ip};
use crate::{
    NetlinkError, Prefix,
    attributes::{self, ACK, CREATE, DUMP, EXCLUSIVE, REPLACE, Request, attributes},
    netlink::Connection,
};

/// Marks routes and rules of ours (`RTA_PROTOCOL`, `FRA_PROTOCOL`), so that what an earlier start
/// left is told from what others set. A number that neither the kernel nor a routing daemon has
/// taken (iproute2's `rt_protos`).
pub(crate) const PROTOCOL: u8 = 82;

const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;
const GET_RULE: u16 = 34;

const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTN_UNICAST: u8 = 1;
const RT_SCOPE_LINK: u8 = 253;
/// Answers a look-up with the table that decided it.
const RTM_F_LOOKUP_TABLE: u32 = 0x1000;

/// What a look-up answers where no route is, or one of type unreachable, blackhole or prohibit.
const NO_WAY: [i32; 4] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EINVAL,
    libc::EACCES,
];

const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_OIFNAME: u16 = 17;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;

/// A unicast route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub(crate) destination: Prefix,
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

/// All unicast routes of both families, of every table.
pub(crate) async fn routes(connection: &mut Connection) -> Result<Vec<Route>, NetlinkError> {
    connection
        .dump(
            |request| request.message(GET_ROUTE, DUMP, &[0; 12], |_| {}),
            |kind, payload| (kind == NEW_ROUTE).then(|| decode_route(payload)).flatten(),
        )
        .await
}

/// The way to `address`, for a socket bound to the device `index`. `None` when there is none, or
/// none that leaves the namespace.
pub(crate) async fn look_up(
    connection: &mut Connection,
    address: IpAddr,
    index: u32,
) -> Result<Option<Route>, NetlinkError> {
    answers(connection, address, Some(index), decode_route).await
}

/// Whether there is any way to `address`, one that stays in the namespace included.
pub(crate) async fn is_reachable(
    connection: &mut Connection,
    address: IpAddr,
) -> Result<bool, NetlinkError> {
    let way = |payload: &[u8]| {
        let kind = *payload.get(7)?;
        (kind == RTN_UNICAST || kind == RTN_LOCAL).then_some(())
    };
    Ok(answers(connection, address, None, way).await?.is_some())
}

/// Asks the kernel to decide where a packet to `address` goes.
async fn answers<T>(
    connection: &mut Connection,
    address: IpAddr,
    index: Option<u32>,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, NetlinkError> {
    let asked = connection
        .dump(
            |request| {
                let mut header = route_header(Prefix::host(address), 0);
                header[8..12].copy_from_slice(&RTM_F_LOOKUP_TABLE.to_ne_bytes());
                request.message(GET_ROUTE, ACK, &header, |out| {
                    put_ip(out, RTA_DST, address);
                    if let Some(index) = index {
                        out.put_u32(RTA_OIF, index);
                    }
                })
            },
            |kind, payload| (kind == NEW_ROUTE).then(|| decode(payload)).flatten(),
        )
        .await;
    match asked {
        Err(source) if source.errno().is_some_and(|errno| NO_WAY.contains(&errno)) => Ok(None),
        answer => Ok(answer?.into_iter().next()),
    }
}

/// Puts `route` into its table, over one to the same destination.
pub(crate) fn put_route(request: Request, route: &Route) -> Request {
    let header = route_header(route.destination, route.protocol);
    request.message(NEW_ROUTE, ACK | CREATE | REPLACE, &header, |out| {
        put_key(out, route);
        if let Some(source) = route.source {
            put_ip(out, RTA_PREFSRC, source);
        }
    })
}

pub(crate) fn delete_route(request: Request, route: &Route) -> Request {
    let header = route_header(route.destination, route.protocol);
    request.message(DELETE_ROUTE, ACK, &header, |out| put_key(out, route))
}

pub(crate) async fn rules(connection: &mut Connection) -> Result<Vec<Rule>, NetlinkError> {
    connection
        .dump(
            |request| request.message(GET_RULE, DUMP, &[0; 12], |_| {}),
            |kind, payload| (kind == NEW_RULE).then(|| decode_rule(payload)).flatten(),
        )
        .await
}

/// `EEXIST` when there is the same rule already.
pub(crate) fn add_rule(request: Request, rule: &Rule) -> Request {
    request.message(
        NEW_RULE,
        ACK | CREATE | EXCLUSIVE,
        &rule_header(rule),
        |out| {
            put_rule(out, rule);
        },
    )
}

pub(crate) fn delete_rule(request: Request, rule: &Rule) -> Request {
    request.message(DELETE_RULE, ACK, &rule_header(rule), |out| {
        put_rule(out, rule);
    })
}

/// `struct rtmsg`: family, destination, source and TOS, table, protocol, scope, type, flags. The
/// table travels as an attribute, which has room for more than 255.
fn route_header(destination: Prefix, protocol: u8) -> [u8; 12] {
    let (family, scope) = if destination.address().is_ipv4() {
        (AF_INET, RT_SCOPE_LINK)
    } else {
        (AF_INET6, 0)
    };
    let length = destination.length();
    [
        family,
        length,
        0,
        0,
        0,
        protocol,
        scope,
        RTN_UNICAST,
        0,
        0,
        0,
        0,
    ]
}

fn put_key(out: &mut attributes::Writer<'_>, route: &Route) {
    put_ip(out, RTA_DST, route.destination.address());
    if let Some(index) = route.devices.first() {
        out.put_u32(RTA_OIF, *index);
    }
    out.put_u32(RTA_TABLE, route.table);
}

/// `struct fib_rule_hdr`: family, lengths, TOS, table, two reserved, action, flags.
fn rule_header(rule: &Rule) -> [u8; 12] {
    let family = if rule.ipv6 { AF_INET6 } else { AF_INET };
    [family, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0]
}

fn put_rule(out: &mut attributes::Writer<'_>, rule: &Rule) {
    out.put_u32(FRA_PRIORITY, rule.priority);
    out.put_u32(FRA_TABLE, rule.table);
    out.put_str(FRA_OIFNAME, &rule.device);
    out.put(FRA_PROTOCOL, &[rule.protocol]);
}

fn decode_route(payload: &[u8]) -> Option<Route> {
    let [family, length, _, _, table, protocol, _, kind] = *payload.first_chunk()?;
    if kind != RTN_UNICAST {
        return None;
    }
    let (mut destination, mut devices) = (None, Vec::new());
    let (mut table, mut source) = (u32::from(table), None);
    for (kind, value) in attributes(payload.get(12..)?) {
        match kind {
            RTA_DST => destination = Some(decode_ip(family, value)?),
            RTA_OIF => devices.extend(attributes::u32_at(value, 0)),
            RTA_MULTIPATH => devices.extend(ways(value)),
            RTA_PREFSRC => source = decode_ip(family, value),
            RTA_TABLE => table = attributes::u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(Route {
        destination: Prefix::new(destination.or_else(|| everything(family))?, length).ok()?,
        table,
        protocol,
        devices,
        source,
    })
}

/// A default route names no destination.
fn everything(family: u8) -> Option<IpAddr> {
    match family {
        AF_INET => Some(IpAddr::from([0; 4])),
        AF_INET6 => Some(IpAddr::from([0; 16])),
        _ => None,
    }
}

/// The devices of several `struct rtnexthop`: length (2), flags, hops, index (4), attributes.
fn ways(value: &[u8]) -> impl Iterator<Item = u32> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let length = usize::from(attributes::u16_at(rest, 0)?);
        let index = attributes::u32_at(rest, 4)?;
        rest = rest
            .get(length.next_multiple_of(4).max(8)..)
            .unwrap_or_default();
        Some(index)
    })
}

fn decode_rule(payload: &[u8]) -> Option<Rule> {
    let [family, _, _, _, table, _, _, action] = *payload.first_chunk()?;
    let ipv6 = match family {
        AF_INET => false,
        AF_INET6 => true,
        _ => return None,
    };
    let (mut table, mut device) = (u32::from(table), None);
    let (mut priority, mut protocol) = (0, 0);
    for (kind, value) in attributes(payload.get(12..)?) {
        match kind {
            FRA_OIFNAME => device = attributes::text(value),
            FRA_PRIORITY => priority = attributes::u32_at(value, 0)?,
            FRA_PROTOCOL => protocol = *value.first()?,
            FRA_TABLE => table = attributes::u32_at(value, 0)?,
            _ => {}
        }
    }
    (action == FR_ACT_TO_TBL).then_some(())?;
    Some(Rule {
        ipv6,
        priority,
        table,
        device: device?.to_owned(),
        protocol,
    })
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
    fn a_written_route_decodes_to_itself() {
        for (to, from) in [("10.96.0.0/11", "192.168.123.1"), ("fd00::/64", "fd8f::1")] {
            let route = Route {
                destination: to.parse().unwrap(),
                table: 51820,
                protocol: PROTOCOL,
                devices: vec![7],
                source: Some(from.parse().unwrap()),
            };

            let decoded = decode_route(&payload(&put_route(Request::new(1), &route)));

            assert_eq!(decoded, Some(route));
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

        let decoded = decode_rule(&payload(&add_rule(Request::new(1), &rule)));

        assert_eq!(decoded, Some(rule));
    }

    #[test]
    fn a_default_route_of_two_ways_leads_to_both_devices() {
        let header = [2, 0, 0, 0, 254, 3, 0, RTN_UNICAST, 0, 0, 0, 0];
        let request = Request::new(1).message(NEW_ROUTE, 0, &header, |out| {
            let ways = [[16, 0, 0, 0], [4, 0, 0, 0], [8, 0, 5, 0], [10, 0, 0, 1]].concat();
            let second = [[8, 0, 0, 0], [9, 0, 0, 0]].concat();
            out.put(RTA_MULTIPATH, &[ways, second].concat());
        });

        let route = decode_route(&payload(&request)).unwrap();

        assert_eq!(route.destination, "0.0.0.0/0".parse().unwrap());
        assert_eq!((route.table, route.devices), (254, vec![4, 9]));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode_route(&bytes);
            let _ = decode_rule(&bytes);
            prop_assert!(ways(&bytes).count() <= bytes.len() / 8 + 1);
        }
    }
}
