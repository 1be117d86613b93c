//! What idle connections cost: memory, CPU time, and whether both are given back.
//!
//! ```text
//! fresh program ─▶ a few connections ─▶ rest: before ─▶ open all, a byte there and back each
//!     ─▶ rest: held ─┬─▶ close all: that is what one holds
//!                    └─▶ idle for a while ─▶ close all ─▶ the backend has none ─▶ rest: after
//! ```

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::wait;

use super::Way;
use super::window::{Meter, Spent};
use crate::backend::Backend;

/// Resident memory of all the proxy's processes, KiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// With no connection, but after some.
    pub(crate) before: f64,
    pub(crate) held: f64,
    pub(crate) after: f64,
    pub(crate) count: usize,
    /// What it took to have them and do nothing.
    pub(crate) idle: Spent,
}

/// Returns the resident memory that each of `count` connections has, KiB.
pub(crate) fn each(way: Way<'_>, count: usize) -> Result<f64> {
    let (before, connections) = fill(way, count)?;
    let held = resident(way.meter)?;
    drop(connections);
    Ok((held - before) / count as f64)
}

pub(crate) fn run(way: Way<'_>, count: usize) -> Result<Outcome> {
    let meter = way.meter;
    let (before, connections) = fill(way, count)?;
    let idling = meter.read()?;
    wait::pause(IDLE);
    let idle = meter.read()?.since(&idling);
    let held = resident(meter)?;
    drop(connections);
    all_closed(way.backend)?;
    wait::pause(GIVE_BACK);
    Ok(Outcome {
        before,
        held,
        after: resident(meter)?,
        count,
        idle,
    })
}

fn fill(way: Way<'_>, count: usize) -> Result<(f64, Vec<TcpStream>)> {
    let backend = way.backend;
    // What a first connection makes once and for all is not what a connection costs.
    drop(open(way, FIRST)?);
    all_closed(backend)?;
    wait::pause(REST);
    let before = resident(way.meter)?;
    let connections = open(way, count)?;
    let open = backend.open();
    ensure!(open == count, "{open} of {count} connections arrived");
    wait::pause(REST);
    Ok((before, connections))
}

fn resident(meter: &Meter) -> Result<f64> {
    let resident = meter.resident_kib()?;
    resident.context("memory of processes that are not known")
}

fn open(way: Way<'_>, count: usize) -> Result<Vec<TcpStream>> {
    let mut connections = Vec::with_capacity(count);
    for nth in 0..count {
        let stream = way.opening.echoing(way.address);
        connections.push(stream.with_context(|| format!("with {nth} connections open"))?);
    }
    Ok(connections)
}

fn all_closed(backend: &Backend) -> Result<()> {
    let closed = || backend.open() == 0;
    wait::until("all connections to be closed", CLOSE_LIMIT, closed)
}

const FIRST: usize = 50;
/// For what is done behind the scenes once a connection is there, or gone.
const REST: Duration = Duration::from_millis(300);
const IDLE: Duration = Duration::from_millis(1000);
/// Allocators that give memory back do so within seconds.
const GIVE_BACK: Duration = Duration::from_secs(5);
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
