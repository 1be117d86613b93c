//! One device's own settings: packet size, queue, IPv4 switches.
//!
//! They are set by `rtnetlink` and read by hand: uplinks are foreign devices, and `rtnetlink` loses one
//! whose attributes it cannot read (see [`link`](super::link)). It knows no `RTM_GETNETCONF` either.

use rtnetlink::{
    LinkUnspec,
    packet_core::DefaultNla,
    packet_route::{
        AddressFamily,
        link::{AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute},
    },
};

use super::link::{GET_LINK, IFF_UP, IFLA_EXT_MASK, IFLA_IFNAME, RTEXT_FILTER_SKIP_STATS};
use super::{NEW_LINK, connect, set_link};
use crate::{
    NetlinkError,
    attributes::{self, ACK, Request, attribute, attributes, encoded},
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
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

/// The settings of the device called `name`, if there is one.
pub(crate) async fn settings(name: &str) -> Result<Option<Settings>, NetlinkError> {
    let build = |request: Request| {
        request.message(GET_LINK, ACK, &[0; 16], |out| {
            out.put_str(IFLA_IFNAME, name);
            out.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        })
    };
    match connect()?.dump(build, NEW_LINK, decode_settings).await {
        Err(source) if source.errno() == Some(libc::ENODEV) => Ok(None),
        answer => Ok(answer?.into_iter().next()),
    }
}

/// Reads `net.ipv4.conf.all.rp_filter`; 0 where the kernel lacks IPv4.
pub(crate) async fn ipv4_reverse_path_filter() -> Result<u32, NetlinkError> {
    of_all_devices(AddressFamily::Inet.into(), NETCONFA_RP_FILTER).await
}

/// Reads `net.ipv6.conf.all.forwarding`; 0 where the kernel lacks IPv6.
pub(crate) async fn ipv6_forwarding() -> Result<u32, NetlinkError> {
    of_all_devices(AddressFamily::Inet6.into(), NETCONFA_FORWARDING).await
}

async fn of_all_devices(family: u8, wanted: u16) -> Result<u32, NetlinkError> {
    let build = |request: Request| {
        request.message(GET_NETCONF, ACK, &[family], |out| {
            out.put_u32(NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL);
        })
    };
    let decode = |payload: &[u8]| {
        let found = attribute(payload.get(4..)?, wanted)?;
        (payload.first() == Some(&family)).then(|| attributes::u32_at(found, 0))?
    };
    match connect()?.dump(build, NEW_NETCONF, decode).await {
        Err(source) if matches!(source.errno(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => {
            Ok(0)
        }
        answer => Ok(answer?.first().copied().unwrap_or_default()),
    }
}

pub(crate) fn set_mtu(request: Request, index: u32, bytes: u32) -> Request {
    let link = LinkUnspec::new_with_index(index).mtu(bytes);
    set_link(request, &link.build())
}

/// Sets the length of the device's queue.
pub(crate) fn set_queue(request: Request, index: u32, packets: u32) -> Request {
    let link = LinkUnspec::new_with_index(index).txqueuelen(packets);
    set_link(request, &link.build())
}

/// Keeps the kernel from giving the device an IPv6 address of its own when it comes up.
pub(crate) fn without_link_local(request: Request, index: u32) -> Request {
    let none = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
    set_family(request, index, AfSpecUnspec::Inet6(none))
}

/// Sets a switch; `AfSpecInet::DevConfRequest` would leave out one that becomes 0.
pub(crate) fn set_switch(request: Request, index: u32, switch: Switch, value: u32) -> Request {
    let nested = encoded(|out| out.put_u32(switch as u16, value));
    let conf = AfSpecInet::Other(DefaultNla::new(IFLA_INET_CONF, nested));
    set_family(request, index, AfSpecUnspec::Inet(vec![conf]))
}

fn set_family(request: Request, index: u32, family: AfSpecUnspec) -> Request {
    let family = LinkAttribute::AfSpecUnspec(vec![family]);
    let link = LinkUnspec::new_with_index(index).append_extra_attribute(family);
    set_link(request, &link.build())
}

/// Reads `struct ifinfomsg` (index at 4, flags at 8) and what follows.
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
                let inet6 = attribute(value, AF_INET6);
                settings.ipv6 = inet6.is_some();
                settings.makes_link_local = inet6
                    .and_then(|inet6| attribute(inet6, IFLA_INET6_ADDR_GEN_MODE))
                    .is_some_and(|mode| mode != [IN6_ADDR_GEN_MODE_NONE]);
                settings.switches = attribute(value, AF_INET)
                    .and_then(|inet| attribute(inet, IFLA_INET_CONF))
                    .unwrap_or_default()
                    .to_vec();
            }
            _ => {}
        }
    }
    Some(settings)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rtnl::tests::payload;

    const IFLA_LINKINFO: u16 = 18;

    #[test]
    fn switches_are_read_at_their_places() {
        // As many values as an old kernel has, and a later one; and an attribute of a foreign device
        // that `rtnetlink` cannot read.
        for count in [24, 34_u32] {
            let values: Vec<u8> = (1..=count).flat_map(u32::to_ne_bytes).collect();
            let header = [0_u32, 3, 1, 0].map(u32::to_ne_bytes).concat();
            let request = Request::new(1).message(NEW_LINK, 0, &header, |out| {
                out.put_u32(IFLA_MTU, 1420);
                out.put(IFLA_LINKINFO, &[1]);
                out.nest(IFLA_AF_SPEC, |out| {
                    out.nest(AF_INET, |out| out.put(IFLA_INET_CONF, &values));
                });
            });

            let settings = decode_settings(&payload(&request)).unwrap();

            assert_eq!((settings.index, settings.up, settings.mtu), (3, true, 1420));
            assert!(!settings.ipv6);
            assert_eq!(settings.switch(Switch::Forwarding), Some(1));
            assert_eq!(settings.switch(Switch::ReversePathFilter), Some(8));
            assert_eq!(settings.switch(Switch::AcceptLocal), Some(23));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode_settings(&bytes).map(|found| found.switch(Switch::AcceptLocal));
        }
    }
}
