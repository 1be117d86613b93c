//! Relays one tunnel to one socket until both directions are over.
//!
//! ```text
//!   socket ──read──▶ scratch ──split off──▶ Tunnel        Tunnel ──Bytes──▶ write ──▶ socket
//! ```
//!
//! What is read into the worker's scratch buffer is not copied again before it is encrypted. An
//! idle relay holds no buffer. The end of the socket's stream becomes the end of that direction,
//! and the other way round, where both ends of the link know half-close.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use knp_proto::{EndReason, WriteError};
use telemetry::metrics::Histogram;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::io::poll_read_buf;

use crate::link::{Tunnel, TunnelRead};
use crate::metrics::Held;
use crate::share::Share;

/// Memory that all relays of a thread read into.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch(Rc<RefCell<BytesMut>>);

/// What a relay works with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Means {
    pub(crate) scratch: Scratch,
    /// Of the thread, where several clusters share it.
    pub(crate) share: Option<Share>,
    /// How long the socket takes for a piece, in seconds.
    pub(crate) write_duration: Option<Histogram>,
}

impl Means {
    /// Waits for the cluster's turn to move `octets`. Cancel-safe.
    pub(crate) fn poll_turn(&self, cx: &Context<'_>, octets: usize) -> Poll<()> {
        match &self.share {
            Some(share) => share.poll_take(cx, octets),
            None => Poll::Ready(()),
        }
    }
}

/// What a relay did.
#[derive(Debug)]
pub(crate) struct Relayed {
    /// Octets from the socket.
    pub(crate) from_socket: u64,
    /// Octets to the socket.
    pub(crate) to_socket: u64,
    /// How it ended.
    pub(crate) end: RelayEnd,
}

/// How a relay ended.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    /// The socket failed.
    Socket(io::Error),
    /// The tunnel ended.
    Tunnel(EndReason),
}

/// Relays until both directions are over, or one side fails. `early` was read from the socket
/// before. Dropping the future closes the tunnel; the socket is the caller's.
pub(crate) async fn relay<S>(tunnel: Tunnel, socket: &mut S, early: Bytes, means: &Means) -> Relayed
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay {
        tunnel,
        socket,
        means,
        outgoing: early,
        reading: true,
        incoming: Bytes::new(),
        writing: Writing::Open,
        unflushed: false,
        taken: None,
        stalled: None,
        silence: None,
        from_socket: 0,
        to_socket: 0,
    };
    let end = poll_fn(|cx| relay.poll(cx)).await;
    Relayed {
        from_socket: relay.from_socket,
        to_socket: relay.to_socket,
        end,
    }
}

struct Relay<'a, S> {
    tunnel: Tunnel,
    socket: &'a mut S,
    means: &'a Means,
    /// Read from the socket, and not yet the tunnel's.
    outgoing: Bytes,
    /// Whether more may come from the socket.
    reading: bool,
    /// Read from the tunnel, and not yet the socket's.
    incoming: Bytes,
    writing: Writing,
    /// Whether the socket may hold octets that were written to it: TLS does.
    unflushed: bool,
    /// When `incoming` was read from the tunnel, where that is measured.
    taken: Option<Instant>,
    /// Held while the socket does not take what there is for it.
    stalled: Option<Held>,
    /// Runs while one direction is over.
    silence: Option<Pin<Box<Sleep>>>,
    from_socket: u64,
    to_socket: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// More may come from the tunnel.
    Open,
    /// All has come; the socket's writing half is to be shut down.
    Shutting,
    /// The socket has been told.
    Shut,
}

/// What one step of a direction came to.
enum Step {
    /// There may be more to do.
    Again,
    /// It is over.
    End(RelayEnd),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Relay<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        // Others get their turn after so many pieces, however fast this one is.
        for _ in 0..TURN {
            let (out, into) = (self.poll_out(cx), self.poll_in(cx));
            match (out, into) {
                (Poll::Ready(Step::End(end)), _) | (_, Poll::Ready(Step::End(end))) => {
                    return Poll::Ready(end);
                }
                (Poll::Pending, Poll::Pending) => {
                    return self.poll_silence(cx).map(RelayEnd::Tunnel);
                }
                (Poll::Ready(Step::Again), _) | (_, Poll::Ready(Step::Again)) => {
                    self.silence = None;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A socket that has ended one direction may be gone without a word about the other.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<EndReason> {
        if self.reading && self.writing == Writing::Open {
            return Poll::Pending;
        }
        let silence = (self.silence).get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED_LIMIT)));
        silence.as_mut().poll(cx).map(|()| EndReason::LingerTimeout)
    }

    /// From the socket to the tunnel.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if !self.reading && self.outgoing.is_empty() {
            return Poll::Pending;
        }
        let room = ready!(self.tunnel.poll_room(cx));
        if self.outgoing.is_empty() {
            let read = ready!(self.poll_fill(cx, room));
            match read {
                Ok(0) => {
                    self.reading = false;
                    self.tunnel.finish();
                    return Poll::Ready(Step::Again);
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Step::End(RelayEnd::Socket(error))),
            }
        }
        let len = room.min(self.outgoing.len());
        ready!(self.means.poll_turn(cx, len));
        let piece = self.outgoing.split_to(len);
        self.from_socket += piece.len() as u64;
        match self.tunnel.write(piece) {
            Ok(()) => {}
            // The tunnel takes no more: what the socket sends is no longer wanted.
            Err(WriteError::Closed | WriteError::Gone(_)) => self.reading = false,
            Err(_) => {
                let end = RelayEnd::Tunnel(EndReason::LocalClosed);
                return Poll::Ready(Step::End(end));
            }
        }
        Poll::Ready(Step::Again)
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<io::Result<usize>> {
        let mut scratch = self.means.scratch.0.borrow_mut();
        if scratch.capacity() < LEAST {
            // Takes the same memory again once nobody has a slice of it any more.
            scratch.reserve(CHUNK);
        }
        let mut limited = (&mut *scratch).limit(room.min(PIECE));
        let read = ready!(poll_read_buf(Pin::new(&mut *self.socket), cx, &mut limited));
        self.outgoing = scratch.split().freeze();
        Poll::Ready(read)
    }

    /// From the tunnel to the socket.
    fn poll_in(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        match self.writing {
            Writing::Open => {}
            Writing::Shutting => return self.poll_shut(cx),
            Writing::Shut => {
                let reason = ready!(self.tunnel.poll_ended(cx));
                return Poll::Ready(Step::End(RelayEnd::Tunnel(reason)));
            }
        }
        if self.incoming.is_empty() {
            match self.tunnel.poll_read(cx, PIECE) {
                Poll::Ready(TunnelRead::Data(data)) => {
                    self.incoming = data;
                    let timed = self.means.write_duration.is_some();
                    self.taken = timed.then(Instant::now);
                }
                Poll::Ready(TunnelRead::End) => {
                    self.writing = Writing::Shutting;
                    return Poll::Ready(Step::Again);
                }
                Poll::Ready(TunnelRead::Ended(reason)) => {
                    return Poll::Ready(Step::End(RelayEnd::Tunnel(reason)));
                }
                Poll::Pending => return self.poll_flush(cx),
            }
        }
        ready!(self.means.poll_turn(cx, self.incoming.len()));
        let written = Pin::new(&mut *self.socket).poll_write(cx, &self.incoming);
        if written.is_pending() {
            (self.stalled).get_or_insert_with(|| self.tunnel.stalled());
        } else {
            self.stalled = None;
        }
        let written = ready!(written);
        match written {
            Ok(0) => {
                let error = io::Error::from(io::ErrorKind::WriteZero);
                return Poll::Ready(Step::End(RelayEnd::Socket(error)));
            }
            Ok(len) => {
                self.incoming.advance(len);
                self.to_socket += len as u64;
                self.unflushed = true;
                self.tunnel.consumed(len);
                self.measure();
            }
            Err(error) => return Poll::Ready(Step::End(RelayEnd::Socket(error))),
        }
        Poll::Ready(Step::Again)
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
                Err(error) => return Poll::Ready(Step::End(RelayEnd::Socket(error))),
            }
        }
        Poll::Pending
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let shut = ready!(Pin::new(&mut *self.socket).poll_shutdown(cx));
        self.writing = Writing::Shut;
        Poll::Ready(match shut {
            Ok(()) => Step::Again,
            // It is closed already: as good as told.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Step::Again,
            Err(error) => Step::End(RelayEnd::Socket(error)),
        })
    }
}

/// Octets read at once, and sent as one packet.
const PIECE: usize = 64 << 10;
/// What the scratch buffer grows by: room for some pieces between allocations.
const CHUNK: usize = 256 << 10;
/// Less room than this is not worth a read.
const LEAST: usize = 16 << 10;
/// Pieces in a row.
const TURN: usize = 16;
/// Silence after which a connection that is closed in one direction is taken for closed: whoever
/// has gone altogether looks just like that.
const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(600);
