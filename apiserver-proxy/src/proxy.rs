//! The node proxy as one running thing: started from a configuration, drained, ended.
//!
//! ```text
//!     addresses ─▶ rules ─▶ sockets ─▶ workers ─▶ probes ─▶ run ─▶ clean up
//!               └ another process serves there: the gateway's name first
//! ```
//!
//! A second process may start at the addresses of the first, which drains then: nothing that one needs
//! is taken away by the other.
//!
//! Runs on the control runtime of its caller; the data path is the workers'.

use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use net_config::{NatWatch, NetConfigError, NftablesError};
use relay::PoolParams;
use route::{
    BuildErrors, ClusterSpec, EndpointAddress, EndpointSpec, RouteMatch, RouteSpec, Snapshot,
    TableSpec,
};
use serve::{
    Accepting, Admin, Admission, BindError, BoundEndpoints, CurrentSnapshot, DatagramListeners,
    Dialer, DirectoryError, Drain, DrainParams, EndpointError, Handover, HandoverConditions,
    HandoverParams, HandoverReadiness, ListenerInfo, ListenerParams, NameSet, OwnSockets, Phase,
    ProcessInfo, Resolver, ServedEndpoints, Service, Signals, WorkerFailed, WorkerSocket, Workers,
    bind_rest, connection_limit, is_served, succeeded,
};
use settings::Afterwards;
use telemetry::access_log::Sink;
use telemetry::{AccessLog, EndpointAddr, LogControl, Process, Registry};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::accept;
use crate::config::{Config, NoTrackMode, NoUpstream};
use crate::dns::{DnsError, DnsServer};
use crate::metrics::{self, BUILD};
use crate::node::{self, CleanUpError, Node};
use crate::worker::Shared;

/// Name of the one cluster in logs and metrics.
const CLUSTER: &str = "gateway";

/// Pipes of one worker: a node moves less in bulk at once than a gateway.
const POOL: PoolParams = PoolParams {
    pipes: 16,
    pipe_bytes: 256 * 1024,
};

/// How long another process may be followed without the gateway's name: longer than any one look-up,
/// shorter than a pod is given to start.
const NAME_LIMIT: Duration = Duration::from_secs(30);

/// How often it is looked whether another process serves, while that matters.
const LOOK: Duration = Duration::from_secs(1);

/// Why the node proxy did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The addresses could not be put on the node.
    #[error("putting the addresses on the node")]
    Addresses(#[from] NetConfigError),
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The DNS server could not be started.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// No other process could take over from this one.
    #[error(transparent)]
    Handover(#[from] DirectoryError),
    /// An endpoint for probes or operators could not be bound.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// An address is on no device, and not to be put on one.
    #[error("{0} is on no device of this node; interface.manage is what puts it on one")]
    Missing(IpAddr),
    /// The rules that the configuration insists on could not be installed.
    #[error("noTrack: on")]
    NoTrack(#[from] NftablesError),
    /// No gateway is named.
    #[error(transparent)]
    NoUpstream(#[from] NoUpstream),
    /// The system refused something else: what was tried, and why it failed.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    /// Connections would be taken from a process that has the upstream's name, and serves this address,
    /// for one that does not.
    #[error(
        "upstream: {0} was not resolved within {NAME_LIMIT:?}, and the process that serves {1} \
         already goes on with it"
    )]
    Unresolved(EndpointAddress, SocketAddr),
    /// The upstream is no usable cluster.
    #[error("upstream")]
    Upstream(#[from] BuildErrors),
}

/// What a worker thread is given: what all share, and its own sockets.
type Task = (Arc<Shared>, Vec<WorkerSocket>);

/// How the node proxy ended other than as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndError {
    /// Addresses, device or rules could not be taken back.
    #[error("cleaning up")]
    CleanUp(#[from] CleanUpError),
    /// A worker failed.
    #[error(transparent)]
    Worker(#[from] WorkerFailed),
}

/// A running node proxy.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    node: Arc<Node>,
    service: Service<Task>,
    listeners: Vec<ListenerInfo>,
    dns: Option<SocketAddr>,
}

impl Proxy {
    /// Starts the proxy on the current runtime. When it returns, it listens.
    ///
    /// # Errors
    /// Why it did not start; addresses that were put on the node stay there.
    pub async fn start(config: Config, log: LogControl) -> Result<Self, StartError> {
        let system = |attempt| move |error| StartError::System(attempt, error);
        let registry = Registry::new();
        let access_log = AccessLog::new(config.access_log.format, Sink::Stdout)
            .map_err(system("starting the access log"))?;
        let upstream = config.upstream.clone().ok_or(NoUpstream)?;
        let snapshot = Arc::new(snapshot(&upstream.address)?);
        let current = current(&snapshot);
        let (metrics, handover_metrics, node) =
            metrics::register(&registry, &access_log, &log, Arc::clone(&current));
        put_in_place(&config, &node).await?;
        let Some(route) = snapshot.by_server_name(None).map(Arc::clone) else {
            unreachable!("the catch-all route was just built")
        };
        let resolver = Resolver::system(Handle::current(), upstream.family());
        let names = resolver.names(snapshot.host_names());
        if follow(&config, &upstream.address, &names).await? {
            // The other one may have ended meanwhile, and have taken back what was there.
            put_in_place(&config, &node).await?;
        }
        let handover = match &config.handover {
            Some(settings) => {
                let params = HandoverParams {
                    socket: settings.socket.clone(),
                    timeout: settings.timeout.0,
                    exit: settings.afterwards == Afterwards::Exit,
                    notify: None,
                };
                // It has waited for what it needs.
                let conditions = HandoverConditions::default();
                Some(Handover::begin(params, conditions, handover_metrics).await?)
            }
            None => None,
        };
        let (handover, taken) = handover.unzip();
        let params = config.listen().map(|at| listener_params(at, &config));
        let params: Vec<_> = params.collect();
        // Whatever may fail goes before listening: another process on the same ports must not lose
        // connections to one that does not come up.
        let probes = EndpointAddr::Tcp(config.probes.address());
        let bind = match &handover {
            None => BoundEndpoints::bind_shared,
            Some(_) => BoundEndpoints::bind_succeeding,
        };
        let endpoints = bind(probes, config.admin.address.clone())?;
        let taken = taken.unwrap_or_default();
        let bound = bind_rest(&params, config.workers, Vec::new(), taken)?;
        let listeners: Vec<ListenerInfo> = params
            .iter()
            .zip(&bound.addresses)
            .map(|(params, address)| ListenerInfo {
                name: params.name.clone(),
                address: *address,
                protocol: upstream.announce.mode(),
                datagrams: false,
            })
            .collect();
        let pool = if config.splice {
            POOL
        } else {
            PoolParams::COPYING
        };
        let limit = connection_limit(config.limits.connections, pool.max_pipes(config.workers));
        let shared = Arc::new(Shared {
            names,
            route,
            admission: Admission::new(limit, config.limits.connections_per_source),
            dialer: Dialer::new(metrics.connect_seconds.clone()),
            accepting: Accepting::new(
                Drain::new(DrainParams {
                    delay: config.drain.delay.0,
                    timeout: config.drain.timeout.0,
                }),
                metrics.accept_paused.clone(),
            ),
            metrics,
            access_log: access_log.clone(),
            config,
            upstream,
        });
        let drain = shared.accepting.drain.clone();
        let workers = Workers::prepare("worker", shared.config.workers, pool, &drain, accept::run)
            .map_err(system("preparing the workers"))?;
        let dns = shared.config.dns.as_ref();
        let dns = dns.map(DnsServer::bind).transpose()?;
        let dns_address = dns.as_ref().map(DnsServer::local_addr);
        let own = bound.own();
        let to_share = handover.as_ref().map(|_| bound.to_share(&params));
        let to_share = to_share.transpose().map_err(system("sharing sockets"))?;
        bound.listen().map_err(system("listening"))?;
        let mut service = Service::new(drain.clone(), workers, access_log);
        let readiness = handover.as_ref().map(Handover::readiness);
        let admin = admin(&shared, &service, &listeners, current, &node, readiness);
        service.answer(endpoints, &admin, registry, log);
        let sockets = bound.per_worker.into_iter();
        service.start(sockets.map(|own| (Arc::clone(&shared), own)).collect());
        keep_node(&mut service, &shared, &node, own);
        if let (Some(handover), Some(to_share)) = (handover, to_share) {
            let (workers, accepting) = (service.asker(), shared.accepting.clone());
            let none = DatagramListeners::default();
            let run = handover.run(workers, accepting, to_share, none);
            service.keep(tokio::spawn(run));
        }
        if let Some(dns) = dns {
            // When the drain's delay is over, so that what was asked before has been answered.
            let own: Vec<_> = dns.own().into_iter().collect();
            service.keep(tokio::spawn(async move {
                if let Err(error) = dns.run(succeeded(drain, Phase::Closing, own)).await {
                    tracing::error!(error = %telemetry::chain(&error), "DNS no longer answers");
                }
            }));
        }
        Ok(Self {
            shared,
            node,
            service,
            listeners,
            dns: dns_address,
        })
    }

    /// Returns the addresses it listens on, in the order of the configuration.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.iter().map(|listener| listener.address)
    }

    /// Returns where its DNS server answers.
    pub fn dns_address(&self) -> Option<SocketAddr> {
        self.dns
    }

    /// Returns where probes and operators are answered.
    pub fn endpoints(&self) -> &ServedEndpoints {
        self.service.endpoints()
    }

    /// Returns the handle by which it is drained or cut.
    pub fn drain(&self) -> &Drain {
        self.service.drain()
    }

    /// Runs until everything has ended: after a stop signal, or, without `signals`, once drained.
    /// Takes the addresses back when the configuration says so and no other process serves them.
    ///
    /// # Errors
    /// A worker failed (everything was drained then), or what could not be taken back.
    pub async fn run(self, signals: Option<Signals>) -> Result<(), EndError> {
        let ended = self
            .service
            .run(
                signals,
                async || std::future::pending().await,
                || self.node.look_again(),
            )
            .await;
        take_back(&self.shared.config).await?;
        Ok(ended?)
    }
}

/// Puts the addresses on the node once, and makes the directory at which processes follow each other.
///
/// # Errors
/// Why they are not all there.
pub async fn set_up(config: &Config) -> Result<(), StartError> {
    let socket = config.handover.as_ref().map(|own| own.socket.as_path());
    if let Some(directory) = socket.and_then(Path::parent) {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let attempt = "making the directory of handover.socket";
                return Err(StartError::System(attempt, error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    let node = Node::new(&Registry::new());
    put_in_place(config, &node).await
}

pub(crate) async fn put_in_place(config: &Config, node: &Arc<Node>) -> Result<(), StartError> {
    node::keeper(config, node).ensure().await?;
    if let Some(address) = node::missing(&config.interface().addresses).next() {
        return Err(StartError::Missing(address));
    }
    if config.no_track == NoTrackMode::On {
        node.apply_no_track(config, &mut NatWatch::default())
            .await?;
    }
    Ok(())
}

/// Takes back what was put on the node if the configuration says so (`interface.cleanup`), and no other
/// process listens at one of its addresses.
///
/// # Errors
/// What could not be taken back.
pub async fn take_back(config: &Config) -> Result<(), CleanUpError> {
    if !config.cleanup() {
        return Ok(());
    }
    if let Some(address) = serving_address(config) {
        tracing::info!(%address, "another process serves it: nothing is taken back");
        return Ok(());
    }
    node::clean_up(config).await
}

/// Returns an address that another process listens at; to be asked while this one does not.
fn serving_address(config: &Config) -> Option<SocketAddr> {
    config.listen().find(|at| is_served(*at))
}

/// Waits for the gateway's name where another process serves already: connections are its own until
/// this one can do something with them, or no process serves any more. Tells whether there was one.
async fn follow(
    config: &Config,
    gateway: &EndpointAddress,
    names: &NameSet,
) -> Result<bool, StartError> {
    let Some(address) = serving_address(config) else {
        return Ok(false);
    };
    tracing::info!(%address, "another process serves it, and is followed");
    let gone = async {
        while serving_address(config).is_some() {
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        biased;
        () = names.answered() => Ok(true),
        () = gone => {
            tracing::info!(%address, "no other process serves the address");
            Ok(true)
        }
        () = sleep(NAME_LIMIT) => {
            Err(StartError::Unresolved(gateway.clone(), address))
        }
    }
}

/// Looks after the node, but for the time in which the process drains and another one is there: that
/// may want something else on it.
fn keep_node(
    service: &mut Service<Task>,
    shared: &Arc<Shared>,
    node: &Arc<Node>,
    own: Vec<OwnSockets>,
) {
    let mut keeper = node::keeper(&shared.config, node);
    let (shared, node) = (Arc::clone(shared), Arc::clone(node));
    let drain = service.drain().clone();
    service.keep(tokio::spawn(async move {
        let mut nat = NatWatch::default();
        loop {
            tokio::select! {
                () = keeper.run(std::future::pending()) => {}
                () = node.keep_no_track(&shared.config, &mut nat) => {}
                () = succeeded(drain.clone(), Phase::Unready, own.as_slice()) => {}
                () = drain.handed_over() => return,
            }
            while OwnSockets::are_shared(&own) {
                sleep(LOOK).await;
            }
        }
    }));
}

fn listener_params(address: SocketAddr, config: &Config) -> ListenerParams {
    ListenerParams {
        name: address.to_string(),
        address,
        tcp: config.tcp_options.clone(),
    }
}

/// Builds the snapshot of a proxy that has one way to go.
fn snapshot(gateway: &EndpointAddress) -> Result<Snapshot, BuildErrors> {
    let mut cluster = ClusterSpec::new(CLUSTER.to_owned());
    cluster.endpoints.push(EndpointSpec::new(gateway.clone()));
    cluster.outlier = None;
    let route = RouteSpec::new(RouteMatch::ServerNames(vec!["*".to_owned()]), CLUSTER);
    Snapshot::build(
        TableSpec {
            clusters: vec![cluster],
            routes: vec![route],
        },
        1,
        None,
    )
}

/// The one snapshot there ever is, in effect since now.
fn current(snapshot: &Arc<Snapshot>) -> Arc<CurrentSnapshot> {
    let (snapshot, started) = (Arc::clone(snapshot), Instant::now());
    Arc::new(move || (Arc::clone(&snapshot), started))
}

fn admin(
    shared: &Arc<Shared>,
    service: &Service<Task>,
    listeners: &[ListenerInfo],
    snapshot: Arc<CurrentSnapshot>,
    node: &Arc<Node>,
    handover: Option<HandoverReadiness>,
) -> Arc<dyn Process> {
    let (names, node) = (shared.names.clone(), Arc::clone(node));
    Arc::new(Admin {
        info: ProcessInfo::new(BUILD, shared.accepting.drain.clone()),
        config: settings::effective(&shared.config),
        listeners: listeners.to_vec(),
        admission: Arc::clone(&shared.admission),
        metrics: shared.metrics.clone(),
        asker: service.asker(),
        snapshot,
        ready: Box::new(move || {
            handover
                .as_ref()
                .map_or(Ok(()), |handover| handover.ready())?;
            node.ready()?;
            if !names.resolved() {
                return Err("the gateway's name is not resolved".to_owned());
            }
            Ok(())
        }),
        paths: None,
    })
}
