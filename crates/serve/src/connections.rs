//! The connections of one worker: spawned, listed, waited for, cut.
//!
//! Belongs to one thread. A slot holds what is needed to cut a connection and to show it; the
//! number of slots is bounded by the process's connection limit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde_json::Value;
use slab::Slab;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::record::{ConnInfo, ConnRecord};

/// The open connections of one worker thread.
#[derive(Debug, Default)]
pub struct Connections {
    slots: RefCell<Slab<Slot>>,
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
    /// Runs a connection as a task of this thread's runtime until it ends or is cut. One that stopped before goes
    /// on under the same entry.
    pub fn spawn<F>(self: &Rc<Self>, record: ConnRecord, serve: impl FnOnce(ConnRecord) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let (record, index) = match record.slot() {
            Some(index) => (record, index),
            None => self.enter(record),
        };
        let task = tokio::task::spawn_local(serve(record)).abort_handle();
        if self.cut.get() {
            task.abort();
        }
        if let Some(slot) = self.slots.borrow_mut().get_mut(index) {
            slot.task = Some(task);
        }
    }

    /// Lists and counts what has no task of its own, such as a flow of datagrams, for as long as
    /// the returned record lives; its owner ends it when connections are cut.
    #[must_use]
    pub fn hold(self: &Rc<Self>, record: ConnRecord) -> ConnRecord {
        self.enter(record).0
    }

    fn enter(self: &Rc<Self>, record: ConnRecord) -> (ConnRecord, usize) {
        let index = self.slots.borrow_mut().insert(Slot {
            info: Rc::clone(record.info()),
            task: None,
        });
        (record.in_slot(Rc::clone(self), index), index)
    }

    /// Describes up to `limit` connections.
    pub fn list(&self, limit: usize) -> Vec<Value> {
        let slots = self.slots.borrow();
        let open = slots.iter().take(limit);
        open.map(|(_, slot)| slot.info.to_json()).collect()
    }

    /// Ends every connection that is a task at once, and later ones too.
    pub fn cut(&self) {
        self.cut.set(true);
        let slots = self.slots.borrow();
        for task in slots.iter().filter_map(|(_, slot)| slot.task.as_ref()) {
            task.abort();
        }
    }

    /// Waits until no connection is open. Cancel-safe.
    pub async fn emptied(&self) {
        while !self.slots.borrow().is_empty() {
            self.emptied.notified().await;
        }
    }

    /// Frees the slot of a connection that has ended.
    pub(crate) fn free(&self, index: usize) {
        let mut slots = self.slots.borrow_mut();
        drop(slots.try_remove(index));
        if slots.is_empty() {
            // Frees the memory of a burst.
            *slots = Slab::new();
            self.emptied.notify_waiters();
        }
    }
}
