//! The client as one running thing: started from a configuration, reloaded, drained, ended.
//!
//! ```text
//!     probes bound ─▶ keys ─▶ device, forwarding, masquerade ─▶ tunnel ─▶ dials ─▶ run
//!     SIGTERM ─▶ unready, servers asked ─▶ no flows left, or the limit ─▶ tunnel ended ─▶ clean up
//! ```
//!
//! Runs on the control runtime of its caller; the data path is the tunnel's own thread.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;
use serve::{
    BoundEndpoints, Drain, DrainParams, EndpointError, Phase, ProcessInfo, ServedEndpoints, Signal,
    Signals,
};
use settings::{ConfigError, FileWatcher, WatchParams};
use telemetry::{EndpointAddr, LogControl, Process, Registry};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tunnel::keys::KeyError;
use tunnel::{Identity, Sockets, Status, Tunnel, TunnelError};

use crate::config::{Config, Environment};
use crate::dial::Connector;
use crate::metrics::{BUILD, Metrics};
use crate::network::{Network, NetworkError};
use crate::status::Answers;

/// How long servers report no flow before this client ends: their counts may be stale, and one without another
/// healthy client goes on choosing this one.
const SETTLE: Duration = Duration::from_secs(1);
/// Files that could not be used are tried again after this, whatever the file system tells.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// How long the tunnel's thread may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Why the client did not start, ended other than as asked, or did not reload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// What was set up in the kernel could not be removed.
    #[error("cleaning up")]
    CleanUp(#[source] NetworkError),
    /// The configuration that is to be reloaded is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tunnel's thread ended by itself.
    #[error("the tunnels' thread has ended")]
    Ended,
    /// The probe port or the admin address could not be bound.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Keys and servers cannot be used together.
    #[error(transparent)]
    Identity(#[from] tunnel::IdentityError),
    /// A key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Setting up the kernel's side failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The tunnel did not start.
    #[error(transparent)]
    Tunnel(#[from] tunnel::StartError),
    /// Files cannot be watched.
    #[error("watching the files of keys")]
    Watch(#[source] io::Error),
}

impl ClientError {
    /// Returns whether the configuration is at fault.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Identity(_)
            | Self::Key(_)
            | Self::Tunnel(tunnel::StartError::Identity(_)) => true,
            Self::Network(error) => error.is_configuration(),
            Self::CleanUp(_)
            | Self::Endpoint(_)
            | Self::Ended
            | Self::Tunnel(_)
            | Self::Watch(_) => false,
        }
    }
}

/// Where the configuration comes from, each time it is read.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// What stands in for what it leaves out.
    pub environment: Environment,
}

impl Source {
    fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.path, &self.environment)
    }
}

/// The files that the client was last told to use, whether they were refused or not.
#[derive(Debug)]
struct Watched {
    keys: Vec<PathBuf>,
    watcher: FileWatcher,
}

impl Watched {
    fn new(source: &Source, config: &Config) -> Result<Self, ClientError> {
        let keys = config.key_files();
        let mut files = keys.clone();
        files.push(source.path.clone());
        let watcher = FileWatcher::new(files, WatchParams::default());
        let watcher = watcher.map_err(ClientError::Watch)?;
        Ok(Self { keys, watcher })
    }

    /// Waits until they changed, or those that were refused may be better now. Cancel-safe.
    async fn changed(&mut self, refused: bool) {
        let changed = self.watcher.changed();
        if refused {
            let _ = timeout(TRY_AGAIN, changed).await;
        } else {
            changed.await;
        }
    }
}

/// A running client.
#[derive(Debug)]
pub struct Client {
    source: Source,
    config: Config,
    shown: Arc<ArcSwap<Value>>,
    watched: Watched,
    /// Why the last reload was refused.
    refused: Option<String>,
    /// The keys of the configuration file that differ from what is in effect.
    changed: Vec<String>,
    network: Arc<Network>,
    tunnel: Tunnel,
    connector: Arc<Connector>,
    dialing: JoinHandle<()>,
    tasks: JoinSet<()>,
    drain: Drain,
    metrics: Metrics,
    endpoints: ServedEndpoints,
}

impl Client {
    /// Starts the client on the current runtime. When it returns, it connects.
    ///
    /// # Errors
    /// Why it did not start; nothing of it is left in the kernel then.
    pub async fn start(
        source: Source,
        config: Config,
        log: LogControl,
    ) -> Result<Self, ClientError> {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry, &log);
        // Whatever may fail without touching the kernel goes first.
        let probes = EndpointAddr::Tcp(config.file.probes.address());
        let endpoints = BoundEndpoints::bind(probes, config.file.admin.address.clone())?;
        let watched = Watched::new(&source, &config)?;
        let identity = config.identity()?;
        metrics.reload_good.set(1);
        metrics.config_good.set(1);
        let network = Arc::new(Network::new(&config, metrics.clone())?);
        let started = start_tunnel(&config, identity, &network, &registry).await;
        let (tunnel, dials) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = network.clean_up().await;
                return Err(error);
            }
        };
        let (endpoint, gateways) = (config.endpoint.clone(), config.gateways.clone());
        let connector = Arc::new(Connector::new(endpoint, gateways, metrics.clone()));
        let dialing = tokio::spawn(Arc::clone(&connector).serve(dials));
        let drain = Drain::new(DrainParams {
            delay: config.file.drain.delay.0,
            timeout: config.file.drain.timeout.0,
        });
        let shown = Arc::new(ArcSwap::from_pointee(config.effective()));
        let answers: Arc<dyn Process> = Arc::new(Answers {
            tunnel: tunnel.clone(),
            network: Arc::clone(&network),
            info: ProcessInfo::new(BUILD, drain.clone()),
            config: Arc::clone(&shown),
        });
        let mut tasks = JoinSet::new();
        let endpoints = endpoints.serve(&answers, registry, log);
        tasks.spawn(drain_tunnel(tunnel.clone(), drain.clone()));
        tasks.spawn(report_settled(tunnel.clone(), network.watch()));
        let kept = Arc::clone(&network);
        tasks.spawn(async move { kept.keep().await });
        Ok(Self {
            source,
            config,
            shown,
            watched,
            refused: None,
            changed: Vec::new(),
            network,
            tunnel,
            connector,
            dialing,
            tasks,
            drain,
            metrics,
            endpoints,
        })
    }

    /// Returns the address of the probe port.
    #[must_use]
    pub fn probes_address(&self) -> &EndpointAddr {
        &self.endpoints.probes
    }

    /// Returns the admin address.
    #[must_use]
    pub fn admin_address(&self) -> &EndpointAddr {
        &self.endpoints.admin
    }

    /// Runs until a stop signal has been followed, then cleans up.
    ///
    /// # Errors
    /// The tunnel failed, or what could not be removed.
    pub async fn run(mut self, mut signals: Signals) -> Result<(), ClientError> {
        let mut stopping = false;
        let failed = loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Reload => {
                        self.reload().await;
                        self.network.look_again();
                    }
                    Signal::Stop if stopping => self.drain.cut(),
                    Signal::Stop => {
                        stopping = true;
                        self.drain.begin();
                    }
                },
                () = self.watched.changed(self.refused.is_some()) => self.reload().await,
                _ = &mut self.dialing => break true,
                () = left(&self.tunnel, &self.drain), if stopping => break false,
            }
        };
        if timeout(STOP_LIMIT, self.tunnel.stop()).await.is_err() {
            tracing::warn!(limit = ?STOP_LIMIT, "the tunnel thread did not stop in time");
        }
        self.dialing.abort();
        self.tasks.abort_all();
        self.network
            .clean_up()
            .await
            .map_err(ClientError::CleanUp)?;
        tracing::info!("stopped");
        if failed {
            Err(ClientError::Ended)
        } else {
            Ok(())
        }
    }

    /// Reads keys and servers to go with the rest of the configuration.
    fn read(&mut self) -> Result<(Config, Identity), ClientError> {
        let fresh = self.source.load();
        let fresh = fresh.inspect_err(|_| self.metrics.config_good.set(0))?;
        if fresh.key_files() != self.watched.keys {
            self.watched = Watched::new(&self.source, &fresh)?;
        }
        // Again, so that no change falls between.
        let fresh = self.source.load()?;
        self.compare(&fresh);
        let config = self.config.reloaded(&fresh)?;
        let identity = config.identity()?;
        Ok((config, identity))
    }

    /// Compares what changes only with a restart with what is in effect. The same difference is logged
    /// once.
    fn compare(&mut self, fresh: &Config) {
        let changed = self.config.restart_keys(fresh);
        self.metrics.config_good.set(i64::from(changed.is_empty()));
        if !changed.is_empty() && changed != self.changed {
            tracing::warn!(
                keys = changed.join(", "),
                "configuration file changed; restart to apply it"
            );
        }
        self.changed = changed;
    }

    /// Reads keys and servers, and hands them to the tunnel.
    async fn renew(&mut self) -> Result<Config, ClientError> {
        let (config, identity) = self.read()?;
        match self.tunnel.replace(identity).await {
            Err(TunnelError::Identity(error)) => Err(error.into()),
            // A tunnel that has ended is noticed elsewhere.
            Ok(()) | Err(_) => Ok(config),
        }
    }

    /// Reads keys and servers again; what cannot be used changes nothing. The same refusal is logged and
    /// counted once.
    async fn reload(&mut self) {
        let config = match self.renew().await {
            Ok(config) => config,
            Err(error) => {
                let error = telemetry::chain(&error).to_string();
                if self.refused.as_ref() != Some(&error) {
                    self.metrics.reload_failures.inc();
                    self.metrics.reload_good.set(0);
                    tracing::warn!(%error, "reload failed; keeping the previous keys and servers");
                    self.refused = Some(error);
                }
                return;
            }
        };
        self.refused = None;
        self.connector.set_gateways(config.gateways.clone());
        self.metrics.reloads.inc();
        self.metrics.reload_good.set(1);
        tracing::info!(
            servers = config.file.servers.len(),
            "keys and servers reloaded"
        );
        self.shown.store(Arc::new(config.effective()));
        self.config = config;
    }
}

async fn start_tunnel(
    config: &Config,
    identity: Identity,
    network: &Network,
    registry: &Registry,
) -> Result<(Tunnel, tunnel::Dials), ClientError> {
    let device = network.open(config).await?;
    let sockets = Sockets {
        device,
        udp: None,
        wrapped: None,
        trusted_gateways: Vec::new(),
    };
    let params = config.tunnel_params();
    Ok(Tunnel::start(params, identity, sockets, registry)?)
}

/// Has servers give no new flows to this client once it drains.
async fn drain_tunnel(tunnel: Tunnel, drain: Drain) {
    drain.reached(Phase::Unready).await;
    // A tunnel that has ended has no peer to inform.
    let _ = tunnel.drain().await;
    std::future::pending::<()>().await;
}

/// Has servers prefer other clients while this one cannot forward.
async fn report_settled(tunnel: Tunnel, mut settled: watch::Receiver<bool>) {
    while settled.changed().await.is_ok() {
        let settled = *settled.borrow_and_update();
        // As above.
        let _ = tunnel.set_settled(settled).await;
    }
}

/// Waits until servers have had no flow through this client for [`SETTLE`], or for the drain's end.
async fn left(tunnel: &Tunnel, drain: &Drain) {
    let idle = async {
        drain.reached(Phase::Closing).await;
        let mut status = tunnel.watch();
        let empty = |status: &Status| status.peers.iter().all(|peer| peer.flows == 0);
        // An end of the tunnel is one of its flows, too.
        while status.wait_for(|status| empty(status)).await.is_ok() {
            let busy = status.wait_for(|status| !empty(status));
            if !matches!(timeout(SETTLE, busy).await, Ok(Ok(_))) {
                return;
            }
        }
    };
    tokio::select! {
        () = idle => {}
        () = drain.reached(Phase::Cut) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refused_files_are_tried_again_though_none_changes() {
        let files = vec![PathBuf::from("/nowhere")];
        let watcher = FileWatcher::new(files, WatchParams::default()).unwrap();
        let keys = Vec::new();
        let mut watched = Watched { keys, watcher };
        let limit = 2 * TRY_AGAIN;
        assert!(timeout(limit, watched.changed(false)).await.is_err());
        assert!(timeout(limit, watched.changed(true)).await.is_ok());
    }
}
