//! Asks for a name until it answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::wait::{self, Stopwatch};

use crate::tls::opening::Words;

/// Connects each half millisecond until an octet comes back, and returns what `clock` says then.
///
/// # Errors
/// After `limit`.
pub(super) fn until_answered(
    address: SocketAddr,
    words: &Words,
    clock: Stopwatch,
    limit: Duration,
) -> Result<Duration> {
    loop {
        let asked = Stopwatch::start();
        if answers(address, words).is_ok_and(|answered| answered) {
            return Ok(clock.elapsed());
        }
        ensure!(clock.elapsed() < limit, "no answer within {limit:?}");
        wait::pause(INTERVAL.saturating_sub(asked.elapsed()));
    }
}

/// Tells whether an octet comes back; a proxy that does not know the name closes or resets.
fn answers(address: SocketAddr, words: &Words) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(&words.first)?;
    Ok(stream.read(&mut [0; 1])? == 1)
}

const INTERVAL: Duration = Duration::from_micros(500);
/// For a proxy that has the name and is busy; one that has it not says so at once.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
