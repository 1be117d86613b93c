//! Bytes as fast as they go, one way, through some connections at once.
//!
//! ```text
//! down  backend sends from one buffer ──▶ proxy ──▶ we throw away
//! up    we send from one buffer ──▶ proxy ──▶ backend throws away
//! ```
//!
//! What arrives is counted. Neither side copies what it throws away, so that one processor of load
//! suffices for several of a proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Way;
use super::opening::LIMIT;
use super::window::Spent;
use crate::backend::{CHUNK, Command, discard, sink};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Down,
    Up,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) direction: Direction,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

/// Moves bytes between us and the backend for a while, and returns how many arrived
/// within the time that counts.
pub(crate) fn run(way: Way<'_>, load: Load) -> Result<(u64, Spent)> {
    let command = match load.direction {
        Direction::Down => Command::Generate,
        Direction::Up => Command::Sink,
    };
    let words = way.opening.canned(command, b"");
    let received = Arc::new(AtomicU64::new(0));
    let arrived = || match load.direction {
        Direction::Down => received.load(Ordering::Relaxed),
        Direction::Up => way.backend.discarded(),
    };
    super::runtime()?.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..load.connections {
            let stream = words.dial(way.address, LIMIT)?;
            stream.set_nonblocking(true).context("a stream")?;
            let stream = TcpStream::from_std(stream).context("a stream")?;
            match load.direction {
                Direction::Down => tasks.spawn(receive(stream, Arc::clone(&received))),
                Direction::Up => tasks.spawn(send(stream)),
            };
        }
        undisturbed(&mut tasks, load.warm_up).await?;
        let (before, first) = (way.meter.read()?, arrived());
        undisturbed(&mut tasks, load.length).await?;
        let (bytes, spent) = (arrived() - first, way.meter.read()?.since(&before));
        ensure!(bytes > 0, "nothing arrived");
        Ok((bytes, spent))
    })
}

/// Lets `tasks` run for a while; fails when one of them ends.
async fn undisturbed(tasks: &mut JoinSet<Result<()>>, length: Duration) -> Result<()> {
    match timeout(length, tasks.join_next()).await {
        Ok(ended) => ended.context("no connections")?.context("a stream")?,
        Err(_) => Ok(()),
    }
}

async fn receive(stream: TcpStream, received: Arc<AtomicU64>) -> Result<()> {
    let mut sink = sink();
    loop {
        let count = discard(&stream, &mut sink).await.context("receiving")?;
        ensure!(count > 0, "a connection was closed early");
        received.fetch_add(count as u64, Ordering::Relaxed);
    }
}

async fn send(mut stream: TcpStream) -> Result<()> {
    loop {
        stream.write_all(&CHUNK).await.context("sending")?;
    }
}
