//! What one worker thread has: its listeners, its connections, and the shared state they read.
//!
//! ```text
//!     listening sockets ─▶ accepted ─▶ a task per connection      UDP sockets ─▶ wireguard
//! ```
//!
//! Turns accepted sockets into connection tasks. What a connection does is `connection`'s, what
//! becomes of datagrams is `wireguard`'s.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use relay::Pool;
use serve::{
    Accepting, Admission, ConnRecord, Connections, Dialer, ListenerContext, Metrics, Reason,
    WorkerHandle, WorkerSocket, accept_all,
};
use telemetry::AccessLog;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::config::{Config, ListenerConfig, Protocol, ProxyProtocol};
use crate::connection::{self, Accepted};
use crate::routing::Routing;
use crate::wireguard::{self, Places, Scanner};

/// What all workers share; nothing in it is locked on a connection's path.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) zone: Option<String>,
    pub(crate) routing: Routing,
    pub(crate) admission: Arc<Admission>,
    pub(crate) dialer: Dialer,
    pub(crate) accepting: Accepting,
    pub(crate) metrics: Metrics,
    pub(crate) wireguard: wireguard::Metrics,
    pub(crate) access_log: AccessLog,
}

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
    pub(crate) places: Places,
}

/// One worker thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    handle: WorkerHandle,
    random: Cell<u64>,
}

/// One listener as one worker sees it.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Its place in the configuration, by which routes know it.
    pub(crate) index: usize,
    pub(crate) config: ListenerConfig,
    pub(crate) context: Rc<ListenerContext>,
}

impl Worker {
    /// Runs the worker's accept loops until the process no longer accepts, and forwards datagrams
    /// until no flow is left.
    pub(crate) async fn start(handle: WorkerHandle, task: Task) -> io::Result<()> {
        let seed = RandomState::new().hash_one(handle.index) | 1;
        let shared = task.shared;
        let listeners = shared.config.listeners.iter().enumerate();
        let listeners =
            listeners.map(|(index, config)| Rc::new(Listener::new(index, config, &shared)));
        let (udp, tcp): (Vec<_>, Vec<_>) =
            listeners.partition(|own| own.config.protocol == Protocol::WireGuard);
        let sockets = task.sockets.into_iter().zip(tcp).collect();
        let accepting = shared.accepting.clone();
        let worker = Rc::new(Self {
            shared,
            handle,
            random: Cell::new(seed),
        });
        let mut forwarding = JoinSet::new();
        for ((socket, listener), scanner) in { task.datagrams }
            .into_iter()
            .zip(udp)
            .zip(std::iter::repeat(task.scanner))
        {
            let Some(scanner) = scanner else { continue };
            let (worker, places) = (Rc::clone(&worker), task.places.clone());
            forwarding.spawn_local(wireguard::serve(worker, listener, socket, scanner, places));
        }
        let accepted = accept_all(&accepting, sockets, move |stream, peer, listener| {
            worker.accepted(stream, peer, listener);
        });
        let forwarded = async {
            while let Some(ended) = forwarding.join_next().await {
                ended.map_err(io::Error::other)??;
            }
            Ok(())
        };
        tokio::try_join!(accepted, forwarded).map(drop)
    }

    /// Returns the connections and flows of this worker.
    pub(crate) fn connections(&self) -> &Rc<Connections> {
        &self.handle.connections
    }

    pub(crate) fn pool(&self) -> Rc<Pool> {
        Rc::clone(&self.handle.pool)
    }

    /// Returns the next number of a cheap sequence (xorshift64), good enough to balance by.
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }

    /// Admits a connection and starts its task, or counts why not.
    fn accepted(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr, listener: &Rc<Listener>) {
        let admission = &self.shared.admission;
        let permit = admission.permit();
        let admitted = permit.is_some();
        let record = ConnRecord::open(&listener.context, peer, permit);
        if !admitted {
            return record.close(Reason::Limit);
        }
        // Behind a load balancer the client is known only from its header.
        if !(listener.takes_balancer() && self.shared.config.trusts(peer.ip())) {
            match admission.source_permit(peer.ip()) {
                Some(permit) => record.hold(permit),
                None => return record.close(Reason::SourceLimit),
            }
        }
        let accepted = Box::new(Accepted {
            downstream: stream,
            peer,
            listener: Rc::clone(listener),
        });
        let worker = Rc::clone(self);
        self.handle
            .connections
            .spawn(record, |record| connection::serve(accepted, worker, record));
    }
}

impl Listener {
    fn new(index: usize, config: &ListenerConfig, shared: &Shared) -> Self {
        let context = ListenerContext {
            name: config.name.as_str().into(),
            protocol: config.protocol.as_str(),
            metrics: shared.metrics.listener(&config.name),
            access_log: shared.access_log.clone(),
        };
        Self {
            index,
            config: config.clone(),
            context: Rc::new(context),
        }
    }

    /// Tells whether a preamble may name a client other than the TCP peer.
    pub(crate) fn takes_balancer(&self) -> bool {
        self.config.proxy_protocol != ProxyProtocol::Off
    }
}
