//! What clients do with tunnels, and how long it took them.
//!
//! ```text
//! bulk    dial, then bytes one way on n streams
//! pings   dial, then 64 bytes there and back, over and over
//! dials   dial, 8 bytes there and back, close, over and over
//! hold    dial, and keep
//! ```
//!
//! Everything runs on the caller's runtime, one task a connection. Every wait ends: dials at
//! [`DIAL_LIMIT`], the rest at the end of its time and [`GRACE`].

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::frontend::Frontend;
use super::tunnel::Tunnel;
use crate::backend::Command;
use crate::latency::Latencies;
use crate::tls::bulk::Direction;

/// How long a dial may take before it counts as failed.
pub(crate) const DIAL_LIMIT: Duration = Duration::from_secs(30);
/// How long an answer is waited for after the end of a run.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// Time whose operations do not count.
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
    /// Time between operations of one connection; none is as fast as answers come.
    pub(crate) interval: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Of every operation that counts. What was not answered counts for as long as was waited.
    pub(crate) latencies: Latencies,
    /// Operations, those of the warm-up included.
    pub(crate) all: u64,
    pub(crate) unanswered: u64,
    pub(crate) length: Duration,
}

impl Outcome {
    fn new(length: Duration) -> Self {
        Self {
            latencies: Latencies::default(),
            all: 0,
            unanswered: 0,
            length,
        }
    }

    pub(crate) fn rate(&self) -> f64 {
        let answered = self.latencies.count().saturating_sub(self.unanswered);
        answered as f64 / self.length.as_secs_f64()
    }

    fn add(&mut self, other: &Self) {
        self.all += other.all;
        self.unanswered += other.unanswered;
        self.latencies.add(&other.latencies);
    }
}

pub(crate) async fn dial(frontend: &Frontend, target: SocketAddr) -> Result<Tunnel> {
    let dialed = timeout(DIAL_LIMIT, frontend.dial(target)).await;
    let dialed = dialed.with_context(|| format!("dialing {target} within {DIAL_LIMIT:?}"))?;
    dialed.with_context(|| format!("dialing {target}"))
}

pub(crate) async fn hold(
    frontend: &Frontend,
    target: SocketAddr,
    count: usize,
) -> Result<Vec<Tunnel>> {
    many(count, DIALS_AT_ONCE, || {
        let frontend = frontend.clone();
        async move { dial(&frontend, target).await }
    })
    .await
}

/// Runs `count` futures, at most `at_once` at a time; results come in the order of completion.
async fn many<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    count: usize,
    at_once: usize,
    one: impl Fn() -> F,
) -> Result<Vec<T>> {
    let (mut done, mut tasks) = (Vec::with_capacity(count), JoinSet::new());
    for _ in 0..count {
        if tasks.len() >= at_once
            && let Some(next) = tasks.join_next().await
        {
            done.push(next.context("a dial's task")??);
        }
        tasks.spawn(one());
    }
    while let Some(next) = tasks.join_next().await {
        done.push(next.context("a dial's task")??);
    }
    Ok(done)
}

pub(crate) async fn close(tunnels: Vec<Tunnel>) {
    let closing: JoinSet<_> = tunnels.into_iter().map(Tunnel::close).collect();
    closing.join_all().await;
}

/// Asks for bytes, or announces them.
pub(crate) async fn ask(tunnel: &mut Tunnel, command: Command, bytes: u64) -> Result<()> {
    let question = [&command.bare()[..], &bytes.to_be_bytes()].concat();
    tunnel.write_all(&question).await.context("asking")?;
    tunnel.flush().await.context("asking")
}

/// Moves `bytes` on each of `streams` tunnels to or from `target`, and returns
/// how long that took from the first byte asked for to the last one received.
pub(crate) async fn bulk(
    frontend: &Frontend,
    target: SocketAddr,
    direction: Direction,
    bytes: u64,
    streams: usize,
) -> Result<Duration> {
    let tunnels = hold(frontend, target, streams).await?;
    let started = Instant::now();
    let mut moving = JoinSet::new();
    for tunnel in tunnels {
        moving.spawn(async move {
            match direction {
                Direction::Down => receive(tunnel, bytes).await,
                Direction::Up => send(tunnel, bytes).await,
            }
        });
    }
    let mut done = Vec::new();
    while let Some(tunnel) = timeout_at(started + BULK_LIMIT, moving.join_next())
        .await
        .with_context(|| format!("moving {bytes} bytes within {BULK_LIMIT:?}"))?
    {
        done.push(tunnel.context("a stream's task")??);
    }
    let took = started.elapsed();
    close(done).await;
    Ok(took)
}

async fn receive(mut tunnel: Tunnel, bytes: u64) -> Result<Tunnel> {
    ask(&mut tunnel, Command::Source, bytes).await?;
    let (mut buf, mut left) = (vec![0; CHUNK], bytes);
    while left > 0 {
        match tunnel.read(&mut buf).await.context("receiving")? {
            0 => bail!("the tunnel ended {left} bytes too early"),
            read => {
                let rest = left.checked_sub(read as u64);
                left = rest.context("more bytes than asked for")?;
            }
        }
    }
    Ok(tunnel)
}

async fn send(mut tunnel: Tunnel, bytes: u64) -> Result<Tunnel> {
    ask(&mut tunnel, Command::Take, bytes).await?;
    let (chunk, mut left) = (vec![0xa5; CHUNK], bytes);
    while left > 0 {
        let len = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        tunnel.write_all(&chunk[..len]).await.context("sending")?;
        left -= len as u64;
    }
    tunnel.flush().await.context("sending")?;
    let confirmed = tunnel.read_u8().await;
    confirmed.context("waiting for the destination to have it all")?;
    Ok(tunnel)
}

/// Sends 64 bytes to `target` and waits for them, on each connection over and over.
pub(crate) async fn pings(frontend: &Frontend, target: SocketAddr, load: Load) -> Result<Outcome> {
    let mut tunnels = hold(frontend, target, load.connections).await?;
    for tunnel in &mut tunnels {
        let asked = tunnel.write_all(&Command::Echo.bare()).await;
        asked.context("asking for an echo")?;
    }
    all(tunnels.into_iter().map(Work::Ping), load).await
}

/// Dials `target`, exchanges eight bytes and closes, on each connection over and over.
pub(crate) async fn dials(frontend: &Frontend, target: SocketAddr, load: Load) -> Result<Outcome> {
    let dialers = (0..load.connections).map(|_| Work::Dial(frontend.clone(), target));
    all(dialers, load).await
}

enum Work {
    Dial(Frontend, SocketAddr),
    Ping(Tunnel),
}

impl Work {
    async fn once(&mut self) -> Result<()> {
        match self {
            Self::Dial(frontend, target) => one_dial(frontend, *target).await.context("a dial"),
            Self::Ping(tunnel) => exchange(tunnel, &[0x33; 64], &mut [0; 64])
                .await
                .context("a round trip"),
        }
    }
}

async fn all(works: impl Iterator<Item = Work>, load: Load) -> Result<Outcome> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (nth, work) in works.enumerate() {
        tasks.spawn(repeat(work, load, start + load.offset(nth)));
    }
    let mut sum = Outcome::new(load.length);
    while let Some(one) = tasks.join_next().await {
        sum.add(&one.context("a connection's task")??);
    }
    Ok(sum)
}

async fn repeat(mut work: Work, load: Load, start: Instant) -> Result<Outcome> {
    let (counts, end) = (start + load.warm_up, start + load.warm_up + load.length);
    let mut outcome = Outcome::new(load.length);
    for nth in 0.. {
        let from = begin(load.interval, start, nth).await;
        if from >= end {
            break;
        }
        let answer = timeout_at(end + GRACE, work.once()).await;
        outcome.all += 1;
        if from >= counts {
            outcome.latencies.record(from.elapsed());
        }
        match answer {
            Ok(answer) => answer?,
            Err(_) => {
                outcome.unanswered += 1;
                return Ok(outcome);
            }
        }
    }
    if let Work::Ping(tunnel) = work {
        tunnel.close().await.context("closing a tunnel")?;
    }
    Ok(outcome)
}

/// Waits until operation `nth` is due, and returns from when on its latency counts.
///
/// Without an interval the loop is closed: one operation follows the other. With one it is open: an
/// operation that had to wait because the one before was not over counts from when it was due, so
/// that a stall shows in all operations it delayed. What our own timer was late (tokio's has steps of
/// a millisecond) is not counted.
async fn begin(interval: Option<Duration>, start: Instant, nth: u32) -> Instant {
    let now = Instant::now();
    match interval.map(|interval| start + interval * nth) {
        None => now,
        Some(due) if due <= now => due,
        Some(due) => {
            sleep_until(due).await;
            Instant::now()
        }
    }
}

/// Dials `count` times, `at_once` of them at a time, exchanges eight bytes and closes.
pub(crate) async fn many_dials(
    frontend: &Frontend,
    target: SocketAddr,
    count: usize,
    at_once: usize,
) -> Result<()> {
    let all = many(count, at_once, || {
        let frontend = frontend.clone();
        async move {
            let dialed = timeout(DIAL_LIMIT, one_dial(&frontend, target)).await;
            dialed.context("waiting for a dial")?
        }
    });
    all.await.map(drop)
}

async fn one_dial(frontend: &Frontend, target: SocketAddr) -> Result<()> {
    let mut tunnel = frontend.dial(target).await.context("dialing")?;
    let question = [&Command::Echo.bare()[..], &[0x77; 8]].concat();
    exchange(&mut tunnel, &question, &mut [0; 8]).await?;
    tunnel.close().await.context("closing")
}

async fn exchange(tunnel: &mut Tunnel, sent: &[u8], pong: &mut [u8]) -> Result<()> {
    tunnel.write_all(sent).await.context("sending")?;
    tunnel.flush().await.context("sending")?;
    tunnel.read_exact(pong).await.context("receiving")?;
    ensure!(sent.ends_with(pong), "other bytes came back");
    Ok(())
}

impl Load {
    /// Spreads the connections of an open loop over one interval.
    fn offset(&self, nth: usize) -> Duration {
        self.interval.map_or(Duration::ZERO, |interval| {
            interval.mul_f64(nth as f64 / self.connections.max(1) as f64)
        })
    }
}

/// As long as a gibibyte may take at 4 MiB/s.
const BULK_LIMIT: Duration = Duration::from_secs(256);
const CHUNK: usize = 64 * 1024;
/// Enough to keep a pair busy, and few enough for any backlog.
const DIALS_AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn delayed_operation_counts_from_when_it_was_due() {
        let long_ago = Instant::now() - Duration::from_secs(10);
        let second = Duration::from_secs(1);
        assert_eq!(begin(Some(second), long_ago, 0).await, long_ago);
        assert_eq!(begin(Some(second), long_ago, 1).await, long_ago + second);
        let before = Instant::now();
        assert!(begin(None, long_ago, 1).await >= before);
        let soon = before + Duration::from_millis(5);
        assert!(begin(Some(second), soon, 0).await >= soon);
    }
}
