//! A process while it serves: its workers, its endpoints, and the signals that end it.
//!
//! ```text
//!     signal ─▶ drain, cut, reload        changed ─▶ reload        workers ended ─▶ end
//! ```
//!
//! Runs on the control runtime of its caller. What a reload reads is the binary's.

use std::sync::Arc;
use std::time::Duration;

use telemetry::{AccessLog, LogControl, Process, Registry};
use tokio::task::JoinHandle;

use crate::drain::{Drain, Phase};
use crate::endpoints::{BoundEndpoints, ServedEndpoints};
use crate::program::{Signal, Signals};
use crate::worker::{Asker, Workers};

/// How long buffered access-log lines may take to be written at the end.
const LOG_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker ended early.
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
    endpoints: ServedEndpoints,
}

impl<T: Send + 'static> Service<T> {
    /// Supervises running workers.
    pub fn new(drain: Drain, workers: Workers<T>, access_log: AccessLog) -> Self {
        Self {
            drain,
            workers,
            access_log,
            tasks: Vec::new(),
            endpoints: ServedEndpoints::default(),
        }
    }

    /// Returns something to ask the workers with.
    pub fn asker(&self) -> Asker {
        self.workers.asker()
    }

    /// Returns the handle by which the process is drained or cut.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Returns where probes and operators are answered.
    pub fn endpoints(&self) -> &ServedEndpoints {
        &self.endpoints
    }

    /// Starts serving probes and operators on the current runtime; `registry` is scraped, `/log` sets
    /// `log`.
    pub fn answer(
        &mut self,
        endpoints: BoundEndpoints,
        process: &Arc<dyn Process>,
        registry: Registry,
        log: LogControl,
    ) {
        let drain = Some(self.drain.clone());
        self.endpoints = endpoints.serve_until(process, registry, log, drain);
    }

    /// Keeps a task of the control runtime for as long as the process serves.
    pub fn keep(&mut self, task: JoinHandle<()>) {
        self.tasks.push(task);
    }

    /// Hands the workers their tasks: connections are accepted from here on.
    pub fn start(&mut self, tasks: Vec<T>) {
        self.workers.start(tasks);
    }

    /// Runs until the workers have ended, nothing more is handed over and, when signals are acted on, one asked to
    /// stop.
    ///
    /// `changed` resolves when `reload` is due; it must be cancel-safe.
    ///
    /// # Errors
    /// A worker ended early: the process drained then, so that another one can replace it.
    pub async fn run(
        mut self,
        mut signals: Option<Signals>,
        mut changed: impl AsyncFnMut(),
        mut reload: impl FnMut(),
    ) -> Result<(), WorkerFailed> {
        let mut stopping = signals.is_none();
        let mut ended = false;
        let mut failed = None;
        let mut handover = self.drain.watch_handover();
        let may_end =
            |drain: &Drain, stopping| (stopping || drain.exits()) && !drain.is_handing_over();
        while !(ended && may_end(&self.drain, stopping)) {
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
                Ok(()) = handover.changed() => {}
                () = self.drain.reached(Phase::Cut), if ended && self.drain.is_handing_over() => {}
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
                        tracing::error!(why, "worker failed, ending the process");
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
        drop(self.endpoints);
        self.workers.join();
        self.access_log.close(LOG_CLOSE_TIMEOUT);
        tracing::info!("ended");
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use relay::PoolParams;
    use telemetry::AccessFormat;
    use telemetry::access_log::Sink;
    use tokio::time::timeout;

    use super::*;
    use crate::drain::DrainParams;

    #[tokio::test]
    async fn drained_process_stays_while_it_hands_over() {
        let ends: [fn(&Drain); 3] = [
            |drain| drain.hand_over_begins(false),
            |drain| drain.hand_over(false),
            Drain::cut,
        ];
        for end in ends {
            let drain = Drain::new(DrainParams {
                delay: Duration::ZERO,
                timeout: Duration::from_secs(3600),
            });
            let pool = PoolParams::for_workers(1);
            let closing = drain.clone();
            let run = async move |_, ()| {
                closing.reached(Phase::Closing).await;
                Ok(())
            };
            let workers = Workers::prepare("test", 1, pool, &drain, run).unwrap();
            let log = AccessLog::new(AccessFormat::Off, Sink::Stdout).unwrap();
            let mut service = Service::new(drain.clone(), workers, log);
            service.start(vec![()]);
            drain.hand_over_begins(true);
            drain.begin();
            let mut run = pin!(service.run(None, async || pending().await, || {}));
            let soon = Duration::from_millis(100);
            timeout(soon, &mut run).await.expect_err("it hands over");
            end(&drain);
            let limit = Duration::from_secs(60);
            timeout(limit, &mut run).await.unwrap().unwrap();
        }
    }
}
