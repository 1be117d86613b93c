//! TCP connections to the tunnel's port, until the tunnel takes them over.
//!
//! ```text
//!   accept ─▶ limit? the longest silent one ends ─▶ first byte in time? ─▶ Link::accept
//! ```
//!
//! Reads nothing: the bytes are the tunnel's. Runs until the process ends, also while
//! it drains, since a client may have to connect again for the connections that are still open.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use telemetry::metrics::CounterFamily;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tunnel::{Status, Transport};

use crate::config::Limits;

/// Takes over a connection.
pub(crate) type Accept = dyn Fn(std::net::TcpStream, SocketAddr) + Send + Sync;

/// What accepting connections needs; made on one thread and used on another.
pub(crate) struct LinksParams {
    pub(crate) accept: Box<Accept>,
    pub(crate) status: watch::Receiver<Arc<Status>>,
    pub(crate) limits: Limits,
    /// Counts connections by what became of them.
    pub(crate) ended: CounterFamily,
}

/// The connections of the tunnel's port.
pub(crate) struct Links {
    params: LinksParams,
    waiting: RefCell<Waiting>,
}

/// The connections that have not sent anything yet, by the order in which they came.
#[derive(Default)]
struct Waiting {
    last: u64,
    all: BTreeMap<u64, (IpAddr, AbortHandle)>,
}

impl Links {
    pub(crate) fn new(params: LinksParams) -> Rc<Self> {
        Rc::new(Self {
            params,
            waiting: RefCell::default(),
        })
    }

    /// Handles a connection that was accepted.
    pub(crate) fn accepted(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        if let Err(full) = self.make_room(peer.ip()) {
            tracing::debug!(%peer, full, "connection to the tunnel's port refused");
            return self.ended(full);
        }
        let mut waiting = self.waiting.borrow_mut();
        waiting.last += 1;
        let (links, id) = (Rc::clone(self), waiting.last);
        let task = tokio::task::spawn_local(async move {
            let limit = links.params.limits.hello_timeout.0;
            let result = match first_byte(stream, limit).await {
                Ok(stream) => {
                    (links.params.accept)(stream, peer);
                    "taken"
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => "silent",
                Err(_) => "gone",
            };
            links.ended(result);
            links.waiting.borrow_mut().all.remove(&id);
        });
        let entry = (peer.ip(), task.abort_handle());
        waiting.all.insert(id, entry);
    }

    /// Counts the connections that wait and those that carry a tunnel. Where a limit is reached, the one that
    /// has been silent longest makes way: a client speaks at once.
    fn make_room(&self, source: IpAddr) -> Result<(), &'static str> {
        let limits = self.params.limits;
        let (mut all, mut of_source) = (0, 0);
        let status = self.params.status.borrow();
        all += status.strangers;
        let open = status.peers.iter().flat_map(|peer| &peer.links);
        for link in open.filter(|link| link.transport == Transport::Tcp) {
            all += 1;
            let address = link.remote.parse::<SocketAddr>();
            if address.is_ok_and(|address| address.ip() == source) {
                of_source += 1;
            }
        }
        let mut waiting = self.waiting.borrow_mut();
        let own = waiting.all.values().filter(|(from, _)| *from == source);
        of_source += own.count();
        all += waiting.all.len();
        if limits.links_per_source > 0 && of_source >= limits.links_per_source {
            let oldest = waiting.oldest(|from| from == source);
            self.evict(&mut waiting, oldest).ok_or("source_limit")
        } else if all >= limits.links {
            let largest = waiting.largest_source();
            let oldest = waiting.oldest(|from| Some(from) == largest);
            self.evict(&mut waiting, oldest).ok_or("limit")
        } else {
            Ok(())
        }
    }

    fn ended(&self, result: &'static str) {
        self.params.ended.with(&[result]).inc();
    }

    fn evict(&self, waiting: &mut Waiting, id: Option<u64>) -> Option<()> {
        let (_, task) = waiting.all.remove(&id?)?;
        task.abort();
        self.ended("evicted");
        Some(())
    }
}

impl Waiting {
    fn oldest(&self, of: impl Fn(IpAddr) -> bool) -> Option<u64> {
        let mut all = self.all.iter();
        all.find(|(_, (from, _))| of(*from)).map(|(id, _)| *id)
    }

    /// Returns the address that most of them come from.
    fn largest_source(&self) -> Option<IpAddr> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (from, _) in self.all.values() {
            *counts.entry(*from).or_default() += 1;
        }
        let largest = counts.into_iter().max_by_key(|(_, count)| *count);
        largest.map(|(from, _)| from)
    }
}

/// Waits for the first byte, and leaves it in the socket.
async fn first_byte(stream: TcpStream, limit: Duration) -> io::Result<std::net::TcpStream> {
    let mut first = [0];
    let peeked = timeout(limit, stream.peek(&mut first)).await;
    match peeked.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => stream.into_std(),
    }
}
