//! The difference between the wanted addresses and what the kernel has, as ordered changes. Pure.
//!
//! Order: device, its state, addresses on it, then the same addresses off other devices. So an
//! address that moves is never gone in between, and its listeners and connections do not notice. One
//! that has a network's prefix elsewhere does not move.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::{
    AddressParams, DeviceKind,
    rtnl::{HeldAddress, link::Link},
};

/// One change to the node's network configuration, wanted or made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// An address is put on a device, with prefix length 32 or 128.
    AddAddress {
        /// The address.
        address: IpAddr,
        /// The device's name.
        device: String,
    },
    /// A missing device is created.
    CreateDevice {
        /// Its name.
        device: String,
        /// The configured kind in a plan, the chosen one once applied.
        kind: DeviceKind,
    },
    /// A device is deleted.
    DeleteDevice {
        /// Its name.
        device: String,
    },
    /// An address is taken off a device.
    RemoveAddress {
        /// The device's name.
        device: String,
        /// The address, with the prefix length it had there.
        prefix: IpNet,
    },
    /// A device that was down is set up.
    SetUp {
        /// Its name.
        device: String,
    },
}

impl Change {
    /// A label from a closed set, for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::AddAddress { .. } => "add_address",
            Self::CreateDevice { .. } => "create_device",
            Self::DeleteDevice { .. } => "delete_device",
            Self::RemoveAddress { .. } => "remove_address",
            Self::SetUp { .. } => "set_up",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddAddress { address, device } => {
                write!(f, "add {} to {device}", IpNet::from(*address))
            }
            Self::CreateDevice { device, kind } => write!(f, "create {device} of kind {kind}"),
            Self::DeleteDevice { device } => write!(f, "delete {device}"),
            Self::RemoveAddress { device, prefix } => write!(f, "remove {prefix} from {device}"),
            Self::SetUp { device } => write!(f, "set {device} up"),
        }
    }
}

/// What is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Actual {
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<HeldAddress>,
}

impl Actual {
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    fn name_of(&self, index: u32) -> Option<&str> {
        let link = self.links.iter().find(|link| link.index == index);
        link.map(|link| link.name.as_str())
    }
}

/// What has to change so that the device exists, is up and alone holds every wanted address. One
/// that [`network_elsewhere`] finds is left where it is.
///
/// On the device itself any prefix length will do: the address is local either way, and replacing
/// a longer prefix on a device that another process owns could cut the node off.
pub(crate) fn plan(wanted: &AddressParams, actual: &Actual) -> Vec<Change> {
    let link = actual.link(&wanted.device);
    let device = wanted.device.clone();
    let mut changes = Vec::new();
    match link {
        None => changes.push(Change::CreateDevice {
            device,
            kind: wanted.kind,
        }),
        Some(link) if !link.up => changes.push(Change::SetUp { device }),
        Some(_) => {}
    }
    let index = link.map(|link| link.index);
    let free = |address: &&IpAddr| elsewhere(index, **address, actual).all(is_host);
    let addresses: Vec<_> = wanted.addresses.iter().filter(free).copied().collect();
    for address in &addresses {
        plan_here(&wanted.device, index, *address, actual, &mut changes);
    }
    for address in addresses {
        // A device that came up between the two dumps has no name yet; the next look has it.
        let named = elsewhere(index, address, actual)
            .filter_map(|held| Some(removal(held, actual.name_of(held.index)?)));
        changes.extend(named);
    }
    changes
}

/// Finds a wanted address that another device has with the prefix of a network: taking it off would
/// cut the node off from that. A node's own address that has a host prefix is not told apart.
pub(crate) fn network_elsewhere(
    wanted: &AddressParams,
    actual: &Actual,
) -> Option<(String, IpNet)> {
    let index = actual.link(&wanted.device).map(|link| link.index);
    let addresses = wanted.addresses.iter();
    let mut held = addresses.flat_map(|address| elsewhere(index, *address, actual));
    let held = held.find(|held| !is_host(held))?;
    let named = actual.name_of(held.index).map(str::to_owned);
    let device = named.unwrap_or_else(|| format!("device {}", held.index));
    Some((device, held.prefix))
}

/// Adds `address` to the device unless it is there; one that is there but unusable is replaced.
fn plan_here(
    device: &str,
    index: Option<u32>,
    address: IpAddr,
    actual: &Actual,
    changes: &mut Vec<Change>,
) {
    let here = |held: &&HeldAddress| Some(held.index) == index && held.prefix.addr() == address;
    let mut held = actual.addresses.iter().filter(here);
    if held.clone().any(|held| held.usable) {
        return;
    }
    changes.extend(held.next().map(|held| removal(held, device)));
    changes.push(Change::AddAddress {
        address,
        device: device.to_owned(),
    });
}

fn elsewhere(
    index: Option<u32>,
    address: IpAddr,
    actual: &Actual,
) -> impl Iterator<Item = &HeldAddress> {
    let elsewhere =
        move |held: &&HeldAddress| Some(held.index) != index && held.prefix.addr() == address;
    actual.addresses.iter().filter(elsewhere)
}

fn is_host(held: &HeldAddress) -> bool {
    held.prefix.prefix_len() == held.prefix.max_prefix_len()
}

fn removal(held: &HeldAddress, device: &str) -> Change {
    Change::RemoveAddress {
        device: device.to_owned(),
        prefix: held.prefix,
    }
}

/// What has to change so that the wanted addresses are gone from the device, and the device with
/// them if it is of a kind we create and has no other use.
pub(crate) fn plan_cleanup(wanted: &AddressParams, actual: &Actual) -> Vec<Change> {
    let Some(link) = actual.link(&wanted.device) else {
        return Vec::new();
    };
    let ours = |held: &&HeldAddress| {
        held.index == link.index && wanted.addresses.contains(&held.prefix.addr())
    };
    let mut changes: Vec<_> = actual
        .addresses
        .iter()
        .filter(ours)
        .map(|held| removal(held, &wanted.device))
        .collect();
    if deletable(link, wanted, actual) {
        changes.push(Change::DeleteDevice {
            device: wanted.device.clone(),
        });
    }
    changes
}

fn deletable(link: &Link, wanted: &AddressParams, actual: &Actual) -> bool {
    let mut created_kinds = DeviceKind::Auto.candidates().iter();
    let created_kind = created_kinds.any(|kind| link.kind.as_deref() == Some(kind.as_str()));
    let foreign_address = actual.addresses.iter().any(|held| {
        held.index == link.index
            && !wanted.addresses.contains(&held.prefix.addr())
            // The kernel gives most devices such an IPv6 address by itself.
            && !matches!(held.prefix.addr(), IpAddr::V6(own) if own.is_unicast_link_local())
    });
    let mut others = actual.links.iter();
    let port = others.any(|other| other.master == Some(link.index));
    wanted.kind != DeviceKind::Loopback && created_kind && !foreign_address && !port
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
