//! Finds the route of handshakes that name none, by trying the public keys of all servers.
//!
//! ```text
//!     worker ── handshake ─▶ queue ─▶ one thread: Mac1Table, one budget ── route ─▶ worker
//! ```
//!
//! Trying ten thousand keys takes milliseconds, which no other datagram of a worker is to wait for,
//! so that is done on a thread of its own; the budget is then one for the process. The queue is
//! bounded: what does not fit is dropped, and a client sends its handshake again after 5 s.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use route::{Route, Snapshot};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tunnel_proto::TokenBucket;
use tunnel_proto::datagram::INITIATION_LEN;
use tunnel_proto::mac1::{Mac1Table, ScanError};

use super::dropped::Dropped;
use super::metrics::ScanMetrics;
use crate::config::WireGuardLimits;

/// Handshakes that may wait for their turn, of all workers together.
const QUEUE: usize = 512;

/// A handshake on its way to the scanner and back.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) client: SocketAddr,
    /// The address of ours that it was sent to.
    pub(super) local: Option<IpAddr>,
    pub(super) datagram: [u8; INITIATION_LEN],
}

/// A handshake with what came of it.
pub(super) type Scanned = (Handshake, Result<Arc<Route>, ScanError>);

type Request = (Handshake, mpsc::Sender<Scanned>);

/// Gives handshakes to the scanner's thread, which ends with the last of these.
#[derive(Clone, Debug)]
pub(crate) struct Scanner(SyncSender<Request>);

impl Scanner {
    /// Starts the thread; `current` returns the snapshot in effect.
    pub(crate) fn start(
        limits: &WireGuardLimits,
        metrics: &super::Metrics,
        current: impl Fn() -> Arc<Snapshot> + Send + 'static,
    ) -> io::Result<Self> {
        let now = Instant::now().into_std();
        let budget = TokenBucket::new(limits.scan_rate, limits.scan_burst, now);
        let (sender, requests) = sync_channel(QUEUE);
        let metrics = metrics.scans.clone();
        std::thread::Builder::new()
            .name("wireguard-scan".to_owned())
            .spawn(move || scan(&requests, budget, &metrics, current))?;
        Ok(Self(sender))
    }

    /// Has the keys of a handshake tried; what came of it is sent to `answer`.
    pub(super) fn ask(
        &self,
        handshake: Handshake,
        answer: &mpsc::Sender<Scanned>,
    ) -> Result<(), Dropped> {
        let request = (handshake, answer.clone());
        self.0.try_send(request).map_err(|_| Dropped::ScanQueue)
    }
}

fn scan(
    requests: &Receiver<Request>,
    budget: TokenBucket,
    metrics: &ScanMetrics,
    current: impl Fn() -> Arc<Snapshot>,
) {
    let mut known = Known {
        table: Mac1Table::new(budget),
        snapshot: Arc::new(Snapshot::empty()),
        routes: Vec::new(),
    };
    while let Ok((handshake, answer)) = requests.recv() {
        known.follow(current());
        let now = Instant::now().into_std();
        let found = known.find(now, &handshake.datagram);
        match found {
            Ok(_) => metrics.found.inc(),
            Err(ScanError::Budget) => metrics.budget.inc(),
            Err(_) => metrics.unknown.inc(),
        }
        // A worker that takes no more, or is gone, loses a handshake that comes again.
        let _ = answer.try_send((handshake, found));
    }
}

/// The keys of one snapshot, and the routes that they lead to.
struct Known {
    table: Mac1Table<usize>,
    snapshot: Arc<Snapshot>,
    routes: Vec<Arc<Route>>,
}

impl Known {
    /// Takes over the keys of a snapshot, if it is another one.
    fn follow(&mut self, snapshot: Arc<Snapshot>) {
        if Arc::ptr_eq(&self.snapshot, &snapshot) {
            return;
        }
        self.routes = snapshot
            .wireguard_routes()
            .map(|(_, route)| Arc::clone(route))
            .collect();
        let keys = snapshot.wireguard_routes().enumerate();
        self.table
            .replace(keys.flat_map(|(at, (keys, _))| keys.iter().map(move |key| (*key, at))));
        self.snapshot = snapshot;
    }

    fn find(&mut self, now: std::time::Instant, message: &[u8]) -> Result<Arc<Route>, ScanError> {
        let at = self.table.find(now, message)?;
        self.routes.get(at).cloned().ok_or(ScanError::Unknown)
    }
}
