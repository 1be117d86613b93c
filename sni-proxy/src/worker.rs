//! What one worker thread has: its listeners, its connections, and the shared state they read.
//!
//! Turns accepted sockets into connection tasks. What a connection does is `connection`'s.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use relay::Pool;
use serve::{
    Accepting, Admission, ConnRecord, Dialer, ListenerContext, Metrics, Reason, WorkerHandle,
    WorkerSocket, accept_all,
};
use telemetry::AccessLog;
use tokio::net::TcpStream;

use crate::config::{Config, ListenerConfig, ProxyProtocol};
use crate::connection::{self, Accepted};
use crate::routing::Routing;

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
    pub(crate) access_log: AccessLog,
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
    /// Runs the worker's accept loops until the process no longer accepts.
    pub(crate) async fn start(
        handle: WorkerHandle,
        (shared, sockets): (Arc<Shared>, Vec<WorkerSocket>),
    ) -> io::Result<()> {
        let seed = RandomState::new().hash_one(handle.index) | 1;
        let listeners = shared.config.listeners.iter().enumerate();
        let listeners =
            listeners.map(|(index, config)| Rc::new(Listener::new(index, config, &shared)));
        let sockets = sockets.into_iter().zip(listeners).collect();
        let accepting = shared.accepting.clone();
        let worker = Rc::new(Self {
            shared,
            handle,
            random: Cell::new(seed),
        });
        accept_all(&accepting, sockets, move |stream, peer, listener| {
            worker.accepted(stream, peer, listener);
        })
        .await
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

    /// Tells whether a client may be somebody else than the TCP peer, which the preamble says.
    pub(crate) fn takes_balancer(&self) -> bool {
        self.config.proxy_protocol != ProxyProtocol::Off
    }
}
