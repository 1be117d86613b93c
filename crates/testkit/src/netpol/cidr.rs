//! Address ranges of `ipBlock`s, as strict as the API server is about them.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};

/// A range of addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Cidr {
    base: IpAddr,
    bits: u32,
}

impl Cidr {
    /// Reads `address/bits`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (base, bits) = text.split_once('/').context("no prefix length")?;
        let base: IpAddr = base.parse()?;
        let bits: u32 = bits.parse()?;
        ensure!(bits <= width(base), "{text} is longer than an address");
        let cidr = Self { base, bits };
        ensure!(
            cidr.cut(base) == number(base),
            "{text} has bits behind its prefix"
        );
        Ok(cidr)
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.base.is_ipv4() && self.cut(ip) == number(self.base)
    }

    /// Tells whether the other range is a part of this one, and not all of it.
    pub(super) fn has_part(&self, other: Self) -> bool {
        self.contains(other.base) && self.bits < other.bits
    }

    fn cut(&self, ip: IpAddr) -> u128 {
        let behind = width(ip) - self.bits;
        number(ip)
            .checked_shr(behind)
            .and_then(|head| head.checked_shl(behind))
            .unwrap_or(0)
    }
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_what_begins_like_them() {
        for (cidr, ip, expected) in [
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
            ("192.0.2.7/32", "192.0.2.7", true),
            ("192.0.2.7/32", "192.0.2.6", false),
            ("fc00::/7", "fdff::", true),
            ("fc00::/7", "fe00::", false),
        ] {
            let found = Cidr::parse(cidr).unwrap().contains(ip.parse().unwrap());
            assert_eq!(found, expected, "{cidr} {ip}");
        }
    }

    #[test]
    fn malformed_range_is_refused() {
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0.1/8", "::/129", "a/8"] {
            assert!(Cidr::parse(text).is_err(), "{text}");
        }
    }
}
