//! What one worker thread has: its listeners, its connections, and the shared state they read.
//!
//! Turns accepted sockets into connection tasks. What a connection does is `connection`'s.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use relay::Pool;
use route::Route;
use serve::{
    Accepting, Admission, ConnRecord, Dialer, ListenerContext, Metrics, NameSet, Reason,
    WorkerHandle, WorkerSocket, accept_all,
};
use telemetry::AccessLog;
use tokio::net::TcpStream;

use crate::config::Config;
use crate::connection::{self, Accepted};

/// What all workers share; nothing in it is locked on a connection's path.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
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
    handle: WorkerHandle,
    turn: Cell<usize>,
}

impl Worker {
    /// Runs the worker's accept loops until the process no longer accepts.
    pub(crate) async fn start(
        handle: WorkerHandle,
        (shared, sockets): (Arc<Shared>, Vec<WorkerSocket>),
    ) -> io::Result<()> {
        let listeners = shared.config.listen().map(|address| {
            let name = address.to_string();
            Rc::new(ListenerContext {
                metrics: shared.metrics.listener(&name),
                name: name.into(),
                protocol: shared.config.upstream.announce.mode(),
                access_log: shared.access_log.clone(),
            })
        });
        let sockets = sockets.into_iter().zip(listeners).collect();
        let accepting = shared.accepting.clone();
        let turn = Cell::new(handle.index);
        let worker = Rc::new(Self {
            shared,
            handle,
            turn,
        });
        accept_all(&accepting, sockets, move |stream, peer, listener| {
            worker.accepted(stream, peer, listener);
        })
        .await
    }

    pub(crate) fn pool(&self) -> Rc<Pool> {
        Rc::clone(&self.handle.pool)
    }

    /// Returns the next number of a sequence, by which the gateway's addresses take turns.
    pub(crate) fn next_turn(&self) -> usize {
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        turn
    }

    /// Admits a connection and starts its task, or counts why not.
    fn accepted(
        self: &Rc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        listener: &Rc<ListenerContext>,
    ) {
        let permit = self.shared.admission.permit();
        let admitted = permit.is_some();
        let record = ConnRecord::open(listener, peer, permit);
        if !admitted {
            return record.close(Reason::Limit);
        }
        let accepted = Box::new(Accepted {
            downstream: stream,
            peer,
        });
        let worker = Rc::clone(self);
        self.handle
            .connections
            .spawn(record, |record| connection::serve(accepted, worker, record));
    }
}
