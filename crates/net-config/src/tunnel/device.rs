//! Sets up a TUN device that another component has opened: packet size, queue, addresses, up.
//!
//! ```text
//!   settings ──▶ MTU and queue, no link-local address, up ──▶ addresses off, addresses on ──▶ read back
//! ```
//!
//! Neither creates nor deletes the device, and routes nothing but, on request, its own prefixes.

use ipnet::IpNet;

use super::{Setup, check_prefixes, device_settings};
use crate::{
    NetConfigError,
    address::put_address,
    netlink::Connection,
    rtnl::{self, HeldAddress, device},
};

/// How a tunnel device is to be.
#[derive(Clone, Debug)]
pub struct TunnelDevice {
    /// Name of the device, 1 to 15 bytes.
    pub device: String,
    /// Largest packet, bytes: at least 68, with IPv6 addresses 1280.
    pub mtu: u16,
    /// Packets that may wait for the reader, 1000 to 10000.
    pub queue_packets: u32,
    /// The device's own addresses on the transfer networks; no others stay on it.
    pub addresses: Vec<IpNet>,
    /// Whether the kernel routes the whole prefix of each address to the device, for every socket.
    ///
    /// Right for a client, whose replies must find the servers. Wrong for a server, where the
    /// prefix may be in use around the namespace: there [`TunnelRoutes`](super::TunnelRoutes)
    /// names it, for the sockets that ask for the tunnel only.
    pub prefix_routes: bool,
}

impl TunnelDevice {
    /// Makes the device what it is to be and reads it back; calling it again changes nothing.
    /// Addresses that are not wanted, such as an earlier start's, are removed.
    ///
    /// Not cancel-safe in the sense that some changes may have been made; calling it again is
    /// always right.
    ///
    /// # Errors
    /// `DeviceName`, `Mtu`, `QueueLength` and `Address` for values no kernel takes, before anything
    /// is touched; `DeviceMissing`; `Ipv6Disabled` and `Ipv6Missing` when an IPv6 address is wanted;
    /// `Permission` without `CAP_NET_ADMIN`; `NotInPlace` when reading back shows something else;
    /// `Netlink` for the rest.
    pub async fn configure(&self) -> Result<Vec<String>, NetConfigError> {
        self.check()?;
        let mut setup = Setup::new()?;
        self.set_size(&mut setup).await?;
        let index = self.set_up(&mut setup).await?;
        self.remove_addresses(&mut setup, index).await?;
        self.add_addresses(&mut setup, index).await?;
        self.verify(&mut setup.connection).await?;
        Ok(setup.changes)
    }

    async fn set_size(&self, setup: &mut Setup) -> Result<(), NetConfigError> {
        let (name, mtu, queue) = (&self.device, u32::from(self.mtu), self.queue_packets);
        let settings = device_settings(name).await?;
        if settings.mtu != mtu {
            let what = format!("set the MTU of {name} to {mtu}");
            let request = device::set_mtu(setup.request(), settings.index, mtu);
            setup.change(what, request, None).await?;
        }
        if settings.queue != queue {
            let what = format!("set the queue of {name} to {queue} packets");
            let request = device::set_queue(setup.request(), settings.index, queue);
            setup.change(what, request, None).await?;
        }
        Ok(())
    }

    /// Returns the device's index.
    async fn set_up(&self, setup: &mut Setup) -> Result<u32, NetConfigError> {
        let name = &self.device;
        // Read again: IPv6 comes and goes with the packet size.
        let settings = device_settings(name).await?;
        if settings.makes_link_local {
            // The address has no use on a device with two ends, and the kernel would send
            // router solicitations from it into the tunnel.
            let what = format!("keep link-local addresses off {name}");
            let request = device::without_link_local(setup.request(), settings.index);
            setup.change(what, request, None).await?;
        }
        if !settings.up {
            let request = rtnl::set_up(setup.request(), settings.index);
            setup
                .change(format!("set {name} up"), request, None)
                .await?;
        }
        Ok(settings.index)
    }

    /// Removal comes first and is read anew afterwards: with a primary IPv4 address the kernel may
    /// take the secondary ones away.
    async fn remove_addresses(&self, setup: &mut Setup, index: u32) -> Result<(), NetConfigError> {
        let held = self.held(&mut setup.connection, index).await?;
        for stale in held.iter().filter(|held| !self.wants(held)) {
            let what = format!("remove {} from {}", stale.prefix, self.device);
            let request = rtnl::delete_address(setup.request(), index, stale.prefix);
            setup
                .change(what, request, Some(libc::EADDRNOTAVAIL))
                .await?;
        }
        Ok(())
    }

    async fn add_addresses(&self, setup: &mut Setup, index: u32) -> Result<(), NetConfigError> {
        let held = self.held(&mut setup.connection, index).await?;
        for prefix in &self.addresses {
            if held.iter().any(|held| held.prefix == *prefix) {
                continue;
            }
            let request = rtnl::add_address(setup.request(), index, *prefix, self.prefix_routes);
            let added = put_address(setup.connection.acknowledged(&request), prefix.addr()).await;
            added.map_err(NetConfigError::adding(*prefix, &self.device))?;
            setup
                .changes
                .push(format!("add {prefix} to {}", self.device));
        }
        Ok(())
    }

    async fn verify(&self, connection: &mut Connection) -> Result<(), NetConfigError> {
        let settings = device_settings(&self.device).await?;
        let held = self.held(connection, settings.index).await?;
        let absent = |prefix: &&IpNet| !held.iter().any(|held| held.prefix == **prefix);
        let missing = if settings.mtu != u32::from(self.mtu) {
            Some(format!("an MTU of {} bytes", self.mtu))
        } else if settings.queue != self.queue_packets {
            Some(format!("a queue of {} packets", self.queue_packets))
        } else if !settings.up {
            Some("the device being up".to_owned())
        } else if let Some(stale) = held.iter().find(|held| !self.wants(held)) {
            Some(format!("the address {} being gone", stale.prefix))
        } else {
            let absent = self.addresses.iter().find(absent);
            absent.map(|prefix| format!("the address {prefix}"))
        };
        match missing {
            Some(missing) => Err(NetConfigError::NotInPlace {
                missing: format!("{missing} on {}", self.device),
            }),
            None => Ok(()),
        }
    }

    async fn held(
        &self,
        connection: &mut Connection,
        index: u32,
    ) -> Result<Vec<HeldAddress>, NetConfigError> {
        let attempt = format!("reading the addresses on {}", self.device);
        let all = rtnl::addresses(connection).await;
        let all = all.map_err(NetConfigError::during(attempt))?;
        Ok(all.into_iter().filter(|held| held.index == index).collect())
    }

    fn wants(&self, held: &HeldAddress) -> bool {
        held.usable
            && held.prefix_route == self.prefix_routes
            && self.addresses.contains(&held.prefix)
    }

    fn check(&self) -> Result<(), NetConfigError> {
        NetConfigError::check_device(&self.device)?;
        let ipv6 = self.addresses.iter().any(|at| at.addr().is_ipv6());
        let least = if ipv6 { 1280 } else { 68 };
        if self.mtu < least {
            return Err(NetConfigError::Mtu {
                device: self.device.clone(),
                mtu: self.mtu,
                least,
            });
        }
        if !(1000..=10_000).contains(&self.queue_packets) {
            return Err(NetConfigError::QueueLength {
                device: self.device.clone(),
                packets: self.queue_packets,
            });
        }
        check_prefixes(&self.device, &self.addresses, |prefix| {
            let address = prefix.addr();
            address.is_unspecified() || address.is_multicast() || address.is_loopback()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> TunnelDevice {
        TunnelDevice {
            device: "rhizome0".to_owned(),
            mtu: 1420,
            queue_packets: 1000,
            addresses: vec!["fd8f::1/96".parse().unwrap()],
            prefix_routes: false,
        }
    }

    #[tokio::test]
    async fn invalid_values_change_nothing() {
        let (mut name, mut mtu, mut short, mut long, mut multicast) =
            (device(), device(), device(), device(), device());
        "a-name-far-too-long".clone_into(&mut name.device);
        mtu.mtu = 1279;
        short.queue_packets = 999;
        long.queue_packets = 10_001;
        multicast.addresses = vec!["ff02::1/64".parse().unwrap()];

        for (wrong, reason) in [
            (name, "device_name"),
            (mtu, "mtu"),
            (short, "queue_length"),
            (long, "queue_length"),
            (multicast, "address"),
        ] {
            assert_eq!(wrong.configure().await.unwrap_err().reason(), reason);
        }
    }

    #[tokio::test]
    async fn a_device_that_is_not_there_is_named() {
        let mut absent = device();
        "rhizome-absent".clone_into(&mut absent.device);

        let refused = absent.configure().await.unwrap_err();

        assert_eq!(refused.to_string(), "there is no device rhizome-absent");
    }
}
