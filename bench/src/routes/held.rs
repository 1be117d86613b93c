//! Connections that are held and pinged while the table changes.
//!
//! ```text
//! dial 100, over the whole table ──▶ thread: an octet there and back, one after the other
//!                                     └─▶ longest round trip since `watch`, those that ended
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::wait::{self, Stopwatch};

use crate::profile::Route;
use crate::tls::backend::Command;
use crate::tls::opening::Opening;

/// The running thread; dropping it closes its connections.
#[derive(Debug)]
pub(super) struct Held {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
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
    /// Opens `count` connections by names all over the table, and pings them until it is dropped.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub(super) fn start(address: SocketAddr, routes: &[Route], count: usize) -> Result<Self> {
        let mut connections = Vec::with_capacity(count);
        for nth in 0..count {
            let route = routes
                .get(nth * routes.len() / count)
                .context("a table without routes")?;
            let words = Opening::new(Some(crate::profile::Listener::Sni), route, false)
                .canned(Command::Echo, b"!");
            let mut stream = words.dial(address)?;
            ensure!(
                stream.read(&mut [0; 1])? == 1,
                "{} is not answered",
                route.name
            );
            connections.push(stream);
        }
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = thread::Builder::new()
            .name("held".to_owned())
            .spawn(move || ping(connections, &shared))
            .context("starting a thread")?;
        Ok(Self {
            seen,
            thread: Some(thread),
        })
    }

    /// Forgets what was seen so far, once all have been pinged.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) fn watch(&self) -> Result<()> {
        self.turn()?;
        self.seen.longest.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all have been pinged once more, and returns the longest round trip and how many
    /// connections were lost.
    ///
    /// # Errors
    /// When that takes too long.
    pub(super) fn seen(&self) -> Result<(Duration, usize)> {
        self.turn()?;
        let longest = Duration::from_nanos(self.seen.longest.load(Ordering::Relaxed));
        Ok((longest, self.seen.lost.load(Ordering::Relaxed)))
    }

    /// A whole turn that began after now.
    fn turn(&self) -> Result<()> {
        let turns = || self.seen.turns.load(Ordering::Relaxed);
        let before = turns();
        wait::until("all held connections to be pinged", TURN_LIMIT, || {
            turns() >= before + 2
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ping(mut connections: Vec<TcpStream>, seen: &Seen) {
    while !seen.stop.load(Ordering::Relaxed) {
        connections.retain_mut(|stream| {
            let clock = Stopwatch::start();
            let alive = once(stream).is_ok();
            let took = u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
            seen.longest.fetch_max(took, Ordering::Relaxed);
            if !alive {
                seen.lost.fetch_add(1, Ordering::Relaxed);
            }
            wait::pause(PAUSE);
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

/// So that pings take a small part of the processors only: 100 connections are each pinged some
/// thirty times a second.
const PAUSE: Duration = Duration::from_micros(100);
/// More than a ping of each may take, if none answers for some seconds.
const TURN_LIMIT: Duration = Duration::from_secs(60);
