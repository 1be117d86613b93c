//! Hosts as dials name them, and ranges of addresses.

use std::cmp::Reverse;
use std::net::IpAddr;

/// Returns the host of a dial's address: the port and the brackets of an IPv6 address removed, as
/// upstream does. More than one colon without brackets is an IPv6 address without a port.
#[must_use]
pub fn dial_host(address: &str) -> &str {
    if let Some(rest) = address.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(host, _)| host);
    }
    match address.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => address,
    }
}

/// Writes a host so that equal ones look equal: an address in its usual form, a name in small
/// letters.
pub(super) fn canonical(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

/// A range of addresses. Smaller ranges come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    len: Reverse<u8>,
    network: IpAddr,
}

impl Range {
    /// Reads `address/length`, or a single address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address.parse().ok()?, len.parse().ok()?),
            None => {
                let address: IpAddr = text.parse().ok()?;
                (address, bits(address))
            }
        };
        if len > bits(address) {
            return None;
        }
        Some(Self {
            len: Reverse(len),
            network: mask(address, len),
        })
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.network.is_ipv4() && mask(address, self.len.0) == self.network
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask(address: IpAddr, len: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_addresses_are_upstreams() {
        for (address, host) in [
            ("localhost:8080", "localhost"),
            ("localhost", "localhost"),
            ("::", "::"),
            ("[a::1]:80", "a::1"),
            ("[a::1]", "a::1"),
            ("10.0.0.1:443", "10.0.0.1"),
            ("", ""),
            ("[", ""),
        ] {
            assert_eq!(dial_host(address), host, "{address}");
        }
    }

    #[test]
    fn ranges_hold_what_they_should() {
        let range = Range::parse("10.1.2.3/8").unwrap();
        assert!(range.contains("10.255.0.1".parse().unwrap()));
        assert!(!range.contains("11.0.0.1".parse().unwrap()));
        assert!(!range.contains("::ffff:a00:1".parse().unwrap()));
        assert!(
            Range::parse("0.0.0.0/0")
                .unwrap()
                .contains("1.2.3.4".parse().unwrap())
        );
        assert!(
            Range::parse("::/0")
                .unwrap()
                .contains("1::".parse().unwrap())
        );
        assert!(
            Range::parse("1::2")
                .unwrap()
                .contains("1::2".parse().unwrap())
        );
        for text in ["", "10.0.0.0/33", "10.0.0.0/", "x/8", "1::/129"] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
    }
}
