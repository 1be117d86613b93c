//! The controller as one running thing: started from a configuration, stopped, ended.
//!
//! ```text
//!     client ─▶ probes, admin, xDS bound ─▶ watches, election, reconciler ─▶ run ─▶ lease released
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use ring::rand::{SecureRandom, SystemRandom};
use serve::{BoundEndpoints, EndpointError, ServedEndpoints, Signal, Signals};
use settings::{FileWatcher, WatchParams};
use telemetry::{EndpointAddr, LogControl, Process, Registry};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::config::{Config, Environment};
use crate::events::Recorder;
use crate::lease::{Election, Leadership};
use crate::metrics::{BUILD, Metrics};
use crate::plan::HostName;
use crate::publish::Publisher;
use crate::reconciler::{Parts, Reconciler};
use crate::resolve;
use crate::routes::GatewayEntry;
use crate::secrets;
use crate::status::{Answers, Summary};
use crate::watch::{self as watches, Watches};
use crate::write::Writer;

/// How long the lease may take to be released: the process ends within a second of SIGTERM.
const END_LIMIT: Duration = Duration::from_millis(800);

/// How long the API server may be silent while it answers: longer than a watch without news lasts.
const SILENCE: Duration = Duration::from_secs(90);

/// Why the controller did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address for gateways could not be bound.
    #[error("serving xds on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is not known how to reach the API server.
    #[error("reaching the API server")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The probe port or the admin address could not be bound.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Certificates are refused.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The configuration file cannot be watched.
    #[error("watching the configuration file")]
    Watch(#[source] io::Error),
}

/// A running controller.
#[derive(Debug)]
pub struct Controller {
    _endpoints: ServedEndpoints,
    config: Arc<Config>,
    /// Of the configuration file.
    watcher: FileWatcher,
    gateways: watch::Sender<Vec<GatewayEntry>>,
    tls: Option<tls::ServerTls>,
    /// Set by `end`, so that the election releases the lease; dropping the controller aborts it.
    stop: watch::Sender<bool>,
    /// One task, or none without an election.
    election: JoinSet<()>,
    tasks: JoinSet<()>,
    failed: oneshot::Receiver<()>,
}

pub(crate) async fn client(config: &Config) -> Result<(Client, http::Uri), StartError> {
    fn wrong(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StartError {
        StartError::Client(error.into())
    }
    let mut settings = match &config.kubeconfig_path {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(wrong)?;
            let options = KubeConfigOptions::default();
            let settings = kube::Config::from_custom_kubeconfig(file, &options).await;
            settings.map_err(wrong)?
        }
        None => kube::Config::infer().await.map_err(wrong)?,
    };
    settings.read_timeout = Some(SILENCE);
    settings.reset_reader_on_write = true;
    let url = settings.cluster_url.clone();
    let client = Client::try_from(settings).map_err(wrong)?;
    Ok((client, url))
}

impl Controller {
    /// Starts the controller on the current runtime. When it returns, it serves probes and looks
    /// for the API server; it is ready once the caches are synced.
    ///
    /// # Errors
    /// Why it did not start; nothing of it is left running then.
    pub async fn start(
        config: Config,
        environment: &Environment,
        log: LogControl,
    ) -> Result<Self, StartError> {
        let watcher = FileWatcher::new(vec![config.origin.clone()], WatchParams::default());
        let watcher = watcher.map_err(StartError::Watch)?;
        let registry = Registry::new();
        let metrics = Metrics::new(&registry);
        let (client, url) = client(&config).await?;
        let probes = EndpointAddr::Tcp(config.probes.address());
        let endpoints = BoundEndpoints::bind(probes, config.admin.address.clone())?;
        let mut tasks = JoinSet::new();
        let (stop, stopped) = watch::channel(false);
        let (mut server, mut reloads) = (None, None);
        if let Some(routing) = &config.routing {
            let tls = routing.tls.clone().map(tls::ServerTls::load).transpose()?;
            let params = crate::publish::server_params(&routing.gateways, tls.clone());
            let serving = xds::Server::new(params, &registry);
            let address = routing.address;
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|source| StartError::Bind { address, source })?;
            let local = listener.local_addr().unwrap_or(address);
            tracing::info!(address = %local, "serving xds");
            let answering = serving.clone();
            let until = ended(stopped.clone());
            tasks.spawn(async move { answering.serve(listener, until).await });
            (server, reloads) = (Some(serving), tls);
        }
        let publisher = Publisher::new(config.routing.as_ref(), server.as_ref());
        // The first summary lists the gateways already, before the reconciler publishes its own.
        let (summary, last) = watch::channel(Arc::new(Summary {
            gateways: publisher.summary(),
            ..Summary::default()
        }));
        telemetry::process::register(&registry, BUILD);
        log.register(&registry);
        let (gateways, configured) = watch::channel(config.gateways().to_vec());
        let answers: Arc<dyn Process> = Arc::new(Answers {
            summary: last,
            config: config.effective(),
            gateways: configured.clone(),
            started: Instant::now(),
            clients: server.clone(),
        });
        let endpoints = endpoints.serve(&answers, registry, log);
        let identity = identity(environment);
        let (leadership, election) = elect(&client, &config, &identity, &stopped);
        let (resolving, resolved) = watch::channel(HostName::None);
        if config.namespaces.is_some()
            && let Some((name, port)) = resolve::name(&url, environment.api_server.as_ref())
        {
            resolving.send_replace(HostName::Unresolved);
            tasks.spawn(resolve::follow(name, port, resolving));
        }
        let (sender, messages) = mpsc::channel(watches::QUEUE);
        let config = Arc::new(config);
        if config.gateways().iter().any(|own| own.terminates_tls) {
            let (client, messages) = (client.clone(), sender.clone());
            tasks.spawn(secrets::follow(
                client,
                configured.clone(),
                messages,
                metrics.clone(),
            ));
        }
        let watching = Watches::new(client.clone(), config.clone(), sender, metrics.clone());
        tasks.spawn(watching.run());
        let reconciler = Reconciler::new(Parts {
            config: config.clone(),
            messages,
            leadership: leadership.clone(),
            resolved,
            writer: Writer::new(client.clone(), leadership),
            recorder: Recorder::start(client, identity, metrics.clone()),
            publisher,
            gateways: configured,
            server,
            metrics,
            summary,
        });
        let (failing, failed) = oneshot::channel();
        tasks.spawn(async move {
            // Dropped when the reconciler ends, by a panic too, which then ends the process.
            let _failing = failing;
            reconciler.run().await;
        });
        Ok(Self {
            _endpoints: endpoints,
            config,
            watcher,
            gateways,
            tls: reloads,
            stop,
            election,
            tasks,
            failed,
        })
    }

    /// Runs until a signal asks to stop; then releases the lease and ends all streams.
    ///
    /// # Errors
    /// The reconciler failed.
    pub async fn run(mut self, mut signals: Signals) -> Result<(), Failed> {
        let result = loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Reload => self.reload(),
                    Signal::Stop => break Ok(()),
                },
                () = self.watcher.changed() => self.reload(),
                _ = &mut self.failed => break Err(Failed("the reconciler")),
                Some(_) = self.tasks.join_next() => break Err(Failed("what serves or watches")),
                Some(_) = self.election.join_next() => break Err(Failed("the election")),
            }
        };
        self.end().await;
        result
    }

    /// Ends it, as a signal would.
    pub async fn end(mut self) {
        self.stop.send_replace(true);
        if timeout(END_LIMIT, self.election.join_next()).await.is_err() {
            tracing::warn!("releasing the lease timed out");
        }
        self.tasks.shutdown().await;
        tracing::info!("stopped");
    }

    fn reload(&self) {
        match Config::load(&self.config.origin) {
            Ok(config) => {
                let fixed = |own: &Config| {
                    let mut keys = own.effective();
                    keys["controllers"]["routing"]["gateways"].take();
                    keys
                };
                if fixed(&config) != fixed(&self.config) {
                    tracing::warn!("changes of more than gateways take effect at the next start");
                } else if let Some(routing) = config.routing {
                    self.gateways.send_if_modified(|own| {
                        let changed = *own != routing.gateways;
                        *own = routing.gateways;
                        changed
                    });
                }
            }
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::error!(%error, "configuration refused, keeping the previous gateways");
            }
        }
        let Some(tls) = &self.tls else {
            return;
        };
        if let Err(error) = tls.reload() {
            let error = telemetry::chain(&error);
            tracing::error!(%error, "certificates refused, keeping the previous certificates");
        }
    }
}

/// A task ended although the process should go on.
#[derive(Debug, thiserror::Error)]
#[error("{0} ended early")]
pub struct Failed(&'static str);

fn elect(
    client: &Client,
    config: &Config,
    identity: &str,
    stopped: &watch::Receiver<bool>,
) -> (Leadership, JoinSet<()>) {
    let lease = &config.leader_election;
    if !lease.enabled {
        return (Leadership::alone(), JoinSet::new());
    }
    let (election, leadership) = Election::new(client.clone(), lease, identity.to_owned());
    let until = ended(stopped.clone());
    (leadership, JoinSet::from_iter([election.run(until)]))
}

/// Distinguishes replicas, and a process from the one before it, which in a container had the same
/// number.
fn identity(environment: &Environment) -> String {
    let host = environment.host_name.as_deref().unwrap_or("controller");
    let mut random = [0; 8];
    // Without randomness there would be no TLS either.
    let _ = SystemRandom::new().fill(&mut random);
    format!("{host}_{:016x}", u64::from_ne_bytes(random))
}

async fn ended(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
}
