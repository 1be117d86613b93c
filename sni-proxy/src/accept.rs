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
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use relay::Socket;
use route::Route;
use serve::{
    ConnRecord, ListenerContext, MovingFlows, Phase, Reason, RelayRecord, Resume, Resumed,
    WorkerHandle, WorkerSocket, accept_all,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config::{Protocol, ProxyProtocol};
use crate::connection::{self, Accepted, Begin, Established};
use crate::heap;
use crate::wireguard::{self, Scanner};
use crate::worker::{Listener, Shared, Worker};

/// Tables of flows that may wait for their worker.
const WAITING: usize = 64;

/// What a worker thread is given: what all share, and its own sockets.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) shared: Arc<Shared>,
    /// Those of TCP listeners, in the order of the configuration.
    pub(crate) sockets: Vec<WorkerSocket>,
    /// Those of WireGuard listeners.
    pub(crate) datagrams: Vec<MovingFlows>,
    /// Tables of flows of all workers.
    pub(crate) flow_tables: usize,
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
    let worker = Worker::new(shared, handle, task.flow_tables);
    let (starts, mut starting) = mpsc::channel(WAITING);
    if worker.shared.config.handover.is_some() {
        worker.handle.movable.resume_by(Moved {
            worker: Rc::clone(&worker),
            listeners: tcp.clone(),
            datagrams: udp.clone(),
            starts,
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
    let (own, scanner, drain) = (
        Rc::clone(&worker),
        task.scanner,
        shared_accepting.drain.clone(),
    );
    let forward = move |forwarding: &mut JoinSet<_>, table: MovingFlows| {
        let listener = udp.iter().find(|own| own.config.name == table.listener);
        if let (Some(listener), Some(scanner)) = (listener, &scanner) {
            let (worker, listener) = (Rc::clone(&own), Rc::clone(listener));
            forwarding.spawn_local(wireguard::serve(worker, listener, table, scanner.clone()));
        }
    };
    for table in task.datagrams {
        forward(&mut forwarding, table);
    }
    let accepting = accept_all(&shared_accepting, sockets, move |stream, peer, listener| {
        accepted(&worker, stream, peer, listener);
    });
    let forwarded = async {
        let (mut closing, mut is_closing) = (pin!(drain.reached(Phase::Closing)), false);
        while !(is_closing && forwarding.is_empty()) {
            tokio::select! {
                Some(table) = starting.recv() => forward(&mut forwarding, table),
                Some(ended) = forwarding.join_next() => ended.map_err(io::Error::other)??,
                () = &mut closing, if !is_closing => is_closing = true,
            }
        }
        Ok(())
    };
    tokio::try_join!(accepting, forwarded).map(drop)
}

/// Admits a connection and starts its task, or counts why not.
fn accepted(worker: &Rc<Worker>, stream: Socket, peer: SocketAddr, listener: &Rc<Listener>) {
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
    /// Those of WireGuard.
    datagrams: Vec<Rc<Listener>>,
    starts: mpsc::Sender<MovingFlows>,
    routes: RefCell<RoutesOf>,
}

impl Moved {
    fn listener(&self, name: &str) -> Option<&Rc<Listener>> {
        self.listeners.iter().find(|own| own.config.name == name)
    }

    /// Describes a listener that the other process alone has.
    fn context(&self, name: &str, protocol: Protocol) -> Rc<ListenerContext> {
        let shared = &self.worker.shared;
        Rc::new(ListenerContext {
            name: name.into(),
            protocol: protocol.as_str(),
            metrics: shared.metrics.listener(name),
            access_log: shared.access_log.clone(),
        })
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
        let listener = self.listener(&relay.listener);
        let context = match listener {
            Some(listener) => Rc::clone(&listener.context),
            None => self.context(&relay.listener, Protocol::Tls),
        };
        let route = relay.cluster.as_deref().and_then(|cluster| {
            let current = self.worker.shared.routing.current();
            let table = listener.map(|own| current.snapshot.on(own.index));
            let again = table.and_then(|table| connection::find_again(table, relay));
            let again = again.filter(|route| **route.cluster().name() == *cluster);
            again.map(Arc::clone).or_else(|| self.route_to(cluster))
        });
        ConnRecord::adopt(&context, relay, route.as_ref(), &shared.admission)
    }

    fn resume(&self, relay: Resumed) {
        let listener = self.listener(relay.record.info().listener());
        let (established, record) =
            Established::resume(relay, listener.map(AsRef::as_ref), &self.worker);
        start(&self.worker, Begin::Relayed(established), record);
    }

    fn resume_flows(&self, table: MovingFlows) {
        if self
            .datagrams
            .iter()
            .any(|own| own.config.name == table.listener)
        {
            let listener = table.listener.clone();
            if self.starts.try_send(table).is_err() {
                tracing::error!(%listener, "a table of flows is lost");
            }
            return;
        }
        // None of its clients can be served here.
        let context = self.context(&table.listener, Protocol::WireGuard);
        let flows = &self.worker.shared.flows;
        for flow in table.flows.iter().filter(|flow| flow.proven) {
            let record = ConnRecord::adopt(&context, &flow.connection, None, flows);
            record.close(Reason::UnknownDestination);
        }
    }
}
