//! The server as one running thing: started from a configuration, drained, ended.
//!
//! ```text
//!   certificates ─▶ probes, admin, proxy, tunnel's port bound ─▶ workers ─▶ listening ─▶ run
//!                                                    keys and peers watched ─┘
//! ```
//!
//! Runs on the control runtime of its caller, which accepts tunnels too; the proxy's connections are the
//! workers', packets the tunnel's.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use relay::PoolParams;
use route::TcpOptions;
use serve::{
    Accepting, Admission, BindError, BoundEndpoints, BoundListeners, Drain, DrainParams,
    ListenerParams, Phase, ProcessInfo, Service, Signals, WorkerHandle, WorkerSocket, Workers,
    accept_all, bind_all, connection_limit,
};
use telemetry::access_log::Sink;
use telemetry::metrics::Counter;
use telemetry::{AccessLog, EndpointAddr, LogControl, Process, Registry};
use tls::ServerTls;
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::timeout;
use tunnel::Identity;

use crate::config::Config;
use crate::error::ServerError;
use crate::identity::Keeper;
use crate::link::Link;
use crate::links::{Links, LinksParams};
use crate::metrics::{BUILD, Instruments};
use crate::proxy::{self, Shared, Shoot};
use crate::view::View;

/// How long the tunnels may take to end with the process.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// What a server works with.
pub struct Parts<L> {
    /// The shoot as the proxy reaches it.
    pub shoot: Shoot,
    /// The tunnels.
    pub link: L,
    /// The keys and peers that they began with.
    pub identity: Identity,
    /// Where metrics are registered.
    pub registry: Registry,
    /// What `/log` sets.
    pub log: LogControl,
}

/// A running server.
pub struct Server<L> {
    link: L,
    service: Service<Task>,
    tls: ServerTls,
    /// Has keys and peers read again.
    asked: Arc<Notify>,
    proxy: SocketAddr,
    tunnel: Option<SocketAddr>,
    links: Option<Port>,
}

/// What a worker thread is given.
type Task = (Arc<Shared>, WorkerSocket);

/// The tunnel's port.
struct Port {
    socket: WorkerSocket,
    params: LinksParams,
    paused: Counter,
}

impl<L: Link> Server<L> {
    /// Starts the server on the current runtime. When it returns, it listens.
    ///
    /// # Errors
    /// Why it did not start; nothing of it is left running then, but for the tunnels.
    pub fn start(config: Config, parts: Parts<L>) -> Result<Self, ServerError> {
        let link = parts.link;
        let system = |attempt| move |source| ServerError::System { attempt, source };
        let access_log = AccessLog::new(config.access_log.format, Sink::Stdout)
            .map_err(system("starting the access log"))?;
        let instruments = Instruments::new(&parts.registry, &access_log, &parts.log);
        let tls = ServerTls::load(config.tls())?;
        tls.count_in(&instruments.tls, "proxy");
        // Whatever may fail goes before listening: another process on the same ports must not lose
        // connections to one that does not come up.
        let probes = EndpointAddr::Tcp(config.probes.address());
        let endpoints = BoundEndpoints::bind(probes, config.admin.address.clone())?;
        let address = config.proxy.address.get();
        let own = listener(proxy::LISTENER, address, &config.proxy.tcp_options);
        let bound = bind_all(&[own], config.workers, Vec::new())?;
        let tunnel = bind_tunnel(&config)?;
        let limit = connection_limit(config.proxy.connections, 0);
        let admission = Admission::new(limit, config.proxy.connections_per_source);
        let drain = Drain::new(DrainParams {
            delay: config.drain.delay.0,
            timeout: config.drain.timeout.0,
        });
        // TLS is in between: nothing is spliced.
        let pool = PoolParams::COPYING;
        let workers = Workers::prepare("worker", config.workers, pool, &drain, work)
            .map_err(system("preparing the workers"))?;
        for bound in tunnel.iter().chain([&bound]) {
            bound.listen().map_err(system("listening"))?;
        }
        let (proxy, tunnel_address) = (first(&bound), tunnel.as_ref().and_then(first));
        let mut service = Service::new(drain.clone(), workers, access_log.clone());
        let asked = Arc::new(Notify::new());
        let keeper = Keeper {
            config: config.clone(),
            current: parts.identity,
            asked: Arc::clone(&asked),
            reloads: instruments.keys.clone(),
            good: instruments.keys_good.clone(),
            config_good: instruments.config_good.clone(),
        };
        let view: Arc<dyn Process> = Arc::new(View {
            info: ProcessInfo::new(BUILD, drain.clone()),
            config: config.effective(),
            proxy: proxy.unwrap_or(address),
            admission: Arc::clone(&admission),
            listeners: instruments.listeners.clone(),
            asker: service.asker(),
            status: link.watch(),
        });
        service.answer(endpoints, &view, parts.registry, parts.log);
        let paused = instruments.listeners.accept_paused.clone();
        let links = tunnel.and_then(|bound| bound.per_worker.into_iter().flatten().next());
        let links = links.map(|socket| Port {
            socket,
            params: links_params(&link, &config, &instruments),
            paused: paused.clone(),
        });
        let accepting = Accepting::new(drain.clone(), paused);
        let shared = Arc::new(Shared {
            config: config.proxy,
            limits: config.limits,
            shoot: parts.shoot,
            tls: tls.clone(),
            status: link.watch(),
            admission,
            accepting,
            listeners: instruments.listeners,
            metrics: instruments.proxy,
            access_log,
        });
        let sockets = bound.per_worker.into_iter().flatten();
        service.start(sockets.map(|own| (Arc::clone(&shared), own)).collect());
        keep(&mut service, &link, &tls, keeper, drain);
        Ok(Self {
            link,
            service,
            tls,
            asked,
            proxy: proxy.unwrap_or(address),
            tunnel: tunnel_address,
            links,
        })
    }

    /// Returns where the proxy listens.
    #[must_use]
    pub fn proxy_address(&self) -> SocketAddr {
        self.proxy
    }

    /// Returns where tunnels over TCP come in, if they do.
    #[must_use]
    pub fn tunnel_address(&self) -> Option<SocketAddr> {
        self.tunnel
    }

    /// Returns where probes answer.
    #[must_use]
    pub fn probes_address(&self) -> &EndpointAddr {
        &self.service.endpoints().probes
    }

    /// Returns where operators look in.
    #[must_use]
    pub fn admin_address(&self) -> &EndpointAddr {
        &self.service.endpoints().admin
    }

    /// Returns the handle by which it is drained or cut.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        self.service.drain()
    }

    /// Runs until everything has ended: after a stop signal, or, without `signals`, once drained.
    /// Then the tunnels are stopped.
    ///
    /// # Errors
    /// The tunnels or a worker ended early.
    pub async fn run(self, signals: Option<Signals>) -> Result<(), ServerError> {
        let mut status = self.link.watch();
        let tunnels = async { while status.changed().await.is_ok() {} };
        let served = self.service.run(
            signals,
            async || pending().await,
            || {
                self.asked.notify_one();
                if let Err(error) = self.tls.reload() {
                    let error = telemetry::chain(&error);
                    tracing::error!(%error, "keeping the previous certificates");
                }
            },
        );
        let links = LocalSet::new();
        let ended = links.run_until(async {
            tokio::select! {
                served = served => served.map_err(ServerError::from),
                () = tunnels => Err(ServerError::TunnelsEnded),
                failed = accept_links(self.links) => failed,
            }
        });
        let ended = ended.await;
        if timeout(STOP_LIMIT, self.link.stop()).await.is_err() {
            tracing::warn!("the tunnels did not end in time");
        }
        ended
    }
}

/// Runs one worker until the process no longer accepts.
async fn work(handle: WorkerHandle, (shared, socket): Task) -> io::Result<()> {
    proxy::run(shared, handle, socket).await
}

/// Accepts clients until the process ends: they may have to connect again until the very end. Needs a
/// [`LocalSet`].
async fn accept_links(port: Option<Port>) -> Result<(), ServerError> {
    let Some(port) = port else {
        return pending().await;
    };
    let accepting = Accepting::new(Drain::new(DrainParams::default()), port.paused);
    let links = Links::new(port.params);
    let accepted = accept_all(
        &accepting,
        vec![(port.socket, ())],
        move |stream, peer, ()| {
            links.accepted(stream, peer);
        },
    );
    accepted.await.map_err(|source| ServerError::System {
        attempt: "accepting clients",
        source,
    })
}

fn listener(name: &str, address: SocketAddr, tcp: &TcpOptions) -> ListenerParams {
    ListenerParams {
        name: name.to_owned(),
        address,
        tcp: tcp.clone(),
    }
}

fn bind_tunnel(config: &Config) -> Result<Option<BoundListeners>, BindError> {
    let own = config.listen.tcp;
    let own = own.map(|address| listener("tunnel", address.0, &config.tcp_options));
    own.map(|own| bind_all(&[own], 1, Vec::new())).transpose()
}

fn first(bound: &BoundListeners) -> Option<SocketAddr> {
    bound.addresses.first().copied()
}

fn links_params<L: Link>(link: &L, config: &Config, instruments: &Instruments) -> LinksParams {
    let link_to = link.clone();
    LinksParams {
        accept: Box::new(move |stream, from| link_to.accept(stream, from)),
        status: link.watch(),
        limits: config.limits,
        ended: instruments.links.clone(),
    }
}

/// Starts what goes on for as long as the process serves.
fn keep<L: Link>(
    service: &mut Service<Task>,
    link: &L,
    tls: &ServerTls,
    keeper: Keeper,
    drain: Drain,
) {
    service.keep(tokio::spawn(keeper.run(link.clone())));
    let tls = tls.clone();
    service.keep(tokio::spawn(async move { tls.watch().await }));
    let link = link.clone();
    service.keep(tokio::spawn(async move {
        drain.reached(Phase::Unready).await;
        link.drain().await;
    }));
}
