//! What can go wrong, by what the operator should look at.
//!
//! [`NetlinkError`] is what the kernel or the socket said; the other two say what was attempted.

use std::{io, net::IpAddr, net::SocketAddr, time::Duration};

use crate::{DestinationNat, DeviceKind};

/// Why the wanted addresses are not in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetConfigError {
    /// The address cannot be an address of a node: unspecified or multicast.
    #[error("{address} cannot be put on a device")]
    Address {
        /// As configured.
        address: IpAddr,
    },
    /// The kernel would not take the name: 1 to 15 bytes, no slash, colon or white space.
    #[error("{device:?} is not a device name")]
    DeviceName {
        /// As configured.
        device: String,
    },
    /// IPv6 is switched off on the device (`net.ipv6.conf.<device>.disable_ipv6`).
    #[error("IPv6 is disabled on {device}, so {address} cannot be put there")]
    Ipv6Disabled {
        /// The address that was refused.
        address: IpAddr,
        /// The device it was meant for.
        device: String,
    },
    /// The kernel has no IPv6 at all.
    #[error("this kernel has no IPv6, so {address} cannot be put on {device}")]
    Ipv6Missing {
        /// The address that was refused.
        address: IpAddr,
        /// The device it was meant for.
        device: String,
    },
    /// This kernel has none of the device kinds that were acceptable.
    #[error("creating device {device}: this kernel has no device kind for `{kind}` (tried {})", tried(*kind))]
    Kind {
        /// The device that is missing.
        device: String,
        /// The kind asked for.
        kind: DeviceKind,
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
    /// The process lacks `CAP_NET_ADMIN` in this network namespace.
    #[error("{attempt} needs CAP_NET_ADMIN")]
    Permission {
        /// What was attempted.
        attempt: String,
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
            Self::DeviceName { .. } => "device_name",
            Self::Ipv6Disabled { .. } => "ipv6_disabled",
            Self::Ipv6Missing { .. } => "ipv6_missing",
            Self::Kind { .. } => "kind",
            Self::Netlink { .. } => "netlink",
            Self::Permission { .. } => "permission",
            Self::Uncreatable { .. } => "uncreatable",
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

fn tried(kind: DeviceKind) -> String {
    let candidates = kind.candidates().iter().map(|kind| kind.as_str());
    candidates.collect::<Vec<_>>().join(", ")
}

/// Why a netlink exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// Sending or receiving failed while an answer was awaited; `rtnetlink` does not pass on why.
    #[error("the netlink socket failed while sending or receiving")]
    Closed,
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
            Self::Closed
            | Self::Inconsistent
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
    fn a_kernel_without_a_part_of_nf_tables_is_not_supported() {
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
            let error = NetConfigError::netlink("testing", refused(errno));
            assert_eq!(error.reason(), expected);
        }
    }

    #[test]
    fn the_kernels_words_are_shown_when_there_are_any() {
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
