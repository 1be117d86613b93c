//! Lets the namespace forward between the tunnel device and the networks behind it.
//!
//! ```text
//!   tunnel device ──(its forwarding)──▶ uplink ──▶ shoot
//!   tunnel device ◀──(uplink's forwarding)── uplink ◀── shoot
//! ```
//!
//! IPv4 asks the device a packet came in by, so each is set by itself over netlink, and no other
//! device of the namespace starts to forward. Uplinks are all devices that a unicast route toward
//! any of the networks leads to, in whatever table: a look-up of one address would miss the
//! device of a part of a network. Routes may come later; [`Forwarding::enable`] is called again
//! then.
//!
//! IPv6 has one switch for the namespace, which netlink can only read: the init container sets it
//! ([`setup_ipv6_forwarding`]).
//!
//! What was switched on stays on: the tunnel device goes with the process, and an uplink alone
//! forwards nothing a route does not lead elsewhere. No rule is added to any firewall: a namespace
//! whose `FORWARD` policy drops has an owner who accepts the device.

use std::{collections::BTreeMap, fs, io, path::Path};

use ipnet::IpNet;

use super::{Setup, check_networks, device_settings, sources::set_switches};
use crate::{
    NetConfigError,
    netlink::Connection,
    rtnl::{
        device::{self, Switch},
        link, route,
    },
};

/// Between which devices packets are forwarded.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// Name of the tunnel device.
    pub device: String,
    /// The networks that are reached from it.
    pub networks: Vec<IpNet>,
}

/// What forwards, and what was changed for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forwarded {
    /// The devices toward the IPv4 networks, by name.
    pub uplinks: Vec<String>,
    /// The switches that were set.
    pub changes: Vec<String>,
}

impl Forwarding {
    /// Switches IPv4 forwarding on for the tunnel device and the uplinks where there is an IPv4
    /// network, reads it back, and checks the switch for IPv6 where there is an IPv6 network.
    /// Calling it again changes nothing.
    ///
    /// # Errors
    /// `DeviceName` and `Address`; `DeviceMissing`; `NoRoute` for an IPv4 network that no route
    /// leads toward; `Ipv6Forwarding` when it is off and an IPv6 network needs it, with everything
    /// for IPv4 in place; `NotInPlace`; `Permission` without `CAP_NET_ADMIN`; `Netlink`.
    pub async fn enable(&self) -> Result<Forwarded, NetConfigError> {
        check_networks(&self.device, &self.networks)?;
        let mut setup = Setup::new()?;
        let uplinks = self.uplinks(&mut setup.connection).await?;
        let tunnel = (!uplinks.is_empty()).then_some(&self.device);
        for device in tunnel.into_iter().chain(&uplinks) {
            set_switches(&mut setup, device, &[(Switch::Forwarding, 1)]).await?;
        }
        let ipv6 = |network: &&IpNet| network.addr().is_ipv6();
        if let Some(network) = self.networks.iter().find(ipv6)
            && !ipv6_forwarding_enabled().await?
        {
            return Err(NetConfigError::Ipv6Forwarding { network: *network });
        }
        let changes = setup.changes;
        Ok(Forwarded { uplinks, changes })
    }

    /// The names of the devices that routes toward the IPv4 networks lead to, in order.
    async fn uplinks(&self, connection: &mut Connection) -> Result<Vec<String>, NetConfigError> {
        let failed = || NetConfigError::during("reading devices and routes");
        let own = device_settings(&self.device).await?.index;
        let links = link::links(connection).await.map_err(failed())?;
        let routes = route::routes(connection).await.map_err(failed())?;
        let others: BTreeMap<_, _> = links
            .into_iter()
            .filter(|link| link.index != own && link.name != "lo")
            .map(|link| (link.index, link.name))
            .collect();
        let mut uplinks = Vec::new();
        let ipv4 = |network: &&IpNet| network.addr().is_ipv4();
        for network in self.networks.iter().filter(ipv4) {
            let before = uplinks.len();
            let toward = routes
                .iter()
                .filter(|route| overlap(&route.destination, network));
            let devices = toward.flat_map(|route| &route.devices);
            uplinks.extend(devices.filter_map(|index| others.get(index).cloned()));
            if uplinks.len() == before {
                return Err(NetConfigError::NoRoute { network: *network });
            }
        }
        uplinks.sort_unstable();
        uplinks.dedup();
        Ok(uplinks)
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Whether this namespace forwards IPv6; false where the kernel has none.
///
/// # Errors
/// `Netlink`.
pub async fn ipv6_forwarding_enabled() -> Result<bool, NetConfigError> {
    let value = device::ipv6_forwarding().await;
    let reading = NetConfigError::during("reading net.ipv6.conf.all.forwarding");
    Ok(value.map_err(reading)? != 0)
}

/// Switches IPv6 forwarding on for the namespace, and with `enable_ipv6` IPv6 itself on every
/// device there is and comes. Tells which files below `/proc/sys` it wrote; those that already say
/// so are not touched. For a privileged container that ends before the others start: what it sets
/// stays for the life of the pod. Blocks no longer than a write to `/proc`.
///
/// A forwarding namespace takes no default route from router advertisements (`accept_ra` 1); pods
/// have theirs from the network plug-in.
///
/// # Errors
/// `Ipv6Missing` on a kernel without IPv6, `Switch` where `/proc/sys` is read-only or not ours.
pub fn setup_ipv6_forwarding(enable_ipv6: bool) -> Result<Vec<String>, NetConfigError> {
    let conf = Path::new("/proc/sys/net/ipv6/conf");
    if !conf.exists() {
        return Err(NetConfigError::Ipv6Missing {
            what: "forwarding".to_owned(),
        });
    }
    let enabling = [("all/disable_ipv6", 0), ("default/disable_ipv6", 0)];
    let mut written = Vec::new();
    let switches = enabling.into_iter().filter(|_| enable_ipv6);
    for (name, value) in switches.chain([("all/forwarding", 1)]) {
        let path = conf.join(name);
        match write_switch(&path, value) {
            Ok(true) => written.push(path.display().to_string()),
            Ok(false) => {}
            Err(source) => {
                return Err(NetConfigError::Switch {
                    path,
                    value,
                    source,
                });
            }
        }
    }
    Ok(written)
}

/// Writes `value` unless it is there; tells whether it wrote, and reads it back.
fn write_switch(path: &Path, value: u8) -> io::Result<bool> {
    let value = value.to_string();
    if fs::read_to_string(path)?.trim() == value {
        return Ok(false);
    }
    fs::write(path, &value)?;
    if fs::read_to_string(path)?.trim() == value {
        Ok(true)
    } else {
        Err(io::Error::other("the value did not stay"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_networks_overlap_and_families_never_do() {
        let overlap =
            |one: &str, other: &str| overlap(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(overlap("0.0.0.0/0", "10.1.0.0/16") && overlap("10.1.0.0/16", "0.0.0.0/0"));
        assert!(!overlap("10.0.0.0/16", "10.1.0.0/16"));
        assert!(!overlap("0.0.0.0/0", "::/0") && !overlap("::/0", "10.0.0.0/8"));
    }
}
