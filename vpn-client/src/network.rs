//! What the client needs of the kernel: the TUN device, forwarding, masquerading.
//!
//! ```text
//!   init container: set_up ─▶ IPv6, its forwarding
//!   start: device ─▶ addresses ─▶ forwarding ─▶ masquerade        each minute, SIGHUP: still so?
//!   end, `cleanup`: masquerade ─▶ gone                            the device goes with the process
//! ```
//!
//! Counts and reports; how the kernel is asked is `net-config`'s.

use std::time::Duration;

use net_config::{
    Forwarding, NetConfigError, NftablesError, Rules, TunnelDevice, ipv6_forwarding_enabled,
    setup_ipv6_forwarding,
};
use tokio::sync::{Notify, watch};
use tunnel::device::{Device, DeviceError};

use crate::config::Config;
use crate::metrics::Metrics;

/// Name of the table that holds the masquerade rule.
const TABLE: &str = "rhizome-vpn-client";
/// Packets that may wait in the device for the data thread; what OpenVPN's `txqueuelen` was.
const QUEUE_PACKETS: u32 = 1000;
/// How often the kernel's settings are looked at: others may flush rules and add devices.
const LOOK: Duration = Duration::from_secs(60);
/// The same after a failure, doubled with each further one.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Why setting up the kernel's side failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The TUN device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// IPv6 would not be forwarded although there is an IPv6 network, or is switched off.
    #[error(
        "{what}: run `vpn-client setup` in a privileged init container, or leave IPv6 out of the \
         configuration"
    )]
    Ipv6 {
        /// What is missing.
        what: &'static str,
    },
    /// The masquerade rule cannot be installed.
    #[error(
        "masquerading; with `masquerade: false` the shoot itself has to route the transfer networks \
         to this pod"
    )]
    Masquerade(#[from] NftablesError),
    /// The device or forwarding cannot be set up.
    #[error("setting up the network of the tunnel")]
    Tunnel(#[source] NetConfigError),
}

impl NetworkError {
    /// Returns whether the configuration asks for what this pod was not prepared for.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Ipv6 { .. })
    }

    /// Returns the label for metrics.
    fn reason(&self) -> &'static str {
        match self {
            Self::Device(_) => "device",
            Self::Ipv6 { .. } => "ipv6",
            Self::Masquerade(error) => error.reason(),
            Self::Tunnel(error) => error.reason(),
        }
    }
}

impl From<NetConfigError> for NetworkError {
    fn from(error: NetConfigError) -> Self {
        if matches!(error, NetConfigError::Ipv6Forwarding { .. }) {
            Self::Ipv6 {
                what: NO_FORWARDING,
            }
        } else if matches!(error, NetConfigError::Ipv6Disabled { .. }) {
            Self::Ipv6 { what: DISABLED }
        } else {
            Self::Tunnel(error)
        }
    }
}

const NO_FORWARDING: &str = "there is an IPv6 network, and this pod does not forward IPv6";
const DISABLED: &str = "there is an IPv6 address, and IPv6 is disabled in this pod";

/// Forwarding and masquerading, kept in place.
#[derive(Debug)]
pub(crate) struct Network {
    device: TunnelDevice,
    forwarding: Forwarding,
    rule: Rules,
    masquerade: bool,
    settled: watch::Sender<bool>,
    look_again: Notify,
    metrics: Metrics,
}

impl Network {
    /// Takes from the configuration what concerns the kernel; touches nothing.
    pub(crate) fn new(config: &Config, metrics: Metrics) -> Result<Self, NetworkError> {
        let name = config.file.device.as_str();
        Ok(Self {
            device: TunnelDevice {
                device: name.to_owned(),
                mtu: config.file.mtu,
                queue_packets: QUEUE_PACKETS,
                addresses: config
                    .file
                    .addresses
                    .iter()
                    .copied()
                    .map(Into::into)
                    .collect(),
                prefix_routes: true,
            },
            forwarding: Forwarding {
                device: name.to_owned(),
                networks: config.file.networks.all(),
            },
            rule: rule(config)?,
            masquerade: config.file.masquerade,
            settled: watch::Sender::new(false),
            look_again: Notify::new(),
            metrics,
        })
    }

    /// Opens the device and puts everything in place.
    ///
    /// # Errors
    /// Why it is not. What was done until then stays, and is found done the next time.
    pub(crate) async fn open(&self, config: &Config) -> Result<Device, NetworkError> {
        if config.forwards_ipv6() && !ipv6_forwarding_enabled().await? {
            return Err(NetworkError::Ipv6 {
                what: NO_FORWARDING,
            });
        }
        let device = Device::open(&config.file.device, config.file.offloads.device)?;
        for change in self.device.configure().await? {
            tracing::info!(device = %self.device.device, %change, "device configured");
        }
        self.put_in_place().await?;
        if !self.masquerade {
            // An earlier start may have left it.
            self.rule.remove().await?;
        }
        Ok(device)
    }

    /// Returns whether everything was in place when last looked at.
    pub(crate) fn settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Returns a receiver of the same, whenever it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.settled.subscribe()
    }

    /// Triggers a check now.
    pub(crate) fn look_again(&self) {
        self.look_again.notify_one();
    }

    /// Keeps forwarding and masquerading in place until it is dropped.
    pub(crate) async fn keep(&self) {
        let mut pause = LOOK;
        let mut after_failure = FIRST_LOOK;
        loop {
            let asked = self.look_again.notified();
            let _ = tokio::time::timeout(pause, asked).await;
            match self.put_in_place().await {
                Ok(()) => (pause, after_failure) = (LOOK, FIRST_LOOK),
                Err(error) => {
                    let error = telemetry::chain(&error);
                    tracing::warn!(%error, "tunnel network setup failed");
                    (pause, after_failure) = (after_failure, LOOK.min(after_failure * 2));
                }
            }
        }
    }

    async fn put_in_place(&self) -> Result<(), NetworkError> {
        let result = self.try_put_in_place().await;
        match &result {
            Ok(()) => self.metrics.network_settled.set(1),
            Err(error) => self.metrics.network_failed(error.reason()),
        }
        let settled = result.is_ok();
        self.settled
            .send_if_modified(|known| std::mem::replace(known, settled) != settled);
        result
    }

    async fn try_put_in_place(&self) -> Result<(), NetworkError> {
        let forwarded = self.forwarding.enable().await?;
        for change in &forwarded.changes {
            tracing::info!(%change, uplinks = ?forwarded.uplinks, "forwarding enabled");
        }
        if self.masquerade && !self.installed().await? {
            self.rule.install().await?;
            self.metrics.masquerade.set(1);
            tracing::info!(table = TABLE, "masquerade rule installed");
        }
        Ok(())
    }

    async fn installed(&self) -> Result<bool, NetworkError> {
        let installed = self.rule.installed().await;
        let there = matches!(installed, Ok(true));
        self.metrics.masquerade.set(i64::from(there));
        Ok(installed?)
    }

    /// Removes the rule.
    pub(crate) async fn clean_up(&self) -> Result<(), NetworkError> {
        self.metrics.masquerade.set(0);
        Ok(self.rule.remove().await?)
    }
}

/// Switches IPv6 and its forwarding on where the configuration needs them, as a privileged init
/// container does, and has a look.
///
/// # Errors
/// Why they are not on.
pub async fn set_up(config: &Config) -> Result<(), NetworkError> {
    if !config.uses_ipv6() {
        tracing::info!("nothing to set up: there is no IPv6 in the configuration");
        return Ok(());
    }
    let written = setup_ipv6_forwarding(true)?;
    tracing::info!(?written, "setup finished");
    if !ipv6_forwarding_enabled().await? {
        return Err(NetworkError::Ipv6 {
            what: NO_FORWARDING,
        });
    }
    Ok(())
}

/// Removes what a client that was killed left in the kernel.
///
/// # Errors
/// What could not be removed.
pub async fn clean_up(config: &Config) -> Result<(), NetworkError> {
    Ok(rule(config)?.remove().await?)
}

fn rule(config: &Config) -> Result<Rules, NftablesError> {
    Rules::masquerade(TABLE, config.file.device.as_str())
}
