//! What values of both ends' files must be. Every mistake is named by its key.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ::settings::{ConfigErrors, RelPath};
use ipnet::IpNet;
use tunnel_proto::datagram::RouteId;

use super::{TunnelAddress, overlap};

/// Bounds of `mtu`: the minimum of IPv6 (RFC 8200 §5), and jumbo frames.
const MTU: RangeInclusive<u16> = 1280..=9000;
/// As long as the name of a pod may be where it becomes a host name (RFC 1123 §2.1).
const MAX_NAME: usize = 63;

/// Returns the `mtu` where the file leaves it out.
pub fn default_mtu() -> u16 {
    1420
}

/// Adds to `errors` an `mtu` out of range.
pub fn validate_mtu(mtu: u16, errors: &mut ConfigErrors) {
    if !MTU.contains(&mtu) {
        let (least, most) = (MTU.start(), MTU.end());
        errors.add(
            "mtu",
            format_args!("{mtu} is not between {least} and {most}"),
        );
    }
}

/// Adds to `errors` what cannot be the name of an end, which is a label of metrics and sent to the
/// other end.
pub fn validate_name(name: &str, key: &str, errors: &mut ConfigErrors) {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(fits) {
        let why = format_args!(
            "`{}` is not a name: letters, digits, `-`, `_` and `.`, at most {MAX_NAME}",
            name.escape_debug()
        );
        errors.add(key, why);
    }
}

/// Returns a route id, or adds to `errors` why it is none.
pub fn route_id(number: Option<u32>, key: &str, errors: &mut ConfigErrors) -> Option<RouteId> {
    let number = number?;
    let route = RouteId::new(number);
    if route.is_none() {
        let most = RouteId::MAX;
        errors.add(key, format_args!("{number} is not between 1 and {most}"));
    }
    route
}

/// Adds to `errors` when there is no file of a private key, or one is no file or there twice.
pub fn validate_private_keys(files: &[RelPath], errors: &mut ConfigErrors) {
    const KEY: &str = "keys.private";
    if files.is_empty() {
        errors.add(KEY, "at least one key is needed");
    }
    let mut seen = BTreeSet::new();
    for (at, file) in files.iter().enumerate() {
        if file.is_empty() {
            errors.add(format_args!("{KEY}[{at}]"), "not a file");
        } else if !seen.insert(file) {
            errors.add(
                format_args!("{KEY}[{at}]"),
                format_args!("{file} is there twice"),
            );
        }
    }
}

/// Adds to `errors` what is wrong with the `addresses` of an end: there is one of each family of
/// `networks` and at most one, on a transfer network that overlaps none of `networks`.
pub fn validate_addresses(
    addresses: &[TunnelAddress],
    networks: &[IpNet],
    errors: &mut ConfigErrors,
) {
    const KEY: &str = "addresses";
    if addresses.is_empty() {
        // Without networks, which is reported too, no address is missing for them.
        if !networks.is_empty() {
            errors.add(KEY, "at least one address is needed, or VPN_NETWORK");
        }
        return;
    }
    for (ipv6, family) in [(false, "IPv4"), (true, "IPv6")] {
        let own = addresses.iter();
        let count = own.filter(|own| own.address().is_ipv6() == ipv6).count();
        let mut needs = networks.iter().filter(|one| one.addr().is_ipv6() == ipv6);
        if count > 1 {
            errors.add(KEY, format_args!("more than one address of {family}"));
        } else if let (0, Some(network)) = (count, needs.next()) {
            let why = format_args!("an {family} address is needed for {network} of the shoot");
            errors.add(KEY, why);
        }
    }
    for (at, own) in addresses.iter().enumerate() {
        let transfer = own.network();
        if let Some(network) = networks.iter().find(|one| overlap(&transfer, one)) {
            let why =
                format_args!("the transfer network {transfer} overlaps {network} of the shoot");
            errors.add(format_args!("{KEY}[{at}]"), why);
        }
    }
}
