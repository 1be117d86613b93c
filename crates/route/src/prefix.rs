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
        for text in [
            "10.0.0.0/8",
            "0.0.0.0/0",
            "192.0.2.1/32",
            "fd00::/64",
            "::/0",
            "::1/128",
        ] {
            assert_eq!(prefix(text).to_string(), text);
        }
        assert_eq!(prefix("192.0.2.1").to_string(), "192.0.2.1/32");
        assert_eq!(prefix("fd00::1").to_string(), "fd00::1/128");
    }

    #[test]
    fn host_bits_are_refused_with_the_network_meant() {
        let error = "10.1.2.3/8".parse::<IpPrefix>().unwrap_err();
        assert_eq!(
            error,
            IpPrefixError::HostBits {
                network: prefix("10.0.0.0/8")
            }
        );
        assert!(error.to_string().contains("10.0.0.0/8"));
        assert!("fd00::1/64".parse::<IpPrefix>().is_err());
        assert!("1.0.0.0/0".parse::<IpPrefix>().is_err());
    }

    #[test]
    fn malformed_prefixes_are_refused() {
        for text in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "010.0.0.0/8",
            "::/129",
            "10.0.0.0/8/8",
        ] {
            assert!(text.parse::<IpPrefix>().is_err(), "{text}");
        }
        assert_eq!("name/8".parse::<IpPrefix>(), Err(IpPrefixError::Address));
        assert_eq!(
            "::/300".parse::<IpPrefix>(),
            Err(IpPrefixError::Length { max: 128 })
        );
    }

    #[test]
    fn containment_honours_the_length() {
        assert!(prefix("10.0.0.0/8").contains(ip("10.255.0.1")));
        assert!(!prefix("10.0.0.0/8").contains(ip("11.0.0.0")));
        assert!(prefix("0.0.0.0/0").contains(ip("255.255.255.255")));
        assert!(prefix("fd00::/9").contains(ip("fd7f::1")));
        assert!(!prefix("fd00::/9").contains(ip("fd80::1")));
        assert!(prefix("192.0.2.1").contains(ip("192.0.2.1")));
        assert!(!prefix("192.0.2.1").contains(ip("192.0.2.0")));
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert_eq!(prefix("::ffff:10.0.0.0/104"), prefix("10.0.0.0/8"));
        assert_eq!(prefix("::ffff:10.0.0.1"), prefix("10.0.0.1/32"));
        assert!(prefix("10.0.0.0/8").contains(ip("::ffff:10.1.2.3")));
        assert!(!prefix("::/0").contains(ip("10.1.2.3")));
        assert!(!prefix("::/0").contains(ip("::ffff:10.1.2.3")));
        assert!(!prefix("0.0.0.0/0").contains(ip("::1")));
        assert_eq!(
            IpPrefix::covering(ip("::ffff:10.1.2.3"), 8),
            prefix("10.0.0.0/8")
        );
        assert_eq!(
            IpPrefix::covering(ip("10.1.2.3"), 99),
            prefix("10.1.2.3/32")
        );
    }
}
