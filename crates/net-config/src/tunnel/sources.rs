//! Lets packets in whose source is an address of the namespace itself, or of its own subnet.
//!
//! ```text
//!   shoot pod 10.0.0.5 ──▶ tunnel device ──▶ socket      while 10.0.0.5 is also eth0's address here
//! ```
//!
//! IPv4 drops such packets as martians unless the device says otherwise; IPv6 has no such check.
//! Of the three switches `accept_local` is or-ed with the one for all devices and `log_martians`
//! too, but of `rp_filter` the larger value counts. So `all.rp_filter` 1 (strict) cannot be undone
//! with 0 on the device; it can with 2 (loose), which asks only for any route to the source, by
//! whatever device. That is weaker in two ways: a source without a route is dropped, and one that
//! is the broadcast address of a subnet of the namespace.
//!
//! Decides nothing about who may open connections.

use ipnet::IpNet;

use super::{Setup, check_networks, device_settings};
use crate::{
    NetConfigError,
    netlink::Connection,
    rtnl::{
        device::{self, Settings, Switch},
        route,
    },
};

/// Which sources may arrive on the tunnel device.
#[derive(Clone, Debug)]
pub struct SourceChecks {
    /// Name of the device.
    pub device: String,
    /// The networks behind the tunnel; the IPv6 ones need nothing.
    pub networks: Vec<IpNet>,
}

/// What is left of the kernel's check of sources on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReversePath {
    /// Any source is accepted that has a route by any device: `net.ipv4.conf.all.rp_filter` is 1
    /// or 2.
    Loose,
    /// Every source is accepted.
    Off,
}

impl SourceChecks {
    /// Sets the device's switches, reads them back and tells what is left of the check. Calling it
    /// again changes nothing.
    ///
    /// Where the loose check is left, the kernel is asked for a route to the first address of each
    /// IPv4 network: with a default route, as pods have one, there is.
    ///
    /// # Errors
    /// `DeviceName` and `Address`; `DeviceMissing`; `ReversePath` when packets of a network would
    /// be dropped whatever the device says; `NotInPlace` when reading back shows something else;
    /// `Permission` without `CAP_NET_ADMIN`; `Netlink` for the rest.
    pub async fn relax(&self) -> Result<(ReversePath, Vec<String>), NetConfigError> {
        check_networks(&self.device, &self.networks)?;
        let mut setup = Setup::new()?;
        let all = device::ipv4_reverse_path_filter().await;
        let reading = NetConfigError::during("reading net.ipv4.conf.all.rp_filter");
        let all = all.map_err(reading)?;
        let wanted = [
            (Switch::AcceptLocal, 1),
            (Switch::LogMartians, 0),
            (Switch::ReversePathFilter, if all == 1 { LOOSE } else { 0 }),
        ];
        set_switches(&mut setup, &self.device, &wanted).await?;
        if all == 0 {
            return Ok((ReversePath::Off, setup.changes));
        }
        self.check_routes(&mut setup.connection, all).await?;
        Ok((ReversePath::Loose, setup.changes))
    }

    async fn check_routes(
        &self,
        connection: &mut Connection,
        all: u32,
    ) -> Result<(), NetConfigError> {
        let ipv4 = |network: &&IpNet| network.addr().is_ipv4();
        for network in self.networks.iter().filter(ipv4) {
            let reachable = route::is_reachable(connection, network.network()).await;
            let looking = NetConfigError::during(format!("looking for a route to {network}"));
            if !reachable.map_err(looking)? {
                return Err(NetConfigError::ReversePath {
                    device: self.device.clone(),
                    network: *network,
                    all,
                });
            }
        }
        Ok(())
    }
}

/// `rp_filter` that accepts a source with a route by any device.
const LOOSE: u32 = 2;

/// Sets the switches of `device` that differ, and reads them back.
pub(super) async fn set_switches(
    setup: &mut Setup,
    device: &str,
    wanted: &[(Switch, u32)],
) -> Result<(), NetConfigError> {
    let before = device_settings(device).await?;
    let different = differing(&before, wanted);
    if different.is_empty() {
        return Ok(());
    }
    for (switch, value) in different {
        let what = format!("set net.ipv4.conf.{device}.{} to {value}", switch.name());
        let request = device::set_switch(setup.request(), before.index, switch, value);
        setup.change(what, request, None).await?;
    }
    let after = device_settings(device).await?;
    if let Some((switch, value)) = differing(&after, wanted).first() {
        let missing = format!("net.ipv4.conf.{device}.{} being {value}", switch.name());
        return Err(NetConfigError::NotInPlace { missing });
    }
    Ok(())
}

fn differing(settings: &Settings, wanted: &[(Switch, u32)]) -> Vec<(Switch, u32)> {
    wanted
        .iter()
        .filter(|(switch, value)| settings.switch(*switch) != Some(*value))
        .copied()
        .collect()
}
