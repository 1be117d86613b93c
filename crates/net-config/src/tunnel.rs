//! What the two ends of a tunnel need of the kernel around their TUN device.
//!
//! ```text
//!   server: TunnelDevice ─▶ TunnelRoutes (sockets bound to the device) ─▶ SourceChecks (replies)
//!   client: TunnelDevice ─▶ Forwarding (device, uplinks) ─▶ Rules (masquerading into the shoot)
//!   init:   setup_ipv6_forwarding (the one switch netlink cannot set)
//! ```
//!
//! Each part is idempotent and read back. The device itself is opened elsewhere, and no connection
//! tracking time-outs are changed: they are settings of the whole namespace below `/proc/sys`,
//! which a pod's own configuration can set.

mod change;
mod device;
mod error;
mod forwarding;
mod routes;
mod sources;

pub use change::TunnelChange;
pub use device::TunnelDevice;
pub use error::TunnelError;
pub use forwarding::{Forwarded, Forwarding, ipv6_forwarding_enabled, setup_ipv6_forwarding};
pub use routes::TunnelRoutes;
pub use sources::{ReversePath, SourceChecks};

use ipnet::IpNet;

use crate::{
    address::is_device_name,
    rtnl::{
        Connection,
        device::{Settings, settings},
    },
};

fn connect() -> Result<Connection, TunnelError> {
    Connection::open().map_err(|source| TunnelError::netlink("opening a netlink socket", source))
}

async fn device_settings(device: &str) -> Result<Settings, TunnelError> {
    let found = settings(device)
        .await
        .map_err(|source| TunnelError::netlink(format!("reading device {device}"), source))?;
    found.ok_or_else(|| TunnelError::DeviceMissing {
        device: device.to_owned(),
    })
}

fn check_device(device: &str) -> Result<(), TunnelError> {
    if is_device_name(device) {
        return Ok(());
    }
    Err(TunnelError::DeviceName {
        device: device.to_owned(),
    })
}

fn check_networks(device: &str, networks: &[IpNet]) -> Result<(), TunnelError> {
    let unfit = |network: &&IpNet| {
        let first = network.network();
        first.is_multicast() || first.is_loopback()
    };
    match networks.iter().find(unfit) {
        Some(prefix) => Err(TunnelError::Address {
            device: device.to_owned(),
            prefix: *prefix,
        }),
        None => Ok(()),
    }
}
