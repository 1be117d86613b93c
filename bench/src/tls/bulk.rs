//! Bytes as fast as they go, one way, through some connections at once.
//!
//! ```text
//! down  backend sends from one buffer ──▶ proxy ──▶ we throw away
//! up    we send from one buffer ──▶ proxy ──▶ backend throws away
//! ```
//!
//! What arrives is counted. Neither side copies what it throws away, so that one processor of load
//! suffices for several of a proxy.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::backend::{Backend, CHUNK, Command, SINK};
use super::opening::Opening;
use super::window::{Meter, Reading, Spent};
use crate::poller::{EventFlags, Poller, discard, send};

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
    pub(crate) connections: usize,
    pub(crate) direction: Direction,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Bytes that arrived within the time that counts.
    pub(crate) bytes: u64,
    pub(crate) spent: Spent,
}

/// Moves bytes between us and `backend` through `address` for a while.
pub(crate) fn run(
    address: SocketAddr,
    opening: &Opening,
    backend: &Backend,
    load: Load,
    meter: &Meter,
) -> Result<Outcome> {
    let mut moving = Moving::start(address, opening, backend, load)?;
    let start = meter.now();
    let mut before: Option<(Reading, u64)> = None;
    let (bytes, spent) = loop {
        let now = meter.now();
        match &before {
            None if now >= start + load.warm_up => before = Some((meter.read()?, moving.arrived())),
            Some((reading, first)) if now >= reading.at() + load.length => {
                break (moving.arrived() - first, meter.read()?.since(reading));
            }
            None | Some(_) => {}
        }
        moving.turn()?;
    };
    ensure!(bytes > 0, "nothing arrived");
    Ok(Outcome { bytes, spent })
}

struct Moving<'a> {
    poller: Poller,
    direction: Direction,
    backend: &'a Backend,
    streams: Vec<TcpStream>,
    /// Never written to, so that it costs no memory: see [`discard`].
    sink: Vec<u8>,
    chunk: Vec<u8>,
    taken: u64,
}

impl<'a> Moving<'a> {
    fn start(
        address: SocketAddr,
        opening: &Opening,
        backend: &'a Backend,
        load: Load,
    ) -> Result<Self> {
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
        Ok(Self {
            poller,
            direction: load.direction,
            backend,
            streams,
            sink: vec![0; SINK],
            chunk: vec![0x5a; CHUNK],
            taken: 0,
        })
    }

    /// Returns how many bytes have arrived at the end that throws them away.
    fn arrived(&self) -> u64 {
        match self.direction {
            Direction::Down => self.taken,
            Direction::Up => self.backend.discarded(),
        }
    }

    fn turn(&mut self) -> Result<()> {
        for (number, _) in self.poller.wait(Some(IDLE))? {
            let nth = usize::try_from(number).context("a stream's number")?;
            let stream = self.streams.get(nth).context("a stream that is not ours")?;
            match self.direction {
                Direction::Down => {
                    let count = discard(stream, &mut self.sink).context("receiving")?;
                    ensure!(count != Some(0), "a connection was closed early");
                    self.taken += count.unwrap_or(0) as u64;
                }
                Direction::Up => {
                    send(stream, &self.chunk).context("sending")?;
                }
            }
        }
        Ok(())
    }
}

/// How often the clock is looked at when nothing happens.
const IDLE: Duration = Duration::from_millis(20);
