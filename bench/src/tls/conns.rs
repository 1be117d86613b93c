//! New connections: connect, ClientHello, one byte there and back, close.
//!
//! ```text
//! so many in flight ─▶ connect ─▶ opening (─▶ 200 ─▶ rest) ─▶ byte ─▶ close ─▶ latency
//! ```
//!
//! One thread and one epoll.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::opening::{Answer, Words};
use super::window::{Meter, Reading, Spent};
use crate::latency::Latencies;
use crate::poller::{EventFlags, Poller, connect, receive, send};

/// How many, how fast, how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The most under way at a time.
    pub(crate) in_flight: usize,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Connections that were over within the time that counts.
    pub(crate) done: u64,
    /// Those that were refused, reset or closed before their byte came back, or that have waited
    /// for longer than [`STUCK`] when the time is over.
    pub(crate) failed: u64,
    /// From when one began to its byte.
    pub(crate) latencies: Latencies,
    pub(crate) spent: Spent,
}

/// Opens connections to `address` for a while, which say `words` in turn: a byte that is echoed at
/// their end.
pub(crate) fn run(
    address: SocketAddr,
    words: &[Words],
    load: Load,
    meter: &Meter,
) -> Result<Outcome> {
    ensure!(!words.is_empty(), "nothing to say");
    let mut running = Running::new(address, words, load, meter)?;
    let mut before: Option<Reading> = None;
    let spent = loop {
        let now = meter.now();
        match &before {
            None if now >= running.start + load.warm_up => {
                before = Some(meter.read()?);
                running.forget()?;
            }
            Some(before) if now >= before.at() + load.length => {
                break meter.read()?.since(before);
            }
            None | Some(_) => {}
        }
        running.fill(now);
        running.events()?;
    };
    running.give_up(meter.now());
    ensure!(
        running.done > 0,
        "of {} connections none came through",
        running.failed
    );
    Ok(Outcome {
        done: running.done,
        failed: running.failed,
        latencies: running.latencies,
        spent,
    })
}

struct Running<'a> {
    address: SocketAddr,
    words: &'a [Words],
    turn: usize,
    meter: &'a Meter,
    start: Duration,
    poller: Poller,
    open: Vec<Option<Connection>>,
    free: Vec<usize>,
    done: u64,
    failed: u64,
    latencies: Latencies,
}

struct Connection {
    socket: OwnedFd,
    since: Duration,
    words: usize,
    phase: Phase,
}

enum Phase {
    Connect,
    Answer(Answer),
    Byte,
}

impl Phase {
    fn after_first(words: &Words) -> Self {
        match words.then {
            Some(_) => Self::Answer(Answer::default()),
            None => Self::Byte,
        }
    }
}

impl<'a> Running<'a> {
    fn new(address: SocketAddr, words: &'a [Words], load: Load, meter: &'a Meter) -> Result<Self> {
        let poller = Poller::new()?;
        let start = meter.now();
        Ok(Self {
            address,
            words,
            turn: 0,
            meter,
            start,
            poller,
            open: (0..load.in_flight).map(|_| None).collect(),
            free: (0..load.in_flight).rev().collect(),
            done: 0,
            failed: 0,
            latencies: Latencies::new()?,
        })
    }

    /// What was counted so far was the warm-up.
    fn forget(&mut self) -> Result<()> {
        (self.done, self.failed) = (0, 0);
        self.latencies = Latencies::new()?;
        Ok(())
    }

    /// Begins what is due, as far as there is place.
    fn fill(&mut self, now: Duration) {
        // Each place at most once, so that connections that fail at once do not hold us up.
        for _ in 0..self.free.len() {
            let Some(place) = self.free.pop() else { return };
            if self.begin(place, now).is_none() {
                self.failed += 1;
                self.free.insert(0, place);
            }
        }
    }

    fn begin(&mut self, place: usize, since: Duration) -> Option<()> {
        let nth = self.turn % self.words.len();
        self.turn += 1;
        let words = self.words.get(nth)?;
        let socket = connect(self.address).ok()?;
        // Over loopback it is connected already, as a rule, and takes everything at once.
        let sent = send(&socket, &words.first).ok()?;
        let (phase, interest) = if sent == words.first.len() {
            (Phase::after_first(words), EventFlags::IN)
        } else if sent == 0 {
            (Phase::Connect, EventFlags::OUT)
        } else {
            return None;
        };
        self.poller.add(&socket, place as u64, interest).ok()?;
        *self.open.get_mut(place)? = Some(Connection {
            socket,
            since,
            words: nth,
            phase,
        });
        Some(())
    }

    fn events(&mut self) -> Result<()> {
        for (number, _) in self.poller.wait(Some(IDLE))? {
            let place = usize::try_from(number).unwrap_or(usize::MAX);
            let Some(mut connection) = self.open.get_mut(place).and_then(Option::take) else {
                continue;
            };
            match self.advance(&mut connection, place) {
                Some(false) => {
                    if let Some(slot) = self.open.get_mut(place) {
                        *slot = Some(connection);
                    }
                    continue;
                }
                Some(true) => {
                    self.done += 1;
                    let took = self.meter.now().saturating_sub(connection.since);
                    self.latencies.record(took);
                }
                None => self.failed += 1,
            }
            self.free.push(place);
        }
        Ok(())
    }

    /// Goes on with a connection: `Some(true)` when its byte has come back, `None` when it failed.
    fn advance(&self, connection: &mut Connection, place: usize) -> Option<bool> {
        let socket = connection.socket.as_fd();
        let words = self.words.get(connection.words)?;
        let mut bytes = [0; 1024];
        match &mut connection.phase {
            Phase::Connect => {
                if send(socket, &words.first).ok()? != words.first.len() {
                    return None;
                }
                let changed = self.poller.change(socket, place as u64, EventFlags::IN);
                changed.ok()?;
                connection.phase = Phase::after_first(words);
                Some(false)
            }
            Phase::Answer(answer) => {
                let Some(count) = receive(socket, &mut bytes).ok()? else {
                    return Some(false);
                };
                answer.feed(bytes.get(..count)?).ok()?;
                if answer.is_over() {
                    let then = words.then.as_deref()?;
                    if send(socket, then).ok()? != then.len() {
                        return None;
                    }
                    connection.phase = Phase::Byte;
                }
                Some(false)
            }
            Phase::Byte => match receive(socket, &mut bytes).ok()? {
                Some(1) => Some(true),
                None => Some(false),
                Some(_) => None,
            },
        }
    }

    /// Counts what has waited for so long that it does not come any more.
    fn give_up(&mut self, now: Duration) {
        let under_way = self.open.iter().flatten();
        for connection in under_way {
            let waited = now.saturating_sub(connection.since);
            if waited > STUCK {
                self.failed += 1;
                self.latencies.record(waited);
            }
        }
    }
}

/// How often the clock is looked at when nothing happens.
const IDLE: Duration = Duration::from_millis(20);
/// Thousands of times what a connection takes.
const STUCK: Duration = Duration::from_secs(1);
