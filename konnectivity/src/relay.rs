//! Relays one tunnel to one socket until both directions are over.
//!
//! ```text
//!   socket ──read──▶ scratch ──split off──▶ Tunnel        Tunnel ──Bytes──▶ write ──▶ socket
//! ```
//!
//! What is read into the worker's scratch buffer is not copied again before it is encrypted. An
//! idle relay holds no buffer. The end of the socket's stream becomes the end of that direction,
//! and the other way round, where both ends of the link know half-close. A socket that takes no
//! more may still have something to say, and is heard to its end.

mod scratch;
mod watch;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use connect::Stream;
use knp_proto::{EndReason, WriteError};
use telemetry::metrics::Histogram;
use tokio::time::Instant;

use crate::fair_share::{Flow, TenantShare};
use crate::link::{Tunnel, TunnelRead};
use crate::metrics::{Direction, Held};
use watch::Watch;

pub(crate) use scratch::Scratch;

/// What a relay works with.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    pub(crate) scratch: Scratch,
    /// Of the thread, where several tenants share it.
    pub(crate) share: Option<Rc<TenantShare>>,
    /// How long the socket takes for a piece, in seconds.
    pub(crate) write_duration: Option<Histogram>,
    /// Which way bytes from the socket go; those to it go the other way.
    pub(crate) outward: Direction,
}

/// Bytes that a relay has moved, also while it goes on and after it was dropped.
#[derive(Debug, Default)]
pub(crate) struct ByteCounts {
    /// From the socket.
    pub(crate) from_socket: Cell<u64>,
    /// To the socket.
    pub(crate) to_socket: Cell<u64>,
}

/// How a relay ended.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    /// The socket failed.
    Socket(io::Error),
    /// The tunnel ended.
    Tunnel(EndReason),
}

/// Relays until both directions are over, or the socket fails. `early` was read from the socket
/// before. Dropping the future closes the tunnel, and says that something is missing unless the
/// socket had ended; the socket is the caller's.
pub(crate) fn relay<'a, S: Stream>(
    tunnel: Tunnel,
    socket: &'a mut S,
    early: Bytes,
    means: &'a Means,
    bytes: &'a ByteCounts,
) -> impl Future<Output = RelayEnd> + use<'a, S> {
    let mut relay = Relay {
        tunnel,
        socket,
        means,
        bytes,
        flow: Flow::new(means.share.clone()),
        outgoing: early,
        reading: true,
        incoming: Bytes::new(),
        writing: Writing::Open,
        unflushed: false,
        taken: None,
        stalled: None,
        full: false,
        watch: Watch::default(),
    };
    poll_fn(move |cx| relay.poll(cx))
}

struct Relay<'a, S> {
    tunnel: Tunnel,
    socket: &'a mut S,
    means: &'a Means,
    bytes: &'a ByteCounts,
    flow: Flow,
    /// Read from the socket, and not yet the tunnel's.
    outgoing: Bytes,
    /// Whether more may come from the socket.
    reading: bool,
    /// Read from the tunnel, and not yet the socket's.
    incoming: Bytes,
    writing: Writing,
    /// Whether the socket may hold bytes that were written to it: TLS does.
    unflushed: bool,
    /// When `incoming` was read from the tunnel, where that is measured.
    taken: Option<Instant>,
    /// Held while the socket does not take what there is for it.
    stalled: Option<Held>,
    /// The tunnel takes nothing for now.
    full: bool,
    watch: Watch,
}

#[derive(Debug)]
enum Writing {
    /// More may come from the tunnel.
    Open,
    /// The socket takes no more; what comes is dropped.
    Broken(Option<io::Error>),
    /// All has come; the socket's writing half is to be shut down.
    Shutting,
    /// The socket has been told.
    Shut,
}

/// Whether there may be more to do in one direction, or all is over.
type Step = ControlFlow<RelayEnd>;

impl<S: Stream> Relay<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        // Others get their turn after so many pieces, however fast this one is.
        for _ in 0..TURN {
            let (out, into) = (self.poll_out(cx), self.poll_in(cx));
            match (out, into) {
                (Poll::Ready(Break(end)), _) | (_, Poll::Ready(Break(end))) => {
                    return Poll::Ready(end);
                }
                (Poll::Pending, Poll::Pending) => return self.poll_watch(cx),
                (Poll::Ready(Continue(())), _) | (_, Poll::Ready(Continue(()))) => {
                    self.watch.progress();
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks after a socket that does not tell by itself that it is gone.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        let half_closed = !self.reading || !matches!(self.writing, Writing::Open);
        let unread = self.reading && self.full;
        self.watch.poll(cx, self.socket.fd(), half_closed, unread)
    }

    fn moved(&self, count: &Cell<u64>, direction: Direction, len: usize) {
        count.set(count.get() + len as u64);
        self.tunnel.metrics().bytes(direction, len as u64);
        self.flow.charge(len);
    }

    /// From the socket to the tunnel.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if !self.reading && self.outgoing.is_empty() {
            return Poll::Pending;
        }
        let room = self.tunnel.poll_capacity(cx);
        // As long as it is, the socket is not read, and its end not seen.
        self.full = room.is_pending();
        let room = ready!(room);
        ready!(self.flow.poll_ready(cx));
        if self.outgoing.is_empty() {
            let socket = Pin::new(&mut *self.socket);
            match ready!(self.means.scratch.poll_read(cx, socket, room.min(PIECE))) {
                Ok(read) if read.is_empty() => {
                    self.reading = false;
                    if self.is_whole() {
                        self.tunnel.finish();
                    }
                    return Poll::Ready(self.after_reading());
                }
                Ok(read) => self.outgoing = read,
                Err(error) => return Poll::Ready(Break(RelayEnd::Socket(error))),
            }
        }
        let piece = self.outgoing.split_to(room.min(self.outgoing.len()));
        self.moved(&self.bytes.from_socket, self.means.outward, piece.len());
        match self.tunnel.write(piece) {
            Ok(()) => {}
            // The tunnel takes no more: what the socket sends is no longer wanted.
            Err(WriteError::Closed | WriteError::Gone(_)) => self.reading = false,
            Err(_) => {
                let end = RelayEnd::Tunnel(EndReason::LocalClosed);
                return Poll::Ready(Break(end));
            }
        }
        Poll::Ready(Continue(()))
    }

    /// Returns whether an end of file is the peer's end. Behind a write that failed by a reset it is
    /// not: the error was returned by the write, and what follows is only what the reset left. EPIPE
    /// means that the peer's end came before its reset (Linux, tcp_reset()).
    fn is_whole(&self) -> bool {
        match &self.writing {
            Writing::Broken(Some(error)) => error.kind() == io::ErrorKind::BrokenPipe,
            Writing::Broken(None) | Writing::Open | Writing::Shutting | Writing::Shut => true,
        }
    }

    /// A socket that can neither be read nor written is of no more use.
    fn after_reading(&mut self) -> Step {
        let Writing::Broken(error) = &mut self.writing else {
            return Continue(());
        };
        let error = error.take();
        let error = error.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
        Break(RelayEnd::Socket(error))
    }

    /// From the tunnel to the socket.
    fn poll_in(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        match self.writing {
            Writing::Open | Writing::Broken(_) => {}
            Writing::Shutting => return self.poll_shut(cx),
            Writing::Shut => return self.poll_ended(cx),
        }
        if self.incoming.is_empty() {
            match self.tunnel.poll_read(cx, PIECE) {
                Poll::Ready(TunnelRead::Data(data)) => {
                    self.incoming = data;
                    let timed = self.means.write_duration.is_some();
                    self.taken = timed.then(Instant::now);
                }
                Poll::Ready(TunnelRead::End) => {
                    self.writing = match self.writing {
                        Writing::Open | Writing::Shutting => Writing::Shutting,
                        Writing::Broken(_) | Writing::Shut => Writing::Shut,
                    };
                    return Poll::Ready(Continue(()));
                }
                Poll::Ready(TunnelRead::Ended(reason)) => {
                    return Poll::Ready(Break(RelayEnd::Tunnel(reason)));
                }
                Poll::Pending => return self.poll_flush(cx),
            }
        }
        if let Writing::Broken(_) = self.writing {
            self.drop_incoming();
            return Poll::Ready(Continue(()));
        }
        ready!(self.flow.poll_ready(cx));
        let written = Pin::new(&mut *self.socket).poll_write(cx, &self.incoming);
        if written.is_pending() {
            (self.stalled).get_or_insert_with(|| self.tunnel.metrics().stalled());
            // The tunnel may be over whether or not the socket moves again.
            return self.poll_ended(cx);
        }
        self.stalled = None;
        match ready!(written) {
            Ok(0) => self.broken(io::ErrorKind::WriteZero.into()),
            Ok(len) => {
                self.incoming.advance(len);
                self.moved(&self.bytes.to_socket, self.means.outward.other(), len);
                self.unflushed = true;
                self.tunnel.consumed(len);
                self.measure();
            }
            Err(error) => self.broken(error),
        }
        Poll::Ready(match self.reading {
            true => Continue(()),
            false => self.after_reading(),
        })
    }

    fn poll_ended(&self, cx: &Context<'_>) -> Poll<Step> {
        let reason = ready!(self.tunnel.poll_ended(cx));
        Poll::Ready(Break(RelayEnd::Tunnel(reason)))
    }

    /// The socket takes no more. What it has said, or still says, is worth hearing: the answer of
    /// a server that refuses an upload comes with its end.
    fn broken(&mut self, error: io::Error) {
        self.writing = Writing::Broken(Some(error));
        self.unflushed = false;
        self.drop_incoming();
    }

    fn drop_incoming(&mut self) {
        self.tunnel.consumed(self.incoming.len());
        self.incoming.clear();
    }

    fn measure(&self) {
        if let (true, Some(taken), Some(duration)) = (
            self.incoming.is_empty(),
            self.taken,
            &self.means.write_duration,
        ) {
            duration.observe_duration(taken.elapsed());
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if self.unflushed {
            match ready!(Pin::new(&mut *self.socket).poll_flush(cx)) {
                Ok(()) => self.unflushed = false,
                Err(error) => {
                    self.broken(error);
                    return Poll::Ready(Continue(()));
                }
            }
        }
        Poll::Pending
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let Poll::Ready(shut) = Pin::new(&mut *self.socket).poll_shutdown(cx) else {
            return self.poll_ended(cx);
        };
        if let Err(error) = shut {
            tracing::trace!(%error, "a socket that was to be told the end is gone");
        }
        self.writing = Writing::Shut;
        Poll::Ready(Continue(()))
    }
}

/// Bytes read at once, and sent as one packet: with its heads, of gRPC and HTTP/2, no more than
/// four records of TLS.
const PIECE: usize = (64 << 10) - 64;
/// Pieces in a row.
const TURN: usize = 16;
