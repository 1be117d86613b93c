//! Turns the accepted sockets of one worker into connection tasks, and hands UDP sockets to `wireguard`.
//!
//! ```text
//!     listening sockets ─▶ accepted ─▶ a task per connection      UDP sockets ─▶ wireguard
//! ```
//!
//! What a connection does is `connection`'s.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use serve::{ConnRecord, WorkerHandle, WorkerSocket, accept_all};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::config::{Protocol, ProxyProtocol};
use crate::connection::{self, Accepted};
use crate::heap;
use crate::wireguard::{self, Scanner};
use crate::worker::{Listener, Shared, Worker};

/// What a worker thread is given: what all share, and its own sockets.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) shared: Arc<Shared>,
    /// Those of TCP listeners, in the order of the configuration.
    pub(crate) sockets: Vec<WorkerSocket>,
    /// Those of WireGuard listeners, likewise.
    pub(crate) datagrams: Vec<UdpSocket>,
    /// There is one where there are WireGuard listeners.
    pub(crate) scanner: Option<Scanner>,
}

/// Runs a worker's accept loops until the process no longer accepts, and forwards datagrams until no flow
/// is left.
pub(crate) async fn run(handle: WorkerHandle, task: Task) -> io::Result<()> {
    let shared = task.shared;
    let listeners = shared.config.listeners.iter().enumerate();
    let listeners = listeners.map(|(index, config)| Rc::new(Listener::new(index, config, &shared)));
    let (udp, tcp): (Vec<_>, Vec<_>) =
        listeners.partition(|own| own.config.protocol == Protocol::WireGuard);
    let sockets = task.sockets.into_iter().zip(tcp).collect();
    let shared_accepting = shared.accepting.clone();
    let worker = Worker::new(shared, handle);
    tokio::task::spawn_local(heap::give_back(Arc::default()));
    let mut forwarding = JoinSet::new();
    for ((socket, listener), scanner) in { task.datagrams }
        .into_iter()
        .zip(udp)
        .zip(std::iter::repeat(task.scanner))
    {
        let Some(scanner) = scanner else { continue };
        let worker = Rc::clone(&worker);
        forwarding.spawn_local(wireguard::serve(worker, listener, socket, scanner));
    }
    let accepting = accept_all(&shared_accepting, sockets, move |stream, peer, listener| {
        accepted(&worker, stream, peer, listener);
    });
    let forwarded = async {
        while let Some(ended) = forwarding.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    };
    tokio::try_join!(accepting, forwarded).map(drop)
}

/// Admits a connection and starts its task, or counts why not.
fn accepted(worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr, listener: &Rc<Listener>) {
    let admission = &worker.shared.admission;
    let record = ConnRecord::admit(&listener.context, peer, admission);
    // Behind a load balancer the client is known only from its header.
    let balanced = listener.config.proxy_protocol != ProxyProtocol::Off;
    let is_client = !(balanced && worker.shared.config.trusts(peer.ip()));
    let record = match record {
        Some(record) if is_client => record.admit_client(peer.ip(), admission),
        record => record,
    };
    let Some(record) = record else { return };
    let accepted = Box::new(Accepted {
        downstream: stream,
        peer,
        listener: Rc::clone(listener),
    });
    let own = Rc::clone(worker);
    let connections = &worker.handle.connections;
    connections.spawn(record, |record| connection::serve(accepted, own, record));
}
