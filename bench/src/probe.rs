//! Asks for a name until it answers.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::wait::{self, Stopwatch};

use crate::tls::opening::Words;

/// Connects each half millisecond until a byte comes back, and returns what `clock` says then.
pub(crate) fn until_answered(
    address: SocketAddr,
    words: &Words,
    clock: Stopwatch,
    limit: Duration,
) -> Result<Duration> {
    loop {
        let asked = Stopwatch::start();
        if ask::<1>(address, words).is_ok() {
            return Ok(clock.elapsed());
        }
        ensure!(clock.elapsed() < limit, "no answer within {limit:?}");
        wait::pause(INTERVAL.saturating_sub(asked.elapsed()));
    }
}

/// Connects, says `words` and returns the first bytes that come back.
pub(crate) fn ask<const N: usize>(address: SocketAddr, words: &Words) -> Result<[u8; N]> {
    let mut answer = [0; N];
    let mut stream = words.dial(address, ANSWER_LIMIT)?;
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

const INTERVAL: Duration = Duration::from_micros(500);
/// For a proxy that has the name and is busy; one that has it not says so at once.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
