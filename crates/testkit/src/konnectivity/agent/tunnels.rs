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
use tokio::task::{AbortHandle, JoinHandle};

use super::{DialRule, QUEUE};
use crate::background::locked;
use crate::konnectivity::packet::Packet;
use crate::konnectivity::wire::End;

/// All connections of one stream, and what was seen of them.
#[derive(Debug)]
pub(super) struct Tunnels {
    pub(super) rule: Mutex<DialRule>,
    pub(super) dials: Mutex<Vec<String>>,
    pub(super) seen: Mutex<Vec<Packet>>,
    pub(super) end: Mutex<Option<End>>,
    out: mpsc::Sender<Packet>,
    next: AtomicI64,
    open: Mutex<BTreeMap<i64, Tunnel>>,
}

#[derive(Debug)]
struct Tunnel {
    queue: mpsc::Sender<Vec<u8>>,
    task: AbortHandle,
    /// Ends once all that was read is sent; awaited by the first that closes it.
    sending: Option<JoinHandle<()>>,
}

impl Tunnels {
    pub(super) fn new(out: mpsc::Sender<Packet>) -> Self {
        Self {
            rule: Mutex::new(DialRule::Dial),
            dials: Mutex::default(),
            seen: Mutex::default(),
            end: Mutex::default(),
            out,
            next: AtomicI64::new(1),
            open: Mutex::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        locked(&self.open).len()
    }

    pub(super) async fn handle(self: &Arc<Self>, packet: Packet) {
        if !matches!(packet, Packet::Data { .. }) {
            locked(&self.seen).push(packet.clone());
        }
        match packet {
            Packet::CloseReq { connect_id } => {
                if !self.close(connect_id).await {
                    self.answer(close(connect_id, "Unknown connectID")).await;
                }
            }
            Packet::Data { connect_id, data } => {
                let tunnel = locked(&self.open)
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

    pub(super) fn end(&self) {
        let open = std::mem::take(&mut *locked(&self.open));
        for tunnel in open.into_values() {
            tunnel.task.abort();
        }
    }

    async fn dial(self: &Arc<Self>, address: String, random: i64) {
        locked(&self.dials).push(address.clone());
        let rule = locked(&self.rule).clone();
        match rule {
            DialRule::Dial => {
                let this = Arc::clone(self);
                tokio::spawn(async move { this.connect(&address, random).await });
            }
            DialRule::Ignore => {}
            DialRule::Refuse(error) => self.answer(failed(error, random)).await,
        }
    }

    async fn connect(self: &Arc<Self>, address: &str, random: i64) {
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

    async fn established(self: &Arc<Self>, stream: TcpStream, random: i64) {
        let _ = stream.set_nodelay(true);
        let connect_id = self.next.fetch_add(1, Ordering::SeqCst);
        let (queue, queued) = mpsc::channel(QUEUE);
        let (start, started) = tokio::sync::oneshot::channel::<()>();
        let this = Arc::clone(self);
        let (read, mut unsent) = mpsc::channel(QUEUE);
        let task = tokio::spawn(async move {
            if started.await.is_ok() {
                this.relay(stream, queued, read, connect_id).await;
            }
        });
        let task = task.abort_handle();
        // In turns with those of other connections: who waits for the stream first has it first.
        let out = self.out.clone();
        let sending = tokio::spawn(async move {
            while let Some(packet) = unsent.recv().await {
                let _ = out.send(packet).await;
            }
        });
        let tunnel = Tunnel {
            queue,
            task,
            sending: Some(sending),
        };
        locked(&self.open).insert(connect_id, tunnel);
        self.answer(Packet::DialRsp {
            error: String::new(),
            connect_id,
            random,
        })
        .await;
        let _ = start.send(());
    }

    /// Relays until the destination ends; whatever else ends it aborts this task.
    async fn relay(
        &self,
        stream: TcpStream,
        mut queue: mpsc::Receiver<Vec<u8>>,
        sender: mpsc::Sender<Packet>,
        connect_id: i64,
    ) {
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
                let _ = sender
                    .send(Packet::data(connect_id, &buffer[..count]))
                    .await;
            }
        };
        tokio::select! {
            () = write => {}
            () = read => {}
        }
        drop(sender);
        self.close(connect_id).await;
    }

    /// Closes a connection, answers for it once what was read of it is sent, and then forgets it, as upstream
    /// does; false if it is unknown.
    async fn close(&self, connect_id: i64) -> bool {
        let sending = match locked(&self.open).get_mut(&connect_id) {
            None => return false,
            Some(tunnel) => {
                let sending = tunnel.sending.take();
                // Aborting who closes it would lose its last words.
                if sending.is_some() && tokio::task::try_id() != Some(tunnel.task.id()) {
                    tunnel.task.abort();
                }
                sending
            }
        };
        if let Some(sending) = sending {
            let _ = sending.await;
            self.answer(close(connect_id, "")).await;
            locked(&self.open).remove(&connect_id);
        }
        true
    }

    async fn answer(&self, packet: Packet) {
        let _ = self.out.send(packet).await;
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
