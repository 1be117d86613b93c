//! The worker threads, each with a single-threaded runtime of its own.
//!
//! ```text
//!     Workers::start ─▶ thread 0..n: LocalRuntime ─▶ the binary's worker function
//!     control ── request ─▶ every worker ─▶ its connections
//! ```
//!
//! Connections never move between threads, but between processes (see `handover`). Control sends workers
//! requests and bounds the wait for their answers.

use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use relay::{Pool, PoolParams};
use serde_json::Value;
use tokio::runtime::LocalRuntime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::connections::Connections;
use crate::drain::{Drain, Phase};
use crate::handover::{AskedFlows, DatagramListeners, Movable, Moving, MovingFlows, StoppedFlows};

/// How often a worker frees pipes that a burst left.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// How long control waits for a busy worker's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests that may wait for one worker.
const QUEUED_REQUESTS: usize = 4;

/// A worker thread's own state.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    /// Which worker this is, from 0.
    pub index: usize,
    /// The thread's connections.
    pub connections: Rc<Connections>,
    /// The thread's pipes and scratch buffer.
    pub pool: Rc<Pool>,
    /// The thread's relays that may move to another process.
    pub movable: Rc<Movable>,
}

/// The worker threads.
#[derive(Debug)]
pub struct Workers<T> {
    threads: Vec<JoinHandle<()>>,
    tasks: Vec<oneshot::Sender<T>>,
    requests: Vec<mpsc::Sender<Request>>,
    ended: mpsc::Receiver<Result<(), String>>,
}

/// What control asks of a worker; numbers are how many at most.
#[derive(Debug)]
enum Request {
    /// Describe connections.
    List(usize, oneshot::Sender<Vec<Value>>),
    /// Stop relays that can move.
    Stop(usize, oneshot::Sender<Vec<Moving>>),
    /// They have moved, or these go on.
    Settle(Option<Vec<Moving>>),
    /// Serve relays of another process.
    Take(Vec<Moving>),
    /// Name the listener of each table of flows that can move.
    ListFlows(oneshot::Sender<Vec<String>>),
    /// Stop one of them.
    StopFlows(AskedFlows),
    /// Serve one.
    TakeFlows(MovingFlows),
}

impl<T: Send + 'static> Workers<T> {
    /// Starts `count` threads, each with its runtime, which wait for their task: all that can fail at
    /// their start has failed when this returns. Each then runs its task until it returns (the accept
    /// loops have ended) and then until its connections have ended or were cut.
    ///
    /// # Errors
    /// The kernel's error if a thread or its runtime cannot be created; none is left then.
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
        let (threads, tasks, requests) = (Vec::new(), Vec::new(), Vec::new());
        let mut workers = Self {
            threads,
            tasks,
            requests,
            ended,
        };
        for index in 0..count {
            let (asker, requests) = mpsc::channel(QUEUED_REQUESTS);
            let (giver, task) = oneshot::channel();
            let (ready, prepared) = std::sync::mpsc::sync_channel(1);
            let (drain, run, ending) = (drain.clone(), run.clone(), ending.clone());
            let thread = move || {
                let runtime = match local_runtime() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                drop(ready.send(Ok(())));
                let mut ended = Ended {
                    ending,
                    result: Err("it panicked".to_owned()),
                };
                let result = runtime.block_on(async {
                    let Ok(task) = task.await else { return Ok(()) };
                    let handle = WorkerHandle {
                        index,
                        connections: Rc::default(),
                        pool: Rc::new(Pool::new(pool)),
                        movable: Rc::default(),
                    };
                    work(handle, task, run, drain, requests, &ended.ending).await
                });
                ended.result = result.map_err(|error| error.to_string());
            };
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(thread)?;
            workers.threads.push(thread);
            workers.tasks.push(giver);
            workers.requests.push(asker);
            prepared.recv().map_err(io::Error::other)??;
        }
        Ok(workers)
    }

    /// Hands every worker its task; there must be one for each.
    pub fn start(&mut self, tasks: Vec<T>) {
        debug_assert_eq!(self.tasks.len(), tasks.len(), "each worker has one task");
        for (worker, task) in self.tasks.drain(..).zip(tasks) {
            // A worker waits for its task and can only be gone if it panicked, which `ended` reports.
            let _ = worker.send(task);
        }
    }

    /// Waits until a worker has ended, and returns its result; `None` when none is left. Cancel-safe.
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

    /// Returns a handle that asks the workers for their connections.
    pub fn asker(&self) -> Asker {
        Asker {
            requests: self.requests.clone(),
        }
    }
}

/// Reports how a worker has ended, also one that panics.
struct Ended {
    ending: mpsc::Sender<Result<(), String>>,
    result: Result<(), String>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        // The receiver is gone if the process is ending already.
        let _ = self.ending.try_send(result);
    }
}

/// Asks the workers for their connections.
#[derive(Clone, Debug)]
pub struct Asker {
    requests: Vec<mpsc::Sender<Request>>,
}

impl Asker {
    /// Describes up to `limit` connections of all workers together; a worker that is too busy to
    /// answer within two seconds is left out.
    pub async fn connections(&self, limit: usize) -> Vec<Value> {
        let mut all = Vec::new();
        for worker in &self.requests {
            let (answer, answered) = oneshot::channel();
            let request = Request::List(limit - all.len(), answer);
            if worker.try_send(request).is_ok()
                && let Ok(Ok(some)) = timeout(ANSWER_TIMEOUT, answered).await
            {
                all.extend(some);
            }
            if all.len() >= limit {
                break;
            }
        }
        all
    }

    /// Returns the number of workers.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// Stops up to `limit` relays of a worker and returns those that it can give away; none if it is too busy to
    /// answer. [`Asker::settle`] must follow where there are some.
    pub(crate) async fn stop(&self, worker: usize, limit: usize) -> Vec<Moving> {
        let (answer, mut answered) = oneshot::channel();
        let _ = self.request(worker, Request::Stop(limit, answer)).await;
        match timeout(ANSWER_TIMEOUT, &mut answered).await {
            Ok(relays) => relays.unwrap_or_default(),
            Err(_) => {
                // It may have come just now; if not, the worker keeps what it stops.
                answered.close();
                answered.try_recv().unwrap_or_default()
            }
        }
    }

    /// Tells a worker that what it stopped has moved, or what it goes on with.
    pub(crate) async fn settle(&self, worker: usize, kept: Option<Vec<Moving>>) {
        let _ = self.request(worker, Request::Settle(kept)).await;
    }

    /// Gives a worker relays of another process; returns how many are lost, since it has ended.
    pub(crate) async fn take(&self, worker: usize, relays: Vec<Moving>) -> usize {
        let count = relays.len();
        match self.request(worker, Request::Take(relays)).await {
            true => 0,
            false => {
                tracing::error!(connections = count, "lost: a worker has ended");
                count
            }
        }
    }

    /// Returns the listener of each table of flows of a worker; none if it is too busy to answer.
    pub(crate) async fn flow_listeners(&self, worker: usize) -> Vec<String> {
        let (answer, answered) = oneshot::channel();
        let _ = self.request(worker, Request::ListFlows(answer)).await;
        let answered = timeout(ANSWER_TIMEOUT, answered).await;
        answered.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Stops a table of flows of a worker; `None` if it has none, or is too busy to answer.
    pub(crate) async fn stop_flows(&self, worker: usize) -> Option<StoppedFlows> {
        let (answer, answered) = oneshot::channel();
        let (asked, moved) = AskedFlows::new(answer);
        let _ = self.request(worker, Request::StopFlows(asked)).await;
        let table = timeout(ANSWER_TIMEOUT, answered).await.ok()?.ok()?;
        Some(StoppedFlows::new(table, moved))
    }

    /// Gives a worker a table of flows.
    pub(crate) async fn take_flows(&self, worker: usize, table: MovingFlows) {
        let _ = self.request(worker, Request::TakeFlows(table)).await;
    }

    /// Has workers serve listeners of datagrams with new sockets and no flows.
    pub(crate) async fn open_flows(
        &self,
        listeners: impl Iterator<Item = String>,
        datagrams: &DatagramListeners,
    ) {
        for (turn, listener) in listeners.enumerate() {
            let Some(address) = datagrams.address(&listener) else {
                continue;
            };
            let sockets = match (datagrams.open)(address) {
                Ok(sockets) => sockets,
                Err(error) => {
                    tracing::error!(%listener, %error, "a listener cannot be served");
                    continue;
                }
            };
            let table = MovingFlows {
                listener,
                sockets,
                flows: Vec::new(),
            };
            self.take_flows(turn % self.count().max(1), table).await;
        }
    }

    /// Returns whether the worker gets the request; one that has ended has no connections.
    async fn request(&self, worker: usize, request: Request) -> bool {
        match self.requests.get(worker) {
            Some(worker) => worker.send(request).await.is_ok(),
            None => false,
        }
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
    mut requests: mpsc::Receiver<Request>,
    ending: &mpsc::Sender<Result<(), String>>,
) -> io::Result<()> {
    let housekeeping = {
        let handle = handle.clone();
        tokio::task::spawn_local(async move {
            let mut trim = tokio::time::interval(TRIM_INTERVAL);
            loop {
                tokio::select! {
                    _ = trim.tick() => handle.pool.trim(),
                    request = requests.recv() => match request {
                        // The asker may have stopped waiting.
                        Some(Request::List(limit, answer)) => {
                            let _ = answer.send(handle.connections.list(limit));
                        }
                        Some(Request::Stop(limit, answer)) => handle.movable.ask(limit, answer),
                        Some(Request::Settle(kept)) => handle.movable.settle(kept),
                        Some(Request::Take(relays)) => handle.movable.take(relays),
                        Some(Request::ListFlows(answer)) => {
                            let _ = answer.send(handle.movable.flow_listeners());
                        }
                        Some(Request::StopFlows(asked)) => handle.movable.ask_flows(asked),
                        Some(Request::TakeFlows(table)) => handle.movable.take_flows(table),
                        None => return,
                    },
                }
            }
        })
    };
    // A cut ends the accept loops too, which end with the future that runs them.
    let accepted = tokio::select! {
        accepted = run(handle.clone(), task) => accepted,
        () = drain.reached(Phase::Cut) => Ok(()),
    };
    if let Err(error) = &accepted {
        // Reported now, not only when the last connection has ended.
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
    async fn failed_worker_reports_before_connections_end() {
        let drain = Drain::new(DrainParams::default());
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
        workers.start(vec![Metrics::register(&Registry::new())]);
        let ended = timeout(Duration::from_secs(10), workers.ended())
            .await
            .unwrap();
        assert!(ended.unwrap().is_err());
        drain.cut();
        while workers.ended().await.is_some() {}
        workers.join();
    }

    #[tokio::test]
    async fn panicked_worker_is_reported_while_others_go_on() {
        let drain = Drain::new(DrainParams::default());
        let pool = PoolParams::for_workers(2);
        let run = async |handle: WorkerHandle, ()| {
            assert_ne!(handle.index, 1, "the defect");
            std::future::pending().await
        };
        let mut workers = Workers::prepare("test", 2, pool, &drain, run).unwrap();
        workers.start(vec![(), ()]);
        let ended = timeout(Duration::from_secs(60), workers.ended()).await;
        assert!(ended.unwrap().unwrap().is_err());
        drain.cut();
        while workers.ended().await.is_some() {}
        workers.join();
    }
}
