//! The worker threads, each with a single-threaded runtime of its own.
//!
//! ```text
//!     Workers::start ─▶ thread 0..n: LocalRuntime ─▶ the binary's worker function
//!     control ── list(limit) ─▶ every worker ─▶ its connections
//! ```
//!
//! Connections never move between threads. Control asks workers by message and never waits
//! longer than a bound for their answer.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use relay::{Pool, PoolParams};
use tokio::runtime::LocalRuntime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::connections::{ConnectionSummary, Connections};
use crate::drain::{Drain, Phase};
use crate::heap;

/// How often a worker gives back what a burst left.
const TRIM: Duration = Duration::from_secs(10);

/// How long control waits for a busy worker's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Questions that may wait for one worker.
const QUESTIONS: usize = 4;

/// What a worker's function gets.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    /// Which worker this is, from 0.
    pub index: usize,
    /// The thread's connections.
    pub connections: Rc<Connections>,
    /// The thread's pipes and scratch buffer.
    pub pool: Rc<Pool>,
}

/// The worker threads.
#[derive(Debug)]
pub struct Workers<T> {
    threads: Vec<JoinHandle<()>>,
    tasks: Vec<oneshot::Sender<T>>,
    questions: Vec<mpsc::Sender<Question>>,
    ended: mpsc::Receiver<Result<(), String>>,
}

/// Asks a worker for up to so many of its connections.
struct Question {
    limit: usize,
    answer: oneshot::Sender<Vec<ConnectionSummary>>,
}

impl<T: Send + 'static> Workers<T> {
    /// Starts `count` threads, each with its runtime, which wait for their task: what may fail of
    /// them has failed when this returns. Each then runs its task until it returns (the accept
    /// loops have ended) and then until its connections have ended or were cut.
    ///
    /// # Errors
    /// What the kernel says when a thread or its runtime cannot be created; none is left then.
    pub fn prepare<F>(
        name: &str,
        count: usize,
        pool: PoolParams,
        drain: &Drain,
        run: F,
    ) -> io::Result<Self>
    where
        F: AsyncFn(WorkerHandle, T) -> io::Result<()> + Clone + Send + 'static,
    {
        let (ending, ended) = mpsc::channel(2 * count.max(1));
        let (threads, tasks, questions) = (Vec::new(), Vec::new(), Vec::new());
        let mut workers = Self {
            threads,
            tasks,
            questions,
            ended,
        };
        for index in 0..count {
            let (asker, questions) = mpsc::channel(QUESTIONS);
            let (giver, task) = oneshot::channel();
            let (ready, prepared) = std::sync::mpsc::sync_channel(1);
            let (drain, run, ending) = (drain.clone(), run.clone(), ending.clone());
            let thread = move || {
                let runtime = match local_runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                drop(ready.send(Ok(())));
                let result = runtime.block_on(async {
                    let Ok(task) = task.await else { return Ok(()) };
                    let handle = WorkerHandle {
                        index,
                        connections: Rc::default(),
                        pool: Rc::new(Pool::new(pool)),
                    };
                    work(handle, task, run, drain, questions, &ending).await
                });
                // Nobody listens any more when the process is on its way out already.
                let _ = ending.try_send(result.map_err(|error| error.to_string()));
            };
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(thread)?;
            workers.threads.push(thread);
            workers.tasks.push(giver);
            workers.questions.push(asker);
            prepared.recv().map_err(io::Error::other)??;
        }
        Ok(workers)
    }

    /// Gives every worker its task; there must be one for each.
    pub fn start(&mut self, tasks: Vec<T>) {
        debug_assert_eq!(self.tasks.len(), tasks.len(), "each worker has one task");
        for (worker, task) in self.tasks.drain(..).zip(tasks) {
            // A worker waits for its task and can only be gone if it panicked, which shows below.
            let _ = worker.send(task);
        }
    }

    /// Waits until a worker has ended, and says how; `None` when none is left. Cancel-safe.
    pub async fn ended(&mut self) -> Option<Result<(), String>> {
        self.ended.recv().await
    }

    /// Joins the threads, which must have ended.
    pub fn join(self) {
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }

    /// Returns something to ask the workers with.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Asker {
            questions: self.questions.clone(),
        }
    }
}

/// Asks the workers for their connections.
#[derive(Clone, Debug)]
pub struct Asker {
    questions: Vec<mpsc::Sender<Question>>,
}

impl Asker {
    /// Describes up to `limit` connections of all workers together; a worker that is too busy to
    /// answer within two seconds is left out.
    pub async fn connections(&self, limit: usize) -> Vec<ConnectionSummary> {
        let mut all = Vec::new();
        for worker in &self.questions {
            let (answer, answered) = oneshot::channel();
            let question = Question {
                limit: limit - all.len(),
                answer,
            };
            if worker.try_send(question).is_ok()
                && let Ok(Ok(some)) = timeout(ANSWER_LIMIT, answered).await
            {
                all.extend(some);
            }
            if all.len() >= limit {
                break;
            }
        }
        all
    }
}

fn local_runtime() -> io::Result<LocalRuntime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
}

async fn work<T>(
    handle: WorkerHandle,
    task: T,
    run: impl AsyncFn(WorkerHandle, T) -> io::Result<()>,
    drain: Drain,
    mut questions: mpsc::Receiver<Question>,
    ending: &mpsc::Sender<Result<(), String>>,
) -> io::Result<()> {
    let housekeeping = {
        let handle = handle.clone();
        tokio::task::spawn_local(async move {
            let mut trim = tokio::time::interval(TRIM);
            loop {
                tokio::select! {
                    _ = trim.tick() => handle.pool.trim(),
                    question = questions.recv() => match question {
                        // The asker may have stopped waiting.
                        Some(Question { limit, answer }) => {
                            let _ = answer.send(handle.connections.list(limit));
                        }
                        None => return,
                    },
                }
            }
        })
    };
    let giving_back = tokio::task::spawn_local(heap::give_back(Arc::default()));
    // A cut ends the accept loops too, which end with the future that runs them.
    let accepted = tokio::select! {
        accepted = run(handle.clone(), task) => accepted,
        () = drain.reached(Phase::Cut) => Ok(()),
    };
    if let Err(error) = &accepted {
        // Told now, and not only when the last connection has ended.
        let _ = ending.try_send(Err(error.to_string()));
    }
    tokio::select! {
        () = handle.connections.emptied() => {}
        () = drain.reached(Phase::Cut) => {
            handle.connections.cut();
            handle.connections.emptied().await;
        }
    }
    housekeeping.abort();
    giving_back.abort();
    accepted
}

#[cfg(test)]
mod tests {
    use telemetry::access_log::Sink;
    use telemetry::{AccessFormat, AccessLog, Registry};

    use super::*;
    use crate::drain::DrainParams;
    use crate::metrics::Metrics;
    use crate::record::{ConnRecord, ListenerContext};

    #[tokio::test]
    async fn a_worker_that_fails_says_so_while_it_still_has_connections() {
        let drain = Drain::new(DrainParams {
            delay: Duration::ZERO,
            timeout: Duration::ZERO,
        });
        let pool = PoolParams::for_workers(1);
        let run = async |handle: WorkerHandle, metrics: Metrics| {
            let listener = Rc::new(ListenerContext {
                name: "held".into(),
                protocol: "tls",
                metrics: metrics.listener("held"),
                access_log: AccessLog::new(AccessFormat::Off, Sink::Stdout)?,
            });
            let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
            let record = ConnRecord::open(&listener, peer, None);
            handle.connections.spawn(record, |record| async move {
                std::future::pending::<()>().await;
                drop(record);
            });
            Err(io::ErrorKind::Other.into())
        };
        let mut workers = Workers::prepare("test", 1, pool, &drain, run).unwrap();
        workers.start(vec![Metrics::new(&Registry::new())]);
        let told = timeout(Duration::from_secs(10), workers.ended())
            .await
            .unwrap();
        assert!(told.unwrap().is_err());
        drain.cut();
        while workers.ended().await.is_some() {}
        workers.join();
    }
}
