//! The TUN device and what the kernel must know of it.
//!
//! ```text
//!   open ─▶ size, addresses, up ─▶ routes for sockets bound to it ─▶ checks of sources ─▶ tunnel
//! ```
//!
//! The device goes with the process; the rules and routes are taken back at its end.

use net_config::{NetConfigError, ReversePath, SourceChecks, TunnelDevice, TunnelRoutes};
use tunnel::device::Device;

use crate::config::Config;
use crate::error::ServerError;

/// Packets that may wait in the device for the tunnel: twice what a device gets by default for
/// tunnels (500, drivers/net/tun.c), for bursts of several connections at once.
const QUEUE_PACKETS: u32 = 1000;

/// What was set up and is to be taken back.
#[derive(Debug)]
pub(crate) struct Networking {
    routes: TunnelRoutes,
}

impl Networking {
    /// Opens the device and sets everything up around it; returns the device for the tunnel.
    ///
    /// # Errors
    /// [`ServerError`]; routes and rules were taken back.
    pub(crate) async fn set_up(config: &Config) -> Result<(Device, Self), ServerError> {
        let name = config.device.as_str();
        let device = Device::open(&config.device, config.offloads.device)?;
        let own = TunnelDevice {
            device: name.to_owned(),
            mtu: config.mtu,
            queue_packets: QUEUE_PACKETS,
            addresses: config.inner.clone(),
            prefix_routes: false,
        };
        let routes = TunnelRoutes {
            device: name.to_owned(),
            table: config.table,
            priority: TunnelRoutes::DEFAULT_PRIORITY,
            sources: config.inner.iter().map(|own| own.addr()).collect(),
            // Not the transfer networks: nothing connects to the ends of a tunnel, and what the
            // tunnel sends there itself passes no routing table.
            networks: config.networks.all(),
        };
        let checks = SourceChecks {
            device: name.to_owned(),
            networks: config.networks.all(),
        };
        let networking = Self { routes };
        match networking.apply(&own, &checks).await {
            Ok(()) => Ok((device, networking)),
            Err(source) => {
                networking.take_down().await;
                Err(ServerError::Configure {
                    device: name.to_owned(),
                    source,
                })
            }
        }
    }

    async fn apply(&self, own: &TunnelDevice, checks: &SourceChecks) -> Result<(), NetConfigError> {
        let mut changes = own.configure().await?;
        changes.extend(self.routes.install().await?);
        let (left, more) = checks.relax().await?;
        changes.extend(more);
        for change in changes {
            tracing::info!("{change}");
        }
        if left == ReversePath::Loose {
            tracing::info!(
                "sources need a route by any device: net.ipv4.conf.all.rp_filter is set"
            );
        }
        Ok(())
    }

    /// Takes routes and rules back.
    pub(crate) async fn take_down(&self) {
        if let Err(error) = self.routes.remove().await {
            let error = telemetry::chain(&error);
            tracing::warn!(%error, "rules of the tunnel device stay behind");
        }
    }
}
