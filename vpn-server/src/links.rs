//! TCP connections to the tunnel's port, until the tunnel takes them over.
//!
//! ```text
//!   accept ─▶ limit? ─▶ first byte in time? ─▶ Link::accept
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

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tunnel::{Status, Transport};

use crate::config::Limits;
use crate::metrics::LinkMetrics;

/// Takes over a connection.
pub(crate) type Accept = dyn Fn(std::net::TcpStream, SocketAddr) + Send + Sync;

/// What accepting connections needs; made on one thread and used on another.
pub(crate) struct LinksParams {
    pub(crate) accept: Box<Accept>,
    pub(crate) status: watch::Receiver<Arc<Status>>,
    pub(crate) limits: Limits,
    pub(crate) metrics: LinkMetrics,
}

/// The connections of the tunnel's port.
pub(crate) struct Links {
    params: LinksParams,
    /// Those that have not sent anything yet, by address.
    waiting: RefCell<BTreeMap<IpAddr, usize>>,
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
        if let Err(full) = self.check_limits(peer.ip()) {
            tracing::debug!(%peer, full, "connection to the tunnel's port refused");
            return self.params.metrics.ended(full);
        }
        let links = Rc::clone(self);
        *links.waiting.borrow_mut().entry(peer.ip()).or_default() += 1;
        tokio::task::spawn_local(async move {
            let limit = links.params.limits.hello_timeout.0;
            let result = match first_byte(stream, limit).await {
                Ok(stream) => {
                    (links.params.accept)(stream, peer);
                    "taken"
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => "silent",
                Err(_) => "gone",
            };
            links.params.metrics.ended(result);
            links.left(peer.ip());
        });
    }

    /// Counts those that wait and those that carry a tunnel.
    fn check_limits(&self, source: IpAddr) -> Result<(), &'static str> {
        let Limits {
            links,
            links_per_source,
            ..
        } = self.params.limits;
        let (mut all, mut of_source) = (0, 0);
        for (address, count) in self.waiting.borrow().iter() {
            all += count;
            if *address == source {
                of_source += count;
            }
        }
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
        if all >= links {
            return Err("limit");
        }
        if links_per_source > 0 && of_source >= links_per_source {
            return Err("source_limit");
        }
        Ok(())
    }

    fn left(&self, source: IpAddr) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(count) = waiting.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&source);
            }
        }
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
