//! Hosts as dials name them, and ranges of addresses.

use std::net::IpAddr;

use ipnet::IpNet;

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

/// Reads a range: `address/length`, whatever the bits behind the prefix, or a single address.
pub(super) fn parse_range(text: &str) -> Option<IpNet> {
    // The address not by `IpNet`'s own reader, which takes numbers with leading zeros.
    let range = match text.split_once('/') {
        Some((address, len)) => IpNet::new(address.parse().ok()?, len.parse().ok()?).ok()?,
        None => text.parse::<IpAddr>().ok()?.into(),
    };
    Some(range.trunc())
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
        let holds = |range, address: &str| {
            let address: IpAddr = address.parse().unwrap();
            parse_range(range).unwrap().contains(&address)
        };
        assert!(holds("10.1.2.3/8", "10.255.0.1"));
        assert!(!holds("10.1.2.3/8", "11.0.0.1"));
        assert!(!holds("10.1.2.3/8", "::ffff:a00:1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4"));
        assert!(holds("::/0", "1::"));
        assert!(holds("1::2", "1::2"));
        let none = "10.0.0.0/33 10.0.0.0/ 010.0.0.0/8 x/8 1::/129";
        for text in none.split(' ').chain([""]) {
            assert_eq!(parse_range(text), None, "{text}");
        }
    }
}
