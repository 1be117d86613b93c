//! One gRPC stream in a test's hands, packet by packet.
//!
//! ```text
//!  test ── send ──▶ queue ──▶ task ──▶ HTTP/2
//!  test ◀─ recv ─── queue ◀── task ◀── HTTP/2      a full queue stops the reading, and so the peer
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use h2::RecvStream;
use h2::client::ResponseFuture;
use http::HeaderMap;
use tokio::sync::{mpsc, oneshot};

use super::engine::Engine;
use super::frame;
use super::packet::Packet;
use super::stream::{Incoming, Outgoing};
use super::tap::Control;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer ended it without a status, as a client does.
    Closed,
    /// It was reset, or its connection went away.
    Failed(String),
    Status {
        /// The status; 0 is success, 2 `UNKNOWN`.
        code: u32,
        message: String,
    },
}

impl End {
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| {
            let value = headers.get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Some(Self::Status {
            code: text("grpc-status")?.parse().unwrap_or(u32::MAX),
            message: text("grpc-message").unwrap_or_default(),
        })
    }
}

/// One end of a stream. Dropping it cancels the stream.
#[derive(Debug)]
pub struct Wire {
    sender: WireSender,
    receiver: WireReceiver,
}

#[derive(Clone, Debug)]
pub(super) struct WireSender {
    engine: Engine,
    commands: mpsc::Sender<Command>,
    control: Arc<Control>,
}

#[derive(Debug)]
pub(super) struct WireReceiver {
    engine: Engine,
    arrivals: mpsc::Receiver<Arrival>,
    head: Option<HeaderMap>,
    stash: VecDeque<Packet>,
    end: Option<End>,
}

#[derive(Debug)]
enum Command {
    Finish,
    FinishWith {
        code: u32,
        message: String,
    },
    Pieces(Vec<Bytes>),
    Reset,
    Room {
        bytes: usize,
        found: oneshot::Sender<()>,
    },
}

#[derive(Debug)]
enum Arrival {
    End(End),
    Head(HeaderMap),
    Packet(Packet),
}

impl Wire {
    pub(super) fn client(
        engine: &Engine,
        control: Arc<Control>,
        outgoing: Outgoing,
        response: ResponseFuture,
    ) -> Self {
        let (wire, arrivals) = Self::start(engine, control, outgoing);
        engine.spawn(async move {
            let end = match response.await {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    if let Some(end) = End::of(&parts.headers) {
                        end
                    } else if parts.status != http::StatusCode::OK {
                        End::Failed(format!("HTTP status {}", parts.status))
                    } else {
                        let _ = arrivals.send(Arrival::Head(parts.headers)).await;
                        receive(body, &arrivals).await
                    }
                }
                Err(error) => End::Failed(error.to_string()),
            };
            let _ = arrivals.send(Arrival::End(end)).await;
        });
        wire
    }

    pub(super) fn server(
        engine: &Engine,
        control: Arc<Control>,
        outgoing: Outgoing,
        body: RecvStream,
    ) -> Self {
        let (wire, arrivals) = Self::start(engine, control, outgoing);
        engine.spawn(async move {
            let end = receive(body, &arrivals).await;
            let _ = arrivals.send(Arrival::End(end)).await;
        });
        wire
    }

    fn start(
        engine: &Engine,
        control: Arc<Control>,
        outgoing: Outgoing,
    ) -> (Self, mpsc::Sender<Arrival>) {
        let (commands, queue) = mpsc::channel(QUEUE);
        // As many packets as upstream's client library keeps for a connection.
        let (arrivals, arriving) = mpsc::channel(QUEUE);
        engine.spawn(send(outgoing, queue));
        let wire = Self {
            sender: WireSender {
                engine: engine.clone(),
                commands,
                control,
            },
            receiver: WireReceiver {
                engine: engine.clone(),
                arrivals: arriving,
                head: None,
                stash: VecDeque::new(),
                end: None,
            },
        };
        (wire, arrivals)
    }

    /// Sends a packet; returns when it is queued.
    pub fn send(&self, packet: &Packet) -> Result<()> {
        self.sender.send(packet)
    }

    /// Sends several packets in one DATA frame, if they fit into one.
    pub fn send_together(&self, packets: &[Packet]) -> Result<()> {
        self.send_bytes(&[packets.iter().flat_map(frame::framed).collect()])
    }

    /// Sends a packet in DATA frames of `size` bytes.
    pub fn send_split(&self, packet: &Packet, size: usize) -> Result<()> {
        let bytes = frame::framed(packet);
        let pieces: Vec<_> = bytes.chunks(size).map(<[u8]>::to_vec).collect();
        self.send_bytes(&pieces)
    }

    /// Sends whatever bytes, each piece in a DATA frame of its own.
    pub fn send_bytes(&self, pieces: &[Vec<u8>]) -> Result<()> {
        let pieces = pieces.iter().map(|piece| Bytes::from(piece.clone()));
        self.sender.command(Command::Pieces(pieces.collect()))
    }

    /// Ends the sending side as a client does.
    pub fn finish(&self) -> Result<()> {
        self.sender.command(Command::Finish)
    }

    /// Ends the stream with a gRPC status as a server does.
    pub fn finish_with(&self, code: u32, message: &str) -> Result<()> {
        let message = message.to_owned();
        self.sender.command(Command::FinishWith { code, message })
    }

    /// Resets the stream; its connection stays.
    pub fn reset(&self) -> Result<()> {
        self.sender.command(Command::Reset)
    }

    /// Waits until the peer's windows have room for `bytes`; not more than 300,000, which is what
    /// HTTP/2 here would hold.
    pub fn wait_room(&self, bytes: usize) -> Result<()> {
        let (found, finding) = oneshot::channel();
        self.sender.command(Command::Room { bytes, found })?;
        let waited = self.sender.engine.wait(LIMIT, finding);
        let found = waited.context("the windows stay small")?;
        found.ok().context("the stream has ended")
    }

    pub fn recv(&mut self, limit: Duration) -> Result<Packet> {
        self.receiver.recv(limit)
    }

    /// Returns the first packet that `wanted` likes; those passed over stay for later calls.
    pub fn find(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Packet) -> bool,
    ) -> Result<Packet> {
        self.receiver.find(what, limit, wanted)
    }

    /// Waits for the end of the stream, whatever arrives before it.
    pub fn end(&mut self, limit: Duration) -> Result<End> {
        loop {
            if let Some(end) = &self.receiver.end {
                return Ok(end.clone());
            }
            self.receiver.arrival(limit)?;
        }
    }

    /// Waits for the head of the answer; client's end only.
    pub fn head(&mut self, limit: Duration) -> Result<HeaderMap> {
        let receiver = &mut self.receiver;
        loop {
            if let Some(head) = &receiver.head {
                return Ok(head.clone());
            }
            if let Some(end) = &receiver.end {
                bail!("refused: {end:?}");
            }
            if let Some(packet) = receiver.arrival(limit)? {
                bail!("{packet:?} before any head");
            }
        }
    }

    /// Stops everything on the connection as SIGSTOP would, or goes on with it.
    pub fn freeze(&self, frozen: bool) {
        self.sender.control.freeze(frozen);
    }

    pub fn hear(&self) {
        self.sender.control.deafen(false);
    }

    pub fn cut(&self) {
        self.sender.control.cut.notify_one();
    }

    pub fn pings(&self) -> usize {
        self.sender.control.pings()
    }

    pub(super) fn split(self) -> (WireSender, WireReceiver) {
        (self.sender, self.receiver)
    }
}

impl WireSender {
    pub(super) fn send(&self, packet: &Packet) -> Result<()> {
        let bytes = Bytes::from(frame::framed(packet));
        self.command(Command::Pieces(vec![bytes]))
    }

    fn command(&self, command: Command) -> Result<()> {
        let sent = self.engine.wait(LIMIT, self.commands.send(command));
        let sent = sent.context("a stream takes nothing for 20 s")?;
        sent.ok().context("the stream has ended")
    }
}

impl WireReceiver {
    pub(super) fn recv(&mut self, limit: Duration) -> Result<Packet> {
        self.find("a packet", limit, |_| true)
    }

    fn find(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Packet) -> bool,
    ) -> Result<Packet> {
        if let Some(at) = self.stash.iter().position(&wanted)
            && let Some(packet) = self.stash.remove(at)
        {
            return Ok(packet);
        }
        loop {
            if let Some(end) = &self.end {
                bail!("the stream ended before {what}: {end:?}; {:?}", self.stash);
            }
            let arrival = self.arrival(limit);
            match arrival.with_context(|| format!("waiting for {what}; {:?}", self.stash))? {
                Some(packet) if wanted(&packet) => return Ok(packet),
                packet => self.stash.extend(packet),
            }
        }
    }

    /// Waits for what comes next, keeps a head or an end, and returns a packet.
    fn arrival(&mut self, limit: Duration) -> Result<Option<Packet>> {
        let arrival = { self.engine.wait(limit, self.arrivals.recv()) }
            .with_context(|| format!("nothing arrives for {limit:?}"))?;
        match arrival.context("the connection is gone")? {
            Arrival::End(end) => self.end = Some(end),
            Arrival::Head(head) => self.head = Some(head),
            Arrival::Packet(packet) => return Ok(Some(packet)),
        }
        Ok(None)
    }
}

async fn send(mut outgoing: Outgoing, mut queue: mpsc::Receiver<Command>) {
    while let Some(command) = queue.recv().await {
        let sent = match command {
            Command::Finish => outgoing.finish(),
            Command::FinishWith { code, message } => outgoing.finish_with(code, &message),
            Command::Pieces(pieces) => send_all(&mut outgoing, pieces).await,
            Command::Reset => {
                outgoing.reset();
                return;
            }
            Command::Room { bytes, found } => {
                let room = outgoing.room(bytes).await;
                if room.is_ok() {
                    // Who asked may have stopped waiting.
                    let _ = found.send(());
                }
                room
            }
        };
        // The receiving task learns the reason.
        if sent.is_err() {
            return;
        }
    }
}

async fn send_all(outgoing: &mut Outgoing, pieces: Vec<Bytes>) -> Result<()> {
    for piece in pieces {
        outgoing.send(piece).await?;
    }
    Ok(())
}

async fn receive(body: RecvStream, arrivals: &mpsc::Sender<Arrival>) -> End {
    let mut incoming = Incoming::new(body);
    loop {
        let next = tokio::select! {
            next = incoming.next() => next,
            // No receiver is left: dropping the stream resets it.
            () = arrivals.closed() => return End::Closed,
        };
        match next {
            Ok(Some(packet)) => {
                if arrivals.send(Arrival::Packet(packet)).await.is_err() {
                    return End::Closed;
                }
            }
            Ok(None) => return incoming.end().await,
            Err(error) => return End::Failed(format!("{error:#}")),
        }
    }
}

const QUEUE: usize = 10;
pub(super) const LIMIT: Duration = Duration::from_secs(20);
