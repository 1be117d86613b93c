//! The connections of one worker: spawned, listed, waited for, cut.
//!
//! Belongs to one thread. A slot holds what is needed to cut a connection and to show it; the
//! number of slots is bounded by the process's connection limit.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::record::{ConnInfo, ConnRecord, Slots};

/// A connection as `/connections` shows it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ConnectionSummary {
    /// Listener that accepted it.
    pub listener: String,
    /// TCP peer.
    pub peer: SocketAddr,
    /// Client, where a load balancer announced another.
    pub client: SocketAddr,
    /// Server name, destination or CONNECT value that it was routed by.
    pub server_name: Option<String>,
    /// Destination of a node proxy's header.
    pub destination: Option<SocketAddr>,
    /// Value of a CONNECT request's header.
    pub connect: Option<String>,
    /// Cluster it goes to.
    pub cluster: Option<String>,
    /// Endpoint it is connected to.
    pub endpoint: Option<SocketAddr>,
    /// Bytes from downstream.
    pub rx_bytes: u64,
    /// Bytes from upstream.
    pub tx_bytes: u64,
    /// Time since it was accepted.
    #[serde(rename = "ageSeconds", serialize_with = "as_seconds")]
    pub age: Duration,
}

fn as_seconds<S: Serializer>(age: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(age.as_secs_f64())
}

/// The open connections of one worker thread.
#[derive(Debug, Default)]
pub struct Connections {
    slots: RefCell<Vec<Option<Slot>>>,
    free: RefCell<Vec<usize>>,
    open: Cell<usize>,
    /// New connections end at once.
    cut: Cell<bool>,
    emptied: Notify,
}

#[derive(Debug)]
struct Slot {
    info: Rc<ConnInfo>,
    /// Absent for what is held and not a task of its own.
    task: Option<AbortHandle>,
}

impl Connections {
    /// Runs a connection as a task of this thread's runtime until it ends or is cut.
    pub fn spawn<F>(self: &Rc<Self>, record: ConnRecord, serve: impl FnOnce(ConnRecord) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let info = Rc::clone(record.info());
        let (record, index) = self.enter(record);
        let task = tokio::task::spawn_local(serve(record)).abort_handle();
        if self.cut.get() {
            task.abort();
        }
        self.fill(index, info, Some(task));
    }

    /// Lists and counts what has no task of its own, such as a flow of datagrams, for as long as
    /// the returned record lives; its owner ends it when connections are cut.
    #[must_use]
    pub fn hold(self: &Rc<Self>, record: ConnRecord) -> ConnRecord {
        let info = Rc::clone(record.info());
        let (record, index) = self.enter(record);
        self.fill(index, info, None);
        record
    }

    fn enter(self: &Rc<Self>, record: ConnRecord) -> (ConnRecord, usize) {
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut slots = self.slots.borrow_mut();
            slots.push(None);
            slots.len() - 1
        });
        self.open.set(self.open.get() + 1);
        (
            record.in_slot(Rc::clone(self) as Rc<dyn Slots>, index),
            index,
        )
    }

    fn fill(&self, index: usize, info: Rc<ConnInfo>, task: Option<AbortHandle>) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(index) {
            *slot = Some(Slot { info, task });
        }
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// Describes up to `limit` connections.
    #[must_use]
    pub fn list(&self, limit: usize) -> Vec<ConnectionSummary> {
        let slots = self.slots.borrow();
        slots
            .iter()
            .flatten()
            .take(limit)
            .map(|slot| summary(&slot.info))
            .collect()
    }

    /// Ends every connection that is a task at once, and later ones too.
    pub fn cut(&self) {
        self.cut.set(true);
        let slots = self.slots.borrow();
        for task in slots.iter().flatten().filter_map(|slot| slot.task.as_ref()) {
            task.abort();
        }
    }

    /// Waits until no connection is open. Cancel-safe.
    pub async fn emptied(&self) {
        while self.open.get() > 0 {
            self.emptied.notified().await;
        }
    }
}

impl Slots for Connections {
    fn free(&self, index: usize) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(index) {
            *slot = None;
        }
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            // Frees the memory of a burst.
            *slots = Vec::new();
            *self.free.borrow_mut() = Vec::new();
            self.emptied.notify_waiters();
        } else {
            self.free.borrow_mut().push(index);
        }
    }
}

fn summary(info: &ConnInfo) -> ConnectionSummary {
    let (rx_bytes, tx_bytes) = info.bytes();
    ConnectionSummary {
        listener: info.listener().name.to_string(),
        peer: info.peer(),
        client: info.client(),
        server_name: info.server_name().map(Into::into),
        destination: info.destination(),
        connect: info.connect().map(Into::into),
        cluster: info.cluster().map(Into::into),
        endpoint: info.endpoint(),
        rx_bytes,
        tx_bytes,
        age: info.started().elapsed(),
    }
}
