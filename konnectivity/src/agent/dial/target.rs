//! What a server asks for: a network and `host:port`, as Go's `net` package reads them.
//!
//! ```text
//! "tcp", "[fd00::1]:443" ──▶ Target { network, host, port }
//! ```
//!
//! Resolves nothing.

use std::net::IpAddr;

use super::error::{DialError, DialFault};

/// A destination, not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Which address families may be used.
    pub(crate) network: Network,
    /// Who is meant.
    pub(crate) host: Host,
    /// The port.
    pub(crate) port: u16,
}

telemetry::labels! {
    /// Which address families may be used.
    pub(crate) enum Network {
        /// Both.
        Tcp = "tcp",
        /// IPv4.
        Tcp4 = "tcp4",
        /// IPv6.
        Tcp6 = "tcp6",
    }
}

/// Who is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// An address, with the number of its zone if it has one.
    Address(IpAddr, u32),
    /// No host is named: this host itself.
    Local,
    /// A name.
    Name(String),
}

impl Network {
    /// Returns the error of a dial on it.
    pub(super) fn failed(self, fault: DialFault) -> DialError {
        let network = self.as_str().to_owned();
        DialError { network, fault }
    }

    /// Returns whether `address` may be dialed on it.
    pub(crate) fn takes(self, address: IpAddr) -> bool {
        match self {
            Self::Tcp => true,
            Self::Tcp4 => address.is_ipv4(),
            Self::Tcp6 => address.is_ipv6(),
        }
    }
}

impl Target {
    /// Reads a destination.
    ///
    /// # Errors
    /// [`DialFault::UnknownNetwork`] and [`DialFault::Address`], in Go's words.
    pub(crate) fn parse(protocol: &str, address: &str) -> Result<Self, DialError> {
        let network = (Network::ALL.into_iter())
            .find(|network| network.as_str() == protocol)
            .ok_or_else(|| {
                let network: String = protocol.chars().take(MAX_SHOWN).collect();
                let fault = DialFault::UnknownNetwork(network.clone());
                DialError { network, fault }
            })?;
        let wrong = |address: &str, fault| {
            let address = address.chars().take(MAX_SHOWN).collect();
            network.failed(DialFault::Address(address, fault))
        };
        let (host, port) = split(address).map_err(|fault| wrong(address, fault))?;
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let number = match port {
            "" => Some(0),
            port => port.parse().ok().filter(|_| digits),
        };
        Ok(Self {
            network,
            host: Host::parse(host),
            port: number.ok_or_else(|| wrong(port, "invalid port"))?,
        })
    }
}

impl Host {
    /// Reads a host without brackets.
    pub(super) fn parse(host: &str) -> Self {
        if host.is_empty() {
            return Self::Local;
        }
        if let Ok(address) = host.parse() {
            return Self::Address(address, 0);
        }
        // A zone, RFC 4007 §11. Names of devices would have to be looked up; numbers need not.
        if let Some((address, zone)) = host.split_once('%')
            && let (Ok(address), Ok(zone)) = (address.parse(), zone.parse())
        {
            return Self::Address(IpAddr::V6(address), zone);
        }
        Self::Name(host.to_owned())
    }
}

/// Splits at the last colon outside of brackets, and says what is wrong as Go does.
fn split(address: &str) -> Result<(&str, &str), &'static str> {
    let (host, port, rest) = if let Some(inner) = address.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or("missing ']' in address")?;
        let port = match after.strip_prefix(':') {
            Some(port) if !port.contains(':') => port,
            Some(_) => return Err("too many colons in address"),
            None => return Err("missing port in address"),
        };
        (host, port, host)
    } else {
        let (host, port) = address.rsplit_once(':').ok_or("missing port in address")?;
        if host.contains(':') {
            return Err("too many colons in address");
        }
        (host, port, address)
    };
    if rest.contains('[') || port.contains('[') {
        return Err("unexpected '[' in address");
    }
    if rest.contains(']') || port.contains(']') {
        return Err("unexpected ']' in address");
    }
    Ok((host, port))
}

/// What of a hostile text is repeated in an answer, in characters.
const MAX_SHOWN: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Host {
        Host::Name(text.to_owned())
    }

    #[test]
    fn reads_what_go_reads() {
        let address = |text: &str| Host::Address(text.parse().unwrap(), 0);
        let link_local = Host::Address("fe80::1".parse().unwrap(), 3);
        for (text, host, port) in [
            ("10.0.0.1:443", address("10.0.0.1"), 443),
            ("[fd00::1]:1", address("fd00::1"), 1),
            ("[fe80::1%3]:1", link_local, 1),
            ("db.example:5432", name("db.example"), 5432),
            ("[db.example]:5432", name("db.example"), 5432),
            ("x:", name("x"), 0),
            (":80", Host::Local, 80),
            ("[fe80::1%eth0]:1", name("fe80::1%eth0"), 1),
        ] {
            let target = Target::parse("tcp", text).unwrap();
            assert_eq!((target.host, target.port), (host, port), "{text}");
        }
        assert_eq!(Target::parse("tcp6", "x:1").unwrap().network, Network::Tcp6);
    }

    #[test]
    fn says_what_is_wrong_as_go_does() {
        for (text, shown, fault) in [
            ("x", "x", "missing port in address"),
            ("", "", "missing port in address"),
            ("[::1]", "[::1]", "missing port in address"),
            ("::1", "::1", "too many colons in address"),
            ("a:b:1", "a:b:1", "too many colons in address"),
            ("[::1", "[::1", "missing ']' in address"),
            ("[::1]:1:2", "[::1]:1:2", "too many colons in address"),
            ("a]:1", "a]:1", "unexpected ']' in address"),
            ("a[:1", "a[:1", "unexpected '[' in address"),
            ("x:65536", "65536", "invalid port"),
            ("x:+1", "+1", "invalid port"),
        ] {
            let error = Target::parse("tcp", text).unwrap_err();
            let expected = format!("dial tcp: address {shown}: {fault}");
            assert_eq!(error.to_string(), expected);
        }
        let error = Target::parse("unix", "/run/x").unwrap_err();
        assert_eq!(error.to_string(), "dial unix: unknown network unix");
    }

    #[test]
    fn hostile_texts_are_not_repeated_whole() {
        let text = "é".repeat(100_000);
        let error = Target::parse("tcp", &text).unwrap_err();
        assert!(error.to_string().len() < 2000);
        assert!(Target::parse(&text, "x:1").unwrap_err().to_string().len() < 3000);
    }
}
