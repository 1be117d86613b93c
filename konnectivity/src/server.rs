//! The konnectivity server: hands connections of API servers to agents in clusters that accept
//! none.
//!
//! ```text
//!   control thread: probes, admin, signals, registry, tokens, leases
//!        │ Context
//!   worker threads: listen ──▶ agents ───▶ Tenant ◀─── frontends (HTTP CONNECT, gRPC)
//! ```
//!
//! Start with [`run`]; a connection's life is told in `listen`, `agents` and `frontends`, a dial's
//! in `tenant`.

mod agents;
mod context;
mod frontends;
mod grpc_frontend;
mod health;
mod http2;
mod http_frontend;
mod listen;
mod sockets;
mod tenant;
mod tokens;
mod tunnels;
mod view;

use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use knp_proto::Budget;
use relay::PoolParams;
use route::TcpOptions;
use serve::{
    Accepting, BoundEndpoints, BoundListeners, Drain, DrainParams, Failure, ListenerParams, Phase,
    ProcessInfo, ServedEndpoints, Signal, Signals, Threads, WorkerSocket, Workers, accept_all,
    bind_all, program,
};
use telemetry::access_log::Sink;
use telemetry::{AccessLog, EndpointAddr, LogControl, Process};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::flags::ServerConfig;
use crate::grpc;
use crate::lease::{ServerLease, ServerLeaseParams};
use crate::metrics::{SERVER_BUILD, ServerMetrics};
use crate::registry::{Port, Registry, TenantSource};
use context::{Context, Refusals};
use listen::{Admissions, Worker};
use sockets::{Listen, SocketError, Sockets};
use tunnels::Tunnels;

/// Runs a server until it is told to end.
///
/// # Errors
/// What the configuration points to cannot be used, or the process cannot go on.
pub fn run(config: ServerConfig, log: LogControl) -> Result<(), Failure> {
    program::block_on(Threads::Main, async || {
        let signals = Signals::new()?;
        Server::start(config, log)?.run(signals).await
    })
}

/// A server that serves.
struct Server {
    cx: Arc<Context>,
    workers: Workers<Task>,
    sockets: Sockets,
    endpoints: ServedEndpoints,
    tasks: JoinSet<()>,
    lease: Option<LeaseTask>,
}

/// What a worker begins with.
struct Task {
    cx: Arc<Context>,
    admission: Admissions,
    accepting: Accepting,
    listeners: Vec<(WorkerSocket, Port)>,
    unix: mpsc::Receiver<Listen>,
    /// There may be more frontends for as long as this lives.
    accepts: watch::Receiver<()>,
}

impl Server {
    fn start(config: ServerConfig, log: LogControl) -> Result<Self, Failure> {
        let metrics_registry = telemetry::Registry::new();
        log.register(&metrics_registry);
        telemetry::process::register(&metrics_registry, SERVER_BUILD);
        let metrics = ServerMetrics::new(&metrics_registry, config.per_cluster_metrics);
        let registry = Registry::new(config.tenants.clone(), &config.tls);
        let registry = registry.map_err(Failure::configuration)?;
        registry.count_pairs_in(&tls::Metrics::new(&metrics_registry));
        let (counting, generation) = (Arc::clone(&metrics), registry.changes());
        registry.observe(move |loaded| counting.registry_read(*generation.borrow(), loaded));
        let budget = Budget::new(config.max_buffered_bytes);
        metrics.budget(&budget);
        let access_log = AccessLog::new(config.access_log, Sink::Stdout)?;
        access_log.register(&metrics_registry);
        let drain = Drain::new(config.drain);
        let mut tasks = JoinSet::new();
        let lease = config.lease.clone();
        let lease = lease.map(|lease| keep_lease(lease, Arc::clone(&metrics)));
        let (lease, lease_count) = lease.unzip();
        let cx = Arc::new(Context {
            tokens: tokens::Tokens::new(registry.clone(), metrics.clone(), Handle::current()),
            registry,
            metrics,
            budget,
            drain: drain.clone(),
            access_log,
            refusals: Refusals::default(),
            lease_count,
            tunnels: Tunnels::default(),
            frontends: watch::Sender::default(),
            tenants: Mutex::default(),
            streams: AtomicU64::new(1),
            config,
        });
        let config = &cx.config;
        cx.sync(&cx.registry.current());
        let (probes, admin) = (config.health, config.admin);
        let endpoints = BoundEndpoints::bind(EndpointAddr::Tcp(probes), EndpointAddr::Tcp(admin))?;
        let (ports, bound) = bind_ports(config)?;
        let paused = cx.metrics.accept_paused.clone();
        let accepting = Accepting::new(drain.clone(), paused);
        // Workers are not cut with the tunnels: these have a moment to be logged and told.
        let hard = Drain::new(DrainParams::default());
        tasks.spawn(cut_later(drain, hard.clone()));
        let run = async |_, task: Task| work(task).await;
        let pool = PoolParams::COPYING;
        let mut workers = Workers::prepare("worker", config.workers, pool, &hard, run)?;
        bound.listen()?;
        let admission = Admissions::new(serve::connection_limit(CONNECTIONS, 0));
        let (mut senders, mut own) = (Vec::new(), Vec::new());
        for sockets in bound.per_worker {
            let (sender, unix) = mpsc::channel(SOCKETS);
            senders.push(sender);
            own.push(Task {
                cx: Arc::clone(&cx),
                admission: admission.clone(),
                accepting: accepting.clone(),
                listeners: sockets.into_iter().zip(ports.iter().copied()).collect(),
                unix,
                accepts: cx.frontends.subscribe(),
            });
        }
        drop(accepting);
        let mut sockets = Sockets::new(senders, config.delete_existing_sockets);
        let mut failed = listen_unix(&mut sockets, &cx);
        if let (TenantSource::Single(_), Some(error)) = (&cx.config.tenants, failed.pop()) {
            return Err(error.into());
        }
        workers.start(own);
        let info = ProcessInfo::new(SERVER_BUILD, cx.drain.clone());
        let view: Arc<dyn Process> = Arc::new(view::View {
            cx: Arc::clone(&cx),
            info,
        });
        let endpoints = endpoints.serve(&view, metrics_registry, log);
        let draining = Arc::clone(&cx);
        tasks.spawn(async move {
            draining.drain.reached(Phase::Unready).await;
            draining
                .tenants()
                .iter()
                .for_each(|tenant| tenant.drain_links());
        });
        let watched = cx.registry.clone();
        tasks.spawn(async move { watched.watch().await });
        tracing::info!(id = config.id, workers = config.workers, "serving");
        Ok(Self {
            cx,
            workers,
            sockets,
            endpoints,
            tasks,
            lease,
        })
    }

    /// Runs until the workers have ended.
    async fn run(mut self, mut signals: Signals) -> Result<(), Failure> {
        let mut changes = self.cx.registry.changes();
        let (mut stopping, mut signalled, mut forced) = (false, false, false);
        let mut failed = None;
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    Signal::Reload => self.cx.registry.reload(),
                    Signal::Stop if signalled => {
                        forced = true;
                        self.cx.drain.cut();
                    }
                    Signal::Stop => {
                        (stopping, signalled) = (true, true);
                        self.cx.drain.begin();
                    }
                },
                Ok(()) = changes.changed() => {
                    let wanted = self.cx.registry.current();
                    self.cx.sync(&wanted);
                    listen_unix(&mut self.sockets, &self.cx);
                }
                () = sleep(SOCKET_RETRY), if self.sockets.failed() > 0 => {
                    listen_unix(&mut self.sockets, &self.cx);
                }
                () = self.cx.drain.reached(Phase::Unready), if !stopping => stopping = true,
                worker = self.workers.ended() => match worker {
                    None => break,
                    Some(Ok(())) if stopping => {}
                    Some(ended) => {
                        let why = ended.err().unwrap_or_else(|| "it ended early".to_owned());
                        tracing::error!(why, "worker failed, shutting down");
                        failed.get_or_insert(why);
                        stopping = true;
                        self.cx.drain.begin();
                    }
                },
            }
        }
        self.end(forced, failed).await
    }

    async fn end(self, forced: bool, failed: Option<String>) -> Result<(), Failure> {
        drop(self.sockets);
        self.workers.join();
        drop((self.endpoints, self.tasks));
        if let Some((lease, stop)) = self.lease {
            drop(stop);
            // It bounds itself, and logs what goes wrong.
            drop(lease.await);
        }
        self.cx.access_log.close(LOG_TIMEOUT);
        tracing::info!("ended");
        match failed {
            Some(why) => Err(Failure::with_code(1, format!("a worker failed: {why}"))),
            None if forced => Err(Failure::with_code(1, "told to end twice: tunnels were cut")),
            None => Ok(()),
        }
    }
}

/// Runs one worker until its connections have ended.
async fn work(task: Task) -> std::io::Result<()> {
    let (accepting, mut unix) = (task.accepting, task.unix);
    let worker = Worker::new(task.cx, task.admission);
    tokio::task::spawn_local(Rc::clone(&worker).share_out());
    let for_sockets = Rc::clone(&worker);
    let sockets = tokio::task::spawn_local(async move {
        while let Some(listen) = unix.recv().await {
            tokio::task::spawn_local(Rc::clone(&for_sockets).listen_unix(listen));
        }
    });
    let for_ports = Rc::clone(&worker);
    let accept = move |stream, peer, port: &Port| for_ports.accepted(stream, peer, *port);
    let accepted = accept_all(&accepting, task.listeners, accept).await;
    // There may be no port at all, and then nothing was waited for.
    accepting.drain.reached(Phase::Closing).await;
    drop(accepting);
    sockets.abort();
    drop(task.accepts);
    worker.finish().await;
    accepted
}

/// Cuts `hard` a moment after `drain` was.
async fn cut_later(drain: Drain, hard: Drain) {
    drain.reached(Phase::Cut).await;
    sleep(CUT_TIMEOUT).await;
    hard.cut();
}

fn bind_ports(config: &ServerConfig) -> Result<(Vec<Port>, BoundListeners), Failure> {
    let addresses = [Some(config.agents), config.frontends];
    let with_address = Port::ALL.into_iter().zip(addresses);
    let (ports, params): (Vec<_>, Vec<_>) = with_address
        .filter_map(|(port, address)| {
            let params = ListenerParams {
                name: port.as_str().to_owned(),
                address: address?,
                tcp: TcpOptions {
                    notsent_lowat: match port {
                        Port::Agents => grpc::NOTSENT_LOWAT,
                        Port::Frontends => 0,
                    },
                    ..TcpOptions::default()
                },
            };
            Some((port, params))
        })
        .unzip();
    let bound = bind_all(&params, config.workers, Vec::new())?;
    Ok((ports, bound))
}

/// Binds the tenants' sockets, and logs and returns what failed for the first time in a row: a tenant whose
/// directory is missing is no reason not to serve the others.
fn listen_unix(sockets: &mut Sockets, cx: &Context) -> Vec<SocketError> {
    let failed = sockets.sync(&cx.registry.current());
    let count = i64::try_from(sockets.failed()).unwrap_or(i64::MAX);
    cx.metrics.registry_failed_sockets.set(count);
    for error in &failed {
        tracing::error!(error = %telemetry::chain(error), "listening on a tenant's socket failed");
    }
    failed
}

/// Keeps this server's lease, and returns how many servers have one.
fn keep_lease(
    params: ServerLeaseParams,
    metrics: Arc<ServerMetrics>,
) -> (LeaseTask, watch::Receiver<Option<u32>>) {
    let (lease, count) = ServerLease::new(params, metrics);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(lease.run(async { drop(stopped.await) }));
    ((task, stop), count)
}

/// A lease's task, which ends when the sender is dropped.
type LeaseTask = (JoinHandle<()>, oneshot::Sender<()>);

/// Connections of agents and frontends at most; descriptors allow fewer in most places.
const CONNECTIONS: u64 = 100_000;
/// Sockets that may wait for a worker to take them.
const SOCKETS: usize = 10_000;
/// How often sockets that could not be bound are tried again.
const SOCKET_RETRY: Duration = Duration::from_secs(5);
/// How long what is cut may take to end: tunnels to be logged, agents to be told.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the access log may take to be written at the end.
const LOG_TIMEOUT: Duration = Duration::from_millis(200);
