//! Watches: what an idle one costs, and how long an event takes to reach all of them.
//!
//! ```text
//! fresh program ─▶ a few connections ─▶ rest: before ─▶ each: connection, watch, first event
//!     ─▶ rest: held ─▶ event to all, and once all have it the next one
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::client::{Client, Connection, Protocol};
use super::server::{Server, WATCH};
use crate::latency::Latencies;
use crate::tls::runtime;
use crate::tls::window::{Meter, Spent};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Connections with a watch each.
    pub(crate) count: usize,
    pub(crate) events: usize,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Resident memory, KiB; not known of what is no gateway.
    pub(crate) before: Option<f64>,
    pub(crate) held: Option<f64>,
    pub(crate) latencies: Latencies,
    pub(crate) spent: Spent,
}

/// When the event was sent that is under way, and what has come of it.
#[derive(Debug)]
struct Event {
    sent: Mutex<Instant>,
    latencies: Mutex<Latencies>,
    arrived: AtomicUsize,
}

pub(crate) fn run(client: &Client, server: &Server, load: Load, meter: &Meter) -> Result<Outcome> {
    runtime()?.block_on(async {
        drop(open(client, FIRST).await?);
        sleep(REST).await;
        let before = meter.resident_kib()?;
        let watches = open(client, load.count).await?;
        sleep(REST).await;
        let held = meter.resident_kib()?;
        let event = Arc::new(Event {
            sent: Mutex::new(Instant::now()),
            latencies: Mutex::default(),
            arrived: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        for watch in watches {
            tasks.spawn(follow(watch, Arc::clone(&event)));
        }
        let reading = meter.read()?;
        for _ in 0..load.events {
            event.send_to_all(server, load.count).await?;
        }
        let spent = meter.read()?.since(&reading);
        let latencies = event.latencies.lock();
        let latencies = latencies.unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Outcome {
            before,
            held,
            latencies,
            spent,
        })
    })
}

type Watch = (Connection, Incoming);

async fn open(client: &Client, count: usize) -> Result<Vec<Watch>> {
    let (mut watches, mut tasks) = (Vec::with_capacity(count), JoinSet::new());
    for nth in 0..count {
        let client = client.clone();
        tasks.spawn(async move { open_one(&client).await });
        if tasks.len() == OPENING || nth + 1 == count {
            let what = || format!("with {} watches open", watches.len());
            let opened = timeout(LIMIT, tasks.join_all()).await.with_context(what)?;
            watches.extend(opened.into_iter().collect::<Result<Vec<_>>>()?);
            tasks = JoinSet::new();
        }
    }
    Ok(watches)
}

async fn open_one(client: &Client) -> Result<Watch> {
    let mut connection = client.connect(Protocol::Http2).await?;
    let response = connection.send(client, WATCH).await?;
    let mut body = response.into_body();
    let first = body.frame().await.context("a watch without an event")?;
    ensure!(first?.is_data(), "a watch that ends");
    Ok((connection, body))
}

async fn follow((_connection, mut body): Watch, event: Arc<Event>) {
    // A body of a few hundred bytes comes in one frame; what comes in pieces has come with the last.
    while let Some(Ok(frame)) = body.frame().await {
        if frame.is_data() {
            event.arrived();
        }
    }
}

impl Event {
    async fn send_to_all(&self, server: &Server, count: usize) -> Result<()> {
        self.arrived.store(0, Ordering::Relaxed);
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let watches = server.event();
        ensure!(watches == count, "{watches} of {count} watches are left");
        let all = async {
            while self.arrived.load(Ordering::Relaxed) < count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, all).await.context("an event was lost")?;
        sleep(PAUSE).await;
        Ok(())
    }

    fn arrived(&self) {
        let sent = *self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latencies = self
            .latencies
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        latencies.record(sent.elapsed());
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a first connection makes once and for all is not what a connection costs.
const FIRST: usize = 20;
/// Handshakes at a time.
const OPENING: usize = 20;
/// For what is done behind the scenes once a connection is there, or gone.
const REST: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(20);
