//! What was changed around a tunnel device, for logs and tests.

use std::fmt;

use ipnet::IpNet;

/// One change that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TunnelChange {
    /// An address was put on the device.
    AddAddress(IpNet),
    /// A route to a network was put into a table.
    AddRoute {
        /// The network.
        network: IpNet,
        /// The table.
        table: u32,
    },
    /// A rule that sends what leaves by the device to a table was added.
    AddRule {
        /// For IPv6 instead of IPv4.
        ipv6: bool,
        /// The table.
        table: u32,
    },
    /// An address left by an earlier start or by another process was removed from the device.
    RemoveAddress(IpNet),
    /// A route of ours was removed.
    RemoveRoute {
        /// The network.
        network: IpNet,
        /// The table.
        table: u32,
    },
    /// A rule of ours was removed.
    RemoveRule {
        /// For IPv6 instead of IPv4.
        ipv6: bool,
        /// The table.
        table: u32,
    },
    /// The device's packet size was set, bytes.
    SetMtu(u16),
    /// The kernel was told to give the device no IPv6 address of its own.
    SetNoLinkLocal,
    /// The length of the device's queue was set, packets.
    SetQueue(u32),
    /// A switch below `net.ipv4.conf.<device>` was set.
    SetSwitch {
        /// The device.
        device: String,
        /// The switch.
        switch: &'static str,
        /// Its new value.
        value: u32,
    },
    /// The device was set up.
    SetUp,
}

impl fmt::Display for TunnelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = |ipv6: &bool| if *ipv6 { "IPv6" } else { "IPv4" };
        match self {
            Self::AddAddress(prefix) => write!(f, "add {prefix}"),
            Self::AddRoute { network, table } => {
                write!(f, "add the route to {network} to table {table}")
            }
            Self::AddRule { ipv6, table } => {
                write!(f, "add the {} rule for table {table}", family(ipv6))
            }
            Self::RemoveAddress(prefix) => write!(f, "remove {prefix}"),
            Self::RemoveRoute { network, table } => {
                write!(f, "remove the route to {network} from table {table}")
            }
            Self::RemoveRule { ipv6, table } => {
                write!(f, "remove the {} rule for table {table}", family(ipv6))
            }
            Self::SetMtu(bytes) => write!(f, "set the MTU to {bytes}"),
            Self::SetNoLinkLocal => write!(f, "make no IPv6 address by itself"),
            Self::SetQueue(packets) => write!(f, "set the queue to {packets} packets"),
            Self::SetSwitch {
                device,
                switch,
                value,
            } => write!(f, "set net.ipv4.conf.{device}.{switch} to {value}"),
            Self::SetUp => write!(f, "set the device up"),
        }
    }
}
