//! The fake agent's connections.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::{DialRule, QUEUE, State, locked};
use crate::konnectivity::packet::Packet;

/// All connections of one stream.
#[derive(Clone, Debug)]
pub(super) struct Tunnels(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Arc<State>,
    out: mpsc::Sender<Packet>,
    next: AtomicI64,
    open: Mutex<BTreeMap<i64, Tunnel>>,
}

#[derive(Debug)]
struct Tunnel {
    queue: mpsc::Sender<Vec<u8>>,
    task: AbortHandle,
}

impl Tunnels {
    pub(super) fn new(state: Arc<State>, out: mpsc::Sender<Packet>) -> Self {
        Self(Arc::new(Inner {
            state,
            out,
            next: AtomicI64::new(1),
            open: Mutex::default(),
        }))
    }

    pub(super) fn state(&self) -> &State {
        &self.0.state
    }

    pub(super) async fn handle(&self, packet: Packet) {
        if !matches!(packet, Packet::Data { .. }) {
            locked(&self.0.state.seen).push(packet.clone());
        }
        match packet {
            Packet::CloseReq { connect_id } => {
                let error = match self.remove(connect_id) {
                    true => "",
                    false => "Unknown connectID",
                };
                self.answer(close(connect_id, error)).await;
            }
            Packet::Data { connect_id, data } => {
                let tunnel = locked(&self.0.open)
                    .get(&connect_id)
                    .map(|tunnel| tunnel.queue.clone());
                match tunnel {
                    Some(queue) => drop(queue.send(data).await),
                    None => {
                        self.answer(close(connect_id, "unrecognized connectID"))
                            .await;
                    }
                }
            }
            Packet::DialReq { address, random } => self.dial(address, random).await,
            Packet::CloseRsp { .. }
            | Packet::Credit { .. }
            | Packet::DialCls { .. }
            | Packet::DialRsp { .. }
            | Packet::Drain
            | Packet::Empty { .. }
            | Packet::Fin { .. } => {}
        }
    }

    /// Ends all connections.
    pub(super) fn end(&self) {
        let open = std::mem::take(&mut *locked(&self.0.open));
        for tunnel in open.into_values() {
            tunnel.task.abort();
            self.0.state.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    async fn dial(&self, address: String, random: i64) {
        locked(&self.0.state.dials).push(address.clone());
        let rule = locked(&self.0.state.rule).clone();
        match rule {
            DialRule::Dial => {
                let this = self.clone();
                tokio::spawn(async move { this.connect(&address, random).await });
            }
            DialRule::Ignore => {}
            DialRule::Refuse(error) => self.answer(failed(error, random)).await,
        }
    }

    async fn connect(&self, address: &str, random: i64) {
        let dialed = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await;
        let error = match dialed {
            Ok(Ok(stream)) => return self.established(stream, random).await,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                format!("dial tcp {address}: connect: connection refused")
            }
            Ok(Err(_)) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                format!("dial tcp: lookup {host}: no such host")
            }
            Err(_) => format!("dial tcp {address}: i/o timeout"),
        };
        self.answer(failed(error, random)).await;
    }

    async fn established(&self, stream: TcpStream, random: i64) {
        let _ = stream.set_nodelay(true);
        let connect_id = self.0.next.fetch_add(1, Ordering::SeqCst);
        let (queue, queued) = mpsc::channel(QUEUE);
        let (start, started) = tokio::sync::oneshot::channel::<()>();
        let this = self.clone();
        let task = tokio::spawn(async move {
            if started.await.is_ok() {
                this.relay(stream, queued, connect_id).await;
            }
        });
        let task = task.abort_handle();
        locked(&self.0.open).insert(connect_id, Tunnel { queue, task });
        self.0.state.open.fetch_add(1, Ordering::SeqCst);
        self.answer(Packet::DialRsp {
            error: String::new(),
            connect_id,
            random,
        })
        .await;
        let _ = start.send(());
    }

    /// Relays until the destination ends; whatever else ends it aborts this task.
    async fn relay(&self, stream: TcpStream, mut queue: mpsc::Receiver<Vec<u8>>, connect_id: i64) {
        let (mut reading, mut writing) = stream.into_split();
        let write = async {
            while let Some(data) = queue.recv().await {
                if writing.write_all(&data).await.is_err() {
                    return;
                }
            }
        };
        let read = async {
            // What upstream reads at once.
            let mut buffer = vec![0; 4096];
            while let Ok(count @ 1..) = reading.read(&mut buffer).await {
                self.answer(Packet::data(connect_id, &buffer[..count]))
                    .await;
            }
        };
        tokio::select! {
            () = write => {}
            () = read => {}
        }
        if self.remove(connect_id) {
            self.answer(close(connect_id, "")).await;
        }
    }

    fn remove(&self, connect_id: i64) -> bool {
        let Some(tunnel) = locked(&self.0.open).remove(&connect_id) else {
            return false;
        };
        self.0.state.open.fetch_sub(1, Ordering::SeqCst);
        // Aborting the caller itself would lose its last words.
        if tokio::task::try_id() != Some(tunnel.task.id()) {
            tunnel.task.abort();
        }
        true
    }

    async fn answer(&self, packet: Packet) {
        let _ = self.0.out.send(packet).await;
    }
}

fn close(connect_id: i64, error: &str) -> Packet {
    Packet::CloseRsp {
        connect_id,
        error: error.to_owned(),
    }
}

fn failed(error: String, random: i64) -> Packet {
    Packet::DialRsp {
        error,
        connect_id: 0,
        random,
    }
}

/// Upstream's bound of a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
