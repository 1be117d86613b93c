//! Inner addresses where only a transfer network is given, as by `VPN_NETWORK`: both ends
//! compute the same ones.
//!
//! ```text
//!   P::/96            server i: P::1+i              client j: P::b:j
//!   a.b.c.0/24        server i: a.b.c.1+i           client j: a.b.c.64+j
//! ```
//!
//! Where a pod is one of several, its number is the one its name ends in. Reads no environment.

use std::net::IpAddr;

use ipnet::IpNet;

use super::TunnelAddress;

/// Which end of the tunnel an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client of that number, from 0.
    Client(u16),
    /// The server of that number, from 0.
    Server(u16),
}

/// Returns the address of `end` on the transfer network.
///
/// # Errors
/// [`TransferError`] when the network is too small to have it.
pub fn transfer_address(network: IpNet, end: End) -> Result<TunnelAddress, TransferError> {
    let small = || TransferError { network, end };
    let len = network.prefix_len();
    let address = match network.addr() {
        IpAddr::V4(first) => {
            let host = match end {
                End::Client(number) => 64 + u32::from(number),
                End::Server(number) => 1 + u32::from(number),
            };
            // Servers stay below the clients, and the last address is the broadcast address.
            let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            let crowded = matches!(end, End::Server(_)) && host >= 64;
            (host < hosts && !crowded)
                .then(|| IpAddr::V4((first.to_bits() | host).into()))
                .ok_or_else(small)?
        }
        IpAddr::V6(first) => {
            let host = match end {
                End::Client(number) => 0xb_0000 | u128::from(number),
                End::Server(number) => 1 + u128::from(number),
            };
            let hosts = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            (host <= hosts)
                .then(|| IpAddr::V6((first.to_bits() | host).into()))
                .ok_or_else(small)?
        }
    };
    TunnelAddress::new(address, len).map_err(|_| small())
}

/// The transfer network of Gardener's tunnels today.
const CUSTOMARY_IPV6: &str = "fd8f:6d53:b97a:1::/96";
/// The one before, which shoots keep free; for what has no other of IPv4.
const CUSTOMARY_IPV4: &str = "192.168.123.0/24";

/// Returns the addresses of `end` for every family that `networks` have: on the given transfer
/// networks, and on the customary one for a family of which none is given.
///
/// # Errors
/// [`TransferError`] when a network is too small.
pub fn transfer_addresses(
    given: &[IpNet],
    networks: &[IpNet],
    end: End,
) -> Result<Vec<TunnelAddress>, TransferError> {
    let mut addresses = Vec::new();
    for (ipv6, customary) in [(true, CUSTOMARY_IPV6), (false, CUSTOMARY_IPV4)] {
        let of_family = |network: &&IpNet| network.addr().is_ipv6() == ipv6;
        let network = given.iter().find(of_family).copied().or_else(|| {
            let needed = networks.iter().any(|network| of_family(&network));
            needed.then(|| customary.parse().ok()).flatten()
        });
        if let Some(network) = network {
            addresses.push(transfer_address(network, end)?);
        }
    }
    Ok(addresses)
}

/// Returns the number that the name of a pod of a StatefulSet ends in: 1 of `vpn-shoot-1`.
#[must_use]
pub fn trailing_number(name: &str) -> Option<u16> {
    let (_, number) = name.rsplit_once('-')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| digits)
}

/// A transfer network does not have the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the transfer network {network} is too small to have an address for {end:?}")]
pub struct TransferError {
    network: IpNet,
    end: End,
}
