//! Which destinations an agent may open connections to.
//!
//! ```text
//! 10.0.0.0/8:443   [fd00::/8]:1024-65535   192.0.2.7   ──FromStr──▶ AllowedRange ──▶ DialParams::permits
//! ```
//!
//! Judges addresses, never names: what a name leads to is known only once it is resolved.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

/// A range of addresses and of ports. Written `CIDR`, `CIDR:PORT` or `CIDR:FIRST-LAST`, an IPv6
/// range in brackets when a port follows; an address alone is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedRange {
    network: IpNet,
    first_port: u16,
    last_port: u16,
}

/// A text that is no range of destinations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no destination; write CIDR, CIDR:PORT or CIDR:FIRST-LAST, IPv6 in brackets")]
pub struct AllowedRangeError {
    text: String,
}

impl AllowedRange {
    pub(super) fn contains(&self, destination: SocketAddr) -> bool {
        (self.first_port..=self.last_port).contains(&destination.port())
            && self.network.contains(&destination.ip())
    }

    fn parse(text: &str) -> Option<Self> {
        let (cidr, ports) = match text.strip_prefix('[') {
            Some(rest) => {
                let (cidr, ports) = rest.split_once(']')?;
                (
                    cidr,
                    if ports.is_empty() {
                        ""
                    } else {
                        ports.strip_prefix(':')?
                    },
                )
            }
            None if text.matches(':').count() > 1 => (text, ""),
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let explicit = text.len() > cidr.len() && !text.ends_with(']');
        let (first_port, last_port) = match ports {
            "" if explicit => return None,
            "" => (0, u16::MAX),
            ports => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                (decimal(first)?, decimal(last)?)
            }
        };
        // The address not by `IpNet`'s own reader, which takes numbers with leading zeros.
        let network = match cidr.split_once('/') {
            Some((address, len)) => {
                let len = u8::try_from(decimal(len)?).ok()?;
                IpNet::new(address.parse().ok()?, len).ok()?
            }
            None => cidr.parse::<IpAddr>().ok()?.into(),
        };
        (first_port <= last_port).then_some(Self {
            network,
            first_port,
            last_port,
        })
    }
}

impl FromStr for AllowedRange {
    type Err = AllowedRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| AllowedRangeError {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for AllowedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            IpNet::V4(network) => network.fmt(f)?,
            IpNet::V6(network) => write!(f, "[{network}]")?,
        }
        match (self.first_port, self.last_port) {
            (0, u16::MAX) => Ok(()),
            (first, last) if first == last => write!(f, ":{first}"),
            (first, last) => write!(f, ":{first}-{last}"),
        }
    }
}

/// Returns where the kernel takes a connection to `address`.
pub(super) fn effective(address: SocketAddr) -> SocketAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => effective((ip, address.port()).into()),
            None => address,
        },
    }
}

fn decimal(digits: &str) -> Option<u16> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::DialParams;

    /// Returns whether a list of ranges permits a destination.
    fn allows(ranges: &[&str], destination: &str) -> bool {
        let params = DialParams {
            allowed: ranges.iter().map(|text| text.parse().unwrap()).collect(),
            ..DialParams::default()
        };
        params.permits(destination.parse().unwrap())
    }

    #[test]
    fn a_list_permits_what_is_in_it_and_nothing_else() {
        let allowed = [
            "10.0.0.0/8:443",
            "192.0.2.7",
            "[fd00::/8]:1024-65535",
            "::1",
        ];
        for (destination, expected) in [
            ("10.1.2.3:443", true),
            ("10.1.2.3:80", false),
            ("11.0.0.1:443", false),
            ("192.0.2.7:1", true),
            ("192.0.2.8:1", false),
            ("[fd12::1]:1024", true),
            ("[fd12::1]:1023", false),
            ("[fe12::1]:1024", false),
            ("[::1]:9", true),
        ] {
            assert_eq!(allows(&allowed, destination), expected, "{destination}");
        }
        assert!(allows(&[], "203.0.113.1:1"));
    }

    #[test]
    fn other_spellings_of_an_address_are_judged_as_what_they_are() {
        let allowed = ["127.0.0.0/8", "10.0.0.0/8"];
        assert!(allows(&allowed, "0.0.0.0:1"));
        assert!(allows(&allowed, "[::ffff:10.0.0.1]:1"));
        assert!(!allows(&allowed, "[::]:1"));
        let allowed = ["0.0.0.0/8", "::/1"];
        assert!(!allows(&allowed, "0.0.0.0:1"));
        assert!(!allows(&allowed, "[::ffff:10.0.0.1]:1"));
    }

    #[test]
    fn an_empty_prefix_holds_its_whole_family_and_no_other() {
        assert!(allows(&["0.0.0.0/0"], "255.255.255.255:65535"));
        assert!(!allows(&["0.0.0.0/0"], "[2001:db8::1]:1"));
        assert!(allows(&["::/0"], "[2001:db8::1]:1"));
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["10.0.0.0/8", "10.0.0.1/32:80", "[fd00::/8]:1-2", "[::/0]"] {
            assert_eq!(text.parse::<AllowedRange>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn malformed_range_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/8:",
            "10.0.0.0/8:2-1",
            "10.0.0.0/8:65536",
            "[::/0",
            "[::/0]443",
            "[::/0]:",
            "host:80",
            "10.0.0.0/+8",
            "010.0.0.0/8",
            "10.0.0.0/8:+1",
            "10.0.0.0/",
        ] {
            assert!(text.parse::<AllowedRange>().is_err(), "{text:?}");
        }
    }
}
