//! An address with the number of leading bits its network shares.
//!
//! Serves both as the address of a device (`192.168.123.1/24`) and as a network (`10.96.0.0/11`):
//! who wants a network takes [`Prefix::network`]. Knows nothing of devices and routes.

use std::{fmt, net::IpAddr, str::FromStr};

/// An address and its prefix length, at most 32 or 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Returns the pair; bits behind the prefix may be set.
    ///
    /// # Errors
    /// `Length` for more bits than the address has.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, PrefixError> {
        if length > width(address) {
            return Err(PrefixError::Length { address, length });
        }
        Ok(Self { address, length })
    }

    /// Returns the address alone: all 32 or 128 bits.
    pub fn host(address: IpAddr) -> Self {
        let length = width(address);
        Self { address, length }
    }

    /// Returns the address as given.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of leading bits, 0 to 32 or 128.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns the network: the same with the bits behind the prefix zeroed.
    pub fn network(&self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length));
                IpAddr::V4((address.to_bits() & mask.unwrap_or(0)).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length));
                IpAddr::V6((address.to_bits() & mask.unwrap_or(0)).into())
            }
        };
        Self { address, ..*self }
    }

    /// Whether `address` is of the same family and in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let length = self.length;
        address.is_ipv4() == self.address.is_ipv4()
            && Self { address, length }.network() == self.network()
    }

    /// Whether the two networks have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// Reads `address/length`, or an address alone.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let syntax = || PrefixError::Syntax {
            text: text.to_owned(),
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address = address.parse().map_err(|_| syntax())?;
        match length {
            Some(length) => Self::new(address, length.parse().map_err(|_| syntax())?),
            None => Ok(Self::host(address)),
        }
    }
}

/// Why something is no [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixError {
    /// More bits than the address has.
    #[error("{address} has fewer than {length} bits")]
    Length {
        /// The address.
        address: IpAddr,
        /// The prefix length given with it.
        length: u8,
    },
    /// Not `address/length`.
    #[error("{text:?} is not an address with a prefix length")]
    Syntax {
        /// As given.
        text: String,
    },
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_has_no_bits_behind_its_prefix() {
        for (given, network) in [
            ("192.168.123.1/24", "192.168.123.0/24"),
            ("10.0.0.1/0", "0.0.0.0/0"),
            ("10.0.0.1", "10.0.0.1/32"),
            ("fd00::b:0:1/96", "fd00::b:0:0/96"),
            ("fd00::1/0", "::/0"),
            ("fd00::1", "fd00::1/128"),
        ] {
            assert_eq!(prefix(given).network(), prefix(network));
        }
    }

    #[test]
    fn nested_networks_overlap_and_families_never_do() {
        assert!(prefix("10.0.0.0/8").overlaps(&prefix("10.96.0.0/11")));
        assert!(prefix("10.96.0.0/11").overlaps(&prefix("0.0.0.0/0")));
        assert!(!prefix("10.0.0.0/9").overlaps(&prefix("10.128.0.0/9")));
        assert!(!prefix("0.0.0.0/0").overlaps(&prefix("::/0")));
    }

    #[test]
    fn prefix_parse_rejects_invalid_text() {
        for text in [
            "",
            "10.0.0.1/",
            "10.0.0.1/33",
            "fd00::/129",
            "a/8",
            "10.0.0.1/-1",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        assert_eq!(prefix("10.0.0.1/8").to_string(), "10.0.0.1/8");
    }
}
