//! Arithmetic on address ranges: which are exceptions of which, one address of a range, families.
//!
//! Ranges themselves are [`IpPrefix`]es; this knows nothing of policies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use route::{IpPrefix, IpPrefixError};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(range: IpPrefix) -> Self {
        if range.network().is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    /// Returns the family that all ranges are of; `None` when there are two, or no range at all.
    pub(super) fn only(ranges: &[IpPrefix]) -> Option<Self> {
        let mut families = ranges.iter().map(|range| Self::of(*range));
        let first = families.next()?;
        families.all(|family| family == first).then_some(first)
    }
}

/// Returns those of the ranges that can be exceptions of `block`, in their order, each once.
///
/// An exception lies within the block and is smaller: the API server takes no others.
pub(super) fn except(block: IpPrefix, ranges: impl IntoIterator<Item = IpPrefix>) -> Vec<IpPrefix> {
    let mut exceptions = Vec::new();
    for range in ranges {
        let smaller = block.len() < range.len() && block.contains(range.network());
        if smaller && !exceptions.contains(&range) {
            exceptions.push(range);
        }
    }
    exceptions
}

/// Returns the address `offset` behind the first one of a range; `None` when that lies outside.
pub(super) fn address_at(range: IpPrefix, offset: u32) -> Option<IpAddr> {
    let address: IpAddr = match range.network() {
        IpAddr::V4(network) => {
            let bits = network.to_bits().checked_add(offset)?;
            Ipv4Addr::from_bits(bits).into()
        }
        IpAddr::V6(network) => {
            let bits = network.to_bits().checked_add(offset.into())?;
            Ipv6Addr::from_bits(bits).into()
        }
    };
    range.contains(address).then_some(address)
}

/// Reads a range that another controller wrote: bits behind the prefix are cut off, as Kubernetes
/// does, and what is no range is `None`.
pub(super) fn lenient(text: &str) -> Option<IpPrefix> {
    match text.parse() {
        Ok(range) => Some(range),
        Err(IpPrefixError::HostBits { network }) => Some(network),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<IpPrefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn exceptions_lie_within_and_are_smaller() {
        for (block, range, expected) in [
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.0.0.0/8", "10.0.0.0/9", true),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("10.0.0.0/8", "10.0.0.0/7", false),
            ("10.0.0.0/8", "11.0.0.0/16", false),
            ("0.0.0.0/0", "169.254.169.254/32", true),
            ("0.0.0.0/0", "0.0.0.0/0", false),
            ("0.0.0.0/0", "fd00::/8", false),
            ("::/0", "fd00::/8", true),
            ("::/0", "10.0.0.0/8", false),
            ("fc00::/7", "fd12::/16", true),
            ("fc00::/7", "fe80::/10", false),
        ] {
            let block = block.parse().unwrap();
            let expected = ranges(&[range][..usize::from(expected)]);
            assert_eq!(except(block, ranges(&[range])), expected, "{block} {range}");
        }
    }

    #[test]
    fn exceptions_keep_their_order_and_come_once() {
        let block = "10.0.0.0/8".parse().unwrap();
        let given = ranges(&["10.2.0.0/16", "10.1.0.0/16", "1.0.0.0/8", "10.2.0.0/16"]);
        assert_eq!(except(block, given.clone()), given[..2]);
    }

    #[test]
    fn an_address_is_counted_from_the_first_one() {
        for (range, expected) in [
            ("100.64.0.0/13", Some("100.64.0.10")),
            ("10.0.0.0/28", Some("10.0.0.10")),
            ("10.0.0.0/29", None),
            ("255.255.255.248/29", None),
            ("fd00:1::/108", Some("fd00:1::a")),
        ] {
            let expected = expected.map(|text| text.parse().unwrap());
            assert_eq!(address_at(range.parse().unwrap(), 10), expected, "{range}");
        }
    }

    #[test]
    fn a_cluster_has_one_family_or_none_alone() {
        for (given, expected) in [
            (&["10.0.0.0/8", "100.64.0.0/10"][..], Some(Family::V4)),
            (&["fd00::/8"], Some(Family::V6)),
            (&["10.0.0.0/8", "fd00::/8"], None),
            (&[], None),
        ] {
            assert_eq!(Family::only(&ranges(given)), expected, "{given:?}");
        }
    }

    #[test]
    fn host_bits_of_foreign_ranges_are_masked() {
        assert_eq!(lenient("10.1.2.3/16"), "10.1.0.0/16".parse().ok());
        assert_eq!(lenient("fd00::/8"), "fd00::/8".parse().ok());
        assert_eq!(lenient("a network"), None);
    }
}
