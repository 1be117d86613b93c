//! The agent: runs where destinations can be reached, and opens connections for its servers.
//!
//! ```text
//!   control thread                          data thread
//!     signals, files, leases ── drain ───▶    worker ──▶ links ──▶ tunnels ──▶ destinations
//!     probes, admin ◀────────── Board ──────────┘          ▲
//!                                                        servers
//! ```
//!
//! It listens for probes and operators only. When told to stop it asks its servers to dial
//! others, serves what still comes, and ends once it is idle or its time is up.

mod board;
mod config;
mod connect;
mod dial;
mod health;
mod server_link;
mod trust;
mod tunnel;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use relay::PoolParams;
use serve::{
    BoundEndpoints, Drain, DrainParams, Failure, Phase, ProcessInfo, ServedEndpoints, Signal,
    Signals, Threads, Workers, program,
};
use telemetry::{EndpointAddr, LogControl, Process, Registry};
use tls::ClientTls;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use config::{AgentConfig, ConnectParams, CountSource};
pub use dial::{AllowedRange, AllowedRangeError, DialParams};
pub use trust::TrustError;
pub(crate) use trust::load as load_trust;

use board::Board;
use health::Health;
use worker::Task;

use crate::lease::LeaseCount;
use crate::metrics::{AGENT_BUILD, AgentMetrics};

/// A running agent. Dropping it ends it.
struct Agent {
    drain: Drain,
    reloads: watch::Sender<()>,
    tls: ClientTls,
    workers: Workers<Task>,
    tasks: JoinSet<()>,
    endpoints: ServedEndpoints,
}

impl Agent {
    /// Starts an agent; the current runtime serves its probes and watches its files.
    ///
    /// # Errors
    /// What it is given cannot be used. That no server is reached is none.
    fn start(config: AgentConfig, log: LogControl) -> Result<Self, Failure> {
        let config = Arc::new(config);
        let registry = Registry::new();
        let metrics = AgentMetrics::new(&registry);
        log.register(&registry);
        telemetry::process::register(&registry, AGENT_BUILD);
        let tls = trust::load(&config).map_err(Failure::configuration)?;
        tls.count_in(&tls::Metrics::new(&registry), "servers");
        let (probes, admin) = (config.health, config.admin);
        let endpoints = BoundEndpoints::bind(EndpointAddr::Tcp(probes), EndpointAddr::Tcp(admin))?;
        let board = Board::default();
        let drain = Drain::new(DrainParams {
            delay: Duration::ZERO,
            timeout: config.grace,
        });
        let reloads = watch::Sender::default();
        let mut tasks = JoinSet::new();
        let leases = match &config.leases {
            Some(params) => {
                let (counting, count) = LeaseCount::new(params.clone(), metrics.clone());
                tasks.spawn(counting.run());
                count
            }
            None => watch::channel(None).1,
        };
        let task = Task {
            config: Arc::clone(&config),
            tls: tls.clone(),
            metrics,
            board: board.clone(),
            drain: drain.clone(),
            reloads: reloads.subscribe(),
            leases,
        };
        let run = async |_, task: Task| {
            worker::run(task).await;
            Ok(())
        };
        // It follows the drain by itself, and is never cut.
        let never = Drain::new(DrainParams::default());
        let mut workers = Workers::prepare("data", 1, PoolParams::COPYING, &never, run)
            .map_err(|error| Failure::with_code(1, format!("starting the data thread: {error}")))?;
        workers.start(vec![task]);
        let info = ProcessInfo::new(AGENT_BUILD, drain.clone());
        let health: Arc<dyn Process> = Arc::new(Health {
            config,
            board,
            info,
        });
        let watched = tls.clone();
        tasks.spawn(async move { watched.watch().await });
        Ok(Self {
            drain,
            reloads,
            tls,
            workers,
            tasks,
            endpoints: endpoints.serve(&health, registry, log),
        })
    }

    /// Reads certificates, authorities and the resolver's configuration again.
    fn reload(&self) {
        if let Err(error) = self.tls.reload() {
            tracing::warn!(error = %telemetry::chain(&error), "reload failed, keeping the previous certificates");
        }
        self.reloads.send_replace(());
    }

    /// Runs until the agent has drained, acting on signals from `next`, which is cancel-safe.
    async fn run(mut self, mut next: impl AsyncFnMut() -> Signal) -> Result<(), Failure> {
        // Not the same as draining, which an operator may have begun.
        let mut signalled = false;
        let ended = loop {
            tokio::select! {
                ended = self.workers.ended() => break ended,
                signal = next() => match signal {
                    Signal::Reload => self.reload(),
                    Signal::Stop if signalled => {
                        return Err(Failure::with_code(1, "ended by a second signal"));
                    }
                    Signal::Stop => {
                        signalled = true;
                        self.drain.begin();
                    }
                }
            }
        };
        if self.drain.phase() == Phase::Serving || ended != Some(Ok(())) {
            return Err(Failure::with_code(1, "the data thread failed"));
        }
        drop((self.endpoints, self.tasks));
        self.workers.join();
        tracing::info!("ended");
        Ok(())
    }
}

/// Runs an agent for as long as the process lives: what `konnectivity-agent` does.
///
/// # Errors
/// What the configuration points to cannot be used, or the process cannot go on.
pub fn run(config: AgentConfig, log: LogControl) -> Result<(), Failure> {
    program::block_on(Threads::Main, async || {
        let mut signals = Signals::new()?;
        let agent = Agent::start(config, log)?;
        agent.run(async || signals.next().await).await
    })
}

#[cfg(test)]
mod tests;
