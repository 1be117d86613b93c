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

mod device;
mod forwarding;
mod routes;
mod sources;

pub use device::TunnelDevice;
pub use forwarding::{Forwarded, Forwarding, ipv6_forwarding_enabled, setup_ipv6_forwarding};
pub use routes::TunnelRoutes;
pub use sources::{ReversePath, SourceChecks};

use ipnet::IpNet;

use crate::{
    NetConfigError,
    address::connect,
    attributes::Request,
    netlink::Connection,
    rtnl::device::{Settings, settings},
};

/// Makes changes one after the other.
struct Setup {
    connection: Connection,
    /// What was changed, for logs and tests.
    changes: Vec<String>,
}

impl Setup {
    fn new() -> Result<Self, NetConfigError> {
        Ok(Self {
            connection: connect()?,
            changes: Vec::new(),
        })
    }

    /// An empty request for one change.
    fn request(&self) -> Request {
        self.connection.request()
    }

    /// Makes the change `what`. The error `already` means that another process made it first, which
    /// is success.
    async fn change(
        &mut self,
        what: String,
        request: Request,
        already: Option<i32>,
    ) -> Result<(), NetConfigError> {
        match self.connection.acknowledged(&request).await {
            Err(source) if already.is_some() && source.errno() == already => {}
            answer => answer.map_err(NetConfigError::during(format!("trying to {what}")))?,
        }
        self.changes.push(what);
        Ok(())
    }
}

async fn device_settings(device: &str) -> Result<Settings, NetConfigError> {
    let found = settings(device).await;
    let found = found.map_err(NetConfigError::during(format!("reading device {device}")))?;
    found.ok_or_else(|| NetConfigError::DeviceMissing {
        device: device.to_owned(),
    })
}

/// Refuses prefixes that are `unfit` for `device`.
fn check_prefixes(
    device: &str,
    prefixes: &[IpNet],
    unfit: impl Fn(&IpNet) -> bool,
) -> Result<(), NetConfigError> {
    match prefixes.iter().find(|prefix| unfit(prefix)) {
        Some(prefix) => Err(NetConfigError::Address {
            device: device.to_owned(),
            prefix: *prefix,
        }),
        None => Ok(()),
    }
}

fn check_networks(device: &str, networks: &[IpNet]) -> Result<(), NetConfigError> {
    NetConfigError::check_device(device)?;
    check_prefixes(device, networks, |network| {
        let first = network.network();
        first.is_multicast() || first.is_loopback()
    })
}
