//! The tables of flows of one worker that may move to another process: those of listeners of datagrams.
//!
//! ```text
//!     table ◀─ asked ──── control      it reads nothing more
//!           ── sockets and flows ──▶
//!           ◀─ moved: it ends; else it goes on
//! ```
//!
//! Belongs to one thread. A table and its sockets move as one. Knows nothing of what a flow is.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::{fmt, io};

use tokio::sync::{Notify, oneshot};

use super::wire::FlowRecord;
use crate::listener::is_configured;

/// Flows of one listener, and the sockets that they all use.
#[derive(Debug)]
pub struct MovingFlows {
    /// The name of their listener.
    pub listener: String,
    /// Toward clients, and toward servers.
    pub sockets: [UdpSocket; 2],
    /// The flows, in no particular order.
    pub flows: Vec<FlowRecord>,
}

/// Opens the two sockets of a table of flows.
type OpenFlows = dyn Fn(SocketAddr) -> io::Result<[UdpSocket; 2]> + Send + Sync;

/// The listeners of datagrams of a process; by default none.
pub struct DatagramListeners {
    /// The name and the address of each.
    pub listeners: Vec<(String, SocketAddr)>,
    /// Opens new sockets where another process has the former, or has gone with them.
    pub open: Box<OpenFlows>,
}

impl DatagramListeners {
    pub(crate) fn address(&self, listener: &str) -> Option<SocketAddr> {
        let mut all = self.listeners.iter();
        all.find(|(name, _)| name == listener).map(|(_, at)| *at)
    }

    /// Returns whether a table is where its listener is here.
    pub(super) fn has(&self, table: &MovingFlows) -> bool {
        let wanted = self.address(&table.listener);
        let both = wanted.zip(table.sockets[0].local_addr().ok());
        both.is_some_and(|(wanted, bound)| is_configured(wanted, bound))
    }
}

impl Default for DatagramListeners {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            open: Box::new(|_| Err(io::ErrorKind::AddrNotAvailable.into())),
        }
    }
}

impl fmt::Debug for DatagramListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listeners.fmt(f)
    }
}

/// The tables of one worker.
#[derive(Debug, Default)]
pub(super) struct FlowTables {
    /// The listeners of those that can be asked.
    listeners: RefCell<Vec<Arc<str>>>,
    asked: RefCell<Option<AskedFlows>>,
    notify: Notify,
}

/// A table that can be asked to move, for as long as this lives.
#[derive(Debug)]
pub struct MovableFlows {
    tables: Rc<FlowTables>,
    listener: Arc<str>,
}

/// What asks a table to move.
#[derive(Debug)]
pub struct AskedFlows {
    answer: oneshot::Sender<MovingFlows>,
    moved: oneshot::Receiver<()>,
}

/// A table that waits to be told what becomes of it; it goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct StoppedFlows {
    pub(crate) table: MovingFlows,
    moved: oneshot::Sender<()>,
}

impl MovingFlows {
    /// Returns how many count as connections.
    pub(super) fn connections(&self) -> usize {
        self.flows.iter().filter(|flow| flow.proven).count()
    }
}

impl FlowTables {
    pub(super) fn enter(self: &Rc<Self>, listener: &Arc<str>) -> MovableFlows {
        self.listeners.borrow_mut().push(Arc::clone(listener));
        MovableFlows {
            tables: Rc::clone(self),
            listener: Arc::clone(listener),
        }
    }

    pub(super) fn listeners(&self) -> Vec<String> {
        let listeners = self.listeners.borrow();
        listeners.iter().map(|name| name.to_string()).collect()
    }

    /// Asks one table; the asker finds its answer gone if there is none.
    pub(super) fn ask(&self, asked: AskedFlows) {
        if !self.listeners.borrow().is_empty() {
            self.asked.replace(Some(asked));
            self.notify.notify_one();
        }
    }
}

impl MovableFlows {
    /// Waits until the table shall move. Cancel-safe.
    pub async fn asked(&self) -> AskedFlows {
        loop {
            self.tables.notify.notified().await;
            if let Some(asked) = self.tables.asked.take() {
                return asked;
            }
        }
    }
}

impl Drop for MovableFlows {
    fn drop(&mut self) {
        let mut listeners = self.tables.listeners.borrow_mut();
        if let Some(at) = listeners.iter().position(|name| *name == self.listener) {
            listeners.swap_remove(at);
        }
        if listeners.is_empty() {
            self.tables.asked.take();
        }
    }
}

impl AskedFlows {
    pub(crate) fn new(answer: oneshot::Sender<MovingFlows>) -> (Self, oneshot::Sender<()>) {
        let (sender, moved) = oneshot::channel();
        (Self { answer, moved }, sender)
    }

    /// Gives the table and waits until another process has it (true), or has it not: it goes on here.
    pub async fn give(self, table: MovingFlows) -> bool {
        self.answer.send(table).is_ok() && self.moved.await.is_ok()
    }
}

impl StoppedFlows {
    pub(crate) fn new(table: MovingFlows, moved: oneshot::Sender<()>) -> Self {
        Self { table, moved }
    }

    /// Tells the table that another process has it.
    pub(super) fn moved(self) {
        let _ = self.moved.send(());
    }
}
