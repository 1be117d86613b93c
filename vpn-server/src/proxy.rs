//! The proxy that API servers ask for connections into the shoot.
//!
//! ```text
//!   accept ─▶ admission ─▶ connection::serve:  TLS ─▶ CONNECT ─▶ dial ─▶ relay
//!                                                                 │
//!                                             names (DNS in the shoot), shoot (sockets)
//! ```
//!
//! A connection stays on the thread that accepted it. Speaks no WireGuard and knows no keys.

mod connection;
mod dial;
mod names;
mod shoot;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use serve::{
    Accepting, Admission, ConnRecord, ListenerContext, WorkerHandle, WorkerSocket, accept_all,
};
use telemetry::AccessLog;
use tls::ServerTls;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tunnel::Status;

use self::names::Names;
pub use self::shoot::Shoot;
use crate::config::{Limits, ProxyConfig};
use crate::metrics::ProxyMetrics;

/// The proxy's name in logs and metrics.
pub(crate) const LISTENER: &str = "proxy";
/// What it speaks, there.
pub(crate) const PROTOCOL: &str = "connect";

/// What all workers share; nothing in it is locked on a connection's path.
pub(crate) struct Shared {
    pub(crate) config: ProxyConfig,
    pub(crate) limits: Limits,
    /// Where connections may go.
    pub(crate) shoot: Shoot,
    pub(crate) tls: ServerTls,
    pub(crate) status: watch::Receiver<Arc<Status>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) accepting: Accepting,
    pub(crate) listeners: serve::Metrics,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) access_log: AccessLog,
}

/// One worker thread's state.
struct Worker {
    shared: Arc<Shared>,
    handle: WorkerHandle,
    /// Absent when no DNS server is configured.
    names: Option<Names>,
}

/// Accepts and serves connections until the process no longer accepts.
pub(crate) async fn run(
    shared: Arc<Shared>,
    handle: WorkerHandle,
    socket: WorkerSocket,
) -> io::Result<()> {
    let listener = Rc::new(ListenerContext {
        name: LISTENER.into(),
        protocol: PROTOCOL,
        metrics: shared.listeners.listener(LISTENER),
        access_log: shared.access_log.clone(),
    });
    let names = Names::new(&shared.config, &shared.shoot)?;
    let accepting = shared.accepting.clone();
    let worker = Rc::new(Worker {
        shared,
        handle,
        names,
    });
    accept_all(
        &accepting,
        vec![(socket, listener)],
        move |stream, peer, listener| {
            worker.accepted(stream, peer, listener);
        },
    )
    .await
}

impl Worker {
    /// Admits a connection and starts its task, or counts why not.
    fn accepted(
        self: &Rc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        listener: &Rc<ListenerContext>,
    ) {
        let admission = &self.shared.admission;
        let record = ConnRecord::admit(listener, peer, admission);
        let record = record.and_then(|record| record.admit_client(peer.ip(), admission));
        let Some(record) = record else { return };
        let worker = Rc::clone(self);
        self.handle
            .connections
            .spawn(record, |record| connection::serve(stream, worker, record));
    }
}
