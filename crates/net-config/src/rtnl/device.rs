//! One device's own settings: packet size, queue, addresses with their flags, IPv4 switches.
//!
//! Numbers are from include/uapi/linux/{if_link,ip,netconf}.h.

use super::{
    AF_INET, AF_INET6, GET_ADDRESS, GET_LINK, IFA_ADDRESS, IFA_F_NODAD, IFA_F_NOPREFIXROUTE,
    IFA_FLAGS, IFA_LOCAL, IFF_UP, IFLA_EXT_MASK, IFLA_IFNAME, NEW_ADDRESS, NEW_LINK,
    RTEXT_FILTER_SKIP_STATS, address_header, decode_address, link_header, put_ip,
};
use crate::{
    NetlinkError, Prefix,
    attributes::{self, ACK, CREATE, DUMP, EXCLUSIVE, Request, attribute, attributes},
    netlink::Connection,
};

const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

const NEW_NETCONF: u16 = 80;
const GET_NETCONF: u16 = 82;
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_RP_FILTER: u16 = 3;
/// The index that stands for `net.<family>.conf.all`.
const NETCONFA_IFINDEX_ALL: u32 = u32::MAX;

/// A switch below `net.ipv4.conf.<device>`; the number is its place in the kernel's table
/// (`IPV4_DEVCONF_*`), which is also the attribute that sets it.
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
    switches: Vec<u8>,
}

impl Settings {
    /// The value of an IPv4 switch; `None` on a device without IPv4.
    pub(crate) fn switch(&self, switch: Switch) -> Option<u32> {
        attributes::u32_at(&self.switches, (switch as usize - 1) * 4)
    }
}

/// An address on a device with its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAddress {
    pub(crate) index: u32,
    pub(crate) prefix: Prefix,
    /// The kernel keeps a route to the whole prefix.
    pub(crate) prefix_route: bool,
    pub(crate) usable: bool,
}

/// The settings of the device called `name`, if there is one.
pub(crate) async fn settings(
    connection: &mut Connection,
    name: &str,
) -> Result<Option<Settings>, NetlinkError> {
    let asked = connection
        .dump(
            |request| {
                request.message(GET_LINK, ACK, &link_header(0, 0), |out| {
                    out.put_str(IFLA_IFNAME, name);
                    out.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
                })
            },
            |kind, payload| {
                (kind == NEW_LINK)
                    .then(|| decode_settings(payload))
                    .flatten()
            },
        )
        .await;
    match asked {
        Err(source) if source.errno() == Some(libc::ENODEV) => Ok(None),
        answer => Ok(answer?.into_iter().next()),
    }
}

/// All addresses of the namespace.
pub(crate) async fn device_addresses(
    connection: &mut Connection,
) -> Result<Vec<DeviceAddress>, NetlinkError> {
    connection
        .dump(
            |request| request.message(GET_ADDRESS, DUMP, &[0; 8], |_| {}),
            |kind, payload| {
                (kind == NEW_ADDRESS)
                    .then(|| decode_device_address(payload))
                    .flatten()
            },
        )
        .await
}

/// Reads `net.<family>.conf.all.rp_filter` (IPv4) or `.forwarding`; `None` where the kernel lacks
/// the family.
pub(crate) async fn all_devices(
    connection: &mut Connection,
    question: AllDevices,
) -> Result<Option<u32>, NetlinkError> {
    let (family, wanted) = match question {
        AllDevices::Ipv4ReversePathFilter => (AF_INET, NETCONFA_RP_FILTER),
        AllDevices::Ipv6Forwarding => (AF_INET6, NETCONFA_FORWARDING),
    };
    let asked = connection
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

pub(crate) fn set_mtu_and_queue(request: Request, index: u32, mtu: u32, queue: u32) -> Request {
    request.message(NEW_LINK, ACK, &link_header(index, 0), |out| {
        out.put_u32(IFLA_MTU, mtu);
        out.put_u32(IFLA_TXQLEN, queue);
    })
}

/// Keeps the kernel from giving the device an IPv6 address of its own when it comes up.
pub(crate) fn without_link_local(request: Request, index: u32) -> Request {
    request.message(NEW_LINK, ACK, &link_header(index, 0), |out| {
        out.nest(IFLA_AF_SPEC, |out| {
            out.nest(u16::from(AF_INET6), |out| {
                out.put(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
            });
        });
    })
}

pub(crate) fn set_switches(request: Request, index: u32, values: &[(Switch, u32)]) -> Request {
    request.message(NEW_LINK, ACK, &link_header(index, 0), |out| {
        out.nest(IFLA_AF_SPEC, |out| {
            out.nest(u16::from(AF_INET), |out| {
                out.nest(IFLA_INET_CONF, |out| {
                    for (switch, value) in values {
                        out.put_u32(*switch as u16, *value);
                    }
                });
            });
        });
    })
}

/// Adds the address `prefix`, without duplicate address detection: the device has one other end.
pub(crate) fn add_prefix(
    request: Request,
    index: u32,
    prefix: Prefix,
    prefix_route: bool,
) -> Request {
    let address = prefix.address();
    let header = address_header(index, address, prefix.length());
    let mut flags = if prefix_route { 0 } else { IFA_F_NOPREFIXROUTE };
    if address.is_ipv6() {
        flags |= IFA_F_NODAD;
    }
    request.message(NEW_ADDRESS, ACK | CREATE | EXCLUSIVE, &header, |out| {
        put_ip(out, IFA_LOCAL, address);
        put_ip(out, IFA_ADDRESS, address);
        out.put_u32(IFA_FLAGS, flags);
    })
}

fn decode_settings(payload: &[u8]) -> Option<Settings> {
    let mut settings = Settings {
        index: attributes::u32_at(payload, 4)?,
        up: attributes::u32_at(payload, 8)? & IFF_UP != 0,
        mtu: 0,
        queue: 0,
        ipv6: false,
        makes_link_local: false,
        switches: Vec::new(),
    };
    for (kind, value) in attributes(payload.get(16..)?) {
        match kind {
            IFLA_MTU => settings.mtu = attributes::u32_at(value, 0)?,
            IFLA_TXQLEN => settings.queue = attributes::u32_at(value, 0)?,
            IFLA_AF_SPEC => {
                let inet6 = attribute(value, u16::from(AF_INET6));
                settings.ipv6 = inet6.is_some();
                settings.makes_link_local = inet6
                    .and_then(|inet6| attribute(inet6, IFLA_INET6_ADDR_GEN_MODE))
                    .is_some_and(|mode| mode != [IN6_ADDR_GEN_MODE_NONE]);
                settings.switches = attribute(value, u16::from(AF_INET))
                    .and_then(|inet| attribute(inet, IFLA_INET_CONF))
                    .unwrap_or_default()
                    .to_vec();
            }
            _ => {}
        }
    }
    Some(settings)
}

fn decode_device_address(payload: &[u8]) -> Option<DeviceAddress> {
    let held = decode_address(payload)?;
    let flags = attribute(payload.get(8..)?, IFA_FLAGS)
        .and_then(|value| attributes::u32_at(value, 0))
        .unwrap_or_default();
    Some(DeviceAddress {
        index: held.index,
        prefix: Prefix::new(held.address, held.prefix_length).ok()?,
        prefix_route: flags & IFA_F_NOPREFIXROUTE == 0,
        usable: held.usable,
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
    fn an_added_prefix_decodes_to_itself() {
        for (text, prefix_route) in [("192.168.123.1/24", true), ("fd00::1/96", false)] {
            let prefix: Prefix = text.parse().unwrap();

            let request = add_prefix(Request::new(1), 9, prefix, prefix_route);

            assert_eq!(
                decode_device_address(&payload(&request)),
                Some(DeviceAddress {
                    index: 9,
                    prefix,
                    prefix_route,
                    usable: true
                })
            );
        }
    }

    #[test]
    fn a_switch_is_read_at_its_place() {
        let values: Vec<u8> = (1..=24_u32).flat_map(u32::to_ne_bytes).collect();
        let request = Request::new(1).message(NEW_LINK, 0, &link_header(3, IFF_UP), |out| {
            out.put_u32(IFLA_MTU, 1420);
            out.nest(IFLA_AF_SPEC, |out| {
                out.nest(u16::from(AF_INET), |out| out.put(IFLA_INET_CONF, &values));
            });
        });

        let settings = decode_settings(&payload(&request)).unwrap();

        assert_eq!((settings.index, settings.up, settings.mtu), (3, true, 1420));
        assert!(!settings.ipv6);
        assert_eq!(settings.switch(Switch::Forwarding), Some(1));
        assert_eq!(settings.switch(Switch::ReversePathFilter), Some(8));
        assert_eq!(settings.switch(Switch::AcceptLocal), Some(23));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode_settings(&bytes).map(|found| found.switch(Switch::AcceptLocal));
            let _ = decode_device_address(&bytes);
        }
    }
}
