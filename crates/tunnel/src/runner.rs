//! The data thread: one loop that reads sockets, streams and the device, and sleeps when nothing is
//! ready.
//!
//! ```text
//!   poll ─▶ commands ─▶ sockets ─▶ streams ─▶ device ─▶ timers ─▶ requests ─▶ flush ─┐
//!    ▲         (each within a budget, the engine decides, Ports sends)               │
//!    └── something was left ─────────────────── nothing left: asleep until woken ◀───┘
//! ```
//!
//! Everything that came in during a round goes out at its end, in as few calls as possible. Decides
//! nothing: that is the engine's.

mod counters;
mod ports;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;
use tunnel_proto::frame::{Decoder, Frame};

use crate::device::{Port, READ_BUFFER};
use crate::engine::{Engine, Remote, Request, SocketId, StreamId};
use crate::handle::{Command, Connected, Dial, Ends, Identity, Params, Sockets, StartError};
use crate::noise::{Keys, UNDER_LOAD};
use crate::stream;

use counters::Counters;
use ports::{Ports, SocketKind};

/// Super-packets read from the device in a row: half a MiB, about 0.4 ms of work.
const DEVICE_BUDGET: usize = 8;

/// Calls that receive from one socket in a row, of up to 16 runs of datagrams each.
const SOCKET_BUDGET: usize = 4;

/// Commands handled in a row: they may be connections of strangers.
const COMMAND_BUDGET: usize = 16;

/// Rounds before the runtime may ask the kernel what has become ready.
const ROUNDS: usize = 2;

/// Packets that are joined and written to the device together: as many as one call receives where
/// the kernel joins datagrams.
const BATCH: usize = 45;

/// How often status and metrics are brought up to date.
const PUBLISH: Duration = Duration::from_millis(250);

/// For how long there must be no traffic before memory is given back.
const IDLE: Duration = Duration::from_secs(10);

/// Registers the metrics of a tunnel without starting one, for documents that list them.
pub fn register_metrics(registry: &telemetry::Registry) {
    drop(Counters::new(registry));
}

/// Starts the data thread.
pub(crate) fn start(
    params: Params,
    identity: Identity,
    sockets: Sockets,
    registry: &telemetry::Registry,
    ends: Ends,
) -> Result<(), StartError> {
    let counters = Counters::new(registry);
    let stopped = ends.stopped.clone();
    let (said, ready) = std::sync::mpsc::sync_channel(1);
    let body = move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().map_err(StartError::Thread);
        let started = runtime.and_then(|runtime| {
            let runner = async { Runner::new(params, identity, sockets, counters, ends) };
            let runner = runtime.block_on(runner)?;
            Ok((runtime, runner))
        });
        // There is no receiver only when the starter is gone.
        match started {
            Ok((runtime, runner)) => {
                let _ = said.send(Ok(()));
                runtime.block_on(runner.run());
            }
            Err(error) => {
                let _ = said.send(Err(error));
            }
        }
        drop(stopped);
    };
    let thread = std::thread::Builder::new().name("tunnel".to_owned());
    thread.spawn(body).map_err(StartError::Thread)?;
    let ended = || StartError::Thread(io::ErrorKind::BrokenPipe.into());
    ready.recv().unwrap_or_else(|_| Err(ended()))
}

/// Reads the clock, once for each round.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

struct Runner {
    engine: Engine,
    ports: Ports,
    device: Port,
    device_buffer: Box<[u8]>,
    inbox: udp::Inbox,
    stream_buffer: Box<[u8]>,
    timer: Pin<Box<Sleep>>,
    ends: Ends,
    counters: Counters,
    publish_at: Instant,
    busy_at: Instant,
    last_id: u64,
    /// Packets carried when last published.
    packets: u64,
    is_small: bool,
    gone: bool,
}

impl Runner {
    fn new(
        params: Params,
        identity: Identity,
        sockets: Sockets,
        counters: Counters,
        ends: Ends,
    ) -> Result<Self, StartError> {
        let now = now();
        let socket = |what| move |source| StartError::Socket(what, source);
        let device = Port::new(sockets.device).map_err(socket("the TUN device"))?;
        let mut ports = Ports::new(device.abilities(), &params, sockets.trusted_gateways);
        if let Some(udp) = sockets.udp {
            let opened = ports.open(SocketId(0), SocketKind::Plain, udp);
            opened.map_err(socket("the UDP socket"))?;
        }
        if let Some(wrapped) = sockets.wrapped {
            let opened = ports.open(SocketId(1), SocketKind::Wrapped, wrapped);
            opened.map_err(socket("the UDP socket for gateways"))?;
        }
        let random = [(); 3].map(|()| RandomState::new().hash_one(0));
        let engine = Engine::new(params, identity, Keys::new(UNDER_LOAD), random, now)?;
        Ok(Self {
            engine,
            ports,
            device,
            device_buffer: vec![0; READ_BUFFER].into(),
            inbox: udp::Inbox::default(),
            stream_buffer: vec![0; stream::READ_BUFFER].into(),
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            ends,
            counters,
            publish_at: now,
            busy_at: now,
            last_id: 1,
            packets: 0,
            is_small: true,
            gone: false,
        })
    }
}

impl Runner {
    async fn run(mut self) {
        let turns = std::future::poll_fn(|cx| self.poll(cx));
        tokio::task::unconstrained(turns).await;
        tracing::info!("tunnel stopped");
    }

    /// Works until there is nothing to do, or for a few rounds.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..ROUNDS {
            let now = now();
            self.ports.now = now;
            let Some(mut busy) = self.handle_commands(now, cx) else {
                return Poll::Ready(());
            };
            busy |= self.receive_datagrams(now, cx);
            busy |= self.receive_frames(now, cx);
            match self.read_packets(now, cx) {
                Ok(taken) => busy |= taken,
                Err(error) => {
                    tracing::error!(%error, "reading the TUN device failed");
                    return Poll::Ready(());
                }
            }
            if self.gone {
                tracing::error!("the TUN device was deleted");
                return Poll::Ready(());
            }
            self.handle_timers(now);
            self.handle_requests(now);
            busy |= self.flush(now, cx);
            if !busy && !self.timer_is_due(cx) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Handles the program's commands; returns whether more may wait, `None` when one is to stop.
    fn handle_commands(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<bool> {
        for _ in 0..COMMAND_BUDGET {
            let Poll::Ready(command) = self.ends.commands.poll_recv(cx) else {
                return Some(false);
            };
            let engine = &mut self.engine;
            match command {
                None | Some(Command::Stop) => {
                    engine.send_close(now, &mut self.ports);
                    self.flush(now, cx);
                    return None;
                }
                Some(Command::Drain) => engine.drain(now, &mut self.ports),
                Some(Command::Settled(settled)) => {
                    engine.set_settled(now, settled, &mut self.ports);
                }
                Some(Command::Replace(identity, answer)) => {
                    // The caller may have given up.
                    let _ = answer.send(engine.replace(now, identity));
                }
                Some(Command::Accepted(stream, from)) => {
                    self.last_id += 1;
                    let id = StreamId(self.last_id);
                    match self.ports.accept(id, stream, Vec::new()) {
                        Ok(()) => engine.handle_accepted(now, id, from, &mut self.ports),
                        Err(error) => tracing::info!(%error, %from, "stream closed"),
                    }
                }
                Some(Command::Dialed {
                    server,
                    link,
                    socket,
                }) => match socket {
                    Some(socket) => self.add_link(now, &server, link, socket),
                    None => engine.handle_failed(now, &server, link, &mut self.ports),
                },
            }
        }
        Some(true)
    }

    fn add_link(
        &mut self,
        now: Instant,
        server: &str,
        link: tunnel_proto::path::LinkId,
        connected: Connected,
    ) {
        self.last_id += 1;
        let (remote, opened) = match connected {
            Connected::Tcp(stream, early) => {
                let id = StreamId(self.last_id);
                (Remote::Stream(id), self.ports.accept(id, stream, early))
            }
            Connected::Udp(udp) => {
                let socket = SocketId(self.last_id);
                let remote = Remote::Udp {
                    socket,
                    to: None,
                    local: None,
                };
                (remote, self.ports.open(socket, SocketKind::Connected, udp))
            }
        };
        let (engine, ports) = (&mut self.engine, &mut self.ports);
        if let Err(error) = opened {
            tracing::info!(%error, server, "link cannot be used");
            engine.handle_failed(now, server, link, ports);
        } else if !engine.handle_connected(now, server, link, remote, ports) {
            ports.close(&remote);
        }
    }

    fn receive_datagrams(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        let mut last = None;
        while let Some((id, kind)) = self.ports.socket_after(last) {
            last = Some(id);
            let mut turns = SOCKET_BUDGET;
            while self.ports.poll_readable(id, cx) {
                if turns == 0 {
                    busy = true;
                    break;
                }
                turns -= 1;
                let filled = self.ports.receive(id, &mut self.inbox);
                for mut run in self.inbox.runs(filled) {
                    let (sender, local) = (run.sender, run.local);
                    let trusted = kind != SocketKind::Wrapped || self.ports.trusts(sender.ip());
                    for datagram in run.datagrams() {
                        if !trusted {
                            self.ports.untrusted += 1;
                            continue;
                        }
                        let Some((from, datagram)) =
                            ports::unwrap(id, kind, sender, local, datagram)
                        else {
                            self.ports.not_wrapped += 1;
                            continue;
                        };
                        let (engine, ports) = (&mut self.engine, &mut self.ports);
                        engine.handle_datagram(now, &from, datagram, ports);
                    }
                    // While the packets are still in the processor's cache.
                    self.ports.flush_device(&self.device, BATCH);
                }
            }
            self.ports.flush_device(&self.device, 1);
        }
        busy
    }

    fn receive_frames(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        let mut busy = false;
        let mut last = None;
        while let Some(id) = self.ports.stream_after(last) {
            last = Some(id);
            let Some(mut decoder) = self.ports.take_decoder(id) else {
                continue;
            };
            let ended = self.receive_stream(now, cx, id, &mut decoder);
            self.ports.flush_device(&self.device, 1);
            match ended {
                Ok(more) => {
                    busy |= more;
                    self.ports.put_decoder(id, decoder);
                }
                Err(error) => self.close_stream(now, id, &error, decoder.pending()),
            }
        }
        busy
    }

    /// Reads one stream within a budget, and returns whether there may be more.
    fn receive_stream(
        &mut self,
        now: Instant,
        cx: &mut Context<'_>,
        id: StreamId,
        decoder: &mut Decoder,
    ) -> Result<bool, stream::StreamError> {
        let from = Remote::Stream(id);
        let (mut turn, mut heard) = (stream::READ_BUDGET, false);
        while turn > 0 {
            let read = self.ports.poll_read(id, cx, &mut self.stream_buffer);
            let Poll::Ready(read) = read else {
                return Ok(false);
            };
            let len = read?;
            turn = turn.saturating_sub(len);
            let mut input = self.stream_buffer.get(..len).unwrap_or_default();
            let (engine, ports) = (&mut self.engine, &mut self.ports);
            while let Some(frame) = decoder.next(&mut input)? {
                if !std::mem::replace(&mut heard, true) {
                    ports.heard(id);
                }
                match frame {
                    Frame::Control(control) => {
                        engine.handle_control(now, id, &control, ports);
                    }
                    Frame::Datagram(datagram) => {
                        engine.handle_frame(now, &from, datagram, ports);
                    }
                }
            }
            self.ports.flush_device(&self.device, 1);
        }
        Ok(true)
    }

    fn close_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        error: &stream::StreamError,
        pending: usize,
    ) {
        tracing::debug!(%error, stream = id.0, pending, "stream ended");
        self.counters.link_closed(error.reason());
        self.ports.close(&Remote::Stream(id));
        self.engine.handle_closed(now, id, &mut self.ports);
    }

    fn read_packets(&mut self, now: Instant, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut turns = DEVICE_BUDGET;
        while let Poll::Ready(ready) = self.device.poll_readable(cx) {
            ready?;
            while let Some(packet) = self.device.read(&mut self.device_buffer)? {
                let (engine, ports) = (&mut self.engine, &mut self.ports);
                engine.handle_packet(now, &packet.vnet, packet.bytes, ports);
                turns -= 1;
                if turns == 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn handle_timers(&mut self, now: Instant) {
        if now >= self.engine.poll_timeout() {
            self.engine.handle_timeout(now, &mut self.ports);
        }
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH;
            self.gone = self.device.is_gone();
            self.publish(now);
            for id in self.ports.late_streams(now) {
                self.close_stream(now, id, &stream::StreamError::NoHello, 0);
            }
            let counts = self.engine.counts();
            let packets = counts.sealed.packets + counts.opened.packets;
            if packets != self.packets {
                (self.packets, self.busy_at, self.is_small) = (packets, now, false);
            }
            if !self.is_small && now >= self.busy_at + IDLE {
                self.is_small = true;
                self.ports.shrink();
                self.inbox = udp::Inbox::default();
            }
        }
    }

    /// Does what the engine wants.
    fn handle_requests(&mut self, now: Instant) {
        while let Some(request) = self.engine.poll_request() {
            match request {
                Request::Close { remote, reason } => {
                    self.counters.link_closed(reason);
                    self.ports.close(&remote);
                }
                Request::Dial {
                    server,
                    link,
                    transport,
                } => {
                    let dial = Dial {
                        server,
                        transport,
                        link,
                        answers: self.ends.answers.upgrade(),
                    };
                    // Dropped, it would answer through the full channel; the engine is informed
                    // here instead.
                    if let Err(refused) = self.ends.dials.try_send(dial) {
                        let mut dial = refused.into_inner();
                        dial.answers = None;
                        let ports = &mut self.ports;
                        let server = dial.server.clone();
                        self.engine.handle_failed(now, &server, dial.link, ports);
                    }
                }
            }
        }
    }

    /// Sends what was put out; returns whether that led to more.
    fn flush(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        self.ports.flush_device(&self.device, 1);
        self.ports.flush_sockets();
        let ended = self.ports.flush_streams(now, cx);
        for (id, error) in &ended {
            self.close_stream(now, *id, error, 0);
        }
        !ended.is_empty()
    }

    /// Sets the timer to what is next; returns whether that is now.
    fn timer_is_due(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.engine.poll_timeout().min(self.publish_at);
        self.timer.as_mut().reset(due.into());
        self.timer.as_mut().poll(cx).is_ready()
    }

    fn publish(&mut self, now: Instant) {
        let status = self.engine.status(now);
        let (engine, ports) = (&self.engine, &mut self.ports);
        ports.broken += self.device.take_broken();
        self.counters
            .publish(engine.counts(), engine.filter(), ports, &status);
        self.ends.status.send_if_modified(|known| {
            let changed = **known != status;
            if changed {
                *known = Arc::new(status);
            }
            changed
        });
    }
}
