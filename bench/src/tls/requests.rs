//! Real TLS: requests on connections that stay, and handshakes of connections that do not.
//!
//! ```text
//! keep-alive  connect, handshake, then request ─▶ response, over and over
//! handshakes  connect, handshake, request ─▶ response, close; over and over
//! ```
//!
//! One task a connection, all on this thread. With a rate, what is late counts from when it was due.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::opening::{Answer, LIMIT, Opening};
use super::secure::{Secure, request, response};
use super::window::{Meter, Spent};
use crate::latency::Latencies;
use crate::pacer::Pacer;

/// How many connections, how fast, how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// At once.
    pub(crate) connections: usize,
    /// Whether each request has a connection of its own.
    pub(crate) fresh: bool,
    /// Between two operations of one connection that are due.
    pub(crate) interval: Option<Duration>,
    /// What does not count yet.
    pub(crate) warm_up: Duration,
    /// What counts.
    pub(crate) length: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Operations that were over within the time that counts.
    pub(crate) done: u64,
    /// Those that failed.
    pub(crate) failed: u64,
    /// From when one began, or was due, to the end of the response.
    pub(crate) latencies: Latencies,
    /// What it took.
    pub(crate) spent: Spent,
}

/// Talks to `server` through `address` for a while.
///
/// # Errors
/// When not a single response comes, or the proxy ends.
pub(crate) fn run(
    address: SocketAddr,
    opening: &Opening,
    name: &str,
    server: &Secure,
    load: Load,
    meter: &Meter,
) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let shared = Rc::new(Shared {
        address,
        opening: opening.clone(),
        name: ServerName::try_from(name.to_owned()).context("a server's name")?,
        config: Arc::clone(server.client()),
        request: request(name),
        response: response().len(),
        counting: Cell::new(false),
        tally: RefCell::new(Tally::new()?),
        under_way: (0..load.connections).map(|_| Cell::new(None)).collect(),
    });
    let tasks = LocalSet::new();
    let spent = tasks.block_on(&runtime, during(&shared, load, meter))?;
    if load.interval.is_some() {
        shared.count_unanswered();
    }
    let tally = shared.tally.replace(Tally::new()?);
    ensure!(
        tally.done > 0,
        "of {} operations none was answered: {}",
        tally.failed,
        tally.first_failure.unwrap_or_default()
    );
    Ok(Outcome {
        done: tally.done,
        failed: tally.failed,
        latencies: tally.latencies,
        spent,
    })
}

/// Starts all clients, and returns what the time that counts took. They go on until their set is
/// dropped.
async fn during(shared: &Rc<Shared>, load: Load, meter: &Meter) -> Result<Spent> {
    let start = Instant::now();
    let all = u32::try_from(load.connections).context("connections")?;
    for nth in 0..all {
        // Spread over the interval, so that not all are due at once.
        let share = load.interval.map(|interval| interval * nth / all);
        let pacer = Pacer::new(load.interval, start + share.unwrap_or_default());
        let shared = Rc::clone(shared);
        let nth = usize::try_from(nth).context("a connection's number")?;
        tokio::task::spawn_local(async move { shared.client(nth, pacer, load.fresh).await });
    }
    sleep(load.warm_up).await;
    let before = meter.read()?;
    shared.counting.set(true);
    sleep(load.length).await;
    shared.counting.set(false);
    Ok(meter.read()?.since(&before))
}

/// What all connections have in common.
struct Shared {
    address: SocketAddr,
    opening: Opening,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    request: Vec<u8>,
    response: usize,
    counting: Cell<bool>,
    tally: RefCell<Tally>,
    /// When each connection's operation began, or was due.
    under_way: Vec<Cell<Option<Instant>>>,
}

struct Tally {
    done: u64,
    failed: u64,
    first_failure: Option<String>,
    latencies: Latencies,
}

impl Tally {
    fn new() -> Result<Self> {
        Ok(Self {
            done: 0,
            failed: 0,
            first_failure: None,
            latencies: Latencies::new()?,
        })
    }
}

impl Shared {
    async fn client(&self, nth: usize, mut pacer: Pacer, fresh: bool) {
        let mut kept = None;
        let mut bytes = vec![0; 16 << 10];
        loop {
            if !fresh && kept.is_none() {
                // A connection that stays is there before its first request is due.
                kept = self.connect().await.ok();
            }
            let since = pacer.next().await;
            if let Some(cell) = self.under_way.get(nth) {
                cell.set(Some(since));
            }
            let stream = kept.take();
            let done = timeout(LIMIT, self.operation(stream, &mut bytes)).await;
            if let Some(cell) = self.under_way.get(nth) {
                cell.set(None);
            }
            match done.context("no answer").flatten() {
                Ok(stream) => {
                    kept = (!fresh).then_some(stream);
                    self.count(since);
                }
                Err(error) => {
                    self.count_failure(&error);
                    // Whatever it was, more of it at once would not be better.
                    sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn operation(
        &self,
        stream: Option<TlsStream<TcpStream>>,
        bytes: &mut [u8],
    ) -> Result<TlsStream<TcpStream>> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        stream.write_all(&self.request).await.context("asking")?;
        stream.flush().await.context("asking")?;
        let mut left = self.response;
        while left > 0 {
            let count = stream.read(bytes).await.context("reading a response")?;
            ensure!(count > 0, "closed before the response was over");
            left = left.checked_sub(count).context("more than a response")?;
        }
        Ok(stream)
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let mut stream = TcpStream::connect(self.address)
            .await
            .context("connecting")?;
        stream.set_nodelay(true).context("a connection")?;
        let words = self.opening.real();
        stream.write_all(&words.first).await.context("opening")?;
        if words.then.is_some() {
            let mut answer = Answer::default();
            let mut bytes = [0; 1024];
            while !answer.is_over() {
                let count = stream.read(&mut bytes).await.context("opening")?;
                answer.feed(bytes.get(..count).unwrap_or_default())?;
            }
        }
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let handshake = connector.connect(self.name.clone(), stream);
        handshake.await.context("shaking hands")
    }

    fn count(&self, since: Instant) {
        if self.counting.get() {
            let mut tally = self.tally.borrow_mut();
            tally.done += 1;
            tally.latencies.record(since.elapsed());
        }
    }

    fn count_failure(&self, error: &anyhow::Error) {
        let mut tally = self.tally.borrow_mut();
        tally.failed += 1;
        tally
            .first_failure
            .get_or_insert_with(|| format!("{error:#}"));
    }

    /// What was not answered counts with what it has waited.
    fn count_unanswered(&self) {
        let mut tally = self.tally.borrow_mut();
        for since in self.under_way.iter().filter_map(Cell::get) {
            tally.latencies.record(since.elapsed());
        }
    }
}
