//! The relays of one worker that may move to another process.
//!
//! ```text
//!     relays ── wait ──▶ [ a b c d … ]   stop(2) ──▶ a, b stop: to the control thread
//!                                        settled ──▶ moved: forgotten; kept: they go on here
//! ```
//!
//! Belongs to one thread. A relay is asked between two of its polls, so nothing of it is under way. Decides
//! neither when nor whereto.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use relay::{Meter, Outcome, Relay, Socket, Stopped, StoppedHalf};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::sync::oneshot;

use super::flows::{AskedFlows, FlowTables, MovableFlows, MovingFlows};
use super::wire::{HELD, HalfRecord, RelayRecord};
use crate::record::ConnRecord;

/// A relay between two processes or threads.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) record: RelayRecord,
    /// Downstream's and upstream's.
    pub(crate) sockets: [OwnedFd; 2],
    pub(crate) stopped: Stopped,
}

/// A relay that goes on.
#[derive(Debug)]
pub struct Resumed {
    /// Its connection.
    pub record: ConnRecord,
    /// The socket of the peer that connected.
    pub downstream: Socket,
    /// The socket of the peer that was connected to.
    pub upstream: Socket,
    /// How far it was.
    pub stopped: Stopped,
}

/// What a program knows of relays that come from another process.
pub trait Resume {
    /// Opens the record of a relay that another process has begun.
    fn adopt(&self, relay: &RelayRecord) -> ConnRecord;

    /// Serves a relay from where it stopped.
    fn resume(&self, relay: Resumed);

    /// Serves a table of flows that another process has begun, or one without any. Where there are no listeners
    /// of datagrams, it ends.
    fn resume_flows(&self, table: MovingFlows) {
        drop(table);
    }
}

/// The relays of one worker.
#[derive(Debug, Default)]
pub struct Movable {
    notify: Notify,
    /// Relays that can be asked to stop.
    waiting: Cell<usize>,
    batch: RefCell<Option<Batch>>,
    /// The records of relays that are neither moved nor kept yet.
    undecided: RefCell<Vec<ConnRecord>>,
    resume: OnceCell<Box<dyn Resume>>,
    flows: Rc<FlowTables>,
}

/// Relays that are asked to stop, and those that did.
#[derive(Debug)]
struct Batch {
    /// How many have not answered yet.
    asked: usize,
    /// How many have stopped and are to be added.
    stopping: usize,
    /// Bytes that they have read and not yet written.
    held: usize,
    relays: Vec<Moving>,
    answer: oneshot::Sender<Vec<Moving>>,
}

impl std::fmt::Debug for dyn Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resume")
    }
}

impl Movable {
    /// Returns whether relays may move.
    pub fn is_on(&self) -> bool {
        self.resume.get().is_some()
    }

    /// Sets what serves relays from where they stopped. Without, none is moved.
    pub fn resume_by(&self, resume: impl Resume + 'static) {
        let _ = self.resume.set(Box::new(resume));
    }

    /// Relays until the connection ends or it is to move: how it ended, or how far it is. The caller then
    /// gives it to [`Movable::hand_over`].
    pub fn run<'a, 'r, M: Meter>(&'a self, relay: &'a mut Relay<'r, M>) -> MovableRelay<'a, 'r, M> {
        let place = self.is_on().then(|| Box::new(Place::new(self)));
        MovableRelay { relay, place }
    }

    fn stop<M: Meter>(&self, relay: &mut Relay<'_, M>) -> Option<Stopped> {
        let mut batch = self.batch.borrow_mut();
        let asking = batch.as_mut().filter(|batch| batch.asked > 0)?;
        asking.asked -= 1;
        let stopped = relay.stop();
        if stopped.is_some() {
            asking.stopping += 1;
        }
        drop(batch);
        self.answer_if_complete();
        stopped
    }

    /// Adds a relay that [`Movable::run`] has stopped.
    pub fn hand_over(&self, relay: Resumed) {
        let Resumed {
            record,
            downstream,
            upstream,
            stopped,
        } = relay;
        let description = describe(&record, &stopped);
        // Out of this runtime's epoll, which would report on them for as long as any process has them.
        let sockets = [downstream, upstream].map(|socket| OwnedFd::from(socket.into_std()));
        if let Some(batch) = &mut *self.batch.borrow_mut() {
            batch.stopping -= 1;
            batch.held += stopped.rx.held.len() + stopped.tx.held.len();
            if batch.held >= HELD {
                batch.asked = 0;
            }
            batch.relays.push(Moving {
                record: description,
                sockets,
                stopped,
            });
            self.undecided.borrow_mut().push(record);
        }
        self.answer_if_complete();
    }

    /// Lets a table of flows be asked to move for as long as what is returned lives; `None` if nothing moves.
    pub fn flows(&self, listener: &Arc<str>) -> Option<MovableFlows> {
        self.is_on().then(|| self.flows.enter(listener))
    }

    /// Returns the listener of each table of flows that can move.
    pub(crate) fn flow_listeners(&self) -> Vec<String> {
        self.flows.listeners()
    }

    /// Asks a table of flows to move.
    pub(crate) fn ask_flows(&self, asked: AskedFlows) {
        self.flows.ask(asked);
    }

    /// Goes on with a table of flows of another process.
    pub(crate) fn take_flows(&self, table: MovingFlows) {
        if let Some(resume) = self.resume.get() {
            resume.resume_flows(table);
        }
    }

    /// Asks up to `count` relays to stop; the answer has those that did.
    pub(crate) fn ask(&self, count: usize, answer: oneshot::Sender<Vec<Moving>>) {
        if self.batch.borrow().is_some() || !self.undecided.borrow().is_empty() {
            return; // the last question was given up, and its answer is to come
        }
        let asked = match self.resume.get() {
            Some(_) => count.min(self.waiting.get()),
            None => 0,
        };
        self.batch.replace(Some(Batch {
            asked,
            stopping: 0,
            held: 0,
            relays: Vec::new(),
            answer,
        }));
        for _ in 0..asked {
            self.notify.notify_one();
        }
        self.answer_if_complete();
    }

    /// Forgets what was asked to stop last, if it was `moved`, or goes on with it.
    pub(crate) fn settle(&self, kept: Option<Vec<Moving>>) {
        let records = self.undecided.take();
        let Some(kept) = kept else {
            return records.into_iter().for_each(ConnRecord::moved);
        };
        for (record, relay) in records.into_iter().zip(kept) {
            self.go_on(record, relay);
        }
    }

    /// Goes on with relays of another process.
    pub(crate) fn take(&self, relays: Vec<Moving>) {
        for relay in relays {
            if let Some(resume) = self.resume.get() {
                let record = resume.adopt(&relay.record);
                self.go_on(record, relay);
            }
        }
    }

    fn go_on(&self, record: ConnRecord, relay: Moving) {
        let [downstream, upstream] = relay.sockets.map(stream);
        let (Some(resume), Ok(downstream), Ok(upstream)) =
            (self.resume.get(), downstream, upstream)
        else {
            return; // a record without a reason says that its connection was cut
        };
        resume.resume(Resumed {
            record,
            downstream,
            upstream,
            stopped: relay.stopped,
        });
    }

    fn answer_if_complete(&self) {
        let complete = |batch: &mut Batch| {
            batch.asked = batch.asked.min(self.waiting.get());
            batch.asked == 0 && batch.stopping == 0
        };
        let Some(batch) = self.batch.borrow_mut().take_if(complete) else {
            return;
        };
        // Control has stopped waiting: they go on.
        if let Err(relays) = batch.answer.send(batch.relays) {
            self.settle(Some(relays));
        }
    }
}

/// A relay that runs; see [`Movable::run`].
#[must_use]
pub struct MovableRelay<'a, 'r, M: Meter> {
    relay: &'a mut Relay<'r, M>,
    /// Boxed, since it exists only where relays may move.
    place: Option<Box<Place<'a>>>,
}

/// A relay's place among those that can be asked.
struct Place<'a> {
    movable: &'a Movable,
    notified: Pin<Box<Notified<'a>>>,
}

impl<M: Meter> Future for MovableRelay<'_, '_, M> {
    type Output = Result<Outcome, Stopped>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(outcome) = Pin::new(&mut *this.relay).poll(cx) {
            return Poll::Ready(Ok(outcome));
        }
        let Some(place) = &mut this.place else {
            return Poll::Pending;
        };
        while place.notified.as_mut().poll(cx).is_ready() {
            if let Some(stopped) = place.movable.stop(this.relay) {
                return Poll::Ready(Err(stopped));
            }
            // It may have found that it cannot go on.
            cx.waker().wake_by_ref();
            place.notified.set(place.movable.notify.notified());
        }
        Poll::Pending
    }
}

impl<'a> Place<'a> {
    fn new(movable: &'a Movable) -> Self {
        movable.waiting.set(movable.waiting.get() + 1);
        Self {
            movable,
            notified: Box::pin(movable.notify.notified()),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.movable.waiting.set(self.movable.waiting.get() - 1);
        self.movable.answer_if_complete();
    }
}

/// Describes a stopped relay for another process.
fn describe(record: &ConnRecord, stopped: &Stopped) -> RelayRecord {
    let half = |half: &StoppedHalf| HalfRecord {
        held: u32::try_from(half.held.len()).unwrap_or(u32::MAX),
        end_passed: half.end_passed,
    };
    RelayRecord {
        idle_micros: micros(stopped.idle),
        rx: half(&stopped.rx),
        tx: half(&stopped.tx),
        ..record.info().to_record()
    }
}

impl Moving {
    /// Puts together what came from another process.
    pub(super) fn new(record: RelayRecord, sockets: [OwnedFd; 2], held: [&[u8]; 2]) -> Self {
        let half = |half: HalfRecord, held: &[u8]| StoppedHalf {
            held: held.to_vec(),
            end_passed: half.end_passed,
        };
        let [rx, tx] = held;
        let stopped = Stopped {
            rx: half(record.rx, rx),
            tx: half(record.tx, tx),
            idle: Duration::from_micros(record.idle_micros),
        };
        Self {
            record,
            sockets,
            stopped,
        }
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn stream(socket: OwnedFd) -> std::io::Result<Socket> {
    Socket::try_from(std::net::TcpStream::from(socket))
}
