//! An address of our own in the tunnel, and the transfer network around it.
//!
//! Puts nothing on any device.

use std::net::IpAddr;

use tunnel::Network;
use tunnel::settings::TunnelAddress;

/// An address with its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InnerAddress {
    pub(crate) address: IpAddr,
    pub(crate) network: Network,
}

impl InnerAddress {
    /// Returns the address with its network; `None` when it is the network's own.
    pub(super) fn new(written: TunnelAddress) -> Option<Self> {
        let (address, len) = (written.address(), written.prefix_len());
        let first = match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(len.into()));
                IpAddr::V4((ip.to_bits() & mask.unwrap_or(0)).into())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(len.into()));
                IpAddr::V6((ip.to_bits() & mask.unwrap_or(0)).into())
            }
        };
        let network = Network::new(first, len).ok()?;
        let whole = Network::host(address) == Ok(network);
        (first != address || whole).then_some(Self { address, network })
    }
}

/// Answers whether two networks have an address in common.
pub(super) fn overlap(one: Network, other: Network) -> bool {
    one.contains(other.address()) || other.contains(one.address())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_yields_its_network() {
        for (text, network) in [
            ("192.168.123.1/24", "192.168.123.0/24"),
            ("fd8f:6d53:b97a:1::1/96", "fd8f:6d53:b97a:1::/96"),
            ("10.0.0.1/32", "10.0.0.1/32"),
            ("128.0.0.1/1", "128.0.0.0/1"),
        ] {
            let own = InnerAddress::new(text.parse().unwrap()).unwrap();
            assert_eq!(own.network, network.parse().unwrap());
            assert_eq!(own.address.to_string(), text.split_once('/').unwrap().0);
        }
        assert_eq!(InnerAddress::new("10.0.0.0/8".parse().unwrap()), None);
    }

    #[test]
    fn networks_overlap_when_one_contains_other() {
        let overlap =
            |one: &str, other: &str| overlap(one.parse().unwrap(), other.parse().unwrap());
        assert!(overlap("10.0.0.0/8", "10.1.0.0/16"));
        assert!(overlap("10.1.0.0/16", "10.0.0.0/8"));
        assert!(!overlap("10.0.0.0/16", "10.1.0.0/16"));
        assert!(!overlap("10.0.0.0/8", "fd00::/8"));
    }
}
