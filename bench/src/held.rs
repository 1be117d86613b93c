//! Connections that are held and pinged while something else happens.
//!
//! ```text
//! dial all ──▶ thread: a byte there and back, one after the other, and a pause between
//!               └─▶ longest round trip since `watch`, turns, those that ended
//! ```
//!
//! One that ended is noticed when its turn comes, and counted once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::background::Joined;
use testkit::wait::{self, Stopwatch};

use crate::tls::opening::{LIMIT, Words};

/// The running thread; dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Held {
    seen: Arc<Seen>,
    _thread: Joined,
}

/// What is known of it at any time.
#[derive(Debug, Default)]
struct Seen {
    stop: AtomicBool,
    /// Nanoseconds.
    longest: AtomicU64,
    lost: AtomicUsize,
    /// All connections have been pinged so often.
    turns: AtomicUsize,
}

impl Held {
    /// Opens a connection by each of `words`, which end with a byte that is echoed, and pings them
    /// until it is dropped, with `pause` between two pings.
    pub(crate) fn start(
        address: SocketAddr,
        words: impl IntoIterator<Item = Words>,
        pause: Duration,
    ) -> Result<Self> {
        let mut connections = Vec::new();
        for words in words {
            let nth = connections.len();
            let what = || format!("with {nth} connections open");
            let mut stream = words.dial(address, LIMIT).with_context(what)?;
            let came = stream.read(&mut [0; 1]).with_context(what)?;
            ensure!(came == 1, "closed without an answer, {}", what());
            connections.push(stream);
        }
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = Joined::spawn("held", move || ping(connections, pause, &shared))?;
        Ok(Self {
            seen,
            _thread: thread,
        })
    }

    /// Forgets what was seen so far, once all have been pinged.
    pub(crate) fn watch(&self) -> Result<()> {
        self.turn()?;
        self.seen.longest.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all have been pinged once more, and returns the longest round trip and how many
    /// connections were lost.
    pub(crate) fn seen(&self) -> Result<(Duration, usize)> {
        self.turn()?;
        let longest = Duration::from_nanos(self.seen.longest.load(Ordering::Relaxed));
        Ok((longest, self.seen.lost.load(Ordering::Relaxed)))
    }

    pub(crate) fn turns(&self) -> usize {
        self.seen.turns.load(Ordering::Relaxed)
    }

    /// A whole turn that began after now.
    fn turn(&self) -> Result<()> {
        let before = self.turns();
        let turned = || self.turns() >= before + 2;
        wait::until("all held connections to be pinged", TURN_LIMIT, turned)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Behind this, the thread is waited for.
        self.seen.stop.store(true, Ordering::Relaxed);
    }
}

fn ping(mut connections: Vec<TcpStream>, pause: Duration, seen: &Seen) {
    while !seen.stop.load(Ordering::Relaxed) {
        connections.retain_mut(|stream| {
            // Thousands of pauses may be left of a turn.
            if seen.stop.load(Ordering::Relaxed) {
                return true;
            }
            let clock = Stopwatch::start();
            let alive = once(stream).is_ok();
            let took = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
            seen.longest.fetch_max(took, Ordering::Relaxed);
            if !alive {
                seen.lost.fetch_add(1, Ordering::Relaxed);
            }
            wait::pause(pause);
            alive
        });
        seen.turns.fetch_add(1, Ordering::Relaxed);
        if connections.is_empty() {
            wait::pause(Duration::from_millis(1));
        }
    }
}

fn once(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b".")?;
    stream.read_exact(&mut [0; 1])
}

/// More than a ping of each may take, if none answers for some seconds.
const TURN_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::backend::{Backend, Command};
    use crate::tls::opening::Opening;

    #[test]
    fn ended_connection_is_counted_once() {
        let start = || Backend::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (stays, ends) = (start(), start());
        let words = || Opening::by_name("a.example").canned(Command::Echo, b"!");
        let hold = |backend: &Backend| {
            Held::start(backend.address(), (0..3).map(|_| words()), Duration::ZERO).unwrap()
        };
        let (good, bad) = (hold(&stays), hold(&ends));
        bad.watch().unwrap();
        assert_eq!(bad.seen().unwrap().1, 0);
        drop(ends);
        assert_eq!(bad.seen().unwrap().1, 3);
        assert_eq!(bad.seen().unwrap().1, 3);
        let (longest, lost) = good.seen().unwrap();
        assert!(lost == 0 && !longest.is_zero() && good.turns() > 1);
    }
}
