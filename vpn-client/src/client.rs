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
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tunnel::keys::KeyError;
use tunnel::{Identity, Sockets, Status, Tunnel};

use crate::config::{Config, Environment};
use crate::dial::Connector;
use crate::metrics::{BUILD, Metrics};
use crate::network::{Network, NetworkError};
use crate::status::Answers;

/// How long servers report no flow before this client ends: their counts may be stale, and one without another
/// healthy client goes on choosing this one.
const SETTLE: Duration = Duration::from_secs(1);
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
            Self::Config(_) | Self::Key(_) | Self::Tunnel(tunnel::StartError::Identity(_)) => true,
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
    /// Reads keys and servers to go with `current`; tells whether nothing else differs.
    fn read(&self, current: &Config) -> Result<(Config, Identity, bool), ClientError> {
        let fresh = Config::load(&self.path, &self.environment)?;
        let (config, same) = current.reloaded(&fresh)?;
        let identity = config.identity()?;
        Ok((config, identity, same))
    }

    fn watcher(&self, config: &Config) -> io::Result<FileWatcher> {
        let mut files = config.key_files();
        files.push(self.path.clone());
        FileWatcher::new(files, WatchParams::default())
    }
}

/// A running client.
#[derive(Debug)]
pub struct Client {
    source: Source,
    config: Config,
    shown: Arc<ArcSwap<Value>>,
    watcher: FileWatcher,
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
        let watcher = source.watcher(&config).map_err(ClientError::Watch)?;
        let identity = config.identity()?;
        metrics.reload_good.set(1);
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
        let kept = Arc::clone(&network);
        tasks.spawn(async move { kept.keep().await });
        Ok(Self {
            source,
            config,
            shown,
            watcher,
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
                () = self.watcher.changed() => self.reload().await,
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

    /// Reads keys and servers again; what cannot be used changes nothing.
    async fn reload(&mut self) {
        let (config, identity, same) = match self.source.read(&self.config) {
            Ok(read) => read,
            Err(error) => {
                self.metrics.reload_failures.inc();
                self.metrics.reload_good.set(0);
                let error = telemetry::chain(&error);
                tracing::warn!(%error, "reload failed; keeping the previous keys and servers");
                return;
            }
        };
        // A tunnel that has ended is noticed elsewhere.
        let _ = self.tunnel.replace(identity).await;
        if !same {
            tracing::warn!("only keys and servers change without a restart");
        }
        self.connector.set_gateways(config.gateways.clone());
        if config.key_files() != self.config.key_files() {
            match self.source.watcher(&config) {
                Ok(watcher) => self.watcher = watcher,
                Err(error) => tracing::warn!(%error, "watching key files failed"),
            }
        }
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
