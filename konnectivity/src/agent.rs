//! The agent: runs where destinations can be reached, and opens connections for its servers.
//!
//! ```text
//!   control thread                          data thread
//!     signals, files, leases ── orders ──▶    worker ──▶ links ──▶ tunnels ──▶ destinations
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

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use serve::{
    BoundEndpoints, EndpointError, Failure, ServedEndpoints, Signal, Signals, Threads, program,
};
use telemetry::{EndpointAddr, LogControl, Process, Registry};
use tls::ClientTls;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::sleep;

pub use config::{
    AgentConfig, ConnectParams, CountSource, DrainParams, LeaseParams, LivenessParams,
};
pub use dial::{Allowed, AllowedRange, AllowedRangeError, DialParams};
pub use trust::TrustError;

use board::Board;
use health::Health;
use worker::{Orders, Phase, Task};

use crate::api_server::ApiServer;
use crate::lease::{LeaseCount, LeaseCountParams};
use crate::metrics::{AGENT_BUILD, AgentMetrics};

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address for probes or operators could not be bound.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The system refused something else.
    #[error("{attempt}")]
    System {
        /// What was tried.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Certificates or authorities cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

impl StartError {
    /// Returns whether what the configuration points to cannot be used.
    fn is_configuration(&self) -> bool {
        matches!(self, Self::Trust(_))
    }
}

/// How an agent ended other than as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndError {
    /// It was told to end at once.
    #[error("ended by a second signal")]
    Cut,
    /// The data thread ended by itself.
    #[error("the data thread failed")]
    Failed,
}

/// A running agent. Dropping it ends it.
#[derive(Debug)]
pub struct Agent {
    config: Arc<AgentConfig>,
    orders: Arc<watch::Sender<Orders>>,
    tls: ClientTls,
    thread: Option<JoinHandle<()>>,
    ended: oneshot::Receiver<()>,
    tasks: Vec<AbortHandle>,
    endpoints: ServedEndpoints,
}

impl Agent {
    /// Starts an agent; the current runtime serves its probes and watches its files.
    ///
    /// # Errors
    /// See [`StartError`]. That no server is reached is none.
    pub fn start(config: AgentConfig, log: LogControl) -> Result<Self, StartError> {
        let config = Arc::new(config);
        let registry = Registry::new();
        let metrics = AgentMetrics::new(&registry);
        log.register(&registry);
        telemetry::process::register(&registry, AGENT_BUILD);
        let tls = trust::load(&config)?;
        tls.count_in(&tls::Metrics::new(&registry), "servers");
        let endpoints = BoundEndpoints::bind(config.health.clone(), config.admin.clone())?;
        let board = Board::default();
        let orders = Arc::new(watch::Sender::new(Orders::default()));
        let (counting, leases) = match &config.leases {
            Some(params) => {
                let (counting, count) = count_leases(params, &metrics);
                (Some(counting), count)
            }
            None => (None, watch::channel(None).1),
        };
        let (ending, ended) = oneshot::channel();
        let task = Task {
            config: Arc::clone(&config),
            tls: tls.clone(),
            metrics,
            board: board.clone(),
            orders: orders.subscribe(),
            leases,
        };
        let thread = start_thread(task, ending)?;
        let orders_of_health = Arc::clone(&orders);
        let health = Health::new(Arc::clone(&config), board, move || {
            begin_drain(&orders_of_health);
        });
        let health: Arc<dyn Process> = Arc::new(health);
        let mut agent = Self {
            orders,
            tls: tls.clone(),
            thread: Some(thread),
            ended,
            tasks: Vec::new(),
            endpoints: endpoints.serve(&health, registry, log),
            config,
        };
        agent.keep(async move { tls.watch().await });
        if let Some(counting) = counting {
            agent.keep(counting.run());
        }
        Ok(agent)
    }

    /// Returns where probes are answered.
    #[must_use]
    pub fn health_address(&self) -> &EndpointAddr {
        &self.endpoints.probes
    }

    /// Returns where operators look in.
    #[must_use]
    pub fn admin_address(&self) -> &EndpointAddr {
        &self.endpoints.admin
    }

    /// Begins to drain. Called again, it does nothing more.
    pub fn drain(&self) {
        begin_drain(&self.orders);
    }

    /// Reads certificates, authorities and the resolver's configuration again.
    pub fn reload(&self) {
        if let Err(error) = self.tls.reload() {
            tracing::warn!(error = %telemetry::chain(&error), "reload failed, keeping the previous certificates");
        }
        self.orders.send_modify(|orders| orders.reloads += 1);
    }

    /// Runs until the agent has drained, acting on `signals` if they are given.
    ///
    /// # Errors
    /// See [`EndError`].
    pub async fn run(self, signals: Option<Signals>) -> Result<(), EndError> {
        match signals {
            Some(mut signals) => self.run_on(async || signals.next().await).await,
            None => self.run_on(std::future::pending).await,
        }
    }

    /// As [`Agent::run`], with signals from `next`, which is cancel-safe.
    async fn run_on(mut self, mut next: impl AsyncFnMut() -> Signal) -> Result<(), EndError> {
        let mut orders = self.orders.subscribe();
        let draining = async move {
            // The sender lives as long as the agent.
            let _ = orders
                .wait_for(|orders| orders.phase >= Phase::Draining)
                .await;
        };
        let grace = self.config.drain.grace;
        let mut time_is_up = std::pin::pin!(async move {
            draining.await;
            sleep(grace).await;
        });
        // Not the same as draining, which an operator may have begun.
        let mut signalled = false;
        loop {
            tokio::select! {
                _ = &mut self.ended => break,
                () = &mut time_is_up, if self.phase() < Phase::Ending => {
                    tracing::info!(?grace, "drain timed out");
                    // What is left of its streams ends within a moment.
                    self.end();
                }
                signal = next() => match signal {
                    Signal::Reload => self.reload(),
                    Signal::Stop if signalled => return Err(EndError::Cut),
                    Signal::Stop => {
                        signalled = true;
                        self.drain();
                    }
                }
            }
        }
        let drained = self.phase() > Phase::Serving;
        let joined = self
            .thread
            .take()
            .is_none_or(|thread| thread.join().is_ok());
        if drained && joined {
            tracing::info!("ended");
            return Ok(());
        }
        Err(EndError::Failed)
    }

    fn phase(&self) -> Phase {
        self.orders.borrow().phase
    }

    fn end(&self) {
        let phase = Phase::Ending;
        self.orders.send_modify(|orders| orders.phase = phase);
    }

    fn keep(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(tokio::spawn(task).abort_handle());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Prepares to count servers by their leases.
fn count_leases(
    params: &LeaseParams,
    metrics: &AgentMetrics,
) -> (LeaseCount, watch::Receiver<Option<u32>>) {
    let which = LeaseCountParams {
        namespace: params.namespace.clone(),
        selector: params.selector.clone(),
    };
    let api = ApiServer::new(params.kubeconfig.clone());
    LeaseCount::new(api, which, Arc::new(metrics.clone()))
}

/// Runs an agent for as long as the process lives: what `konnectivity-agent` does.
///
/// # Errors
/// What the configuration points to cannot be used, or the process cannot go on.
pub fn run(config: AgentConfig, log: LogControl) -> Result<(), Failure> {
    program::block_on(Threads::Main, async || {
        let signals = Signals::new()?;
        let agent = Agent::start(config, log);
        let agent = agent.map_err(|error| Failure::of(error, StartError::is_configuration))?;
        Ok(agent.run(Some(signals)).await?)
    })
}

fn begin_drain(orders: &watch::Sender<Orders>) {
    orders.send_if_modified(|orders| {
        let begins = orders.phase == Phase::Serving;
        if begins {
            tracing::info!("draining");
            orders.phase = Phase::Draining;
        }
        begins
    });
}

/// Starts the data thread. `ending` is dropped when it ends, however it does.
fn start_thread(task: Task, ending: oneshot::Sender<()>) -> Result<JoinHandle<()>, StartError> {
    let attempt = "starting the data thread";
    let failed = |source| StartError::System { attempt, source };
    let (prepared, preparation) = std::sync::mpsc::sync_channel(1);
    let thread = move || {
        let _ending = ending;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(tokio::runtime::LocalOptions::default());
        match runtime {
            Ok(runtime) => {
                drop(prepared.send(Ok(())));
                runtime.block_on(worker::run(task));
            }
            Err(error) => drop(prepared.send(Err(error))),
        }
    };
    let thread = std::thread::Builder::new()
        .name("data-0".to_owned())
        .spawn(thread)
        .map_err(failed)?;
    let prepared = preparation
        .recv()
        .map_err(io::Error::other)
        .map_err(failed)?;
    prepared.map_err(failed)?;
    Ok(thread)
}

#[cfg(test)]
mod tests;
