//! Turns the accepted sockets of one worker into connection tasks, and hands UDP sockets to `wireguard`.
//!
//! ```text
//!     listening sockets ─▶ accepted ─▶ a task per connection      UDP sockets ─▶ wireguard
//! ```
//!
//! What a connection does is `connection`'s.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use route::Route;
use serve::{
    ConnRecord, ListenerContext, RelayRecord, Resume, Resumed, WorkerHandle, WorkerSocket,
    accept_all,
};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::config::{Protocol, ProxyProtocol};
use crate::connection::{self, Accepted, Begin, Established};
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
    let shared_accepting = shared.accepting.clone();
    let worker = Worker::new(shared, handle);
    if worker.shared.config.handover.is_some() {
        worker.handle.movable.resume_by(Moved {
            worker: Rc::clone(&worker),
            listeners: tcp.clone(),
            routes: RefCell::default(),
        });
    }
    let with_listener = |socket: WorkerSocket| {
        let listener = tcp.get(socket.listener).map(Rc::clone)?;
        Some((socket, listener))
    };
    let sockets = task.sockets.into_iter().filter_map(with_listener).collect();
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
    let accepted = Accepted {
        downstream: stream,
        peer,
        listener: Rc::clone(listener),
    };
    start(worker, Begin::Accepted(accepted), record);
}

fn start(worker: &Rc<Worker>, begin: Begin, record: ConnRecord) {
    let (begin, own) = (Box::new(begin), Rc::clone(worker));
    let connections = &worker.handle.connections;
    connections.spawn(record, |record| connection::serve(begin, own, record));
}

/// A route to each cluster, of the snapshot with this number.
type RoutesOf = (u64, HashMap<Arc<str>, Arc<Route>>);

/// Goes on with relays of another process, or of this one.
#[derive(Debug)]
struct Moved {
    worker: Rc<Worker>,
    /// Those of TCP, in the order of the configuration.
    listeners: Vec<Rc<Listener>>,
    routes: RefCell<RoutesOf>,
}

impl Moved {
    fn listener(&self, name: &str) -> Option<&Rc<Listener>> {
        self.listeners.iter().find(|own| own.config.name == name)
    }

    fn route_to(&self, cluster: &str) -> Option<Arc<Route>> {
        let current = self.worker.shared.routing.current();
        let (generation, routes) = &mut *self.routes.borrow_mut();
        if *generation != current.snapshot.generation() {
            *generation = current.snapshot.generation();
            let all = current.snapshot.routes();
            *routes = all
                .map(|route| (Arc::clone(route.cluster().name()), Arc::clone(route)))
                .collect();
        }
        routes.get(cluster).map(Arc::clone)
    }
}

impl Resume for Moved {
    fn adopt(&self, relay: &RelayRecord) -> ConnRecord {
        let shared = &self.worker.shared;
        let context = match self.listener(&relay.listener) {
            Some(listener) => Rc::clone(&listener.context),
            // The other process's alone.
            None => Rc::new(ListenerContext {
                name: relay.listener.as_str().into(),
                protocol: Protocol::Tls.as_str(),
                metrics: shared.metrics.listener(&relay.listener),
                access_log: shared.access_log.clone(),
            }),
        };
        let route = relay
            .cluster
            .as_deref()
            .and_then(|cluster| self.route_to(cluster));
        ConnRecord::adopt(&context, relay, route.as_ref(), &shared.admission)
    }

    fn resume(&self, relay: Resumed) {
        let listener = self.listener(relay.record.info().listener());
        let (established, record) =
            Established::resume(relay, listener.map(AsRef::as_ref), &self.worker);
        start(&self.worker, Begin::Relayed(established), record);
    }
}
