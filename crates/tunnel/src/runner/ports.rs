//! Sockets, streams and the batch for the device: where the engine's output goes.
//!
//! ```text
//!   Out::datagram ─▶ Outbox of a socket (wrapped, if a gateway asked) │ Stream
//!   Out::control ──▶ Stream                     Out::packet ─▶ Batch ─▶ device
//! ```
//!
//! Holds what is open and sends; decides nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::task::{Context, Poll};
use std::time::Instant;

use ipnet::IpNet;
use tunnel_proto::codel::{self, Band, DropReason};
use tunnel_proto::frame::{Control, Decoder, MAX_LEN};
use tunnel_proto::wrapped;
use udp::{Datagrams, MtuDiscovery, Outbox};

use crate::device::{Abilities, Batch, Port, Written};
use crate::engine::{Out, Remote, SocketId, StreamId};
use crate::handle::Params;
use crate::stream::{Stream, StreamError, StreamParams};

/// How a socket is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    /// By one other end.
    Connected,
    /// By any client with a key.
    Plain,
    /// By gateways.
    Wrapped,
}

#[derive(Debug)]
struct Socket {
    kind: SocketKind,
    datagrams: Datagrams,
    outbox: Outbox,
}

#[derive(Debug)]
struct Open {
    stream: Stream,
    /// `None` while what it decodes is handled.
    decoder: Option<Decoder>,
}

/// Everything that is open.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) now: Instant,
    sockets: BTreeMap<SocketId, Socket>,
    streams: BTreeMap<StreamId, Open>,
    batch: Batch,
    trusted: Vec<IpNet>,
    stream_params: StreamParams,
    offloads: udp::Offloads,
    /// Datagrams for the gateways' socket from elsewhere than a gateway.
    pub(super) untrusted: u64,
    /// Datagrams of gateways that are not wrapped, or for an address that no client has.
    pub(super) not_wrapped: u64,
    /// Packets of the device whose header is not understood.
    pub(super) broken: u64,
    /// What became of the datagrams of sockets that were closed since.
    closed: udp::Tally,
    /// What became of the frames of streams that were closed since.
    closed_queues: codel::Stats,
}

impl Ports {
    pub(super) fn new(abilities: Abilities, params: &Params, trusted: Vec<IpNet>) -> Self {
        Self {
            now: super::now(),
            sockets: BTreeMap::new(),
            streams: BTreeMap::new(),
            batch: Batch::new(abilities),
            trusted,
            stream_params: params.stream.clone(),
            offloads: params.offloads,
            untrusted: 0,
            not_wrapped: 0,
            broken: 0,
            closed: udp::Tally::default(),
            closed_queues: codel::Stats::default(),
        }
    }

    pub(super) fn open(
        &mut self,
        id: SocketId,
        kind: SocketKind,
        socket: std::net::UdpSocket,
    ) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let options = udp::Options {
            // By way of a gateway as well: the search for the size then finds what is left for
            // packets beside its header, instead of having every full datagram fragmented.
            mtu_discovery: MtuDiscovery::Probe,
            offloads: self.offloads,
        };
        let socket = Socket {
            kind,
            datagrams: Datagrams::new(socket, options)?,
            outbox: Outbox::default(),
        };
        self.sockets.insert(id, socket);
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        id: StreamId,
        stream: std::net::TcpStream,
        early: Vec<u8>,
    ) -> io::Result<()> {
        let stream = Stream::new(stream, early, &self.stream_params, self.now)?;
        let open = Open {
            stream,
            decoder: Some(Decoder::new(MAX_LEN)),
        };
        self.streams.insert(id, open);
        Ok(())
    }

    pub(super) fn close(&mut self, remote: &Remote) {
        match remote {
            Remote::Stream(stream) => {
                if let Some(open) = self.streams.remove(stream) {
                    self.closed_queues += open.stream.outgoing.stats();
                }
            }
            // A server's socket serves all clients.
            Remote::Udp {
                socket, to: None, ..
            } => {
                if let Some(mut socket) = self.sockets.remove(socket) {
                    self.closed += socket.outbox.take_tally();
                }
            }
            Remote::Udp { .. } | Remote::Wrapped { .. } => {}
        }
    }

    pub(super) fn trusts(&self, gateway: IpAddr) -> bool {
        let mut trusted = self.trusted.iter();
        trusted.any(|network| network.contains(&gateway))
    }

    /// Returns the socket that comes behind another one; they may go meanwhile.
    pub(super) fn socket_after(&self, last: Option<SocketId>) -> Option<(SocketId, SocketKind)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.sockets.range((from, Bound::Unbounded));
        behind.next().map(|(id, socket)| (*id, socket.kind))
    }

    /// Returns the stream that comes behind another one; they may go meanwhile.
    pub(super) fn stream_after(&self, last: Option<StreamId>) -> Option<StreamId> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.streams.range((from, Bound::Unbounded));
        behind.next().map(|(id, _)| *id)
    }

    /// Records that the other end of a stream has introduced itself.
    pub(super) fn heard(&mut self, id: StreamId) {
        if let Some(open) = self.stream_mut(id) {
            open.stream.heard();
        }
    }

    pub(super) fn poll_readable(&self, id: SocketId, cx: &mut Context<'_>) -> bool {
        let socket = self.sockets.get(&id);
        socket.is_some_and(|socket| socket.datagrams.poll_readable(cx).is_ready())
    }

    pub(super) fn receive(&self, id: SocketId, inbox: &mut udp::Inbox) -> usize {
        let socket = self.sockets.get(&id);
        socket.map_or(0, |socket| socket.datagrams.receive(inbox))
    }

    /// Lends the decoder of a stream, so that the stream can be written to meanwhile.
    pub(super) fn take_decoder(&mut self, id: StreamId) -> Option<Decoder> {
        self.stream_mut(id)?.decoder.take()
    }

    pub(super) fn put_decoder(&mut self, id: StreamId, decoder: Decoder) {
        if let Some(open) = self.stream_mut(id) {
            open.decoder = Some(decoder);
        }
    }

    pub(super) fn poll_read(
        &mut self,
        id: StreamId,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, StreamError>> {
        match self.stream_mut(id) {
            Some(open) => open.stream.poll_read(cx, buffer),
            None => Poll::Pending, // closed by what came
        }
    }

    /// Returns the streams whose other end has not introduced itself in time.
    pub(super) fn late_streams(&self, now: Instant) -> Vec<StreamId> {
        let late = self
            .streams
            .iter()
            .filter(|(_, open)| open.stream.is_late(now));
        late.map(|(id, _)| *id).collect()
    }

    /// Writes the batch, if there are so many packets in it.
    pub(super) fn flush_device(&mut self, device: &Port, least: usize) {
        if self.batch.len() >= least {
            self.batch.flush(device);
        }
    }

    pub(super) fn flush_sockets(&mut self) {
        for socket in self.sockets.values_mut() {
            socket.outbox.flush(&socket.datagrams);
        }
    }

    /// Writes what waits; returns the streams that have ended.
    pub(super) fn flush_streams(
        &mut self,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Vec<(StreamId, StreamError)> {
        let mut ended = Vec::new();
        for (id, open) in &mut self.streams {
            if let Poll::Ready(Err(error)) = open.stream.poll_flush(now, cx) {
                ended.push((*id, error));
            }
        }
        ended
    }

    /// Gives back memory that only traffic needs.
    pub(super) fn shrink(&mut self) {
        self.batch.shrink();
        for open in self.streams.values_mut() {
            open.stream.outgoing.shrink();
        }
    }

    pub(super) fn take_written(&mut self) -> Written {
        self.batch.take_written()
    }

    pub(super) fn take_tally(&mut self) -> udp::Tally {
        let mut tally = std::mem::take(&mut self.closed);
        for socket in self.sockets.values_mut() {
            tally += socket.outbox.take_tally();
        }
        tally
    }

    /// Returns how often the queues of all streams dropped a packet, by reason.
    pub(super) fn queue_drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let mut stats = self.closed_queues;
        for open in self.streams.values() {
            stats += open.stream.outgoing.stats();
        }
        let labels = DropReason::ALL.map(|(_, label)| label);
        labels.into_iter().zip(stats.dropped)
    }

    fn stream_mut(&mut self, id: StreamId) -> Option<&mut Open> {
        self.streams.get_mut(&id)
    }
}

impl Out for Ports {
    fn datagram(
        &mut self,
        to: &Remote,
        band: Band,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let (id, address, from, head) = match to {
            Remote::Stream(id) => {
                let now = self.now;
                if let Some(open) = self.stream_mut(*id) {
                    open.stream.outgoing.slot(now, band, max, fill);
                }
                return;
            }
            Remote::Udp { socket, to, local } => (*socket, *to, *local, None),
            Remote::Wrapped {
                gateway,
                local,
                client,
            } => (SocketId(1), Some(*gateway), *local, Some(*client)),
        };
        let head = head.map(wrapped::header);
        let head = head.as_ref().map_or(&[][..], |head| &head[..]);
        if let Some(socket) = self.sockets.get_mut(&id) {
            let through = &socket.datagrams;
            socket.outbox.slot(through, address, from, head, max, fill);
        }
    }

    fn control(&mut self, stream: StreamId, control: &Control<'_>) {
        let now = self.now;
        if let Some(open) = self.stream_mut(stream) {
            open.stream.outgoing.control(now, control);
        }
    }

    fn packet(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize) {
        // There is always space: the batch is flushed after every run of datagrams, and holds one.
        if let Some(buf) = self.batch.slot(max) {
            let len = fill(buf);
            self.batch.commit(len);
        }
    }
}

/// Returns the source of a datagram and the datagram, without a gateway's wrapping; `None` when a
/// gateway's has none that is right.
pub(super) fn unwrap(
    id: SocketId,
    kind: SocketKind,
    sender: SocketAddr,
    local: Option<IpAddr>,
    datagram: &mut [u8],
) -> Option<(Remote, &mut [u8])> {
    let (to, local) = match kind {
        SocketKind::Connected => (None, None),
        SocketKind::Plain => (Some(sender), local),
        SocketKind::Wrapped => {
            let client = wrapped::parse(datagram).ok()?.client;
            let datagram = datagram.get_mut(wrapped::HEADER_LEN..)?;
            let remote = Remote::Wrapped {
                gateway: sender,
                local,
                client,
            };
            return Some((remote, datagram));
        }
    };
    let socket = id;
    Some((Remote::Udp { socket, to, local }, datagram))
}
