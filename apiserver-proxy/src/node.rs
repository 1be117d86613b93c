//! The node's side of the proxy: its addresses on a device, its rules around connection tracking.
//!
//! ```text
//!     AddressKeeper ── netlink events ─▶ addresses stay where they belong
//!     NoTrack ── looked at each minute ─▶ rules stay where connection tracking is active
//! ```
//!
//! Counts and reports; how the kernel is asked is `net-config`'s.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net_config::{
    AddressKeeper, Change, NetConfigError, NoTrack, NoTrackError, Observer, conntrack_active,
};
use telemetry::Registry;
use telemetry::metrics::{CounterFamily, Gauge};

use crate::config::{Config, NoTrackFile};

/// Name of the table that holds the rules.
const TABLE: &str = "rhizome-apiserver-proxy";

/// How often the rules are looked at: others may flush them, and connection tracking may become
/// active later.
const LOOK: Duration = Duration::from_secs(60);

/// What is known of the node's side.
#[derive(Debug)]
pub(crate) struct Node {
    settled: AtomicBool,
    settled_gauge: Gauge,
    changes: CounterFamily,
    failures: CounterFamily,
    no_track: Gauge,
}

impl Node {
    pub(crate) fn new(registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            settled: AtomicBool::new(false),
            settled_gauge: registry
                .gauge(
                    "rhizome_apiserver_proxy_addresses_settled",
                    "1 while every address is on its device and on no other.",
                    &[],
                )
                .with(&[]),
            changes: registry.counter(
                "rhizome_apiserver_proxy_address_changes_total",
                "Changes made to devices and addresses of the node.",
                &["change"],
            ),
            failures: registry.counter(
                "rhizome_apiserver_proxy_address_failures_total",
                "Attempts to look after devices and addresses that failed, by why.",
                &["reason"],
            ),
            no_track: registry
                .gauge(
                    "rhizome_apiserver_proxy_notrack_active",
                    "1 while rules keep connection tracking away from the addresses.",
                    &[],
                )
                .with(&[]),
        })
    }

    /// Tells whether the addresses are where they belong, as last seen.
    pub(crate) fn settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Brings the rules in line with the configuration, once.
    pub(crate) async fn apply_no_track(&self, config: &Config) -> Result<(), NoTrackError> {
        let rules = rules(config);
        let wanted = match config.no_track {
            NoTrackFile::Off => false,
            NoTrackFile::On => true,
            NoTrackFile::Auto => match conntrack_active() {
                Ok(active) => active,
                Err(error) => {
                    tracing::warn!(%error, "finding out whether connection tracking is active");
                    false
                }
            },
        };
        // Rules that are there although not wanted are ours from before: connection tracking is
        // not active, or an older configuration had them.
        let installed = match rules.installed().await {
            Err(NoTrackError::NotSupported { .. }) if !wanted => false,
            other => other?,
        };
        if wanted && !installed {
            rules.install().await?;
            tracing::info!("connection tracking is kept away from the addresses");
        } else if !wanted && installed && config.no_track == NoTrackFile::Off {
            rules.remove().await?;
            tracing::info!("rules around connection tracking removed");
        }
        self.no_track.set(i64::from(wanted || installed));
        Ok(())
    }

    /// Keeps the rules in line; never returns. Failures are logged once until they change.
    pub(crate) async fn keep_no_track(&self, config: &Config) {
        let mut told: Option<&'static str> = None;
        loop {
            match self.apply_no_track(config).await {
                Ok(()) => told = None,
                Err(error) => {
                    self.no_track.set(0);
                    if told != Some(error.reason()) {
                        told = Some(error.reason());
                        let error = telemetry::chain(&error).to_string();
                        tracing::warn!(error, "connection tracking sees the addresses");
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Returns a keeper of the node's addresses that reports to `node`.
pub(crate) fn keeper(config: &Config, node: &Arc<Node>) -> AddressKeeper {
    let observer: Arc<dyn Observer> = Arc::<Node>::clone(node);
    AddressKeeper::new(config.interface.clone()).with_observer(observer)
}

/// Takes addresses, device and rules back.
pub(crate) async fn clean_up(config: &Config) -> Result<(), CleanUpError> {
    let addresses = AddressKeeper::new(config.interface.clone()).cleanup().await;
    rules(config).remove().await?;
    addresses?;
    Ok(())
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
    NoTrack(#[from] NoTrackError),
}

fn rules(config: &Config) -> NoTrack {
    // Port 0 and addresses of the host itself are for trying things out.
    let trackable = |address: &&SocketAddr| {
        address.port() != 0 && !address.ip().is_loopback() && !address.ip().is_unspecified()
    };
    NoTrack::new(
        TABLE,
        config.listen.iter().filter(trackable).copied().collect(),
    )
}

impl Observer for Node {
    fn applied(&self, change: &Change) {
        self.changes.with(&[change.label()]).inc();
    }

    fn failed(&self, error: &NetConfigError) {
        self.failures.with(&[error.reason()]).inc();
    }

    fn looked(&self, settled: bool) {
        self.settled.store(settled, Ordering::Relaxed);
        self.settled_gauge.set(i64::from(settled));
    }
}
