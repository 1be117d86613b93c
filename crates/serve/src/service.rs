//! A process once it serves: its workers, its endpoints, and the signals that end it.
//!
//! ```text
//!     signal ─▶ drain, cut, reload        changed ─▶ reload        workers ended ─▶ end
//! ```
//!
//! Runs on the control runtime of its caller. What is read again on a reload is the binary's.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use telemetry::{AccessLog, Bound, EndpointAddr, Endpoints, LogControl, Process, Registry};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::drain::{Drain, Phase};
use crate::handover::{OwnSockets, pass_over};
use crate::heap;
use crate::program::{Signal, Signals};
use crate::worker::{Asker, Workers};

/// How long buffered access-log lines may take to be written at the end.
const LOG_CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// How often a process that drains looks whether another one is there.
const LOOK: Duration = Duration::from_secs(1);

/// An endpoint for probes or operators could not be served.
#[derive(Debug, thiserror::Error)]
#[error("serving {what} on {address}")]
pub struct EndpointError {
    what: &'static str,
    address: EndpointAddr,
    #[source]
    source: io::Error,
}

/// A worker ended although the process was to go on.
#[derive(Debug, thiserror::Error)]
#[error("a worker failed: {0}")]
pub struct WorkerFailed(String);

/// A serving process.
#[derive(Debug)]
pub struct Service<T> {
    drain: Drain,
    workers: Workers<T>,
    access_log: AccessLog,
    tasks: Vec<JoinHandle<()>>,
    probes: EndpointAddr,
    admin: EndpointAddr,
}

/// The bound endpoints of probes and operators, which nobody answers yet.
#[derive(Debug)]
pub struct BoundEndpoints {
    probes: Bound,
    admin: Bound,
    /// The probes' socket, where others may be beside it.
    shared: Option<OwnSockets>,
}

impl BoundEndpoints {
    /// Binds both addresses: of `/healthz`, `/readyz`, `/metrics`, and of the same and all else.
    ///
    /// # Errors
    /// The one that could not be bound.
    pub fn bind(probes: EndpointAddr, admin: EndpointAddr) -> Result<Self, EndpointError> {
        Ok(Self {
            probes: bound("probes", probes, Bound::new)?,
            admin: bound("admin", admin, Bound::new)?,
            shared: None,
        })
    }

    /// As [`BoundEndpoints::bind`], and another process that does so as well may have the address of
    /// probes too. Whoever came last is asked there; when one of three or more has left, any of the others.
    /// A process that drains leaves it to the others. Operators' stays one process's own.
    ///
    /// # Errors
    /// As [`BoundEndpoints::bind`].
    pub fn bind_shared(probes: EndpointAddr, admin: EndpointAddr) -> Result<Self, EndpointError> {
        // First what may be refused because somebody else has it.
        let admin = bound("admin", admin, Bound::new)?;
        let probes = bound("probes", probes, Bound::shared)?;
        let mut shared = None;
        if let Some(socket) = probes.shared_socket()
            && let EndpointAddr::Tcp(address) = *probes.local_addr()
        {
            shared = OwnSockets::new(address, &[socket]).ok();
            let others = shared.as_ref().and_then(|own| own.others().ok());
            if others.is_some_and(|others| others.len() > 1) {
                tracing::warn!("several other processes serve at the address of probes");
            }
            if let Err(error) = pass_to_last(&socket, shared.as_ref()) {
                tracing::warn!(%error, "a process that ends may be asked for this one's readiness");
            }
        }
        Ok(Self {
            probes,
            admin,
            shared,
        })
    }
}

/// Has the kernel give what is new to a socket that has just joined others.
///
/// # Errors
/// What the kernel says.
pub fn pass_to_last(socket: &impl AsFd, own: Option<&OwnSockets>) -> io::Result<()> {
    let others = own.and_then(|own| own.others().ok());
    // Where nobody can see how many there are, one is likely.
    let before = others.map_or(1, |others| others.len().max(1));
    pass_over(socket, u32::try_from(before).unwrap_or(u32::MAX), 1)
}

/// Waits until a drain has come to `phase` and another process listens beside one of these sockets.
pub async fn succeeded(drain: Drain, phase: Phase, own: impl AsRef<[OwnSockets]>) {
    drain.reached(phase).await;
    while !OwnSockets::are_shared(own.as_ref()) {
        sleep(LOOK).await;
    }
}

fn bound(
    what: &'static str,
    address: EndpointAddr,
    bind: impl FnOnce(&EndpointAddr) -> io::Result<Bound>,
) -> Result<Bound, EndpointError> {
    bind(&address).map_err(|source| EndpointError {
        what,
        address,
        source,
    })
}

impl<T: Send + 'static> Service<T> {
    /// Takes charge of running workers.
    #[must_use]
    pub fn new(drain: Drain, workers: Workers<T>, access_log: AccessLog) -> Self {
        let (probes, admin) = (EndpointAddr::None, EndpointAddr::None);
        Self {
            drain,
            workers,
            access_log,
            tasks: Vec::new(),
            probes,
            admin,
        }
    }

    /// Returns something to ask the workers with.
    #[must_use]
    pub fn asker(&self) -> Asker {
        self.workers.asker()
    }

    /// Returns the handle by which the process is drained or cut.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Returns where probes answer.
    #[must_use]
    pub fn probes_address(&self) -> &EndpointAddr {
        &self.probes
    }

    /// Returns where operators look in.
    #[must_use]
    pub fn admin_address(&self) -> &EndpointAddr {
        &self.admin
    }

    /// Starts answering probes and operators on the current runtime; `registry` is what is
    /// scraped, `log` what `/log` sets.
    pub fn answer(
        &mut self,
        endpoints: BoundEndpoints,
        process: &Arc<dyn Process>,
        registry: Registry,
        log: LogControl,
    ) {
        let BoundEndpoints {
            probes,
            admin,
            shared,
        } = endpoints;
        let answers = Endpoints::probes(Arc::clone(process), registry.clone(), log.clone());
        self.probes = self.answer_on("probes", probes, answers, shared);
        let answers = Endpoints::admin(Arc::clone(process), registry, log);
        self.admin = self.answer_on("admin", admin, answers, None);
    }

    /// Keeps a task of the control runtime for as long as the process serves.
    pub fn keep(&mut self, task: JoinHandle<()>) {
        self.tasks.push(task);
    }

    /// Gives the workers their tasks: connections are accepted from here on.
    pub fn start(&mut self, tasks: Vec<T>) {
        self.workers.start(tasks);
    }

    /// Runs until the workers have ended and, when signals are acted on, one asked to stop.
    ///
    /// `changed` resolves when `reload` is due; it must be cancel-safe.
    ///
    /// # Errors
    /// A worker ended that should not have: the process drained then, so that another can take
    /// its place.
    pub async fn run(
        mut self,
        mut signals: Option<Signals>,
        mut changed: impl AsyncFnMut(),
        mut reload: impl FnMut(),
    ) -> Result<(), WorkerFailed> {
        let freed = Arc::new(Notify::new());
        self.keep(tokio::spawn(heap::give_back(Arc::clone(&freed))));
        // What was read before is dropped then.
        let mut reload = || {
            reload();
            freed.notify_one();
        };
        let mut stopping = signals.is_none();
        let mut ended = false;
        let mut failed = None;
        while !(stopping && ended) {
            let signal = async {
                match &mut signals {
                    Some(signals) => signals.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                signal = signal => match signal {
                    Signal::Reload => reload(),
                    Signal::Stop if stopping => self.drain.cut(),
                    Signal::Stop => {
                        stopping = true;
                        self.drain.begin();
                    }
                },
                () = changed() => reload(),
                worker = self.workers.ended(), if !ended => {
                    let early = self.drain.phase() < Phase::Closing;
                    let why = match worker {
                        None => {
                            ended = true;
                            early.then(|| "every worker ended".to_owned())
                        }
                        Some(Ok(())) => early.then(|| "a worker ended early".to_owned()),
                        Some(Err(why)) => Some(why),
                    };
                    if let Some(why) = why {
                        tracing::error!(why, "a worker failed, the process ends");
                        failed.get_or_insert(WorkerFailed(why));
                        stopping = true;
                        self.drain.begin();
                    }
                }
            }
        }
        for task in &self.tasks {
            task.abort();
        }
        self.workers.join();
        self.access_log.close(LOG_CLOSE_LIMIT);
        tracing::info!("ended");
        failed.map_or(Ok(()), Err)
    }

    fn answer_on(
        &mut self,
        what: &'static str,
        bound: Bound,
        endpoints: Endpoints,
        shared: Option<OwnSockets>,
    ) -> EndpointAddr {
        let local = bound.local_addr().clone();
        let left = succeeded(
            self.drain.clone(),
            Phase::Unready,
            shared.into_iter().collect::<Vec<_>>(),
        );
        if local != EndpointAddr::None {
            tracing::info!(address = %local, "serving {what}");
            self.tasks.push(tokio::spawn(async move {
                match endpoints.serve(bound, left).await {
                    Ok(()) => tracing::info!("{what} are left to another process"),
                    Err(error) => tracing::error!(%error, "no longer serving {what}"),
                }
            }));
        }
        local
    }
}
