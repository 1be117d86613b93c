//! New connections: connect, ClientHello, one byte there and back, close.
//!
//! ```text
//! so many in progress ─▶ connect ─▶ opening (─▶ 200 ─▶ rest) ─▶ byte ─▶ close ─▶ latency
//! ```

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::opening::Words;
use super::window::{Meter, Spent};
use crate::latency::Latencies;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The most in progress at a time.
    pub(crate) in_flight: usize,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Connections that were begun within the time that counts.
    pub(crate) done: u64,
    /// Those that were refused, reset or closed before their byte came back, or that have waited
    /// for longer than [`STUCK`] when the time is over.
    pub(crate) failed: u64,
    /// From when one began to its byte.
    pub(crate) latencies: Latencies,
}

/// Opens connections to `address` for a while, which say `words` by turns: a byte that is echoed at
/// their end.
pub(crate) fn run(
    address: SocketAddr,
    words: Vec<Words>,
    load: Load,
    meter: &Meter,
) -> Result<(Found, Spent)> {
    ensure!(!words.is_empty(), "nothing to say");
    let runtime = super::runtime()?;
    let all = Arc::new(All {
        address,
        words,
        next: AtomicUsize::new(0),
    });
    runtime.block_on(all.open(load.in_flight, load.warm_up))?;
    let before = meter.read()?;
    let found = runtime.block_on(all.open(load.in_flight, load.length))?;
    let spent = meter.read()?.since(&before);
    let failed = found.failed;
    ensure!(found.done > 0, "of {failed} connections none came through");
    Ok((found, spent))
}

/// What every connection has.
struct All {
    address: SocketAddr,
    words: Vec<Words>,
    next: AtomicUsize,
}

impl All {
    /// Opens connections for `length`, and waits a while for those that are in progress then.
    async fn open(self: &Arc<Self>, in_flight: usize, length: Duration) -> Result<Found> {
        let end = Instant::now() + length;
        let found = Arc::new(Mutex::new(Found::default()));
        let mut tasks = JoinSet::new();
        for _ in 0..in_flight {
            let (all, found) = (Arc::clone(self), Arc::clone(&found));
            tasks.spawn(async move { all.one_after_other(end, &found).await });
        }
        while let Ok(Some(_)) = timeout_at(end + STUCK, tasks.join_next()).await {}
        let stuck = tasks.len();
        tasks.shutdown().await;
        let found = Arc::into_inner(found).map(Mutex::into_inner);
        let mut found = match found {
            Some(found) => found.unwrap_or_else(PoisonError::into_inner),
            None => anyhow::bail!("a connection goes on"),
        };
        for _ in 0..stuck {
            found.failed += 1;
            found.latencies.record(STUCK);
        }
        Ok(found)
    }

    async fn one_after_other(&self, end: Instant, found: &Mutex<Found>) {
        loop {
            let since = Instant::now();
            if since >= end {
                return;
            }
            let outcome = self.one().await;
            let took = since.elapsed();
            {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                if outcome.is_ok() {
                    found.done += 1;
                    found.latencies.record(took);
                } else {
                    found.failed += 1;
                }
            }
            if outcome.is_err() {
                // Those that fail at once do not hold up the others.
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn one(&self) -> Result<()> {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let words = &self.words[nth % self.words.len()];
        let mut stream = TcpStream::connect(self.address).await?;
        words.say(&mut stream).await?;
        let count = stream.read(&mut [0; 2]).await?;
        ensure!(count == 1, "{count} bytes instead of one");
        Ok(())
    }
}

/// Thousands of times what a connection takes.
const STUCK: Duration = Duration::from_secs(1);
