//! The gateway as one running thing: started from a configuration, drained, ended.
//!
//! ```text
//!     routes ─▶ probes, admin and listeners bound ─▶ workers prepared ─▶ listening ─▶ run
//! ```
//!
//! Runs on the control runtime of its caller; the data path is the workers'.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use relay::PoolParams;
use serve::{
    Accepting, Admin, Admission, BindError, BoundEndpoints, CurrentSnapshot, DatagramListeners,
    Dialer, DirectoryError, Drain, DrainParams, EndpointError, Family, Handover,
    HandoverConditions, HandoverMetrics, HandoverParams, HandoverReadiness, ListenerInfo,
    ListenerParams, Metrics, MovingFlows, OwnDatagrams, ProcessInfo, Resolver, ServedEndpoints,
    Service, Signals, WorkerFailed, Workers, bind_rest, connection_limit, inherited_sockets,
};
use settings::{Afterwards, FileWatcher, WatchParams};
use telemetry::access_log::Sink;
use telemetry::{AccessLog, EndpointAddr, LogControl, Process, Registry};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::accept::{self, Task};
use crate::config::{Config, Environment, ListenerConfig, RouteSource};
use crate::heap;
use crate::metrics::BUILD;
use crate::routes::RoutesError;
use crate::routing::Routing;
use crate::subscription;
use crate::terminate;
use crate::trace;
use crate::wireguard::{self, Scanner};
use crate::worker::Shared;

/// How long files must have been quiet before they are read. Short, since routes are replaced by one
/// rename; a file that is written in place is given longer.
const SETTLE: Duration = Duration::from_millis(10);

/// How soon a routing file that could not be read is tried again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// How often the files of terminating routes are looked at.
const SECRETS_AGAIN: Duration = Duration::from_secs(5);

/// Why the gateway did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// An endpoint for probes or operators could not be bound.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The routing file is refused.
    #[error("the routing file is refused")]
    Routes(#[from] RoutesError),
    /// No other process could take over from this one.
    #[error(transparent)]
    Handover(#[from] DirectoryError),
    /// Sockets that no other process could take over, and that stay where they are.
    #[error("handover: not together with sockets of the service manager (LISTEN_FDS)")]
    Inherited,
    /// Certificates are refused.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The system refused something else: what was tried, and why it failed.
    #[error("{0}")]
    System(String, #[source] io::Error),
}

impl StartError {
    /// Tells whether it is for the configuration to mend.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Handover(_) | Self::Inherited | Self::Routes(_) | Self::Tls(_) => true,
            Self::Bind(_) | Self::Endpoint(_) | Self::System(..) => false,
        }
    }

    pub(crate) fn system(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempt = attempt.into();
        move |error| Self::System(attempt, error)
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    service: Service<Task>,
    watcher: FileWatcher,
    /// The certificates that the server of routes is shown.
    tls: Option<tls::ClientTls>,
    listeners: Vec<ListenerInfo>,
}

impl Gateway {
    /// Starts the gateway on the current runtime. When it returns, it listens and is ready.
    ///
    /// # Errors
    /// Why it did not start; nothing of it is left running then.
    pub async fn start(
        config: Config,
        zone: Option<String>,
        environment: &Environment,
        log: LogControl,
    ) -> Result<Self, StartError> {
        let registry = Registry::new();
        let access_log = AccessLog::new(config.access_log.format, Sink::Stdout)
            .map_err(StartError::system("starting the access log"))?;
        access_log.register(&registry);
        let metrics = Metrics::register(&registry);
        let resolver = Resolver::system(Handle::current(), Family::Auto);
        // Watched before it is read, so that no change falls between.
        let watched = match &config.source {
            RouteSource::File(file) => vec![file.clone()],
            RouteSource::Xds(_) => Vec::new(),
        };
        let watch = WatchParams {
            settle: SETTLE,
            ..WatchParams::default()
        };
        let mut watcher = FileWatcher::new(watched, watch)
            .map_err(StartError::system("watching the routing file"))?;
        if let Err(error) = watcher.watch_directories() {
            let poll = watch.poll;
            tracing::info!(%error, ?poll, "inotify is unavailable, polling the routing file");
        }
        let routing = Routing::start(&config, zone, resolver, &registry)?;
        let subscription = match &config.source {
            RouteSource::File(_) => None,
            RouteSource::Xds(xds) => Some((
                subscription::params(xds, &config)?,
                xds::ClientMetrics::new(&registry, routing.reloads()),
            )),
        };
        let workers = config.workers();
        let pool = if config.splice {
            PoolParams::for_workers(workers)
        } else {
            PoolParams::COPYING
        };
        let limit = connection_limit(config.limits.connections, pool.max_pipes(workers));
        let inherited = inherited_sockets(
            environment.listen_pid.as_deref(),
            environment.listen_fds.as_deref(),
            environment.listen_fdnames.as_deref(),
        )
        .map_err(StartError::system("taking the service manager's sockets"))?;
        if config.handover.is_some() && !inherited.is_empty() {
            return Err(StartError::Inherited);
        }
        let accepting = Accepting::new(
            Drain::new(DrainParams {
                delay: config.drain.delay.0,
                timeout: config.drain.timeout.0,
            }),
            metrics.accept_paused.clone(),
        );
        let handover_metrics = HandoverMetrics::new(&registry);
        let shared = Arc::new(Shared {
            routing,
            admission: Admission::new(limit, config.limits.connections_per_source),
            flows: Admission::new(u64::MAX, 0),
            datagrams: OwnDatagrams::default(),
            dialer: Dialer::new(metrics.connect_seconds.clone()),
            accepting,
            metrics,
            wireguard: wireguard::Metrics::new(&registry),
            terminating: terminate::Metrics::register(&registry),
            access_log: access_log.clone(),
            config,
        });
        let config = &shared.config;
        let mut tls = None;
        let mut tasks = Vec::new();
        if let Some((params, metrics)) = subscription {
            tls.clone_from(&params.tls);
            let sink = subscription::Sink(Arc::clone(&shared));
            tasks.push(tokio::spawn(async move {
                xds::run(params, sink, metrics).await;
            }));
        }
        let handover = match &config.handover {
            Some(settings) => {
                let params = HandoverParams {
                    socket: settings.socket.clone(),
                    timeout: settings.timeout.0,
                    exit: settings.afterwards == Afterwards::Exit,
                    notify: environment.notify_socket.clone(),
                };
                let (take, keep) = (Arc::clone(&shared), Arc::clone(&shared));
                let conditions = HandoverConditions {
                    take: Box::new(move || take.routing.prepared()),
                    keep: Box::new(move || keep.routing.has_routes()),
                };
                Some(Handover::begin(params, conditions, handover_metrics).await?)
            }
            None => None,
        };
        let (handover, taken) = handover.unzip();
        // Whatever may fail goes before listening: another process on the same ports must not lose
        // connections to one that does not come up.
        let probes = EndpointAddr::Tcp(config.probes.address());
        let bind = match &handover {
            None => BoundEndpoints::bind,
            Some(_) => BoundEndpoints::bind_succeeding,
        };
        let endpoints = bind(probes, config.admin.address.clone())?;
        let tcp = config.listeners.iter().filter(|own| !own.takes_datagrams());
        let params: Vec<_> = tcp.map(|own| listener_params(own, config)).collect();
        let bound = bind_rest(&params, workers, inherited, taken.unwrap_or_default())?;
        let announced = handover.as_ref().map_or(&[][..], Handover::announced);
        let (datagrams, flow_tables) = bind_datagrams(config, announced)?;
        let listeners = listener_infos(config, &bound.addresses, &datagrams);
        let scanner = (flow_tables > 0)
            .then(|| scanner(&shared))
            .transpose()
            .map_err(StartError::system("starting the thread that tries keys"))?;
        let drain = shared.accepting.drain.clone();
        let workers = Workers::prepare("worker", workers, pool, &drain, accept::run)
            .map_err(StartError::system("preparing the workers"))?;
        let to_share = handover.as_ref().map(|_| bound.to_share(&params));
        let to_share = to_share
            .transpose()
            .map_err(StartError::system("sharing sockets"))?;
        bound.listen().map_err(StartError::system("listening"))?;
        let mut service = Service::new(drain, workers, access_log);
        tasks.into_iter().for_each(|task| service.keep(task));
        let secrets = Arc::clone(&shared);
        service.keep(tokio::spawn(async move {
            loop {
                tokio::time::sleep(SECRETS_AGAIN).await;
                secrets.routing.refresh_secrets();
            }
        }));
        let readiness = handover.as_ref().map(Handover::readiness);
        let admin = admin(&shared, &service, &listeners, &registry, readiness);
        log.register(&registry);
        service.answer(endpoints, &admin, registry, log);
        let mut datagrams: Vec<_> = datagrams.into_iter().map(Vec::into_iter).collect();
        let tasks = bound.per_worker.into_iter().map(|sockets| Task {
            shared: Arc::clone(&shared),
            sockets,
            datagrams: datagrams.iter_mut().filter_map(Iterator::next).collect(),
            flow_tables,
            scanner: scanner.clone(),
        });
        service.start(tasks.collect());
        if let (Some(handover), Some(to_share)) = (handover, to_share) {
            let (workers, accepting) = (service.asker(), shared.accepting.clone());
            let datagrams = movable_datagrams(&shared.config);
            let run = handover.run(workers, accepting, to_share, datagrams);
            service.keep(tokio::spawn(run));
        }
        Ok(Self {
            shared,
            service,
            watcher,
            tls,
            listeners,
        })
    }

    /// Returns the address that the listener `name` is bound to.
    pub fn listener_address(&self, name: &str) -> Option<SocketAddr> {
        self.listeners
            .iter()
            .find(|own| own.name == name)
            .map(|own| own.address)
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
    ///
    /// # Errors
    /// A worker failed; everything was drained then.
    pub async fn run(mut self, signals: Option<Signals>) -> Result<(), WorkerFailed> {
        let freed = Arc::new(Notify::new());
        let giving_back = tokio::spawn(heap::give_back(Arc::clone(&freed)));
        self.service.keep(giving_back);
        // The text of the first table.
        freed.notify_one();
        let (shared, tls) = (&self.shared, &self.tls);
        let watcher = &mut self.watcher;
        self.service
            .run(
                signals,
                async || {
                    tokio::select! {
                        () = watcher.changed() => {}
                        () = tokio::time::sleep(READ_AGAIN), if shared.routing.unread() => {}
                    }
                },
                || {
                    shared.routing.reload();
                    shared.routing.refresh_secrets();
                    freed.notify_one();
                    if let Some(Err(error)) = tls.as_ref().map(tls::ClientTls::reload) {
                        let error = telemetry::chain(&error);
                        tracing::error!(%error, "certificates refused, the last good ones stay");
                    }
                },
            )
            .await
    }
}

/// Binds the WireGuard listeners: for each, a table per worker, but for those whose tables another process has
/// announced. Returns the number of all tables too.
fn bind_datagrams(
    config: &Config,
    announced: &[String],
) -> Result<(Vec<Vec<MovingFlows>>, usize), StartError> {
    let mut tables = 0;
    let bind = |listener: &ListenerConfig| {
        let to_come = announced.iter().filter(|name| **name == listener.name);
        let to_come = to_come.count();
        tables += if to_come > 0 {
            to_come
        } else {
            config.workers()
        };
        if to_come > 0 {
            return Ok(Vec::new());
        }
        let (address, buffers) = (listener.address.get(), config.wireguard.buffers());
        let bound = wireguard::open(address, config.workers(), buffers);
        let attempt = format!("listener {}: binding UDP {address}", listener.name);
        let sockets = bound.map_err(StartError::system(attempt))?;
        if let Some([socket, _]) = sockets.first() {
            let (listener, address) = (&listener.name, bound_address(socket, address));
            let receive = udp::granted(socket).unwrap_or(0);
            tracing::info!(%listener, %address, receive_buffer = receive, "bound");
            if receive < buffers.receive {
                let wanted = buffers.receive;
                tracing::warn!(%listener, receive, wanted, "net.core.rmem_max bounds the buffer");
            }
        }
        let table = |sockets| MovingFlows {
            listener: listener.name.clone(),
            sockets,
            flows: Vec::new(),
        };
        Ok(sockets.into_iter().map(table).collect())
    };
    let listeners = config.listeners.iter().filter(|own| own.takes_datagrams());
    let bound: Result<_, StartError> = listeners.map(bind).collect();
    Ok((bound?, tables))
}

/// Describes the WireGuard listeners to those that hand them over.
fn movable_datagrams(config: &Config) -> DatagramListeners {
    let listeners = config.listeners.iter().filter(|own| own.takes_datagrams());
    let buffers = config.wireguard.buffers();
    DatagramListeners {
        listeners: listeners
            .map(|own| (own.name.clone(), own.address.get()))
            .collect(),
        open: Box::new(move |address| {
            let opened = wireguard::open(address, 1, buffers)?.pop();
            opened.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
        }),
    }
}

fn bound_address(socket: &UdpSocket, configured: SocketAddr) -> SocketAddr {
    socket.local_addr().map_or(configured, serve::unmapped)
}

/// Describes all listeners in the order of the configuration.
fn listener_infos(
    config: &Config,
    tcp: &[SocketAddr],
    udp: &[Vec<MovingFlows>],
) -> Vec<ListenerInfo> {
    let (mut tcp, mut udp) = (tcp.iter(), udp.iter());
    let infos = config.listeners.iter().map(|listener| {
        let configured = listener.address.get();
        let datagrams = listener.takes_datagrams();
        let address = if datagrams {
            let first = udp.next().and_then(|tables| tables.first());
            first.map_or(configured, |table| {
                bound_address(&table.sockets[0], configured)
            })
        } else {
            tcp.next().copied().unwrap_or(configured)
        };
        ListenerInfo {
            name: listener.name.clone(),
            address,
            protocol: listener.protocol.as_str(),
            datagrams,
        }
    });
    infos.collect()
}

/// Starts the thread that tries the keys of handshakes; it ends with the workers.
fn scanner(shared: &Arc<Shared>) -> io::Result<Scanner> {
    let current = Arc::clone(shared);
    let snapshot = move || Arc::clone(&current.routing.current().snapshot);
    Scanner::start(&shared.config.wireguard, &shared.wireguard, snapshot)
}

fn listener_params(listener: &ListenerConfig, config: &Config) -> ListenerParams {
    ListenerParams {
        name: listener.name.clone(),
        address: listener.address.get(),
        tcp: listener.tcp_options(&config.tcp),
    }
}

fn admin(
    shared: &Arc<Shared>,
    service: &Service<Task>,
    listeners: &[ListenerInfo],
    registry: &Registry,
    handover: Option<HandoverReadiness>,
) -> Arc<dyn Process> {
    let current = Arc::clone(shared);
    let snapshot: Arc<CurrentSnapshot> = Arc::new(move || {
        let routing = &current.routing;
        (Arc::clone(&routing.current().snapshot), routing.confirmed())
    });
    Metrics::collect_snapshot(registry, Arc::clone(&snapshot));
    wireguard::Metrics::collect_snapshot(registry, Arc::clone(&snapshot));
    terminate::Metrics::collect_snapshot(registry, Arc::clone(&snapshot));
    telemetry::process::register(registry, BUILD);
    let (routing, traced, listening) = (Arc::clone(shared), Arc::clone(shared), listeners.to_vec());
    let asked = handover.clone();
    Arc::new(Admin {
        info: ProcessInfo::new(BUILD, shared.accepting.drain.clone()),
        config: settings::effective(&shared.config),
        listeners: listeners.to_vec(),
        admission: Arc::clone(&shared.admission),
        metrics: shared.metrics.clone(),
        asker: service.asker(),
        snapshot,
        ready: Box::new(move || {
            handover.as_ref().map_or(Ok(()), HandoverReadiness::ready)?;
            routing.routing.ready()
        }),
        paths: Some(Box::new(move |path, query| {
            (path == "/trace").then(|| trace::respond(&traced, &listening, asked.as_ref(), query))
        })),
    })
}
