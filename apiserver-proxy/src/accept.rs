//! Turns the accepted sockets of one worker into connection tasks.
//!
//! What a connection does is `connection`'s.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use serve::{ConnRecord, ListenerContext, WorkerHandle, WorkerSocket, accept_all};
use tokio::net::TcpStream;

use crate::connection;
use crate::worker::{Shared, Worker};

/// Runs a worker's accept loops until the process no longer accepts.
pub(crate) async fn run(
    handle: WorkerHandle,
    (shared, sockets): (Arc<Shared>, Vec<WorkerSocket>),
) -> io::Result<()> {
    let listeners = shared.config.listen().map(|address| {
        let name = address.to_string();
        Rc::new(ListenerContext {
            metrics: shared.metrics.listener(&name),
            name: name.into(),
            protocol: shared.upstream.announce.mode(),
            access_log: shared.access_log.clone(),
        })
    });
    let sockets = sockets.into_iter().zip(listeners).collect();
    let accepting = shared.accepting.clone();
    let worker = Worker::new(shared, handle);
    accept_all(&accepting, sockets, move |stream, peer, listener| {
        accepted(&worker, stream, peer, listener);
    })
    .await
}

/// Admits a connection and starts its task, or counts why not.
fn accepted(
    worker: &Rc<Worker>,
    stream: TcpStream,
    peer: SocketAddr,
    listener: &Rc<ListenerContext>,
) {
    let Some(record) = ConnRecord::admit(listener, peer, &worker.shared.admission) else {
        return;
    };
    let (downstream, own) = (Box::new(stream), Rc::clone(worker));
    let connections = &worker.handle.connections;
    connections.spawn(record, |record| connection::serve(downstream, own, record));
}
