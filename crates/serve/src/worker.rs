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
use std::thread::JoinHandle;
use std::time::Duration;

use relay::{Pool, PoolParams};
use tokio::runtime::LocalRuntime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::connections::{ConnectionSummary, Connections};
use crate::drain::{Drain, Phase};

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

/// The running worker threads.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    questions: Vec<mpsc::Sender<Question>>,
    ended: mpsc::Receiver<()>,
}

/// Asks a worker for up to so many of its connections.
struct Question {
    limit: usize,
    answer: oneshot::Sender<Vec<ConnectionSummary>>,
}

impl Workers {
    /// Starts one thread per element of `tasks`. Each runs its task until it returns (the accept
    /// loops have ended) and then until its connections have ended or were cut.
    ///
    /// # Errors
    /// What the kernel says when a thread or its runtime cannot be created.
    pub fn start<T, F>(
        name: &str,
        pool: PoolParams,
        drain: &Drain,
        tasks: Vec<T>,
        run: F,
    ) -> io::Result<Self>
    where
        T: Send + 'static,
        F: AsyncFn(WorkerHandle, T) + Clone + Send + 'static,
    {
        let (ending, ended) = mpsc::channel(1);
        let mut workers = Self {
            threads: Vec::new(),
            questions: Vec::new(),
            ended,
        };
        for (index, task) in tasks.into_iter().enumerate() {
            let (sender, questions) = mpsc::channel(QUESTIONS);
            let (drain, run, ending) = (drain.clone(), run.clone(), ending.clone());
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || {
                    let _ending = ending;
                    let handle = WorkerHandle {
                        index,
                        connections: Rc::default(),
                        pool: Rc::new(Pool::new(pool)),
                    };
                    match local_runtime() {
                        Ok(runtime) => {
                            runtime.block_on(work(handle, task, run, drain, questions));
                        }
                        Err(error) => tracing::error!(%error, index, "worker has no runtime"),
                    }
                })?;
            workers.threads.push(thread);
            workers.questions.push(sender);
        }
        Ok(workers)
    }

    /// Waits until every worker has ended.
    pub async fn ended(&mut self) {
        while self.ended.recv().await.is_some() {}
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
    run: impl AsyncFn(WorkerHandle, T),
    drain: Drain,
    mut questions: mpsc::Receiver<Question>,
) {
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
    // Whatever keeps the accept loops from ending, a cut ends them.
    tokio::select! {
        () = run(handle.clone(), task) => {}
        () = drain.reached(Phase::Cut) => {}
    }
    tokio::select! {
        () = handle.connections.emptied() => {}
        () = drain.reached(Phase::Cut) => {
            handle.connections.cut();
            handle.connections.emptied().await;
        }
    }
    housekeeping.abort();
}
