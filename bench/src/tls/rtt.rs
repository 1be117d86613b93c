//! Round trips of 64 bytes on one connection, one after the other, both ends blocking.
//!
//! Between two processors of a virtual machine this measures how long a halted one takes to wake
//! up, several times over. With everything on one processor it measures what the proxy does.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Way;
use super::opening::LIMIT;
use super::window::Spent;
use crate::backend::Command;
use crate::latency::Latencies;

pub(crate) fn run(way: Way<'_>, warm_up: Duration, length: Duration) -> Result<(Latencies, Spent)> {
    let meter = way.meter;
    let words = way.opening.canned(Command::Block, b"");
    let mut stream = words.dial(way.address, LIMIT)?;
    let mut ping = [0; BYTES];
    let mut pong = [0; BYTES];
    let mut turn = |number: u64| -> Result<()> {
        ping[..8].copy_from_slice(&number.to_be_bytes());
        stream.write_all(&ping).context("sending")?;
        stream.read_exact(&mut pong).context("receiving")?;
        ensure!(ping == pong, "an answer to another question");
        Ok(())
    };
    let mut number = 0;
    let start = meter.now();
    while meter.now() < start + warm_up {
        number += 1;
        turn(number)?;
    }
    let mut latencies = Latencies::default();
    let before = meter.read()?;
    let begun = meter.now();
    let mut now = begun;
    while now < begun + length {
        number += 1;
        turn(number)?;
        let over = meter.now();
        latencies.record(over.saturating_sub(now));
        now = over;
    }
    Ok((latencies, meter.read()?.since(&before)))
}

const BYTES: usize = 64;
