//! Octets as fast as they go, one way, through some connections at once.
//!
//! ```text
//! down  backend sends from one buffer ──▶ proxy ──▶ we throw away
//! up    we send from one buffer ──▶ proxy ──▶ backend throws away
//! ```
//!
//! What arrives is counted. Neither side copies what it throws away, so that one processor of load
//! suffices for several of a proxy.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::backend::{Backend, CHUNK, Command, SINK};
use super::opening::Opening;
use super::window::{Meter, Reading, Spent};
use crate::poller::{EventFlags, Poller, discard, send};

/// Which way octets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the backend to the client.
    Down,
    /// From the client to the backend.
    Up,
}

/// How many connections, which way, how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// At once.
    pub(crate) connections: usize,
    /// Which way.
    pub(crate) direction: Direction,
    /// What does not count yet.
    pub(crate) warm_up: Duration,
    /// What counts.
    pub(crate) length: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Octets that arrived within the time that counts.
    pub(crate) octets: u64,
    /// What it took.
    pub(crate) spent: Spent,
}

/// Moves octets between us and `backend` through `address` for a while.
///
/// # Errors
/// When a connection cannot be opened or ends early, or nothing arrives.
pub(crate) fn run(
    address: SocketAddr,
    opening: &Opening,
    backend: &Backend,
    load: Load,
    meter: &Meter,
) -> Result<Outcome> {
    let (command, interest) = match load.direction {
        Direction::Down => (Command::Generate, EventFlags::IN),
        Direction::Up => (Command::Sink, EventFlags::OUT),
    };
    let words = opening.canned(command, b"");
    let poller = Poller::new()?;
    let mut streams = Vec::new();
    for number in 0..load.connections {
        let stream = words.dial(address)?;
        stream.set_nonblocking(true).context("a stream")?;
        poller.add(&stream, number as u64, interest)?;
        streams.push(stream);
    }
    // Never written to, so that it costs no memory.
    let mut sink = vec![0; SINK];
    let chunk = vec![0x5a; CHUNK];
    let mut taken = 0;
    let arrived = |taken: u64| match load.direction {
        Direction::Down => taken,
        Direction::Up => backend.discarded(),
    };
    let start = meter.now();
    let mut before: Option<(Reading, u64)> = None;
    let (octets, spent) = loop {
        let now = meter.now();
        match &before {
            None if now >= start + load.warm_up => before = Some((meter.read()?, arrived(taken))),
            Some((reading, first)) if now >= reading.at() + load.length => {
                break (arrived(taken) - first, meter.read()?.since(reading));
            }
            None | Some(_) => {}
        }
        for (number, _) in poller.wait(Some(IDLE))? {
            let stream = usize::try_from(number)
                .ok()
                .and_then(|nth| streams.get(nth));
            let stream = stream.context("a stream that is none of ours")?.as_fd();
            match load.direction {
                Direction::Down => {
                    let count = discard(stream, &mut sink).context("receiving")?;
                    ensure!(count != Some(0), "a connection was closed early");
                    taken += count.unwrap_or(0) as u64;
                }
                Direction::Up => {
                    send(stream, &chunk).context("sending")?;
                }
            }
        }
    };
    ensure!(octets > 0, "nothing arrived");
    Ok(Outcome { octets, spent })
}

/// How often the clock is looked at when nothing happens.
const IDLE: Duration = Duration::from_millis(20);
