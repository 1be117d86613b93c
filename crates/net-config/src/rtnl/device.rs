//! One device's own settings: packet size, queue, IPv4 switches.
//!
//! `rtnetlink` knows no `RTM_GETNETCONF`; that one question is asked by hand.

use rtnetlink::{
    LinkUnspec,
    packet_core::{DefaultNla, NLM_F_ACK},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        link::{
            AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, LinkAttribute,
            LinkExtentMask, LinkFlags, LinkMessage,
        },
    },
};

use super::{Connection, Request, node, set_link};
use crate::{
    NetlinkError,
    attributes::{self, ACK, attribute},
};

const IFLA_INET_CONF: u16 = 1;

const NEW_NETCONF: u16 = 80;
const GET_NETCONF: u16 = 82;
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_RP_FILTER: u16 = 3;
/// The index that stands for `net.<family>.conf.all`.
const NETCONFA_IFINDEX_ALL: u32 = u32::MAX;

/// A switch below `net.ipv4.conf.<device>`; the number is the attribute that sets it
/// (`IPV4_DEVCONF_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Switch {
    AcceptLocal = 23,
    Forwarding = 1,
    LogMartians = 11,
    ReversePathFilter = 8,
}

impl Switch {
    /// Its name below `net.ipv4.conf.<device>`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AcceptLocal => "accept_local",
            Self::Forwarding => "forwarding",
            Self::LogMartians => "log_martians",
            Self::ReversePathFilter => "rp_filter",
        }
    }
}

/// What is set on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) index: u32,
    pub(crate) up: bool,
    pub(crate) mtu: u32,
    pub(crate) queue: u32,
    /// Whether the device takes part in IPv6; false below 1280 bytes and without IPv6.
    pub(crate) ipv6: bool,
    /// Whether the kernel gives it an IPv6 address of its own when it comes up.
    pub(crate) makes_link_local: bool,
    switches: Option<InetDevConf>,
}

impl Settings {
    /// The value of an IPv4 switch; `None` on a device without IPv4.
    pub(crate) fn switch(&self, switch: Switch) -> Option<u32> {
        let conf = self.switches.as_ref()?;
        let value = match switch {
            Switch::AcceptLocal => conf.accept_local,
            Switch::Forwarding => conf.forwarding,
            Switch::LogMartians => conf.log_martians,
            Switch::ReversePathFilter => conf.rp_filter,
        };
        Some(value.cast_unsigned())
    }
}

/// The settings of the device called `name`, if there is one.
pub(crate) async fn settings(
    connection: &mut Connection,
    name: &str,
) -> Result<Option<Settings>, NetlinkError> {
    let without_counters = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    let named = LinkUnspec::new_with_name(name).append_extra_attribute(without_counters);
    let request = Request {
        message: RouteNetlinkMessage::GetLink(named.build()),
        flags: NLM_F_ACK,
    };
    let decode = |message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(settings_of(link)),
        _ => None,
    };
    match connection.read(&request, decode).await {
        Err(source) if source.errno() == Some(libc::ENODEV) => Ok(None),
        answer => Ok(answer?.into_iter().next()),
    }
}

/// Reads `net.<family>.conf.all.rp_filter` (IPv4) or `.forwarding`; `None` where the kernel lacks
/// the family.
pub(crate) async fn all_devices(question: AllDevices) -> Result<Option<u32>, NetlinkError> {
    let (family, wanted) = match question {
        AllDevices::Ipv4ReversePathFilter => (AddressFamily::Inet.into(), NETCONFA_RP_FILTER),
        AllDevices::Ipv6Forwarding => (AddressFamily::Inet6.into(), NETCONFA_FORWARDING),
    };
    let asked = node::connect()?
        .dump(
            |request| {
                request.message(GET_NETCONF, ACK, &[family], |out| {
                    out.put_u32(NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL);
                })
            },
            |kind, payload| {
                let own = kind == NEW_NETCONF && payload.first() == Some(&family);
                let found = attribute(payload.get(4..)?, wanted)?;
                own.then(|| attributes::u32_at(found, 0)).flatten()
            },
        )
        .await;
    match asked {
        Err(source) if matches!(source.errno(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => {
            Ok(None)
        }
        answer => Ok(answer?.into_iter().next()),
    }
}

/// What can be asked of all devices together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllDevices {
    Ipv4ReversePathFilter,
    Ipv6Forwarding,
}

pub(crate) fn set_mtu_and_queue(index: u32, mtu: u32, queue: u32) -> Request {
    let link = LinkUnspec::new_with_index(index);
    set_link(link.mtu(mtu).txqueuelen(queue).build())
}

/// Keeps the kernel from giving the device an IPv6 address of its own when it comes up.
pub(crate) fn without_link_local(index: u32) -> Request {
    let none = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
    set_family(index, AfSpecUnspec::Inet6(none))
}

/// Sets the switches; `AfSpecInet::DevConfRequest` would leave out those that become 0.
pub(crate) fn set_switches(index: u32, values: &[(Switch, u32)]) -> Request {
    let mut nested = Vec::new();
    for (switch, value) in values {
        nested.extend(8_u16.to_ne_bytes());
        nested.extend((*switch as u16).to_ne_bytes());
        nested.extend(value.to_ne_bytes());
    }
    let conf = AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF, nested));
    set_family(index, AfSpecUnspec::Inet(vec![conf]))
}

fn set_family(index: u32, family: AfSpecUnspec) -> Request {
    let family = LinkAttribute::AfSpecUnspec(vec![family]);
    set_link(
        LinkUnspec::new_with_index(index)
            .append_extra_attribute(family)
            .build(),
    )
}

fn settings_of(link: LinkMessage) -> Settings {
    let mut settings = Settings {
        index: link.header.index,
        up: link.header.flags.contains(LinkFlags::Up),
        mtu: 0,
        queue: 0,
        ipv6: false,
        makes_link_local: false,
        switches: None,
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => settings.mtu = bytes,
            LinkAttribute::TxQueueLen(packets) => settings.queue = packets,
            LinkAttribute::AfSpecUnspec(families) => {
                for family in families {
                    settings.read_family(family);
                }
            }
            _ => {}
        }
    }
    settings
}

impl Settings {
    fn read_family(&mut self, family: AfSpecUnspec) {
        match family {
            AfSpecUnspec::Inet(inet) => {
                self.switches = inet.into_iter().find_map(|part| match part {
                    AfSpecInet::DevConf(conf) => Some(conf),
                    _ => None,
                });
            }
            AfSpecUnspec::Inet6(inet6) => {
                self.ipv6 = true;
                self.makes_link_local = inet6.iter().any(|part| {
                    matches!(part, AfSpecInet6::AddrGenMode(mode) if *mode != In6AddrGenMode::None)
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::Parseable;

    use super::*;
    use crate::attributes::{Request as Raw, messages};

    const NEW_LINK: u16 = 16;
    const IFLA_MTU: u16 = 4;
    const IFLA_AF_SPEC: u16 = 26;

    #[test]
    fn a_switch_is_read_at_its_place() {
        // One value more than the crate's 33, as a later kernel may have.
        let values: Vec<u8> = (1..=34_u32).flat_map(u32::to_ne_bytes).collect();
        let header = [0_u32, 3, 1, 0].map(u32::to_ne_bytes).concat();
        let request = Raw::new(1).message(NEW_LINK, 0, &header, |out| {
            out.put_u32(IFLA_MTU, 1420);
            out.nest(IFLA_AF_SPEC, |out| {
                out.nest(2, |out| out.put(IFLA_INET_CONF, &values));
            });
        });
        let message = messages(request.bytes()).next().unwrap().unwrap();

        let settings = settings_of(LinkMessage::parse(message.payload).unwrap());

        assert_eq!((settings.index, settings.up, settings.mtu), (3, true, 1420));
        assert!(!settings.ipv6);
        assert_eq!(settings.switch(Switch::Forwarding), Some(1));
        assert_eq!(settings.switch(Switch::ReversePathFilter), Some(8));
        assert_eq!(settings.switch(Switch::AcceptLocal), Some(23));
    }
}
