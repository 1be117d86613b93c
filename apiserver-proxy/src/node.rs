//! The node's side of the proxy: its addresses on a device, its rules around connection tracking.
//!
//! ```text
//!     AddressKeeper ── netlink events ─▶ addresses stay where they belong
//!     Rules ──── each minute, SIGHUP ─▶ rules stay where connection tracking is active
//!     NatWatch ── each second ─▶ … and go where destinations are translated
//! ```
//!
//! Counts and reports; how the kernel is asked is `net-config`'s.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net_config::{
    AddressKeeper, Change, NatWatch, NetConfigError, NftablesError, Observer, Rules,
    conntrack_active,
};
use telemetry::Registry;
use tokio::sync::Notify;

use crate::config::{Config, NoTrackMode};

/// Name of the table that holds the rules.
const TABLE: &str = "rhizome-apiserver-proxy";

/// How often the rules are looked at: others may flush them, and connection tracking may become
/// active later.
const LOOK: Duration = Duration::from_secs(60);

/// The same while there are rules: each translated connection that begins meanwhile stalls.
const LOOK_ACTIVE: Duration = Duration::from_secs(1);

telemetry::families! {
    /// What is known of the node's side.
    #[derive(Debug)]
    pub(crate) struct Node {
        /// 1 while every address is on its device and on no other; unmanaged, on any.
        settled_gauge: gauge = "rhizome_apiserver_proxy_addresses_settled",
        /// Changes made to devices and addresses of the node.
        changes: counter["change"] = "rhizome_apiserver_proxy_address_changes_total",
        /// Attempts to look after devices and addresses that failed, by why.
        failures: counter["reason"] = "rhizome_apiserver_proxy_address_failures_total",
        /// 1 while rules keep connection tracking away from the addresses.
        no_track: gauge = "rhizome_apiserver_proxy_notrack_active",
        /// Attempts to look after these rules that failed, by why; not_in_place: others were
        /// found; not_supported: the kernel has no nf_tables; translated: `noTrack: on`
        /// beside destination NAT.
        no_track_failures: counter["reason"] = "rhizome_apiserver_proxy_notrack_failures_total",
    } with {
        settled: AtomicBool,
        look_again: Notify,
    }
}

impl Node {
    pub(crate) fn new(registry: &Registry) -> Arc<Self> {
        let (settled, look_again) = (AtomicBool::new(false), Notify::new());
        Arc::new(Self::register(registry, settled, look_again))
    }

    /// Tells probes whether the addresses are where they belong, as last seen.
    pub(crate) fn ready(&self) -> Result<(), String> {
        match self.settled.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("an address is not where it belongs".to_owned()),
        }
    }

    /// Has the rules looked at now.
    pub(crate) fn look_again(&self) {
        self.look_again.notify_one();
    }

    /// Brings the rules in line with the configuration, once.
    ///
    /// # Errors
    /// Why there are none although the configuration asks for them; `Translated` with `auto` as
    /// well, which is no failure then.
    pub(crate) async fn apply_no_track(
        &self,
        config: &Config,
        nat: &mut NatWatch,
    ) -> Result<(), NftablesError> {
        let result = self.bring_in_line(config, nat).await;
        if let Err(error) = &result {
            self.no_track.set(0);
            if !is_expected(error, config) {
                self.no_track_failures.with(&[error.reason()]).inc();
            }
        }
        result
    }

    async fn bring_in_line(
        &self,
        config: &Config,
        nat: &mut NatWatch,
    ) -> Result<(), NftablesError> {
        let destinations = destinations(config);
        let wanted = match config.no_track {
            NoTrackMode::Off => false,
            NoTrackMode::On => true,
            NoTrackMode::Auto => conntrack_active().unwrap_or_else(|error| {
                tracing::warn!(%error, "finding out whether connection tracking is active");
                false
            }),
        };
        let never = config.no_track == NoTrackMode::Off || destinations.is_empty();
        let rules = Rules::no_track(TABLE, destinations)?;
        if never {
            // Those of an older configuration, whatever they say.
            found(rules.remove().await.map(|()| false), false)?;
            self.no_track.set(0);
            return Ok(());
        }
        // Rules that are there although not wanted are ours from when connections were tracked.
        let installed = found(rules.installed().await, wanted)?;
        if (wanted || installed)
            && let Err(error) = nat.check().await
        {
            rules.remove().await?;
            if installed {
                tracing::info!("NOTRACK rules removed");
            }
            return Err(error);
        }
        if wanted && !installed {
            rules.install().await?;
            tracing::info!("NOTRACK rules installed");
        }
        self.no_track.set(i64::from(wanted || installed));
        Ok(())
    }

    /// Keeps the rules in line; never returns. Failures are logged once until they change.
    pub(crate) async fn keep_no_track(&self, config: &Config, nat: &mut NatWatch) {
        let mut told: Option<&'static str> = None;
        loop {
            match self.apply_no_track(config, nat).await {
                Ok(()) => told = None,
                Err(error) if told == Some(error.reason()) => {}
                Err(error) => {
                    told = Some(error.reason());
                    let chain = telemetry::chain(&error).to_string();
                    if is_expected(&error, config) {
                        tracing::info!(error = chain, "no NOTRACK rules");
                    } else {
                        tracing::warn!(error = chain, "no NOTRACK rules");
                    }
                }
            }
            let look = if self.no_track.value() == 0 {
                LOOK
            } else {
                LOOK_ACTIVE
            };
            tokio::select! {
                () = tokio::time::sleep(look) => {}
                () = self.look_again.notified() => {}
            }
        }
    }
}

/// Tells whether the configuration leaves it to the node that there are no rules.
fn is_expected(error: &NftablesError, config: &Config) -> bool {
    config.no_track == NoTrackMode::Auto && matches!(error, NftablesError::Translated { .. })
}

/// Returns a keeper of the node's addresses that reports to `node`.
pub(crate) fn keeper(config: &Config, node: &Arc<Node>) -> AddressKeeper {
    let interface = config.interface();
    let reporter = Reporter {
        node: Arc::clone(node),
        unmanaged: (!interface.manage).then(|| interface.addresses.clone()),
    };
    AddressKeeper::new(interface).with_observer(Arc::new(reporter))
}

/// Takes addresses, device and rules back.
///
/// # Errors
/// What could not be taken back.
pub async fn clean_up(config: &Config) -> Result<(), CleanUpError> {
    let addresses = AddressKeeper::new(config.interface()).cleanup().await;
    match Rules::no_track(TABLE, Vec::new())?.remove().await {
        // A process that may not change the node has not put anything there.
        Err(NftablesError::Permission { .. }) if !config.interface().manage => {}
        removed => removed?,
    }
    addresses?;
    Ok(())
}

/// Returns the addresses among `wanted` that are on no device of this node.
pub(crate) fn missing(wanted: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    // Only an address of the node can be bound (without net.ipv4.ip_nonlocal_bind).
    let held = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    wanted.iter().copied().filter(move |ip| !held(*ip))
}

/// What a look at the rules says. Where none are wanted, it does not matter that they cannot be
/// looked at.
fn found(look: Result<bool, NftablesError>, wanted: bool) -> Result<bool, NftablesError> {
    match look {
        Err(NftablesError::NotSupported { .. } | NftablesError::Permission { .. }) if !wanted => {
            Ok(false)
        }
        look => look,
    }
}

/// What could not be taken back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanUpError {
    /// A device or an address.
    #[error("taking addresses off the node")]
    Addresses(#[from] NetConfigError),
    /// The rules around connection tracking.
    #[error("removing rules around connection tracking")]
    NoTrack(#[from] NftablesError),
}

/// Returns what rules are about: the sockets at addresses of the proxy's own. Port 0 and addresses
/// of the host itself are for trying things out.
fn destinations(config: &Config) -> Vec<SocketAddr> {
    let own = |address: &SocketAddr| {
        address.port() != 0 && !address.ip().is_loopback() && !address.ip().is_unspecified()
    };
    config.listen().filter(own).collect()
}

/// Reports to the node what a keeper does.
struct Reporter {
    node: Arc<Node>,
    /// Addresses that are managed elsewhere, on whatever device.
    unmanaged: Option<Vec<IpAddr>>,
}

impl Observer for Reporter {
    fn applied(&self, change: &Change) {
        self.node.changes.with(&[change.label()]).inc();
    }

    fn failed(&self, error: &NetConfigError) {
        self.node.failures.with(&[error.reason()]).inc();
    }

    fn looked(&self, settled: bool) {
        let held = |addresses: &Vec<IpAddr>| missing(addresses).next().is_none();
        let settled = settled || self.unmanaged.as_ref().is_some_and(held);
        self.node.settled.store(settled, Ordering::Relaxed);
        self.node.settled_gauge.set(i64::from(settled));
    }
}

#[cfg(test)]
mod tests {
    use net_config::NetlinkError;

    use super::*;

    #[test]
    fn failed_check_matters_only_with_rules() {
        // What a kernel without nf_tables answers, and one to a process without the capability.
        let not_supported = || NftablesError::NotSupported {
            attempt: "testing".to_owned(),
            source: NetlinkError::Refused {
                errno: 95, // EOPNOTSUPP
                detail: String::new(),
            },
        };
        let refused = || NftablesError::Permission {
            attempt: "testing".to_owned(),
        };
        for error in [not_supported(), refused()] {
            assert!(!found(Err(error), false).unwrap());
        }
        let reason = |error| found(Err(error), true).unwrap_err().reason();
        assert_eq!(reason(not_supported()), "not_supported");
        assert_eq!(reason(refused()), "permission");
    }

    #[test]
    fn address_is_missing_without_node_address() {
        let documentation: IpAddr = "192.0.2.1".parse().unwrap();
        let wanted = ["127.0.0.1".parse().unwrap(), documentation];
        assert_eq!(missing(&wanted).collect::<Vec<_>>(), [documentation]);
    }
}
