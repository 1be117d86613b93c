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
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::wire::FlowRecord;

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
