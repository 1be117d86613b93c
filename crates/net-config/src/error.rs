//! What can go wrong, by what the operator should look at.
//!
//! [`NetlinkError`] is what the kernel or the socket said; the other two say what was attempted.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

use crate::{DestinationNat, DeviceKind, address::is_device_name};

/// Why the network configuration that is wanted is not in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetConfigError {
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
    /// Another device has the address with the prefix of a network: it is the node's own there.
    #[error(
        "{prefix} on {device} is an address of a network, which is not taken off: remove it there, \
         or manage none"
    )]
    HeldElsewhere {
        /// The other device.
        device: String,
        /// The address, with the prefix length it has there.
        prefix: IpNet,
    },
    /// IPv6 is switched off on the device.
    #[error(
        "IPv6 is disabled on {device} (net.ipv6.conf.{device}.disable_ipv6), so {prefix} cannot be \
         put there: only a privileged container can enable it"
    )]
    Ipv6Disabled {
        /// The device it was meant for.
        device: String,
        /// The address that was refused.
        prefix: IpNet,
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
    #[error("this kernel has no IPv6, which {what} needs")]
    Ipv6Missing {
        /// What needs it.
        what: String,
    },
    /// This kernel has none of the device kinds that were acceptable.
    #[error("creating device {device}: this kernel has no device kind for `{kind}` (tried {})", tried(*kind))]
    Kind {
        /// The device that is missing.
        device: String,
        /// The kind asked for.
        kind: DeviceKind,
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
    /// A device of kind [`DeviceKind::Loopback`] was asked for and this namespace shows none.
    #[error("there is no device {device}, and a device of kind {kind} cannot be created")]
    Uncreatable {
        /// The device that is missing.
        device: String,
        /// The kind asked for.
        kind: DeviceKind,
    },
}

impl NetConfigError {
    /// A label from a closed set, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address { .. } => "address",
            Self::DeviceMissing { .. } => "device_missing",
            Self::DeviceName { .. } => "device_name",
            Self::HeldElsewhere { .. } => "held_elsewhere",
            Self::Ipv6Disabled { .. } => "ipv6_disabled",
            Self::Ipv6Forwarding { .. } => "ipv6_forwarding",
            Self::Ipv6Missing { .. } => "ipv6_missing",
            Self::Kind { .. } => "kind",
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
            Self::Uncreatable { .. } => "uncreatable",
        }
    }

    /// Names a failed attempt, with a missing capability told apart.
    pub(crate) fn during(attempt: impl Into<String>) -> impl FnOnce(NetlinkError) -> Self {
        let attempt = attempt.into();
        |source| match source.errno() {
            Some(libc::EPERM) => Self::Permission { attempt },
            _ => Self::Netlink { attempt, source },
        }
    }

    /// As [`NetConfigError::during`], of putting an address on a device, with what concerns IPv6
    /// told apart.
    pub(crate) fn adding(prefix: IpNet, device: &str) -> impl FnOnce(NetlinkError) -> Self {
        move |source| match source.errno() {
            Some(libc::EACCES) if prefix.addr().is_ipv6() => Self::Ipv6Disabled {
                device: device.to_owned(),
                prefix,
            },
            Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) if prefix.addr().is_ipv6() => {
                let what = format!("{prefix} on {device}");
                Self::Ipv6Missing { what }
            }
            _ => Self::during(format!("trying to add {prefix} to {device}"))(source),
        }
    }

    /// Refuses a name that no kernel takes.
    pub(crate) fn check_device(device: &str) -> Result<(), Self> {
        if is_device_name(device) {
            return Ok(());
        }
        let device = device.to_owned();
        Err(Self::DeviceName { device })
    }
}

fn tried(kind: DeviceKind) -> String {
    let candidates = kind.candidates().iter().map(|kind| kind.as_str());
    candidates.collect::<Vec<_>>().join(", ")
}

/// Why a netlink exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The state changed under every attempt to read it.
    #[error("the kernel's state kept changing while it was read")]
    Inconsistent,
    /// An answer's lengths do not add up.
    #[error("malformed netlink message")]
    Malformed,
    /// The kernel answered with an error.
    #[error("the kernel refused: {}{}", io::Error::from_raw_os_error(*errno), explain(detail))]
    Refused {
        /// Positive error number.
        errno: i32,
        /// The kernel's own words (extended acknowledgement), often empty.
        detail: String,
    },
    /// A system call on the socket failed.
    #[error("{call} on a netlink socket")]
    Socket {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// The kernel did not answer.
    #[error("no answer within {limit:?}")]
    Timeout {
        /// How long was waited.
        limit: Duration,
    },
    /// An answer was longer than the receive buffer.
    #[error("netlink message of {bytes} bytes is too long")]
    Truncated {
        /// Its length.
        bytes: usize,
    },
}

impl NetlinkError {
    /// The positive error number, of the kernel's answer or of the system call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::Socket { source, .. } => source.raw_os_error(),
            Self::Inconsistent
            | Self::Malformed
            | Self::Timeout { .. }
            | Self::Truncated { .. } => None,
        }
    }
}

fn explain(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(" ({detail})")
    }
}

/// Why rules of nf_tables are not in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NftablesError {
    /// The destination names no single address and port.
    #[error("{destination} is no destination: it needs an address and a port")]
    Destination {
        /// As configured.
        destination: SocketAddr,
    },
    /// The kernel would not take the name: 1 to 15 bytes, no slash, colon or white space.
    #[error("{device:?} is not a device name")]
    DeviceName {
        /// As configured.
        device: String,
    },
    /// The kernel accepted the rules, and reading back shows something else.
    #[error("the kernel accepted {what}, and table {table} does not show the same")]
    NotInPlace {
        /// The rules.
        what: &'static str,
        /// The table.
        table: String,
    },
    /// The kernel lacks nf_tables, its inet family, or a chain type or expression of the rules.
    #[error(
        "{attempt}: this kernel lacks nf_tables or a part of it (nft_ct for NOTRACK, nft_chain_nat \
         and nft_masq for masquerading)"
    )]
    NotSupported {
        /// What was attempted.
        attempt: String,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// Anything else the kernel or the socket said.
    #[error("{attempt}")]
    Other {
        /// What was attempted.
        attempt: String,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// The process lacks `CAP_NET_ADMIN` in this network namespace.
    #[error("{attempt} needs CAP_NET_ADMIN")]
    Permission {
        /// What was attempted.
        attempt: String,
    },
    /// Connections may have been translated to the address: their replies must stay tracked.
    #[error(
        "NOTRACK rules would break connections that are translated to the address; \
         destination NAT: {by}"
    )]
    Translated {
        /// What translates.
        by: DestinationNat,
    },
}

impl NftablesError {
    /// A label from a closed set, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Destination { .. } => "destination",
            Self::DeviceName { .. } => "device_name",
            Self::NotInPlace { .. } => "not_in_place",
            Self::NotSupported { .. } => "not_supported",
            Self::Other { .. } => "other",
            Self::Permission { .. } => "permission",
            Self::Translated { .. } => "translated",
        }
    }

    /// Sorts the kernel's answer.
    pub(crate) fn netlink(attempt: impl Into<String>, source: NetlinkError) -> Self {
        let attempt = attempt.into();
        match source.errno() {
            Some(libc::EPERM) => Self::Permission { attempt },
            errno if lacks_nf_tables(errno) => Self::NotSupported { attempt, source },
            _ => Self::Other { attempt, source },
        }
    }
}

/// Whether the kernel lacks what was asked of nf_tables. That shows in several ways: no netfilter
/// netlink at all (the socket), no nf_tables behind it (`EOPNOTSUPP`), no inet family
/// (`EAFNOSUPPORT`), and `ENOENT` for an expression or chain type that could not be loaded.
pub(crate) fn lacks_nf_tables(errno: Option<i32>) -> bool {
    matches!(
        errno,
        Some(libc::EAFNOSUPPORT | libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32) -> NetlinkError {
        NetlinkError::Refused {
            errno,
            detail: String::new(),
        }
    }

    #[test]
    fn missing_nf_tables_part_is_unsupported() {
        let socket = NetlinkError::Socket {
            call: "socket",
            source: io::Error::from_raw_os_error(libc::EPROTONOSUPPORT),
        };
        let reason = |source| NftablesError::netlink("testing", source).reason();

        assert_eq!(reason(socket), "not_supported");
        for (errno, expected) in [
            (libc::EAFNOSUPPORT, "not_supported"),
            (libc::ENOENT, "not_supported"),
            (libc::EOPNOTSUPP, "not_supported"),
            (libc::EPERM, "permission"),
            (libc::ENOMEM, "other"),
        ] {
            assert_eq!(reason(refused(errno)), expected, "{errno}");
        }
        for (errno, expected) in [(libc::EPERM, "permission"), (libc::ENODEV, "netlink")] {
            let error = NetConfigError::during("testing")(refused(errno));
            assert_eq!(error.reason(), expected);
        }
    }

    #[test]
    fn ipv6_that_is_off_or_absent_is_told_apart() {
        for (errno, expected) in [
            (libc::EACCES, "ipv6_disabled"),
            (libc::EOPNOTSUPP, "ipv6_missing"),
            (libc::EPERM, "permission"),
            (libc::ENOBUFS, "netlink"),
        ] {
            let prefix = "fd00::3/128".parse().unwrap();
            let error = NetConfigError::adding(prefix, "apiserver-proxy")(refused(errno));
            assert_eq!(error.reason(), expected);
        }
    }

    #[test]
    fn kernel_message_is_shown() {
        let told = NetlinkError::Refused {
            errno: libc::EOPNOTSUPP,
            detail: "Unknown device type".to_owned(),
        };

        assert!(
            told.to_string().ends_with("(Unknown device type)"),
            "{told}"
        );
        assert!(!refused(libc::EOPNOTSUPP).to_string().ends_with("()"));
    }
}
