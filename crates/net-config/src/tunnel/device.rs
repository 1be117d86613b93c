//! Sets up a TUN device that another component has opened: packet size, queue, addresses, up.
//!
//! ```text
//!   settings ──▶ MTU and queue, no link-local address, up ──▶ addresses off, addresses on ──▶ read back
//! ```
//!
//! Neither creates nor deletes the device, and routes nothing but, on request, its own prefixes.

use ipnet::IpNet;

use super::{TunnelChange, TunnelError, check_device, connect, device_settings};
use crate::{
    NetlinkError,
    address::put_address,
    rtnl::{
        self, Connection, HeldAddress,
        device::{self, Settings},
    },
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
    pub async fn configure(&self) -> Result<Vec<TunnelChange>, TunnelError> {
        self.check()?;
        let mut connection = connect()?;
        let mut changes = Vec::new();
        let settings = device_settings(&self.device).await?;
        self.set_size(&mut connection, &settings, &mut changes)
            .await?;
        // IPv6 comes and goes with the packet size.
        let settings = device_settings(&self.device).await?;
        self.set_up(&mut connection, &settings, &mut changes)
            .await?;
        self.remove_addresses(&mut connection, settings.index, &mut changes)
            .await?;
        self.add_addresses(&mut connection, settings.index, &mut changes)
            .await?;
        self.verify(&mut connection).await?;
        Ok(changes)
    }

    async fn set_size(
        &self,
        connection: &mut Connection,
        settings: &Settings,
        changes: &mut Vec<TunnelChange>,
    ) -> Result<(), TunnelError> {
        let mtu = u32::from(self.mtu);
        if (settings.mtu, settings.queue) == (mtu, self.queue_packets) {
            return Ok(());
        }
        let request = device::set_mtu_and_queue(settings.index, mtu, self.queue_packets);
        let answer = connection.acknowledged(request).await;
        answer.map_err(|source| self.failed("setting the size of packets and queue", source))?;
        if settings.mtu != mtu {
            changes.push(TunnelChange::SetMtu(self.mtu));
        }
        if settings.queue != self.queue_packets {
            changes.push(TunnelChange::SetQueue(self.queue_packets));
        }
        Ok(())
    }

    async fn set_up(
        &self,
        connection: &mut Connection,
        settings: &Settings,
        changes: &mut Vec<TunnelChange>,
    ) -> Result<(), TunnelError> {
        if settings.makes_link_local {
            // The address has no use on a device with two ends, and the kernel would send
            // router solicitations from it into the tunnel.
            let request = device::without_link_local(settings.index);
            let answer = connection.acknowledged(request).await;
            answer.map_err(|source| self.failed("keeping link-local addresses off", source))?;
            changes.push(TunnelChange::SetNoLinkLocal);
        }
        if !settings.up {
            let answer = connection.acknowledged(rtnl::set_up(settings.index)).await;
            answer.map_err(|source| self.failed("setting up", source))?;
            changes.push(TunnelChange::SetUp);
        }
        Ok(())
    }

    /// Removal comes first and is read anew afterwards: with a primary IPv4 address the kernel may
    /// take the secondary ones away.
    async fn remove_addresses(
        &self,
        connection: &mut Connection,
        index: u32,
        changes: &mut Vec<TunnelChange>,
    ) -> Result<(), TunnelError> {
        let held = self.held(connection, index).await?;
        for stale in held.iter().filter(|held| !self.wants(held)) {
            let prefix = stale.prefix;
            let request = rtnl::delete_address(index, prefix);
            match connection.acknowledged(request).await {
                Err(source) if source.errno() == Some(libc::EADDRNOTAVAIL) => {}
                answer => {
                    answer.map_err(|source| self.failed(&format!("removing {prefix}"), source))?;
                }
            }
            changes.push(TunnelChange::RemoveAddress(prefix));
        }
        Ok(())
    }

    async fn add_addresses(
        &self,
        connection: &mut Connection,
        index: u32,
        changes: &mut Vec<TunnelChange>,
    ) -> Result<(), TunnelError> {
        let held = self.held(connection, index).await?;
        for prefix in &self.addresses {
            if held.iter().any(|held| held.prefix == *prefix) {
                continue;
            }
            let request = rtnl::add_prefix(index, *prefix, self.prefix_routes);
            let answer = put_address(connection.acknowledged(request), prefix.addr()).await;
            answer.map_err(|source| self.address_refused(*prefix, source))?;
            changes.push(TunnelChange::AddAddress(*prefix));
        }
        Ok(())
    }

    async fn verify(&self, connection: &mut Connection) -> Result<(), TunnelError> {
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
            Some(missing) => Err(TunnelError::NotInPlace {
                missing: format!("{missing} on {}", self.device),
            }),
            None => Ok(()),
        }
    }

    async fn held(
        &self,
        connection: &mut Connection,
        index: u32,
    ) -> Result<Vec<HeldAddress>, TunnelError> {
        let all = rtnl::addresses(connection)
            .await
            .map_err(|source| self.failed("reading the addresses", source))?;
        Ok(all.into_iter().filter(|held| held.index == index).collect())
    }

    fn wants(&self, held: &HeldAddress) -> bool {
        held.usable
            && held.prefix_route == self.prefix_routes
            && self.addresses.contains(&held.prefix)
    }

    fn check(&self) -> Result<(), TunnelError> {
        check_device(&self.device)?;
        let ipv6 = self.addresses.iter().any(|at| at.addr().is_ipv6());
        let least = if ipv6 { 1280 } else { 68 };
        if self.mtu < least {
            return Err(TunnelError::Mtu {
                device: self.device.clone(),
                mtu: self.mtu,
                least,
            });
        }
        if !(1000..=10_000).contains(&self.queue_packets) {
            return Err(TunnelError::QueueLength {
                device: self.device.clone(),
                packets: self.queue_packets,
            });
        }
        let unfit = |prefix: &&IpNet| {
            let address = prefix.addr();
            address.is_unspecified() || address.is_multicast() || address.is_loopback()
        };
        match self.addresses.iter().find(unfit) {
            Some(prefix) => Err(TunnelError::Address {
                device: self.device.clone(),
                prefix: *prefix,
            }),
            None => Ok(()),
        }
    }

    fn address_refused(&self, prefix: IpNet, source: NetlinkError) -> TunnelError {
        let device = self.device.clone();
        match source.errno() {
            Some(libc::EACCES) if prefix.addr().is_ipv6() => TunnelError::Ipv6Disabled { device },
            Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) if prefix.addr().is_ipv6() => {
                TunnelError::Ipv6Missing { device }
            }
            _ => self.failed(&format!("adding {prefix}"), source),
        }
    }

    fn failed(&self, attempt: &str, source: NetlinkError) -> TunnelError {
        TunnelError::netlink(format!("{attempt} on {}", self.device), source)
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

    async fn refused(device: TunnelDevice) -> &'static str {
        device.configure().await.unwrap_err().reason()
    }

    #[tokio::test]
    async fn values_no_kernel_takes_are_refused_before_anything_is_touched() {
        let name = "a-name-far-too-long".to_owned();
        let mtu = 1279;
        let multicast = vec!["ff02::1/64".parse().unwrap()];

        assert_eq!(
            refused(TunnelDevice {
                device: name,
                ..device()
            })
            .await,
            "device_name"
        );
        assert_eq!(refused(TunnelDevice { mtu, ..device() }).await, "mtu");
        for queue_packets in [999, 10_001] {
            let wrong = TunnelDevice {
                queue_packets,
                ..device()
            };
            assert_eq!(refused(wrong).await, "queue_length");
        }
        let wrong = TunnelDevice {
            addresses: multicast,
            ..device()
        };
        assert_eq!(refused(wrong).await, "address");
    }

    #[tokio::test]
    async fn a_device_that_is_not_there_is_named() {
        let absent = "rhizome-absent".to_owned();

        let refused = TunnelDevice {
            device: absent,
            ..device()
        }
        .configure()
        .await;

        assert_eq!(
            refused.unwrap_err().to_string(),
            "there is no device rhizome-absent"
        );
    }
}
