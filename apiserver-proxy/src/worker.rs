//! The state of one worker thread: its connections, and what all workers share.
//!
//! Accepts nothing; `accept` does.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use route::Route;
use serve::{Accepting, Admission, Dialer, Metrics, NameSet, WorkerHandle};
use telemetry::AccessLog;

use crate::config::{Config, Upstream};

/// What all workers share; nothing in it is locked on a connection's path.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) upstream: Upstream,
    /// The one route, to the gateway.
    pub(crate) route: Arc<Route>,
    /// The gateway's name, resolved.
    pub(crate) names: NameSet,
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
    pub(crate) handle: WorkerHandle,
    attempts: Cell<usize>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, handle: WorkerHandle) -> Rc<Self> {
        let attempts = Cell::new(handle.index);
        Rc::new(Self {
            shared,
            handle,
            attempts,
        })
    }

    /// Returns the next number of a sequence, by which connections start at different addresses.
    pub(crate) fn next_offset(&self) -> usize {
        let offset = self.attempts.get();
        self.attempts.set(offset.wrapping_add(1));
        offset
    }
}
