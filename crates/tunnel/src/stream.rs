//! A TCP stream that carries frames: datagrams and control messages, both ways.
//!
//! ```text
//!   slot(fill), control ─▶ CoDel queue ─▶ frames being written ─ writev, when writable ─▶ socket
//!   Frame ◀─ Decoder ◀─ read, at most 256 KiB in a row ◀───────────────────────────────── socket
//! ```
//!
//! The kernel holds little that is unsent (`TCP_NOTSENT_LOWAT`), so what must wait does so in the
//! queue, where what has become useless is dropped. A frame that was begun is finished; nothing is
//! dropped within one. Polled by the loop that owns it: no task, no lock, and a bounded amount of
//! work per poll, so that other sources are served.
//!
//! Connecting is the program's matter. Knows no keys; what is in a datagram is not looked at.

mod outgoing;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use relay::{Pace, SinkState, is_writable, round_trip};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tunnel_proto::codel;
use tunnel_proto::frame::FrameError;

use outgoing::Outgoing;

/// Bytes that are good to read into; any number works.
pub(crate) const READ_BUFFER: usize = 64 * 1024;

/// Bytes read in a row at most before other sources are served.
pub(crate) const READ_BUDGET: usize = 256 * 1024;

/// Bounds of a stream.
#[derive(Clone, Debug)]
pub struct StreamParams {
    /// The queue in front of the socket.
    pub queue: codel::Params,
    /// Unsent bytes that the kernel holds, as the program set it on the socket (`TCP_NOTSENT_LOWAT`),
    /// at most: fewer while the line is slow; 0: without a limit.
    pub notsent_lowat: u32,
    /// How long the other end's first frame may take.
    pub hello_timeout: Duration,
}

impl Default for StreamParams {
    fn default() -> Self {
        Self {
            queue: codel::Params::default(),
            notsent_lowat: 64 * 1024,
            hello_timeout: Duration::from_secs(5),
        }
    }
}

/// One connected stream.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    pub(crate) outgoing: Outgoing,
    /// Where the kernel's limit is ours.
    pace: Option<Pace>,
    /// Bytes that were read ahead of us.
    early: Vec<u8>,
    /// Until when a hello must have come; `None` once it has.
    first_frame_by: Option<Instant>,
}

impl Stream {
    /// Wraps a connected socket, from which `early` has been read already. Must be called
    /// within the runtime that polls it. The program sets all other options.
    pub(crate) fn new(
        socket: std::net::TcpStream,
        early: Vec<u8>,
        params: &StreamParams,
        now: Instant,
    ) -> io::Result<Self> {
        // Writes are whole batches: nothing is gained by waiting for more.
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let pace = (params.notsent_lowat > 0).then(|| Pace::new(now, params.notsent_lowat));
        // If the kernel refuses, what was set before stays.
        let set = |pace: &Pace| {
            SockRef::from(&socket)
                .set_tcp_notsent_lowat(pace.bytes())
                .is_ok()
        };
        let pace = pace.filter(set);
        let unsent = pace.as_ref().map_or(params.notsent_lowat, Pace::bytes);
        Ok(Self {
            socket: TcpStream::from_std(socket)?,
            outgoing: Outgoing::new(params.queue, unsent),
            pace,
            early,
            first_frame_by: Some(now + params.hello_timeout),
        })
    }

    /// Writes what waits, as far as the socket takes it. Ready when nothing waits any more. After an
    /// error the stream is of no use.
    pub(crate) fn poll_flush(
        &mut self,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), StreamError>> {
        let mut written = 0;
        let polled = self.poll_write(now, cx, &mut written);
        let state = match polled.is_pending() {
            true => SinkState::Full,
            // An empty queue here says nothing of the line: the gateway has a queue of its own.
            false => SinkState::Open,
        };
        if let Some(pace) = &mut self.pace
            && let Some(unsent) = pace.moved(now, written, state, || round_trip(&self.socket))
            && SockRef::from(&self.socket)
                .set_tcp_notsent_lowat(unsent)
                .is_ok()
        {
            self.outgoing.set_notsent_lowat(unsent);
        }
        polled
    }

    fn poll_write(
        &mut self,
        now: Instant,
        cx: &mut Context<'_>,
        total: &mut u64,
    ) -> Poll<Result<(), StreamError>> {
        loop {
            if self.outgoing.is_empty() {
                return Poll::Ready(Ok(()));
            }
            // Frames leave the queue when they can be written and not before: until then they may
            // still be dropped.
            ready!(self.socket.poll_write_ready(cx)).map_err(StreamError::Write)?;
            let little = self.pace.as_ref().is_some_and(Pace::is_below_max);
            if little && !is_writable(&self.socket) {
                // It fills up a segment beyond its limit.
                let full = || Err(io::ErrorKind::WouldBlock.into());
                let _ = self.socket.try_io::<()>(Interest::WRITABLE, full);
                continue;
            }
            self.outgoing.refill(now);
            if self.outgoing.is_empty() {
                return Poll::Ready(Ok(())); // what waited was dropped
            }
            let socket = Pin::new(&mut self.socket);
            let written = self
                .outgoing
                .with_slices(|slices| socket.poll_write_vectored(cx, slices));
            match ready!(written) {
                Ok(len) => {
                    *total += len as u64;
                    self.outgoing.advance(len);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(StreamError::Write(error))),
            }
        }
    }

    /// Reads bytes for a [`Decoder`](tunnel_proto::frame::Decoder) into `buffer` and returns how many,
    /// at least one. After an error the stream is of no use.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, StreamError>> {
        if !self.early.is_empty() {
            let len = self.early.len().min(buffer.len());
            let early = self.early.drain(..len);
            for (to, from) in buffer.iter_mut().zip(early) {
                *to = from;
            }
            return Poll::Ready(Ok(len));
        }
        loop {
            let mut into = ReadBuf::new(buffer);
            match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut into)) {
                Ok(()) if into.filled().is_empty() => {
                    return Poll::Ready(Err(StreamError::Closed));
                }
                Ok(()) => return Poll::Ready(Ok(into.filled().len())),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(StreamError::Read(error))),
            }
        }
    }

    /// Records that the other end has sent a frame.
    pub(crate) fn heard(&mut self) {
        self.first_frame_by = None;
    }

    /// Returns whether the other end has sent no frame in time.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.first_frame_by.is_some_and(|by| now >= by)
    }
}

/// Why a stream has ended or must.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// The other end has closed it.
    #[error("the other end has closed the stream")]
    Closed,
    /// What the other end sent cannot be understood.
    #[error("the other end sent an invalid frame")]
    Frame(#[from] FrameError),
    /// The other end sent no frame in time.
    #[error("the other end sent no frame in time")]
    NoHello,
    /// The connection is lost.
    #[error("reading from the stream")]
    Read(#[source] io::Error),
    /// The connection is lost.
    #[error("writing to the stream")]
    Write(#[source] io::Error),
}

impl StreamError {
    /// Returns the label for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Frame(error) => error.reason(),
            Self::NoHello => "no_hello",
            Self::Read(error) | Self::Write(error) if error.kind() == io::ErrorKind::TimedOut => {
                "timed_out"
            }
            Self::Read(_) | Self::Write(_) => "reset",
        }
    }
}
