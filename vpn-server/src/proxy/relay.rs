//! Moves octets between an API server's TLS stream and a socket in the shoot until both directions
//! are over.
//!
//! ```text
//!   downstream ──read──▶ scratch ──write──▶ upstream
//!   downstream ◀─write── scratch ◀──read─── upstream
//! ```
//!
//! The end of one side's stream becomes the end of the other's; one idle timer spans both. The
//! scratch buffer is the thread's: an idle connection holds none, and what a socket does not take
//! is set aside. What is missing is never made to look like an end: a reset of one side becomes one
//! of the other, behind what was read before it, and the API server's stream ends without TLS's
//! closing alert. A destination is reset also when the relay is cut.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use connect::Stream;
use relay::{Direction, Meter, Outcome, RESET_LIMIT, Side, reset_on_close, reset_when_sent};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// Octets read at once: four records of TLS.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Reads in a row before other connections get their turn.
const TURN: usize = 8;

/// Memory that all relays of a thread read into.
#[derive(Clone, Default)]
pub(super) struct Scratch(Rc<RefCell<Vec<u8>>>);

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

/// Relays until both directions are over, or a side has failed and the other is set to be reset
/// when it is closed; returns why it ended.
pub(super) async fn relay<S: Stream>(
    downstream: &mut S,
    upstream: &mut TcpStream,
    early: Bytes,
    scratch: &Scratch,
    meter: &dyn Meter,
    idle: Option<Duration>,
) -> Outcome {
    let mut relay = Relay::new(downstream, upstream, early, scratch, meter, idle);
    let outcome = (&mut relay).await;
    let end_passed = relay.back.end_passed;
    drop(relay);
    let failed = match &outcome {
        Outcome::Reset { side, .. } => *side,
        Outcome::Closed | Outcome::IdleTimeout | Outcome::MaxAge => return outcome,
    };
    let socket = match failed {
        Side::Downstream => upstream.fd(),
        // It has everything, and what it sends on is reset by the kernel.
        Side::Upstream if end_passed => None,
        Side::Upstream => downstream.fd(),
    };
    if let Some(socket) = socket {
        // On the heap: relaying, which lasts, does not need it.
        Box::pin(reset_when_sent(&socket, RESET_LIMIT)).await;
    }
    outcome
}

/// Both directions. Dropped before they are over, it has the destination reset.
struct Relay<'a, S> {
    downstream: &'a mut S,
    upstream: &'a mut TcpStream,
    scratch: &'a Scratch,
    meter: &'a dyn Meter,
    out: Half,
    back: Half,
    idle: Option<Idle>,
    /// A side that can no longer be written to while the other direction goes on.
    failed: Option<(Side, io::Error)>,
    /// Nothing is missing.
    clean: bool,
}

impl<'a, S: Stream> Relay<'a, S> {
    /// `early` was read from `downstream` before; `idle` is the longest time without an octet.
    fn new(
        downstream: &'a mut S,
        upstream: &'a mut TcpStream,
        early: Bytes,
        scratch: &'a Scratch,
        meter: &'a dyn Meter,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            downstream,
            upstream,
            scratch,
            meter,
            out: Half::new(early),
            back: Half::new(Bytes::new()),
            idle: idle.map(Idle::new),
            failed: None,
            clean: false,
        }
    }

    /// Moves what can be moved; resolves once both directions are over.
    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut scratch = self.scratch.0.borrow_mut();
        scratch.resize(SCRATCH_BYTES, 0);
        let (down, up) = (&mut *self.downstream, &mut *self.upstream);
        let out = self.out.poll(cx, down, up, &mut scratch);
        if let Poll::Ready(Err(Failure::Write(error))) = &out {
            // The end that is read behind it is none, unless it had come before the reset.
            self.back.cut = error.kind() != io::ErrorKind::BrokenPipe;
        }
        let back = self.back.poll(cx, up, down, &mut scratch);
        drop(scratch);
        for (half, direction) in [
            (&mut self.out, Direction::Rx),
            (&mut self.back, Direction::Tx),
        ] {
            let moved = std::mem::take(&mut half.moved);
            if moved > 0 {
                self.meter.relayed(direction, moved, true);
                if let Some(idle) = &mut self.idle {
                    idle.last = Instant::now();
                }
            }
        }
        // An API server that is gone needs no answer. What a destination has said before it went
        // is still delivered.
        if let Poll::Ready(Err(Failure::Read(error))) = out {
            return reset(Side::Downstream, error);
        }
        if let Poll::Ready(Err(Failure::Write(error))) = back {
            return reset(Side::Downstream, error);
        }
        if let Poll::Ready(Err(Failure::Write(error))) = out {
            self.failed.get_or_insert((Side::Upstream, error));
            self.out.state = State::Done;
        }
        if let Poll::Ready(Err(Failure::Read(error))) = back {
            self.failed.get_or_insert((Side::Upstream, error));
            self.out.state = State::Done;
            self.back.state = State::Flushing;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if !(self.out.is_done() && self.back.is_done()) {
            return Poll::Pending;
        }
        match self.failed.take() {
            Some((side, error)) => reset(side, error),
            None => Poll::Ready(Outcome::Closed),
        }
    }
}

fn reset(side: Side, error: io::Error) -> Poll<Outcome> {
    Poll::Ready(Outcome::Reset { side, error })
}

impl<S: Stream> Future for Relay<'_, S> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        if let Poll::Ready(outcome) = this.poll_both(cx) {
            this.clean = matches!(outcome, Outcome::Closed);
            return Poll::Ready(outcome);
        }
        match &mut this.idle {
            Some(idle) => idle.poll(cx).map(|()| Outcome::IdleTimeout),
            None => Poll::Pending,
        }
    }
}

impl<S> Drop for Relay<'_, S> {
    fn drop(&mut self) {
        if !self.clean {
            reset_on_close(self.upstream);
        }
    }
}

/// One direction.
struct Half {
    /// Read and not yet written.
    held: Bytes,
    state: State,
    /// An end of what is read is none: something is missing.
    cut: bool,
    /// The end was passed on to the writer.
    end_passed: bool,
    /// The writer may hold octets that were written to it: TLS does.
    unflushed: bool,
    /// Octets written since this was looked at last.
    moved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Over.
    Done,
    /// Nothing more comes, and that is no end: what is there goes out.
    Flushing,
    /// More may come.
    Open,
    /// All has come; the writer is to be told.
    Shutting,
}

enum Failure {
    Read(io::Error),
    Write(io::Error),
}

impl Half {
    fn new(held: Bytes) -> Self {
        Self {
            held,
            state: State::Open,
            cut: false,
            end_passed: false,
            unflushed: false,
            moved: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..TURN {
            match self.state {
                State::Done => return Poll::Ready(Ok(())),
                State::Open => ready!(self.poll_piece(cx, reader, writer, scratch))?,
                State::Flushing => {
                    let flushed = ready!(Pin::new(&mut *writer).poll_flush(cx));
                    self.state = State::Done;
                    flushed.map_err(Failure::Write)?;
                }
                State::Shutting => {
                    let shut = ready!(Pin::new(&mut *writer).poll_shutdown(cx));
                    self.state = State::Done;
                    self.end_passed = true;
                    shut.map_err(Failure::Write)?;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what was set aside, or reads and writes a piece.
    fn poll_piece<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        scratch: &mut [u8],
    ) -> Poll<Result<(), Failure>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut *writer).poll_write(cx, &self.held));
            let written = self.note(written)?;
            self.held.advance(written);
        }
        let mut piece = ReadBuf::new(scratch);
        let read = Pin::new(reader).poll_read(cx, &mut piece);
        if read.is_pending() && self.unflushed {
            ready!(Pin::new(&mut *writer).poll_flush(cx)).map_err(Failure::Write)?;
            self.unflushed = false;
        }
        ready!(read).map_err(Failure::Read)?;
        if piece.filled().is_empty() {
            self.state = match self.cut {
                true => State::Flushing,
                false => State::Shutting,
            };
            return Poll::Ready(Ok(()));
        }
        let mut rest = piece.filled();
        while !rest.is_empty() {
            let Poll::Ready(written) = Pin::new(&mut *writer).poll_write(cx, rest) else {
                self.held = Bytes::copy_from_slice(rest);
                return Poll::Pending;
            };
            let written = self.note(written)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Poll::Ready(Ok(()))
    }

    fn note(&mut self, written: io::Result<usize>) -> Result<usize, Failure> {
        match written {
            Ok(0) => Err(Failure::Write(io::ErrorKind::WriteZero.into())),
            Ok(written) => {
                self.moved += written as u64;
                self.unflushed = true;
                Ok(written)
            }
            Err(error) => Err(Failure::Write(error)),
        }
    }
}

/// The timer of both directions.
struct Idle {
    limit: Duration,
    last: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            last: Instant::now(),
            timer: Box::pin(sleep(limit)),
        }
    }

    /// Resolves when nothing has moved for too long. The timer is only moved when it fires.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let due = self.last + self.limit;
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests;
