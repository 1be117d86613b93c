//! Requests as fast as they are answered, over some connections at once, kept ones or one for each.
//!
//! ```text
//! each of so many ─▶ connect ─▶ request ─▶ head ─▶ body, thrown away ─▶ again
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::client::{Client, Connection, Protocol};
use crate::latency::Latencies;
use crate::tls::runtime;
use crate::tls::window::{Meter, Spent};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) protocol: Protocol,
    pub(crate) path: &'static str,
    /// Requests at a time, each over a connection of its own.
    pub(crate) at_once: usize,
    /// Whether a connection ends with its request.
    pub(crate) fresh: bool,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Of bodies.
    pub(crate) bytes: u64,
    /// From the request, or the connection for it, to the answer's last byte, of those that ended within the
    /// time that counts.
    pub(crate) latencies: Latencies,
}

/// What all connections have.
#[derive(Debug, Default)]
struct Tally {
    counts: AtomicBool,
    over: AtomicBool,
    bytes: AtomicU64,
    failed: AtomicU64,
    latencies: Mutex<Latencies>,
    error: Mutex<Option<String>>,
}

pub(crate) fn run(client: &Client, load: Load, meter: &Meter) -> Result<(Found, Spent)> {
    runtime()?.block_on(async {
        let running = Running::start(client, load);
        sleep(load.warm_up).await;
        let before = meter.read()?;
        running.count();
        sleep(load.length).await;
        let found = running.found();
        let spent = meter.read()?.since(&before);
        running.end().await?;
        ensure!(found.bytes > 0, "no request was answered");
        Ok((found, spent))
    })
}

/// A load that goes on until it is ended.
pub(crate) struct Running {
    tally: Arc<Tally>,
    tasks: JoinSet<()>,
}

impl Running {
    pub(crate) fn start(client: &Client, load: Load) -> Self {
        let tally = Arc::<Tally>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..load.at_once {
            let (client, tally) = (client.clone(), Arc::clone(&tally));
            tasks.spawn(async move { one_after_other(&client, load, &tally).await });
        }
        Self { tally, tasks }
    }

    fn count(&self) {
        self.tally.counts.store(true, Ordering::Relaxed);
    }

    fn found(&self) -> Found {
        let tally = &self.tally;
        tally.counts.store(false, Ordering::Relaxed);
        Found {
            bytes: tally.bytes.load(Ordering::Relaxed),
            latencies: locked(&tally.latencies).clone(),
        }
    }

    /// Returns how many requests were not answered, or with an error.
    pub(crate) fn failed(&self) -> u64 {
        self.tally.failed.load(Ordering::Relaxed)
    }

    /// Waits for what is under way, for a while; fails if a request has failed.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.tally.over.store(true, Ordering::Relaxed);
        let rest = async { while self.tasks.join_next().await.is_some() {} };
        let rest = tokio::time::timeout(STUCK, rest).await;
        match locked(&self.tally.error).take() {
            Some(error) => Err(anyhow!(error).context("a request failed")),
            None => rest.context("requests without an answer"),
        }
    }
}

async fn one_after_other(client: &Client, load: Load, tally: &Tally) {
    let mut kept = None;
    while !tally.over.load(Ordering::Relaxed) {
        let since = Instant::now();
        match one(client, load, tally, &mut kept).await {
            Ok(()) => tally.answered(since.elapsed()),
            Err(error) => {
                kept = None;
                tally.failed(&error);
                // Those that fail at once do not hold up the others.
                sleep(Duration::from_millis(1)).await;
            }
        }
        if load.fresh {
            kept = None;
        }
    }
}

async fn one(
    client: &Client,
    load: Load,
    tally: &Tally,
    kept: &mut Option<Connection>,
) -> Result<()> {
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(client.connect(load.protocol).await?),
    };
    let arrived = |bytes: usize| {
        if tally.counts.load(Ordering::Relaxed) {
            tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    };
    connection.get(client, load.path, arrived).await
}

impl Tally {
    fn answered(&self, took: Duration) {
        if self.counts.load(Ordering::Relaxed) {
            locked(&self.latencies).record(took);
        }
    }

    fn failed(&self, error: &anyhow::Error) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        locked(&self.error).get_or_insert_with(|| format!("{error:#}"));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Thousands of times what a request takes.
const STUCK: Duration = Duration::from_secs(10);
