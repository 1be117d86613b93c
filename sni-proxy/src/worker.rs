//! The state of one worker thread: its listeners, its connections, and what all workers share.
//!
//! Accepts nothing; `accept` does.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;

use serve::{Accepting, Admission, Dialer, ListenerContext, Metrics, OwnDatagrams, WorkerHandle};
use telemetry::AccessLog;

use crate::config::{Config, ListenerConfig};
use crate::routing::Routing;
use crate::terminate;
use crate::wireguard;

/// What all workers share; nothing in it is locked on a connection's path but what counts clients' connections.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) routing: Routing,
    pub(crate) admission: Arc<Admission>,
    /// Counts WireGuard's proven flows; each worker bounds its own.
    pub(crate) flows: Arc<Admission>,
    /// The sockets toward WireGuard's clients.
    pub(crate) datagrams: OwnDatagrams,
    pub(crate) dialer: Dialer,
    pub(crate) accepting: Accepting,
    pub(crate) metrics: Metrics,
    pub(crate) wireguard: wireguard::Metrics,
    pub(crate) terminating: terminate::Metrics,
    pub(crate) access_log: AccessLog,
}

/// One worker thread's state.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: WorkerHandle,
    pub(crate) terminations: terminate::Pools,
    /// Tables of flows of all workers, which share the places.
    pub(crate) flow_tables: usize,
    random: Cell<u64>,
}

/// One listener as one worker sees it.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Its place in the configuration, by which routes know it.
    pub(crate) index: usize,
    pub(crate) config: ListenerConfig,
    pub(crate) context: Rc<ListenerContext>,
    pub(crate) handshakes: terminate::Handshakes,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, handle: WorkerHandle, flow_tables: usize) -> Rc<Self> {
        let seed = RandomState::new().hash_one(handle.index) | 1;
        Rc::new(Self {
            shared,
            handle,
            terminations: terminate::Pools::default(),
            flow_tables,
            random: Cell::new(seed),
        })
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
}

impl Listener {
    pub(crate) fn new(index: usize, config: &ListenerConfig, shared: &Shared) -> Self {
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
            handshakes: shared.terminating.listener(&config.name),
        }
    }
}
