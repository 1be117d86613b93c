//! `--allow-destinations`: where an agent may open connections to.
//!
//! Judged by the address that is dialled, after names are resolved, so that no name gets around it.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use route::{IpPrefix, IpPrefixError};

/// Destinations that may be dialled; without any, all may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Destination>);

impl AllowList {
    /// Tells whether `address` may be dialled.
    #[must_use]
    pub fn allows(&self, address: SocketAddr) -> bool {
        self.0.is_empty() || self.0.iter().any(|own| own.contains(address))
    }

    /// Whether everything may be dialled.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Destination> for AllowList {
    fn from_iter<I: IntoIterator<Item = Destination>>(destinations: I) -> Self {
        Self(destinations.into_iter().collect())
    }
}

/// Addresses of one network and ports: `10.0.0.0/8`, `10.0.0.1:443`, `[fd00::/8]:80-90`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    network: IpPrefix,
    ports: RangeInclusive<u16>,
}

impl Destination {
    fn contains(&self, address: SocketAddr) -> bool {
        self.network.contains(address.ip()) && self.ports.contains(&address.port())
    }
}

/// Why a text is no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// The text is not of the form.
    #[error("write it like 10.0.0.0/8, 10.0.0.0/8:443, 10.0.0.1:80-90 or [fd00::/8]:443")]
    Form,
    /// The network is none.
    #[error(transparent)]
    Network(#[from] IpPrefixError),
    /// The ports are none.
    #[error("ports are 1 to 65535, as in 443 or 80-90, the lower first")]
    Ports,
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let (network, rest) = if let Some(inside) = text.strip_prefix('[') {
            inside.split_once(']').ok_or(DestinationError::Form)?
        } else if text.matches(':').count() == 1 {
            text.split_at(text.find(':').unwrap_or(text.len()))
        } else {
            (text, "")
        };
        let ports = match rest.strip_prefix(':') {
            Some(ports) => read_ports(ports).ok_or(DestinationError::Ports)?,
            None if rest.is_empty() => 0..=u16::MAX,
            None => return Err(DestinationError::Form),
        };
        let network = network.parse()?;
        Ok(Self { network, ports })
    }
}

fn read_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| -> Option<u16> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let port = digits.then(|| text.parse().ok()).flatten()?;
        (port != 0).then_some(port)
    };
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some(first..=last)
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.ports.start(), self.ports.end());
        if *first == 0 {
            return self.network.fmt(f);
        }
        if self.network.network().is_ipv6() {
            write!(f, "[{}]:{first}", self.network)?;
        } else {
            write!(f, "{}:{first}", self.network)?;
        }
        if first == last {
            return Ok(());
        }
        write!(f, "-{last}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(list: &[&str], address: &str) -> bool {
        let list: AllowList = list
            .iter()
            .map(|text| text.parse::<Destination>().unwrap())
            .collect();
        list.allows(address.parse().unwrap())
    }

    #[test]
    fn without_a_list_everything_is_allowed() {
        assert!(allows(&[], "10.0.0.1:1"));
        assert!(AllowList::default().is_everything());
    }

    #[test]
    fn network_and_port_must_both_match() {
        let list = [
            "10.0.0.0/8:443",
            "10.1.0.1:80-90",
            "[fd00::/8]:10250",
            "fe80::1",
        ];
        for address in [
            "10.9.9.9:443",
            "10.1.0.1:80",
            "10.1.0.1:90",
            "[fd12::1]:10250",
            "[fe80::1]:7",
            "[::ffff:10.9.9.9]:443",
        ] {
            assert!(allows(&list, address), "{address}");
        }
        for address in [
            "11.0.0.1:443",
            "10.9.9.9:80",
            "10.1.0.1:91",
            "[fd12::1]:443",
            "[fe80::2]:7",
        ] {
            assert!(!allows(&list, address), "{address}");
        }
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        for (text, error) in [
            ("fd00::/8:443", IpPrefixError::Length { max: 128 }.into()),
            ("*.example.com:443", IpPrefixError::Address.into()),
            ("", IpPrefixError::Address.into()),
            ("10.0.0.0/8:0", DestinationError::Ports),
            ("10.0.0.0/8:+1", DestinationError::Ports),
            ("10.0.0.0/8:90-80", DestinationError::Ports),
            ("10.0.0.0/8:", DestinationError::Ports),
            ("[fd00::/8", DestinationError::Form),
            ("[fd00::/8]443", DestinationError::Form),
        ] {
            assert_eq!(text.parse::<Destination>(), Err(error), "{text}");
        }
    }

    #[test]
    fn destinations_are_shown_as_they_are_written() {
        for text in [
            "10.0.0.0/8",
            "10.0.0.0/8:443",
            "[fd00::/8]:80-90",
            "fd00::/8",
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
    }
}
