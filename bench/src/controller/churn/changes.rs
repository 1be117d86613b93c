//! Writes changes at fixed times, and asks each gateway for each of them until it is in effect.
//!
//! ```text
//! due ─▶ PATCH ─▶ answered ─┬─▶ watcher: new connections through gateway 0, each 2 ms ─▶ delay
//!                           └─▶ watcher: through gateway 1                            ─▶ delay
//! ```
//!
//! A delay begins with the PATCH and ends when a new connection has taken the new route. Changes are
//! of another shoot each: two API servers that move, then two that get another name, and so on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit::wait::{self, Stopwatch};

use super::super::cluster::Cluster;
use super::super::shoots;
use crate::backend::Command;
use crate::latency::Latencies;
use crate::probe::ask;
use crate::tls::opening::{Opening, Words};

pub(super) struct Plan {
    pub(super) spaces: usize,
    pub(super) gateways: Vec<SocketAddr>,
    pub(super) interval: Duration,
    pub(super) count: usize,
}

pub(super) struct Seen {
    pub(super) moved: Latencies,
    pub(super) named: Latencies,
    /// Changes a second, as they were written.
    pub(super) rate: f64,
}

/// Makes all changes, and waits until the last one is in effect everywhere.
pub(super) fn run(cluster: &Cluster<'_>, plan: &Plan) -> Result<Seen> {
    thread::scope(|scope| {
        let (mut watchers, mut tell) = (Vec::new(), Vec::new());
        for gateway in &plan.gateways {
            let (sender, receiver) = sync_channel(UNDER_WAY);
            watchers.push(scope.spawn(move || watch(*gateway, &receiver)));
            tell.push(sender);
        }
        let written = write(cluster, plan, tell);
        let (mut moved, mut named) = (Latencies::default(), Latencies::default());
        // What a watcher says first: the writer ends when one of them does.
        for watcher in watchers {
            let Ok(seen) = watcher.join() else {
                bail!("a watcher panicked");
            };
            let (its_moved, its_named) = seen?;
            moved.add(&its_moved);
            named.add(&its_named);
        }
        Ok(Seen {
            moved,
            named,
            rate: written?,
        })
    })
}

/// Writes one change after the other, and returns how many a second that were.
fn write(cluster: &Cluster<'_>, plan: &Plan, tell: Vec<SyncSender<Awaited>>) -> Result<f64> {
    let mut connection = cluster.connection()?;
    let clock = Stopwatch::start();
    let mut due = Duration::ZERO;
    for turn in 0..plan.count {
        wait::pause(due.saturating_sub(clock.elapsed()));
        due += plan.interval;
        let (path, object, mut awaited) = nth(turn, plan);
        awaited.since = Stopwatch::start();
        let answer = connection.request("PATCH", &path, Some(&object.to_string()))?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
        for sender in &tell {
            let sent = sender.send(awaited.clone());
            sent.context("the thread that watches a gateway has ended")?;
        }
    }
    Ok(plan.count as f64 / clock.elapsed().max(due).as_secs_f64())
}

/// A change that is in effect once a new connection by `name` arrives.
#[derive(Clone)]
struct Awaited {
    words: Words,
    name: String,
    /// Where that goes, when it must not go elsewhere.
    address: Option<Ipv4Addr>,
    since: Stopwatch,
}

impl Awaited {
    fn in_effect(&self, gateway: SocketAddr) -> bool {
        ask::<4>(gateway, &self.words)
            .is_ok_and(|bytes| self.address.is_none_or(|address| address.octets() == bytes))
    }
}

/// Returns the path and object of the PATCH, and its effect.
fn nth(turn: usize, plan: &Plan) -> (String, Value, Awaited) {
    let (index, own) = (turn / shoots::EACH % plan.spaces, turn % shoots::EACH);
    let (mut name, mut address) = (shoots::name(index, own), None);
    let (path, object) = if turn % 4 < 2 {
        address = Some(shoots::address(index, own, MOVED));
        shoots::moved(index, own, MOVED, plan.gateways.len())
    } else {
        name.insert_str(0, "another.");
        shoots::named(index, own, &name)
    };
    let awaited = Awaited {
        words: Opening::by_name(&name).canned(Command::Where, b""),
        name,
        address,
        since: Stopwatch::start(),
    };
    (path, object, awaited)
}

/// Asks for what comes until all of it is in effect; returns delays of moves and of names.
fn watch(gateway: SocketAddr, changes: &Receiver<Awaited>) -> Result<(Latencies, Latencies)> {
    let (mut moved, mut named) = (Latencies::default(), Latencies::default());
    let mut awaited: Vec<Awaited> = Vec::new();
    loop {
        if awaited.is_empty() {
            let Ok(first) = changes.recv() else {
                return Ok((moved, named));
            };
            awaited.push(first);
        }
        awaited.extend(changes.try_iter());
        awaited.retain(|one| {
            let done = one.in_effect(gateway);
            if done {
                let delays = one.address.map_or(&mut named, |_| &mut moved);
                delays.record(one.since.elapsed());
            }
            !done
        });
        let late = awaited.iter().find(|one| one.since.elapsed() > LIMIT);
        if let Some(late) = late {
            let (name, address) = (&late.name, late.address);
            bail!("{name} is not at {address:?} by {gateway} after {LIMIT:?}");
        }
        wait::pause(INTERVAL);
    }
}

/// The last byte of an API server's address once it has moved.
const MOVED: u8 = shoots::FIRST + 2;
/// Changes that a watcher has not taken notice of; the writer waits when there are more.
const UNDER_WAY: usize = 64;
const INTERVAL: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(10);
