//! What can go wrong around a tunnel device, by what the operator should look at.

use std::{io, path::PathBuf};

use ipnet::IpNet;

use crate::NetlinkError;

/// Why the network configuration around a tunnel device is not in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// The address cannot be an address of a device, or the network no destination.
    #[error("{prefix} cannot be used on {device}")]
    Address {
        /// The device it was meant for.
        device: String,
        /// As configured.
        prefix: IpNet,
    },
    /// There is no device of that name in this network namespace.
    #[error("there is no device {device}")]
    DeviceMissing {
        /// The name.
        device: String,
    },
    /// The kernel would not take the name: 1 to 15 bytes, no slash, colon or white space.
    #[error("{device:?} is not a device name")]
    DeviceName {
        /// As configured.
        device: String,
    },
    /// IPv6 is switched off on the device.
    #[error(
        "IPv6 is disabled on {device} (net.ipv6.conf.{device}.disable_ipv6): only a privileged \
         container can enable it"
    )]
    Ipv6Disabled {
        /// The device.
        device: String,
    },
    /// IPv6 packets would not be forwarded, and netlink has no way to change that.
    #[error(
        "IPv6 forwarding is off (net.ipv6.conf.all.forwarding is 0): a privileged init container \
         has to switch it on, or the network {network} to be left out"
    )]
    Ipv6Forwarding {
        /// A network that needs it.
        network: IpNet,
    },
    /// The kernel has no IPv6 at all.
    #[error("this kernel has no IPv6, which {device} needs")]
    Ipv6Missing {
        /// The device it was meant for.
        device: String,
    },
    /// The packet size is out of range.
    #[error("an MTU of {mtu} bytes on {device} is too small: at least {least}")]
    Mtu {
        /// The device.
        device: String,
        /// As configured, bytes.
        mtu: u16,
        /// The least for the families on the device (RFC 791: 68, RFC 8200: 1280).
        least: u16,
    },
    /// The kernel refused a change, or reading its state failed.
    #[error("{attempt}")]
    Netlink {
        /// What was attempted.
        attempt: String,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// The device has no address of the network's family, so no packet could have a source.
    #[error("{device} has no address of the family of {network}")]
    NoAddress {
        /// The device.
        device: String,
        /// The network.
        network: IpNet,
    },
    /// The namespace has no route toward the network.
    #[error("there is no route toward {network} except through the tunnel")]
    NoRoute {
        /// The network.
        network: IpNet,
    },
    /// The kernel accepted a change, and reading back shows something else.
    #[error("the kernel accepted, and does not show: {missing}")]
    NotInPlace {
        /// What is missing.
        missing: String,
    },
    /// The process lacks `CAP_NET_ADMIN` in this network namespace.
    #[error("{attempt} needs CAP_NET_ADMIN")]
    Permission {
        /// What was attempted.
        attempt: String,
    },
    /// The length of the device's queue is out of range.
    #[error("a queue of {packets} packets on {device} is out of range: 1000 to 10000")]
    QueueLength {
        /// The device.
        device: String,
        /// As configured.
        packets: u32,
    },
    /// The kernel would drop what comes out of the tunnel, and no setting of the device helps.
    #[error(
        "packets from {network} would be dropped on {device}: net.ipv4.conf.all.rp_filter is \
         {all}, which wins over the device's own setting, and without any other route toward them \
         even the loose check fails: a privileged init container or the node has to set it to 0, \
         or the namespace needs a default route"
    )]
    ReversePath {
        /// The device.
        device: String,
        /// The first network that is affected.
        network: IpNet,
        /// The value for all devices: 1 is strict, 2 is loose.
        all: u32,
    },
    /// A switch below `/proc/sys` could not be read or written.
    #[error("setting {} to {value} (it needs a privileged container)", path.display())]
    Switch {
        /// The switch.
        path: PathBuf,
        /// The value it should have.
        value: u8,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The number is the kernel's own: 0, 253, 254 or 255.
    #[error("{table} cannot be a routing table of its own: 0 and 253 to 255 are the kernel's")]
    Table {
        /// As configured.
        table: u32,
    },
}

impl TunnelError {
    /// A label from a closed set, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address { .. } => "address",
            Self::DeviceMissing { .. } => "device_missing",
            Self::DeviceName { .. } => "device_name",
            Self::Ipv6Disabled { .. } => "ipv6_disabled",
            Self::Ipv6Forwarding { .. } => "ipv6_forwarding",
            Self::Ipv6Missing { .. } => "ipv6_missing",
            Self::Mtu { .. } => "mtu",
            Self::Netlink { .. } => "netlink",
            Self::NoAddress { .. } => "no_address",
            Self::NoRoute { .. } => "no_route",
            Self::NotInPlace { .. } => "not_in_place",
            Self::Permission { .. } => "permission",
            Self::QueueLength { .. } => "queue_length",
            Self::ReversePath { .. } => "reverse_path",
            Self::Switch { .. } => "switch",
            Self::Table { .. } => "table",
        }
    }

    /// `source` as the answer to `attempt`, with a missing capability told apart.
    pub(crate) fn netlink(attempt: impl Into<String>, source: NetlinkError) -> Self {
        let attempt = attempt.into();
        match source.errno() {
            Some(libc::EPERM) => Self::Permission { attempt },
            _ => Self::Netlink { attempt, source },
        }
    }
}
