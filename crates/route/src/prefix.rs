//! Prefixes of IP addresses: parsing, containment, one form for IPv4 whatever the notation.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A network prefix, such as `10.0.0.0/8` or `fd00::/64`.
///
/// IPv4-mapped IPv6 (`::ffff:0:0/96`, RFC 4291 §2.5.5.2) is IPv4 here, in prefixes and in the
/// addresses compared with them. No IPv6 prefix contains an IPv4 address, `::/0` included.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct IpPrefix(IpNet);

impl IpPrefix {
    /// Creates the prefix of `len` bits that starts at `network`.
    ///
    /// # Errors
    /// The length is greater than the family's, or `network` has bits behind it.
    pub fn new(network: IpAddr, len: u8) -> Result<Self, IpPrefixError> {
        let too_long = |_| IpPrefixError::Length {
            max: width(network),
        };
        let given = IpNet::new(network, len).map_err(too_long)?;
        let cut = given.trunc();
        if given != cut {
            return Err(IpPrefixError::HostBits { network: Self(cut) });
        }
        match network.to_canonical() {
            IpAddr::V4(v4) if network.is_ipv6() && len >= MAPPED_BITS => {
                let v4 = IpNet::new(v4.into(), len - MAPPED_BITS);
                v4.map(Self).map_err(too_long)
            }
            IpAddr::V4(_) | IpAddr::V6(_) => Ok(Self(given)),
        }
    }

    /// Returns the prefix of one address.
    #[must_use]
    pub fn host(addr: IpAddr) -> Self {
        Self(addr.to_canonical().into())
    }

    /// Returns the first `len` bits of `addr`, or all when it has fewer.
    #[inline]
    pub(crate) fn covering(addr: IpAddr, len: u8) -> Self {
        // Looked up with several lengths for each connection: not by `IpNet::new` and `trunc`.
        let net = match addr.to_canonical() {
            IpAddr::V4(ip) => {
                let len = len.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                let first = Ipv4Addr::from_bits(ip.to_bits() & mask);
                Ipv4Net::new(first, len).unwrap_or_default().into()
            }
            IpAddr::V6(ip) => {
                let len = len.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                let first = Ipv6Addr::from_bits(ip.to_bits() & mask);
                Ipv6Net::new(first, len).unwrap_or_default().into()
            }
        };
        Self(net)
    }

    /// Returns the first address.
    #[must_use]
    pub fn network(&self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the length in bits.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a number of bits, not of elements"
    )]
    pub fn len(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Tells whether `addr` lies within the prefix.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(&addr.to_canonical())
    }
}

impl Hash for IpPrefix {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            IpNet::V4(net) => {
                state.write_u64(u64::from(net.addr().to_bits()) << 8 | u64::from(net.prefix_len()))
            }
            IpNet::V6(net) => {
                state.write_u128(net.addr().to_bits());
                state.write_u8(net.prefix_len());
            }
        }
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for IpPrefix {
    type Err = IpPrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        // Not by `IpNet`'s own reader, which takes numbers with leading zeros.
        let network: IpAddr = address.parse().map_err(|_| IpPrefixError::Address)?;
        let Some(len) = len else {
            return Ok(Self::host(network));
        };
        let too_long = IpPrefixError::Length {
            max: width(network),
        };
        if len.is_empty() || !len.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(too_long);
        }
        Self::new(network, len.parse().map_err(|_| too_long)?)
    }
}

/// Why a prefix was refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IpPrefixError {
    /// What stands before the `/` is no IP address.
    #[error("not an IP address")]
    Address,
    /// There are bits behind the prefix.
    #[error("bits are set behind the prefix; the network is {network}")]
    HostBits {
        /// What was probably meant.
        network: IpPrefix,
    },
    /// The length is no number, or greater than the address is long.
    #[error("the prefix length is not a number from 0 to {max}")]
    Length {
        /// Bits of the address.
        max: u8,
    },
}

/// Bits in front of the IPv4 address in a mapped one.
const MAPPED_BITS: u8 = 96;

fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_read_and_written() {
        for (text, written) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.1/32", "192.0.2.1/32"),
            ("fd00::/64", "fd00::/64"),
            ("::/0", "::/0"),
            ("::1/128", "::1/128"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("fd00::1", "fd00::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ] {
            assert_eq!(prefix(text).to_string(), written);
        }
    }

    #[test]
    fn malformed_prefixes_are_refused_with_the_cause() {
        let (address, network) = (IpPrefixError::Address, prefix("10.0.0.0/8"));
        let length = |max| IpPrefixError::Length { max };
        let host_bits = |text| IpPrefixError::HostBits {
            network: prefix(text),
        };
        for (text, error) in [
            ("", address.clone()),
            ("/8", address.clone()),
            ("name/8", address.clone()),
            ("010.0.0.0/8", address),
            ("10.0.0.0/", length(32)),
            ("10.0.0.0/33", length(32)),
            ("10.0.0.0/+8", length(32)),
            ("10.0.0.0/8/8", length(32)),
            ("::/129", length(128)),
            ("::/300", length(128)),
            ("10.1.2.3/8", IpPrefixError::HostBits { network }),
            ("fd00::1/64", host_bits("fd00::/64")),
            ("1.0.0.0/0", host_bits("0.0.0.0/0")),
        ] {
            assert_eq!(text.parse::<IpPrefix>(), Err(error), "{text}");
        }
        assert!(host_bits("10.0.0.0/8").to_string().contains("10.0.0.0/8"));
    }

    #[test]
    fn containment_honors_length_and_family() {
        for (prefix_text, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("fd00::/9", "fd7f::1", true),
            ("fd00::/9", "fd80::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.0", false),
            // A mapped address is an IPv4 one.
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("::/0", "10.1.2.3", false),
            ("::/0", "::ffff:10.1.2.3", false),
            ("0.0.0.0/0", "::1", false),
        ] {
            let contains = prefix(prefix_text).contains(ip(address));
            assert_eq!(contains, inside, "{address} in {prefix_text}");
        }
        for (address, len, covering) in [
            ("::ffff:10.1.2.3", 8, "10.0.0.0/8"),
            ("10.1.2.3", 99, "10.1.2.3/32"),
        ] {
            assert_eq!(IpPrefix::covering(ip(address), len), prefix(covering));
        }
    }
}
