//! `rhizome-bench hold`, which `controller` starts: both ends of what one gateway holds.
//!
//! ```text
//! backend ◀── gateway ◀── held, pinged in turn          line 1 in: what to hold; line 1 out: how many
//!                     ◀── new ones, 50 a second         line 2 in: begin; line 3 in: end
//!                                                       line 2 out: what became of them
//! ```

use std::io::{BufRead, Read, Write, stdin, stdout};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::wait::{self, Stopwatch};

use super::super::shoots;
use crate::backend::{Backend, Command};
use crate::held::Held;
use crate::limits;
use crate::tls::opening::{LIMIT, Opening, Words};

/// What is held, through one gateway, while `controller` changes routes.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Hold {
    pub(super) gateway: SocketAddr,
    pub(super) held: usize,
    pub(super) spaces: usize,
    /// The number of the gateway, whose share of the shoots is used.
    pub(super) nth: usize,
    pub(super) of: usize,
    pub(super) seconds: u32,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Outcome {
    /// How often each one held was pinged.
    pub(super) probes: usize,
    /// The longest that one waited for its byte.
    pub(super) longest_ms: f64,
    pub(super) lost: u64,
    pub(super) new_per_second: f64,
    pub(super) failed: u64,
}

impl Hold {
    /// Returns what `count` connections say, spread over the shoots.
    fn words(&self, count: usize) -> impl Iterator<Item = Words> {
        let names = shoots::names(self.spaces, self.nth, self.of);
        (0..count).filter_map(move |nth| {
            let name = names.get(nth * names.len() / count)?;
            Some(Opening::by_name(name).canned(Command::Echo, b"!"))
        })
    }
}

pub(crate) fn hold() -> Result<ExitCode> {
    limits::raise()?;
    let asked: Hold = serde_json::from_str(&hear()?).context("reading what to hold")?;
    let port = shoots::port(asked.nth, asked.of);
    // At all addresses: whichever a shoot's API server has.
    let backend = Backend::start(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    let held = Held::start(asked.gateway, asked.words(asked.held), PAUSE)?;
    held.watch()?;
    say(&asked.held)?;
    hear()?;
    let before = held.turns();
    let words: Vec<Words> = asked.words(NAMES).collect();
    let length = Duration::from_secs(asked.seconds.into());
    let new = New::open(asked.gateway, &words, length);
    hear()?;
    let (longest, lost) = held.seen()?;
    say(&Outcome {
        probes: held.turns() - before,
        longest_ms: longest.as_secs_f64() * 1e3,
        lost: lost as u64,
        new_per_second: new.done as f64 / length.as_secs_f64(),
        failed: new.failed,
    })?;
    drop((held, backend));
    Ok(ExitCode::SUCCESS)
}

/// New connections: those that carried a byte there and back, and those that did not.
#[derive(Default)]
struct New {
    done: u64,
    failed: u64,
}

impl New {
    /// Opens one each [`INTERVAL`], for `length`.
    fn open(gateway: SocketAddr, words: &[Words], length: Duration) -> Self {
        let (mut new, clock) = (Self::default(), Stopwatch::start());
        for (nth, words) in (0_u32..).zip(words.iter().cycle()) {
            wait::pause((INTERVAL * nth).saturating_sub(clock.elapsed()));
            if clock.elapsed() >= length {
                break;
            }
            let once = || {
                let mut stream = words.dial(gateway, LIMIT)?;
                stream.read_exact(&mut [0]).context("a byte")
            };
            match once() {
                Ok(()) => new.done += 1,
                Err(_) => new.failed += 1,
            }
        }
        new
    }
}

fn say(what: &impl Serialize) -> Result<()> {
    let mut out = stdout().lock();
    let line = serde_json::to_string(what).context("writing what is to be said")?;
    writeln!(out, "{line}").and_then(|()| out.flush())?;
    Ok(())
}

fn hear() -> Result<String> {
    let mut line = String::new();
    let count = stdin().lock().read_line(&mut line)?;
    ensure!(count > 0, "the parent process has ended");
    Ok(line)
}

const INTERVAL: Duration = Duration::from_millis(20);
/// Names that new ones go by, in turn.
const NAMES: usize = 1000;
/// Between two pings: each of 9,000 is pinged every ten seconds.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_has_its_words() {
        let hold = Hold {
            gateway: SocketAddr::from(([127, 0, 0, 1], 443)),
            held: 3,
            spaces: 2,
            nth: 1,
            of: 2,
            seconds: 5,
        };
        assert_eq!(hold.words(7).count(), 7);
    }
}
