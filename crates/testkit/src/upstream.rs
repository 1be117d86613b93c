//! Fake upstreams: plain TCP servers that behave in one way, and say what they saw.

mod serve;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;

use self::serve::Conn;
use crate::background::{self, Background, locked};
use crate::wait;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Reads to the end, then answers with the count of bytes in decimal, then closes: works only
    /// if the client's half-close arrives and the way back stays open.
    AnswersAtEof,
    Closes,
    /// Sends back what it reads; ends when the client ends.
    Echo,
    /// Shuts its read half, then sends `bytes` bytes and closes.
    EndsReadFirst {
        bytes: u64,
    },
    /// Sends `greeting`, ends its write half, and goes on reading to the end.
    EndsWriteFirst {
        greeting: Vec<u8>,
    },
    NeverReads,
    /// Reads `after` bytes, then resets the connection.
    Resets {
        /// How much it reads first.
        after: u64,
    },
    /// Sends `bytes` bytes, then resets the connection when [`Upstream::reset`] is called.
    ResetsOnRequest {
        bytes: u64,
    },
    Sink,
    /// Sends `bytes` bytes, reading nothing, then closes; `u64::MAX` is without end.
    Source {
        bytes: u64,
    },
}

/// A running upstream. Dropping it closes its connections and its port.
#[derive(Debug)]
pub struct Upstream {
    addr: SocketAddr,
    seen: Arc<Seen>,
    _thread: Background,
}

#[derive(Debug, Default)]
struct Seen {
    accepted: AtomicUsize,
    open: AtomicUsize,
    bytes: AtomicU64,
    resets: AtomicUsize,
    resetting: watch::Sender<bool>,
    beginnings: Mutex<Vec<Vec<u8>>>,
}

impl Upstream {
    /// Binds a free port of `127.0.0.1`.
    pub fn start(behavior: Behavior) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("binding a port")?;
        Self::serve(listener, behavior)
    }

    /// Serves on a socket that is bound already, in whatever namespace.
    pub fn serve(listener: TcpListener, behavior: Behavior) -> Result<Self> {
        let addr = listener.local_addr();
        let addr = addr.context("reading a socket's address")?;
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = Background::spawn("upstream", move || {
            background::accept(listener, move |stream, _| {
                Conn::new(stream, &shared).run(behavior.clone())
            })
        })?;
        Ok(Self {
            addr,
            seen,
            _thread: thread,
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn accepted(&self) -> usize {
        self.seen.accepted.load(Ordering::Relaxed)
    }

    pub fn open(&self) -> usize {
        self.seen.open.load(Ordering::Relaxed)
    }

    /// Returns how many bytes were read, over all connections.
    pub fn received(&self) -> u64 {
        self.seen.bytes.load(Ordering::Relaxed)
    }

    pub fn resets(&self) -> usize {
        self.seen.resets.load(Ordering::Relaxed)
    }

    /// Returns the first bytes (to 16 KiB) each connection sent, in the order of acceptance: PROXY
    /// headers and ClientHellos.
    pub fn beginnings(&self) -> Vec<Vec<u8>> {
        locked(&self.seen.beginnings).clone()
    }

    pub fn wait_accepted(&self, count: usize, limit: Duration) -> Result<()> {
        let accepted = || self.accepted() >= count;
        wait::until(&format!("{count} connections"), limit, accepted)
    }

    /// Has the connections reset that wait for it, and those that come.
    pub fn reset(&self) {
        self.seen.resetting.send_replace(true);
    }

    /// Waits until the other side has reset `count` connections.
    pub fn wait_resets(&self, count: usize, limit: Duration) -> Result<()> {
        wait::until(&format!("{count} resets"), limit, || self.resets() >= count)
    }

    pub fn wait_closed(&self, limit: Duration) -> Result<()> {
        wait::until("all connections to close", limit, || self.open() == 0)
    }
}
