//! Which destinations an agent may open connections to.
//!
//! ```text
//! 10.0.0.0/8:443   [fd00::/8]:1024-65535   192.0.2.7   ──FromStr──▶ AllowedRange ──▶ DialParams::permits
//! ```
//!
//! Judges addresses, never names: what a name leads to is known only once it is resolved.

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
#[error("{0:?} is no destination; write CIDR, CIDR:PORT or CIDR:FIRST-LAST, IPv6 in brackets")]
pub struct AllowedRangeError(String);

impl AllowedRange {
    pub(super) fn contains(&self, destination: SocketAddr) -> bool {
        (self.first_port..=self.last_port).contains(&destination.port())
            && self.network.contains(&destination.ip())
    }

    fn parse(text: &str) -> Option<Self> {
        let (cidr, ports) = match text.strip_prefix('[') {
            Some(rest) => {
                let (cidr, ports) = rest.split_once(']')?;
                match ports {
                    "" => (cidr, ""),
                    ports => (cidr, ports.strip_prefix(':')?),
                }
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
        Self::parse(text).ok_or_else(|| AllowedRangeError(text.to_owned()))
    }
}

/// Returns where the kernel takes a connection to `address`.
pub(super) fn effective(address: SocketAddr) -> SocketAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match address.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(_) => address,
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

    #[test]
    fn a_list_permits_what_is_in_it_and_nothing_else() {
        let list = "10.0.0.0/8:443 192.0.2.7 [fd00::/8]:1024-65535 ::1";
        for (ranges, permitted, refused) in [
            (
                list,
                "10.1.2.3:443 192.0.2.7:1 [fd12::1]:1024 [::1]:9",
                "10.1.2.3:80 11.0.0.1:443 192.0.2.8:1 [fd12::1]:1023 [fe12::1]:1024",
            ),
            ("", "203.0.113.1:1", ""),
            // Other spellings of an address are judged as what they are.
            (
                "127.0.0.0/8 10.0.0.0/8",
                "0.0.0.0:1 [::ffff:10.0.0.1]:1",
                "[::]:1",
            ),
            ("0.0.0.0/8 ::/1", "", "0.0.0.0:1 [::ffff:10.0.0.1]:1"),
            // An empty prefix holds its whole family and no other.
            ("0.0.0.0/0", "255.255.255.255:65535", "[2001:db8::1]:1"),
            ("::/0", "[2001:db8::1]:1", ""),
        ] {
            let allowed = ranges.split_whitespace().map(|text| text.parse().unwrap());
            let params = DialParams {
                allowed: allowed.collect(),
                ..DialParams::default()
            };
            for (destinations, expected) in [(permitted, true), (refused, false)] {
                for destination in destinations.split_whitespace() {
                    let permits = params.permits(destination.parse().unwrap());
                    assert_eq!(permits, expected, "{destination} of {ranges}");
                }
            }
        }
    }

    #[test]
    fn malformed_range_is_refused() {
        let malformed = "10.0.0.0/33 ::/129 10.0.0.0/8: 10.0.0.0/8:2-1 10.0.0.0/8:65536 [::/0 \
                         [::/0]443 [::/0]: host:80 10.0.0.0/+8 010.0.0.0/8 10.0.0.0/8:+1 10.0.0.0/";
        for text in malformed.split(' ').chain([""]) {
            assert!(text.parse::<AllowedRange>().is_err(), "{text:?}");
        }
    }
}
