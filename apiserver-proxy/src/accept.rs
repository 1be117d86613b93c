//! Turns the accepted sockets of one worker into connection tasks.
//!
//! What a connection does is `connection`'s.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use relay::Socket;
use serve::{
    ConnRecord, ListenerContext, RelayRecord, Resume, Resumed, WorkerHandle, WorkerSocket,
    accept_all,
};

use crate::connection::{self, Begin, Established};
use crate::worker::{Shared, Worker};

/// Runs a worker's accept loops until the process no longer accepts.
pub(crate) async fn run(
    handle: WorkerHandle,
    (shared, sockets): (Arc<Shared>, Vec<WorkerSocket>),
) -> io::Result<()> {
    let listeners = shared
        .config
        .listen()
        .map(|address| context(&shared, &address.to_string()));
    let listeners: Vec<_> = listeners.collect();
    let accepting = shared.accepting.clone();
    let (may_move, movable) = (shared.config.handover.is_some(), Rc::clone(&handle.movable));
    let worker = Worker::new(shared, handle);
    if may_move {
        movable.resume_by(Moved {
            worker: Rc::clone(&worker),
            listeners: listeners.clone(),
        });
    }
    let with_listener = |socket: WorkerSocket| {
        let listener = listeners.get(socket.listener).map(Rc::clone)?;
        Some((socket, listener))
    };
    let sockets = sockets.into_iter().filter_map(with_listener).collect();
    accept_all(&accepting, sockets, move |stream, peer, listener| {
        accepted(&worker, stream, peer, listener);
    })
    .await
}

/// Admits a connection and starts its task, or counts why not.
fn accepted(worker: &Rc<Worker>, stream: Socket, peer: SocketAddr, listener: &Rc<ListenerContext>) {
    let admission = &worker.shared.admission;
    let record = ConnRecord::admit(listener, peer, admission);
    let Some(record) = record.and_then(|record| record.admit_client(peer.ip(), admission)) else {
        return;
    };
    start(worker, Begin::Accepted(stream), record);
}

fn start(worker: &Rc<Worker>, begin: Begin, record: ConnRecord) {
    let (begin, own) = (Box::new(begin), Rc::clone(worker));
    let connections = &worker.handle.connections;
    connections.spawn(record, |record| connection::serve(begin, own, record));
}

/// Goes on with relays of another process, or of this one.
#[derive(Debug)]
struct Moved {
    worker: Rc<Worker>,
    listeners: Vec<Rc<ListenerContext>>,
}

impl Resume for Moved {
    fn adopt(&self, relay: &RelayRecord) -> ConnRecord {
        let shared = &self.worker.shared;
        let named = self
            .listeners
            .iter()
            .find(|own| *own.name == *relay.listener);
        let listener = match named {
            Some(listener) => Rc::clone(listener),
            None => context(shared, &relay.listener), // the other process's alone
        };
        let route = Some(&shared.route);
        ConnRecord::adopt(&listener, relay, route, &shared.admission)
    }

    fn resume(&self, relay: Resumed) {
        let established = Established {
            downstream: relay.downstream,
            upstream: relay.upstream,
            stopped: Some(Box::new(relay.stopped)),
        };
        start(&self.worker, Begin::Relayed(established), relay.record);
    }
}

fn context(shared: &Shared, name: &str) -> Rc<ListenerContext> {
    Rc::new(ListenerContext {
        metrics: shared.metrics.listener(name),
        name: name.into(),
        protocol: shared.upstream.announce.mode(),
        access_log: shared.access_log.clone(),
    })
}
